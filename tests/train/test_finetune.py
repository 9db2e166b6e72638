"""Each head learns a task from files, end to end; and training starts from what it is told."""

import json

import jax
import numpy as np
import pytest

from configs import classify, common
from jtx import build
from jtx.data.tokenizers import kinds
from jtx.errors import ConfigError, DataError
from jtx.evals.run import evaluate, make_evaluators
from jtx.models.features import FeatureConfig
from jtx.models.text_head import HeadConfig
from jtx.nn.positions import Learned
from jtx.nn.shapes import shapes_of
from jtx.parallel.sharding import unbox
from jtx.saved import checkpoint, pretrained
from jtx.saved import workdir as workdirs
from jtx.saved.folder import open_saved
from jtx.saved.workdir import load_run
from jtx.train import loop, phases
from jtx.train.program import Program
from jtx.train.states import modules
from tests.helpers import encoder, logged, losses, one_fast_row
from tests.models.test_encoder import BLOCK, batch_of

NAMES = ["Ann", "Bob", "Eve", "Kim", "Leo", "Max", "Pia", "Tom"]
PLACES = ["Bonn", "Lima", "Oslo", "Rome"]
MODEL = dict(stack=dict(width=32, num_layers=1, position=dict(max_length=64), block=dict(
    attention=dict(num_heads=2, dropout=0.0), ffn=dict(dim=64), dropout=0.0)))


def sentences(number, seed):
  """Words: names come before a verb, a town after "in", and what follows is of any length."""
  rng = np.random.default_rng(seed)
  for _ in range(number):
    a, b = rng.choice(NAMES, 2)
    rest = ["and", "left", "it", "again"][:rng.integers(5)]
    yield [a, rng.choice(["met", "saw"]), b, "in", rng.choice(PLACES), ".", *rest]


