"""Translating lines: order, buckets, empty and over-long lines, and the command."""

import io
import sys

import jax
import numpy as np
import pytest

from configs import common
import jtx
from jtx.config import section
from jtx.data.batching import bucket
from jtx.data.dataset import Dataset
from jtx.errors import ConfigError
from jtx.inference.decode import METHODS, Decoded
from jtx.inference.translate import Translator, run_writing
from jtx.saved.workdir import load_run
from jtx.train import loop
from tests.helpers import command, run_command, tiny_config


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  """A model that has learnt a little, so that its translations differ from line to line."""
  workdir = tmp_path_factory.mktemp("trained")
  config = tiny_config(**{"steps": 60, "log_every": 20, "checkpoint.every": 60,
                          "model.encoder.block.dropout": 0.0})
  loop.run(config, str(workdir), jax.devices()[:1])
  return workdir


@pytest.fixture(scope="module")
def loaded(trained):
  task, params, _ = load_run(str(trained))
  return task, params


class Letters:
  """A tokenizer of letters."""
  pad_id, eos_id, bos_id = 0, 1, 2

  def encode_batch(self, texts):
    return [np.array([ord(c) for c in text], np.int32) for text in texts]

  def decode(self, ids):
    return "".join(map(chr, ids))


def test_draws_are_of_the_text_and_only_texts_are_searched(monkeypatch):
  """Shorter texts come first in a batch, and rows without one are absent."""
  calls = []

  def generate(*args, batch, keys, present, prompt, params):
    calls.append((keys, present))
    tokens = np.concatenate([batch["src"], np.full((4, 2), 98)], 1)  # letters behind the end
    return Decoded(tokens[:, None], np.zeros((4, 1)))

  monkeypatch.setattr("jtx.inference.translate.generate", generate)
  options = tiny_config(**{"decode.batch_size": 4}).decode.copy_and_resolve_references()
  options.method = section(METHODS, "sample", seed=7)
  found = Translator(None, None, {"src": Letters(), "tgt": Letters()}, options)(["xyz", "", "a"])
  assert [best.text for best, in found] == ["xyz", "", "a"]
  [(keys, present)] = calls
  assert present.tolist() == [True, True, False, False]
  for key, number in zip(keys, (2, 0)):
    assert key == jax.random.fold_in(jax.random.key(7), number)


@pytest.mark.parametrize("name,options,penalties", [
    ("beam", {"alpha": 0.6}, ((7 / 6) ** 0.6, (9 / 6) ** 0.6)),
    ("beam", {"alpha": 1.0, "penalty": "power"}, (2, 4)), ("sample", {}, (1, 1))])
def test_log_probabilities_are_without_the_length_penalty(monkeypatch, name, options, penalties):
  """One text of a letter and its end, and one that ran out of length without an end."""
  tokens = np.array([[98, 1, 0, 0], [98, 99, 98, 99], [0] * 4, [0] * 4])[:, None]
  scores = -np.arange(1.0, 5.0)[:, None]
  monkeypatch.setattr("jtx.inference.translate.generate",
                      lambda *args, **inputs: Decoded(tokens, scores))
  decode = tiny_config(**{"decode.batch_size": 4}).decode.copy_and_resolve_references()
  decode.method = section(METHODS, name, **options)
  found = Translator(None, None, {"src": Letters(), "tgt": Letters()}, decode)(["a", "b", ""])
  assert [best.text for best, in found] == ["b", "bcbc", ""]
  assert [best.score for best, in found] == [-1, -2, 0]
  assert [best.log_probability for best, in found] == pytest.approx(
      [-penalties[0], -2 * penalties[1], 0])


@pytest.mark.slow
def test_texts_have_the_tokens_that_a_runs_data_put_around_them(tmp_path):
  config = tiny_config(**{"data.ops": (
      common.op("tokenize", begin=True), common.op("pack", lengths=(16, 16))), "evals": {}})
  data = Dataset(config.data, config.tokenizer)
  tokenizer = data.tokenizers["src"]
  writing = run_writing(tokenizer, around=data.around)
  translator = Translator(None, None, data.tokenizers, config.decode, writing=writing)
  example = data.prepared_train.example(0)
  text = data.examples(config.data.train, limit=1)[0]["src"]
  for limit in (50, 4):
    (ids, _), = translator.encoded("src", [text], limit)
    whole = example["src"].tolist()
    assert ids.tolist() == (whole if limit == 50 else [*whole[:3], tokenizer.eos_id])
  assert whole[0] == tokenizer.bos_id and whole[-1] == tokenizer.eos_id


@pytest.mark.slow
def test_predict_names_the_command_of_a_translator(trained):
  with pytest.raises(ConfigError, match=f"--workdir={trained} holds a translator, .* is translate"):
    run_command("predict", f"--workdir={trained}", "--step=newest")


@pytest.mark.slow
def test_python_translates_as_the_command_does(trained, tmp_path):
  source, target = tmp_path / "in", tmp_path / "out"
  source.write_text("".join(line + "\n" for line in LINES))
  for beam in ((), (2,)):
    run_command("translate", f"--workdir={trained}", f"--input={source}", f"--output={target}",
                *(f"--beam={b}" for b in beam))
    translate = jtx.Translator(str(trained), beam=beam[0] if beam else None, batch_size=3)
    assert translate(LINES) == target.read_text().split("\n")[:-1]
  figure = jtx.attention(str(trained), LINES[0], layers=[-1], mean=True)
  pieces = [text.get_text() for text in figure.axes[0].get_xticklabels()]
  assert pieces[-1] == translate.saved.tokenizers()["src"].tokens(
      [translate.saved.tokenizers()["src"].eos_id])[0]


