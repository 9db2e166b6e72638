"""Fine-tuning of decoders, end to end: new tokens, both orders, next tokens' loss, export."""

import jax
import numpy as np
import pytest

import jtx
from configs import classify, common, gpt
from jtx.errors import ConfigError
from jtx.inference import tasks
from jtx.nn import lora
from jtx.saved import pretrained
from jtx.saved.folder import open_saved
from jtx.saved.trained import trained
from jtx.train import loop
from tests.helpers import logged, run_command

DROPOUT = {"model.stack.block.dropout": 0.0, "model.stack.block.attention.dropout": 0.0}


@pytest.fixture(scope="module")
def pretrained_folder(tmp_path_factory):
  """The workdir of a GPT-2 that was trained for a step."""
  folder = str(tmp_path_factory.mktemp("gpt") / "run")
  config = common.apply(gpt.get_config("gpt2,tiny"), {
      "steps": 1, "model.stack.block.ffn.dim": 128, "evals": {}})
  loop.run(config.lock(), folder, jax.devices()[:1])
  return folder


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
  """Pairs of texts, and whether they have their first letter in common."""
  folder = tmp_path_factory.mktemp("pairs")
  rng = np.random.default_rng(0)
  for split, number in (("train", 64), ("dev", 16)):
    words = rng.choice(["apple", "acorn", "bread", "birch"], (number, 2))
    (folder / f"{split}.tsv").write_text(
        "".join(f"{a}\t{b}\t{int(a[0] == b[0])}\n" for a, b in words))
  return str(folder)


def config_for(init, path, arg="", **edits):
  config = classify.get_config(f"init={init},second=1,label=2,max_length=24,batch=8{arg}")
  common.apply(config, {"data.path": path, "epochs": None, "steps": 4, "log_every": 1,
                        "checkpoint.every": 2, "optim.lr": 1e-3, **DROPOUT, **edits})
  return config.lock()


@pytest.mark.slow
def test_new_tokens_get_fresh_rows_and_all_else_is_the_folders(pretrained_folder, pairs, tmp_path):
  config = config_for(pretrained_folder, pairs, ",lm=0.5", **{"optim.lr": 0.0, "steps": 1})
  loop.run(config, str(tmp_path / "run"), jax.devices()[:1])
  model, params = jtx.load_pretrained(str(tmp_path / "run"))
  before, theirs = jtx.load_pretrained(pretrained_folder)
  assert model.vocab_size == before.vocab_size + 3 and model.lm
  rows = np.asarray(params["embed"]["embedding"])
  np.testing.assert_array_equal(rows[:-3], theirs["embed"]["embedding"])
  assert 0.01 < rows[-3:].std() < 0.03 and np.ptp(rows[-3:].sum(-1)) > 0.01
  jax.tree.map(np.testing.assert_array_equal, params["decoder"], theirs["decoder"])


@pytest.mark.slow
def test_only_as_many_new_tokens_as_the_config_adds(pretrained_folder):
  saved = open_saved(pretrained_folder)
  model = saved.load()[0]
  for new, size in ((0, 1), (3, 4), (3, -1)):
    with pytest.raises(ConfigError, match="model.vocab_size=.* does not fit the weights of"):
      saved.params_for(model.clone(vocab_size=model.vocab_size + size), new)
  assert saved.params_for(model.clone(vocab_size=model.vocab_size + 3), 3)[1] == []


@pytest.mark.slow
def test_a_similarity_is_the_same_in_either_order_and_stays_ours(
    pretrained_folder, pairs, tmp_path):
  config = config_for(pretrained_folder, pairs, ",both_orders,lm=0.5")
  results = loop.run(config, str(tmp_path / "run"), jax.devices()[:1])
  assert results["dev/examples"] == 16
  lines = logged(tmp_path / "run")
  assert all(line["lm_loss"] > 3 and line["loss"] < 2 for line in lines)
  saved = open_saved(str(tmp_path / "run"))
  model, params = saved.load()
  ready = trained(saved, model, params)
  a, b = tasks.predict(ready, [{"text": "apple", "second": "bread"},
                               {"text": "bread", "second": "apple"}])
  assert a == b
  classifier = jtx.Classifier(str(tmp_path / "run"))
  assert classifier(["apple"], ["bread"])[0].scores == a["scores"]
  with pytest.raises(Exception, match="compares two texts, and there is no second one"):
    classifier(["apple"])
  with pytest.raises(ConfigError, match="gpt2 has head.both_orders=False in GPT2ForSequence"):
    pretrained.save_pretrained(str(tmp_path / "hf"), model, params, like=saved)


@pytest.mark.slow
def test_a_classifier_that_learnt_next_tokens_is_exported_without_their_scores(
    pretrained_folder, pairs, tmp_path):
  run, folder = str(tmp_path / "run"), str(tmp_path / "hf")
  loop.run(config_for(pretrained_folder, pairs, ",lm=0.5"), run, jax.devices()[:1])
  run_command("convert", f"--workdir={run}", f"--to_hf={folder}")
  model, _ = jtx.load_pretrained(folder)
  assert model.heads == {"classes"} and model.head.pool == "last"
  texts = ["apple", "acorn"], ["bread <extract>", "apple"]
  ours, theirs = (jtx.Classifier(path)(*texts) for path in (run, folder))
  for a, b in zip(ours, theirs):
    np.testing.assert_allclose(list(a.scores.values()), list(b.scores.values()), rtol=1e-5)


@pytest.mark.slow
def test_adapters_leave_the_embedding_and_the_tokenizer_as_they_are(pretrained_folder, pairs,
                                                                   tmp_path):
  config = config_for(pretrained_folder, pairs, ",lora=2", **{"steps": 1})
  assert config.tokenizer.delimiters == ()
  loop.run(config, str(tmp_path / "run"), jax.devices()[:1])
  model, _ = open_saved(str(tmp_path / "run")).load_adapted()
  before, _ = open_saved(pretrained_folder).load()
  assert lora.adapted(model) and model.vocab_size == before.vocab_size
  wrong = config_for(pretrained_folder, pairs, ",lora=2",
                     **{"tokenizer.delimiters": ("<start>", "<delimiter>", "<extract>")})
  with pytest.raises(ConfigError, match="model.lora freezes embed/embedding, of which .* has "):
    loop.run(wrong, str(tmp_path / "wrong"), jax.devices()[:1])


def test_what_decoders_and_encoders_do_not_have(pretrained_folder, pairs):
  with pytest.raises(ConfigError, match="features is of encoders, and the model is a decoder"):
    config_for(pretrained_folder, pairs, ",features=last")


def test_the_recipe_of_the_paper(pretrained_folder):
  c = classify.get_config(f"init={pretrained_folder},lm=0.5")
  assert (c.optim.lr, c.optim.schedule.name, c.optim.schedule.warmup) == (6.25e-5, "linear", 0.002)
  assert (c.epochs, c.batch_size, c.optim.clip_norm, c.optim.optimizer.weight_decay) == (
      3.0, 32, 1.0, 0.01)
  block = c.model.stack.block
  assert block.dropout == block.attention.dropout == c.model.head.dropout == 0.1
  assert c.objective.lm_weight == 0.5 and c.model.head.pool == "last"
  items = list(classify.sweep_ablation())
  assert items == [{"objective.lm_weight": 0.5}, {"objective.lm_weight": 0.5, "init_from": ""},
                   {"objective.lm_weight": 0.0}]