def write_files(folder):
  """The same sentences as classes, tags, questions and choices."""
  for split, seed in (("train", 0), ("val", 1)):
    rows = list(sentences(200, seed))
    text = lambda name, lines: (folder / f"{split}.{name}").write_text("\n".join(lines) + "\n")
    text("tsv", [f"{' '.join(w)}\t{int(w[4] in PLACES[:2])}" for w in rows])
    text("conll", ["\n".join(f"{x}\t{'B-town' if x in PLACES else 'O'}" for x in w) + "\n"
                   for w in rows])
    text("choices", ["\t".join([" ".join(w[:4]), *(PLACES[0], w[0])[::1 - 2 * (i % 2)], str(i % 2)])
                     for i, w in enumerate(rows)])
    paragraphs = []
    for i, w in enumerate(rows):
      context = " ".join(w)
      answer = {"text": w[4], "answer_start": context.index(w[4])}
      paragraphs.append({"context": context, "qas": [
          {"id": f"{split}{i}", "question": "Where ?", "answers": [answer]}]})
    (folder / f"{split}.json").write_text(json.dumps(
        {"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}))


TASKS = {
    "classify": ("tsv:{}.tsv", HeadConfig(task="classes"),
                 (("encode", dict(texts=("0",), max_length=16)), ("label", dict(key="1"))),
                 ("text",), "classification", "accuracy"),
    "tag": ("conll:{}.conll", HeadConfig(task="tags", pool="none"),
            (("encode_words", dict(max_length=16)),), ("text",), "tagging", "f1"),
    "span": ("squad:{}.json", HeadConfig(task="span", pool="none"),
             (("encode_windows", dict(max_length=14, stride=2, max_question=6)),), ("text",),
             "answers",
             "exact_match"),
    "multiple_choice": ("tsv:{}.choices", HeadConfig(task="choice"),
                        (("encode_choices", dict(prompt="0", choices=("1", "2"), label="3",
                                                 max_length=16)),),
                        ("choice_0", "choice_1"), "loss", "accuracy"),
}


def config_for(task, folder, layout={}, **edits):
  source, head, ops, fields, evaluator, _ = TASKS[task]
  c = common.get_config()
  c.model = common.model("encoder", **MODEL)
  common.apply(c, {"model.head": dict(task=head.task, pool=head.pool, dropout=0.0)})
  c.objective = common.objective(task)
  c.tokenizer.kind = common.tokenizer("wordpiece", vocab_size=100, min_frequency=1)
  c.data.path, c.data.train = str(folder), (source.format("train"),)
  c.data.ops = (*(common.op(name, **kw) for name, kw in ops),
                common.op("pad", fields=fields, lengths=(16,) * len(fields), **layout))
  c.optim.lr, c.optim.schedule = 3e-3, common.schedule("linear", warmup=5)
  c.batch_size, c.steps, c.log_every, c.checkpoint.every = 16, 80, 20, 80
  extra = {"entities": True} if task == "tag" else {}
  c.evals.val = common.evaluator(evaluator, source=(source.format("val"),), every=0, **extra)
  return common.apply(c, edits).lock()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp("texts")
  write_files(folder)
  return folder


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_a_head_learns_its_task_and_is_evaluated_again_from_its_workdir(task, folder, tmp_path):
  weighed = {"objective.class_weights": (0.25, 8.0)} if task == "classify" else {}
  config = config_for(task, folder, **weighed)
  results = loop.run(config, str(tmp_path), jax.devices()[:1])
  if weighed:  # what a run counts are texts, whatever they weigh
    assert [line["seen/examples"] for line in logged(tmp_path)] == [320, 640, 960, 1280]
  score = f"val/{TASKS[task][-1]}"
  assert results[score] > 0.97
  loaded, params, step = load_run(str(tmp_path))
  again = evaluate(loaded, params, make_evaluators(loaded.config), step,
                         str(tmp_path))
  assert again[score] == results[score]


@pytest.mark.parametrize("task, mesh", [
    *(pytest.param(task, {}, marks=pytest.mark.slow) for task in TASKS if task != "tag"),
    ("tag", {}), pytest.param("classify", {"data": 2}, marks=pytest.mark.slow)])
def test_several_examples_a_row_train_as_one_a_row(task, mesh, folder, tmp_path):
  """The same batches, losses, updates and score; rows are longer than there are positions."""
  edits = {"epochs": 1.0, "log_every": 1} | {f"mesh.{axis}": n for axis, n in mesh.items()}
  runs = {}
  for name, size, per_row in (("alone", 16, 1), ("together", 2, 8)):
    layout = dict(trim=True, per_doubling=4, max_segments=per_row)
    config = config_for(task, folder, layout, batch_size=size, **edits)
    results = loop.run(config, str(tmp_path / name), jax.devices()[:mesh.get("data", 1)])
    runs[name] = losses(tmp_path / name), results
  (alone, scores), (together, of_rows) = runs.values()
  assert len(alone) == len(together) >= 200 // 16
  np.testing.assert_allclose(together, alone, rtol=2e-5)
  assert alone[-1][1] < alone[0][1]
  np.testing.assert_allclose(of_rows[f"val/{TASKS[task][-1]}"], scores[f"val/{TASKS[task][-1]}"])


@pytest.mark.slow
def test_tags_come_from_the_training_data_and_stay_with_the_checkpoint(folder, tmp_path):
  config = config_for("tag", folder, steps=1)
  loop.run(config, str(tmp_path), jax.devices()[:1])
  meta = checkpoint.Checkpointer(str(tmp_path / "checkpoints")).read_meta()
  assert meta["labels"] == ["O", "B-town"]
  loaded, _, _ = load_run(str(tmp_path))
  assert loaded.data.labels == ("O", "B-town") and loaded.model.head.outputs == 2
  assert open_saved(str(tmp_path)).labels() == ("O", "B-town")


@pytest.mark.parametrize("epochs, batch_size, steps", [(2.0, 16, 25), (0.5, 7, 15), (0.001, 16, 1)])
def test_epochs_are_steps(epochs, batch_size, steps, folder, caplog):
  for per_row in (1, batch_size):
    config = config_for("classify", folder, {"max_segments": per_row}, epochs=epochs,
                        steps=100_000, batch_size=batch_size // per_row)
    data = workdirs.open_data(config, "nowhere", checkpoint.Checkpointer("nowhere/checkpoints"))
    assert phases.with_steps(config, data).steps == steps
    assert not caplog.records
  phases.with_steps(config_for("classify", folder, epochs=epochs, steps=9999), data)
  assert f"config.steps=9999 has no effect beside config.epochs={epochs:g}" in caplog.text


def test_a_head_of_another_number_of_classes_than_the_data(folder):
  config = config_for("classify", folder, **{"model.head.outputs": 3})
  data = workdirs.open_data(config, "nowhere", checkpoint.Checkpointer("nowhere/checkpoints"))
  with pytest.raises(ConfigError, match="config.model.head.outputs=3 does not fit the data, whose"
                     " outputs is 2"):
    build.make_model(config, data.info)


@pytest.fixture(scope="module")
def published(tmp_path_factory):
  """A Hugging Face folder of a small BERT with a pooler."""
  texts = (" ".join(w) for w in sentences(200, 0))
  tokenizer = kinds.wordpiece(texts, vocab_size=100, min_frequency=1)
  model = encoder(vocab_size=tokenizer.vocab_size, width=24, num_layers=2, block=BLOCK,
                  position=Learned(64), head=HeadConfig(task="embedding", transform="tanh"))
  shapes = unbox(shapes_of(model.init, jax.random.key(0), batch_of((1, 2))))["params"]
  rng = np.random.default_rng(5)
  params = jax.tree.map(lambda x: rng.normal(0, 0.1, x.shape).astype(np.float32), shapes)
  folder = str(tmp_path_factory.mktemp("published") / "bert")
  pretrained.save_pretrained(folder, model, params, tokenizer)
  return folder, params


def from_published(path, folder, **edits):
  block = dict(attention=dict(num_heads=3), ffn=dict(dim=20), norm=dict(eps=1e-5))
  model = common.model("encoder", stack=dict(width=24, num_layers=2, block=block,
                                             position=dict(max_length=64)),
                       head=dict(task="classes", transform="tanh"))
  return config_for("classify", folder, **{
      "model": model, "tokenizer.kind": common.tokenizer("file", path=path), "init_from": path,
      "optim.lr": 0.0, "steps": 1, **edits})


@pytest.mark.slow
def test_training_starts_from_the_parameters_of_a_folder(published, folder, tmp_path):
  path, params = published
  config = from_published(path, folder, **{"optim.ema": 0.9})
  loop.run(config, str(tmp_path), jax.devices()[:1])
  checkpoints = checkpoint.Checkpointer(str(tmp_path / "checkpoints"))
  state = {key: jax.tree.map(np.asarray, value) for key, value in restored(checkpoints).items()}
  for key in ("params", "ema"):
    head = state[key].pop("task_head")
    np.testing.assert_allclose(head["transform"]["dense"]["kernel"],  # an average may be rounded
                               params["task_head"]["transform"]["dense"]["kernel"], rtol=1e-6)
    assert head["output"]["kernel"].std() > 0  # fresh
    want = {k: v for k, v in params.items() if k != "task_head"}
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), state[key], want)


def test_features_are_those_of_a_published_encoder(published):
  path, params = published
  model = encoder(vocab_size=params["embed"]["embedding"].shape[0], width=24, num_layers=2,
                  block=BLOCK, position=Learned(64), features=FeatureConfig((0, -1)),
                  head=HeadConfig(task="classes", outputs=2))
  loaded, missing = open_saved(path).params_for(model)
  assert {name.split("/")[0] for name in missing} == {"extractor", "task_head"}
  jax.tree.map(np.testing.assert_array_equal, loaded,
               {k: v for k, v in params.items() if k != "task_head"})


def restored(checkpoints):
  """Parameters and their average, of the newest checkpoint."""
  from flax.traverse_util import unflatten_dict
  from orbax import checkpoint as ocp
  step = checkpoints.latest_step()
  result = {}
  for key in ("params", "ema"):
    flat = ocp.StandardCheckpointer().restore(checkpoints.directory / str(step) / key)
    result[key] = unflatten_dict({k.removeprefix(f"{key}/"): x for k, x in flat.items()}, sep="/")
  return result


def test_a_model_that_is_not_the_folders_says_which_field(published, folder, tmp_path):
  path, _ = published
  config = from_published(path, folder, **{"model.stack.num_layers": 3})
  with pytest.raises(ConfigError, match="num_layers"):
    loop.run(config, str(tmp_path), jax.devices()[:1])
  assert not (tmp_path / "config.json").exists()


def test_a_tokenizer_that_is_not_the_models(published, folder, tmp_path):
  path, _ = published
  config = from_published(path, folder, **{"model.vocab_size": 7})
  with pytest.raises(ConfigError, match="config.model.vocab_size=7 does not fit the data"):
    loop.run(config, str(tmp_path), jax.devices()[:1])


def test_texts_longer_than_the_positions(folder, tmp_path):
  config = config_for("classify", folder, **{"model.stack.position.max_length": 15})
  with pytest.raises(ConfigError, match="texts of 'text' may have 16 tokens, and the model has 15"
                     " positions"):
    loop.run(config, str(tmp_path), jax.devices()[:1])
  assert not (tmp_path / "config.json").exists()


@pytest.mark.slow
def test_features_leave_the_encoder_as_it_was(folder, tmp_path):
  config = config_for("tag", folder, steps=3, **{
      "model.features.layers": (0, -1), "model.features.combine": "sum",
      "optim.optimizer.weight_decay": 0.1})
  common.apply(config.unlock(), {"optim.lr_mults": ((r"^(?!extractor|task_head)", 0.0),)})
  loop.run(config.lock(), str(tmp_path), jax.devices()[:1])
  task, trained, _ = load_run(str(tmp_path))
  program = Program(task.config, task.model, task.objective,
                    example=task.data.example_batch(16), mesh=task.mesh)
  fresh = program.init().params
  for name in fresh:
    same = all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves,
                                                         (fresh[name], trained[name]))))
    assert same == (name not in ("extractor", "task_head")), name
  assert not np.array_equal(trained["extractor"]["weights"], np.zeros(2))