LINES = ["three forty-five p.m.", "", "six oh one a.m.", "twelve o'clock p.m.", "   ",
         "one twenty-two a.m. " * 3, "nine nine p.m."]


def translator(loaded, **edits):
  task, params = loaded
  decode = task.config.decode.copy_and_resolve_references()
  from configs import common
  common.apply(decode, edits)
  return Translator(task.model, params, task.data.tokenizers, decode, task.mesh)


@pytest.mark.slow
def test_order_is_kept_and_neighbours_do_not_matter(loaded):
  together = [best[0].text for best in translator(loaded)(LINES)]
  assert len(set(together)) > 2
  assert together[1] == together[4] == ""
  for batch_size in (8, 16):  # of 16, four may go on alone
    other = translator(loaded, batch_size=batch_size)
    assert [other([line])[0][0].text for line in LINES] == together
    assert [best[0].text for best in other(LINES[::-1])] == together[::-1]


@pytest.mark.slow
def test_a_machine_whose_devices_do_not_divide_the_batch(trained, tmp_path, loaded):
  """Trained with batches of 8 on one device; evaluated with 12 and 5 on eight."""
  import json
  import shutil

  from configs import common
  from jtx.config import build
  from jtx.evals import EVALS
  copy = tmp_path / "copy"
  shutil.copytree(trained, copy)
  path = copy / "config.json"
  path.write_text(json.dumps(json.loads(path.read_text()) | {"batch_size": 12}))
  task, params, _ = load_run(str(copy))
  assert task.mesh.size == 8
  evaluator = build(EVALS, common.evaluator("loss", source=("embedded:number_words/time:val",)))
  ours, theirs = dict(evaluator(task, params)), dict(evaluator(*loaded))
  assert ours.keys() == theirs.keys()
  for name in ours:
    assert ours[name] == pytest.approx(theirs[name], rel=1e-5)
  texts = lambda translations: [best[0].text for best in translations]
  assert texts(translator(loaded, batch_size=5)(LINES)) == texts(translator(loaded)(LINES))


def test_no_lines(loaded):
  assert translator(loaded)([]) == []


@pytest.mark.slow
def test_over_long_lines_are_named_and_cut(loaded):
  task, _ = loaded
  t = translator(loaded, max_source_length=16)
  long = "one twenty-two a.m. " * 20
  found = t.too_long([LINES[0], long, LINES[2]])
  assert [i for i, _ in found] == [1]
  assert found[0][1] == len(task.data.tokenizers["src"].encode(long)) + 1
  assert len(t([long])) == 1


@pytest.mark.slow
def test_n_best_is_sorted_and_its_first_is_the_best(loaded):
  from configs import common
  one = translator(loaded, method=common.method("beam", beam=4))
  three = translator(loaded, method=common.method("beam", beam=4, n_best=3))
  for single, best in zip(one(LINES), three(LINES)):
    assert len(best) == 3
    assert single[0] == best[0]
    scores = [h.score for h in best]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.slow
def test_samples_are_reproducible_and_differ_by_seed(loaded):
  from configs import common
  draw = lambda seed: [h[0].text for h in translator(
      loaded, method=common.method("sample", temperature=2.0, seed=seed))(LINES)]
  assert draw(0) == draw(0)
  assert draw(0) != draw(1)


@pytest.mark.parametrize("length,limit,expected", [
    (1, 256, 16), (16, 256, 16), (17, 256, 24), (25, 256, 32), (33, 256, 48), (200, 256, 256),
    (250, 250, 250), (20, 20, 20)])
def test_buckets(length, limit, expected):
  assert bucket(length, limit) == expected


@pytest.mark.parametrize("steps,expected", [
    (2, [32, 48, 64, 96, 128]), (4, [32, 40, 48, 56, 64, 80, 96, 112, 128])])
def test_steps_from_one_power_of_two_to_the_next(steps, expected):
  found = {bucket(n, 1000, least=32, steps=steps) for n in range(1, 129)}
  assert sorted(found) == expected


@pytest.mark.slow
def test_the_command(trained, loaded, tmp_path, monkeypatch):
  from experiments import cli
  source, output = tmp_path / "in.txt", tmp_path / "out.txt"
  source.write_text("\n".join(LINES) + "\n", encoding="utf-8")
  expected = [best[0].text for best in translator(loaded)(LINES)]
  with command("translate") as translate:
    cli.parse(["translate", f"--workdir={trained}", f"--input={source}", f"--output={output}",
               "--beam=1"])
    translate.main()
    assert output.read_text(encoding="utf-8").split("\n")[:-1] == expected

    cli.parse(["translate", "--output=-", "--input=-", "--beam=3", "--n_best=2"])
    out = io.StringIO()
    lines = io.BytesIO(b"six oh one a.m.\r\n\nnine p.m.")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(lines))
    monkeypatch.setattr(sys, "stdout", out)
    translate.main()
    rows = [line.split("\t") for line in out.getvalue().split("\n")[:-1]]
    assert len(rows) == 6 and all(len(row) == 2 for row in rows)
    assert rows[2][0] == rows[3][0] == ""

    cli.parse(["translate", "--top_k=3"])
    with pytest.raises(ConfigError, match="--top_k goes with --sample"):
      translate.main()


def test_a_model_of_documents_translates_nothing(loaded):
  task, params = loaded
  with pytest.raises(ConfigError, match="has texts of text, and no 'src' that is translated to"):
    Translator(task.model, params, {"text": task.data.tokenizers["src"]}, task.config.decode)
