"""Evaluators of classes and labels on splits of texts and images, on one device and on several."""

import json

import jax
from ml_collections import ConfigDict
import numpy as np
import pytest

from configs import classify, common, packed_vit, vit
from jtx import build
from jtx.data.dataset import Dataset
from jtx.errors import ConfigError
from jtx.evals.images import values
from jtx.evals.run import evaluate, make_evaluators
from jtx.evals.task import Task
from jtx.inference.images import ImagePredictor
from jtx.objectives.multi_label import MultiLabel
from jtx.parallel import sharding
from jtx.saved import checkpoint
from jtx.saved.workdir import load_run
from jtx.train import loop
from tests.data.image_files import png, write_tree

WORDS = ["art", "law", "war"]
ROWS = [["art"], [], ["law", "war"], ["art", "law"], ["art"], ["war"], ["art", "law", "war"]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp("topics")
  lines = [json.dumps({"text": f"about {' and '.join(row)} .", "topics": row}) for row in ROWS]
  for name, number in (("train", 4), ("dev", 1)):
    (folder / f"{name}.jsonl").write_text("\n".join(lines * number) + "\n")
  return folder


def text_config(folder, **edits):
  c = classify.get_config("tiny,multi,weights=balanced")
  c.data.path, c.data.train = str(folder), ("jsonl:train.jsonl",)
  c.data.ops[1].key, c.data.ops[1].names = "topics", ()
  c.evals = ConfigDict({
      "dev": common.evaluator("multi_label", source=("jsonl:dev.jsonl",), report=True, samples=7,
                              scores=("accuracy", "micro_f1", "macro_auc")),
      "all": common.evaluator("loss", source=("jsonl:dev.jsonl",), every=0)})
  return common.apply(c, {"batch_size": 4} | edits).lock()


def task_of(config, devices):
  data = Dataset(config.data, config.tokenizer)
  model, objective = build.make_model(config, data.info, data.label_shares)
  mesh = sharding.make_mesh(config.mesh, jax.devices()[:devices])
  example = data.example_batch(config.batch_size)
  params = sharding.unbox(build.init_params(model, objective, example, jax.random.key(0)))
  return Task(config, model, objective, data=data, mesh=mesh), params


def test_labels_of_texts_on_an_uneven_split_of_two_devices(folder, tmp_path):
  config = text_config(folder)
  task, params = task_of(config, 2)
  assert task.data.labels == tuple(WORDS) and task.model.head.outputs == 3
  # art 4, law 3 and war 3 of 7.
  np.testing.assert_allclose(task.objective.pos_weight, (3 / 4, 4 / 3, 4 / 3))
  evaluators = make_evaluators(config, task.model, task.data.example_batch(4))
  results = evaluate(task, params, evaluators, 0, str(tmp_path))

  examples = task.data.encoded(("jsonl:dev.jsonl",))
  gold = np.array([e["label"] for e in examples])
  np.testing.assert_array_equal(gold, [[word in row for word in WORDS] for row in ROWS])
  batch, = task.data.eval_batches(("jsonl:dev.jsonl",), 7, range(7))  # all at once
  scores = task.model.apply({"params": params}, batch, method="predict")[:, 0]
  p = 1 / (1 + np.exp(-np.array(scores, np.float64)))
  w = np.array(task.objective.pos_weight)
  loss = -np.where(gold, w * np.log(p), np.log(1 - p)).mean()
  assert results["all/loss"] == pytest.approx(loss, rel=1e-5)
  right = (p >= 0.5) == gold
  assert results["dev/accuracy"] == results["all/accuracy"] == right.all(1).mean()
  hits = ((p >= 0.5) & gold).sum()
  assert results["dev/micro_f1"] == pytest.approx(2 * hits / ((p >= 0.5).sum() + gold.sum()))
  told = {name for name, x in results.items() if name.startswith("dev/") and isinstance(x, float)}
  assert told == {f"dev/{name}" for name in evaluators["dev"].numbers}
  assert results["dev/report"]["law"]["support"] == 3 and results["dev/examples"] == 7


def test_classes_of_images_have_scores_a_report_and_a_picture(tmp_path):
  config = vit.get_config("tiny,scores=accuracy+macro_f1")
  assert config.evals.classes.report and set(config.evals) == {"val", "classes"}
  config.evals.val.source = config.evals.classes.source = ("embedded:digits:test",)
  config.objective.class_weights = ("balanced",)
  config.evals.classes.samples = 1
  config.batch_size = 16
  task, params = task_of(config.lock(), 2)
  np.testing.assert_allclose(np.array(task.data.label_shares()) * 1437, np.bincount(
      task.data.sources(task.config.data.train)[0].labels))
  assert task.objective.class_weights[0] == pytest.approx(0.1 / task.data.label_shares()[0])
  evaluators = make_evaluators(config, task.model, task.data.example_batch(16))
  results = evaluate(task, params, evaluators, 0, str(tmp_path))
  assert results["classes/accuracy"] == results["val/accuracy"]
  assert results["classes/examples"] == 360
  assert sum(map(sum, (r.values() for r in results["classes/confusion"].values()))) == 360
  assert (tmp_path / "classes_confusion.png").stat().st_size > 5000
  json.dumps(results)


def test_labels_of_images(tmp_path):
  """Digits that are also even or odd, of which images have two labels each."""
  from jtx.data.sources.images import digits
  images, labels, _ = digits()
  several = np.stack([labels % 2 == 0, labels > 4], 1).astype(int)
  np.savez(tmp_path / "digits.npz", images=images[:37], labels=several[:37])
  config = vit.get_config("tiny,multi")
  config.data.path, config.data.train = str(tmp_path), ("npz:digits.npz",)
  config.evals.val.source, config.batch_size = ("npz:digits.npz",), 16
  config.objective.pos_weight = ("balanced",)
  task, params = task_of(config.lock(), 2)
  shares = several[:37].mean(0)
  np.testing.assert_allclose(task.objective.pos_weight, (1 - shares) / shares)
  batch = task.data.train_stream(0, 16, range(16)).batch(0)
  np.testing.assert_array_equal(batch["label"][:, 0], several[batch["ids"][:, 0]])
  evaluators = make_evaluators(config, task.model, task.data.example_batch(16))
  results = evaluate(task, params, evaluators, 0, str(tmp_path))
  scores = task.model.apply({"params": params}, {"image": images[:37, :, :, None]},
                            method="predict")[:, 0]
  assert results["val/accuracy"] == ((scores >= 0) == several[:37]).all(1).mean()
  assert results["val/examples"] == 37
  assert [row["support"] for row in results["val/report"].values()] == several[:37].sum(0).tolist()


def test_images_that_share_rows_are_in_the_order_of_the_split(tmp_path):
  """Of any shape, on two devices; each has the scores that it has alone."""
  sizes = [(16, 12), (4, 5), (20, 4), (7, 7), (3, 9), (14, 14), (5, 5)]
  write_tree(tmp_path, **{name: {f"{i}.png": png(30 * i, size) for i, size in enumerate(sizes)
                                 if i % 2 == c} for c, name in enumerate(("even", "odd"))})
  config = packed_vit.get_config("tiny")
  config.data.path, config.data.train = str(tmp_path), ("images:.",)
  task, params = task_of(config.lock(), 2)
  params = jax.tree.map(lambda x: x + 0.3 * np.cos(np.arange(x.size)).reshape(x.shape), params)
  scores, labels = values(task, params, ("images:.",), "predict")
  assert labels.tolist() == [0] * 4 + [1] * 3
  first, layout = task.data.recipe.augment
  alone = ImagePredictor(task.model, params, [*first.evaluated, *layout.evaluated])
  files = [png(30 * i, sizes[i]) for i in (0, 2, 4, 6, 1, 3, 5)]
  np.testing.assert_allclose(scores, np.concatenate(list(alone(files))), atol=2e-5)
  assert np.abs(scores[1:] - scores[:-1]).max(1).min() > 1e-3


def test_f1_of_more_than_two_classes_is_refused_before_training(folder):
  config = vit.get_config("tiny,scores=f1").lock()
  model = build.make_model(config, {"head.outputs": 10})[0]
  with pytest.raises(ConfigError, match="'f1', which is of the positive class of two, and there are"
                     " 10 classes; an average over them is macro_f1"):
    make_evaluators(config, model)


def test_a_head_for_classes_has_no_labels(folder):
  config = text_config(folder, **{"model.head.task": "classes"})
  with pytest.raises(ConfigError, match="objective.name='multi_label' needs a model with the head"
                     " 'multi_label'.*set config.model.head.task='multi_label'"):
    build.make_model(config, Dataset(config.data, config.tokenizer).info)


@pytest.mark.slow
def test_labels_are_learned_and_balanced_weights_stay_with_the_checkpoint(folder, tmp_path):
  config = text_config(folder, **{"steps": 500, "optim.lr": 3e-3, "checkpoint.every": 500,
                                  "log_every": 100, "model.head.pool": "mean"})
  results = loop.run(config, str(tmp_path), jax.devices()[:2])
  assert results["dev/accuracy"] > 0.8
  shares = checkpoint.Checkpointer(str(tmp_path / "checkpoints")).read_meta()["shares"]
  assert shares == [4 / 7, 3 / 7, 3 / 7]
  (folder / "train.jsonl").rename(folder / "elsewhere.jsonl")  # an evaluation does not need it
  try:
    task, params, step = load_run(str(tmp_path))
    assert isinstance(task.objective, MultiLabel)
    assert task.objective.pos_weight[0] == pytest.approx(0.75)
    again = evaluate(task, params, make_evaluators(task.config, task.model), step, str(tmp_path))
    assert again["all/loss"] == pytest.approx(results["all/loss"], rel=1e-5)
  finally:
    (folder / "elsewhere.jsonl").rename(folder / "train.jsonl")