@pytest.mark.parametrize("lines, message", one_fast_row(
    ("a text\t0\n" * 30 + "another\t2\n", "tsv:dev.tsv: line 31: '1' is '2', but in the data of the"
                                           " run it is a label, one of 0, 1"),
    (None, "dev.tsv: No such file or directory"),
    ("", "tsv:dev.tsv: empty split"),
    ("a text\n", "example 0 has no '1'"),
))
def test_data_of_an_evaluation_is_looked_at_before_training(lines, message, tmp_path):
  write_files(tmp_path)
  if lines is not None:
    (tmp_path / "dev.tsv").write_text(lines)
  c = classify.get_config("train=train.tsv")
  common.apply(c, {"data.path": str(tmp_path), "model.stack": common.TINY_STACK})
  with pytest.raises(DataError) as e:
    loop.run(c.lock(), str(tmp_path / "run"), jax.devices()[:1])
  assert str(e.value).startswith("config.evals.dev: ") and message in str(e.value)
  assert not (tmp_path / "run" / "config.json").exists()


@pytest.mark.parametrize("arg, error, message", [
    ("scores=acuracy", ConfigError, "scores=('acuracy',) has 'acuracy'; did you mean 'accuracy'?"),
    ("dev=gone.tsv", DataError, "gone.tsv: No such file or directory"),
])
def test_evaluations_are_looked_at_before_data_is_prepared(arg, error, message, tmp_path,
                                                           monkeypatch):
  write_files(tmp_path)
  monkeypatch.delattr(loop.workdirs, "open_data")
  c = classify.get_config(f"train=train.tsv,{arg}")
  c.data.path = str(tmp_path)
  with pytest.raises(error) as e:
    loop.run(c.lock(), str(tmp_path / "run"), jax.devices()[:1])
  assert message in str(e.value)


def test_fresh_parameters_are_told_by_modules():
  every = ("embed/embedding", "head/bias", "head/kernel", "encoder/norm/scale", "encoder/norm/bias")
  assert modules({"head/bias", "head/kernel", "encoder/norm/bias"}, every) == [
      "encoder/norm/bias", "head (2)"]
  assert modules(set(), every) == []
  layers = [f"decoder/layers/{part}/{name}" for part in ("cross", "ffn") for name in "abc"]
  assert modules(layers[:3], [*every, *layers]) == ["decoder/layers/cross (3)"]
  assert modules(layers, [*every, *layers]) == ["decoder (6)"]
  spread = [f"decoder/layers/{i}/scale" for i in range(20)]
  others = [f"decoder/layers/{i}/bias" for i in range(20)]
  assert modules([*spread, "head/bias"], [*every, *spread, *others]) == [
      "decoder (20 of 40)", "head (1 of 2)"]
