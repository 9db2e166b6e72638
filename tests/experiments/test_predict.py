"""A classifier of files of one's own: its predictions and evaluations of other files."""

import json
import random

import jax
import numpy as np
import pytest

from configs import classify, common
from jtx.errors import ConfigError, DataError
from jtx.inference.tasks import predict
from jtx.saved.folder import open_saved
from jtx.saved.trained import reader, trained
from jtx.train import loop
from tests.helpers import run_command

pytestmark = pytest.mark.slow

LENGTH = 12


@pytest.fixture(scope="module")
def files(tmp_path_factory):
  """train.tsv and dev.tsv: a text of up to 30 words, and whether it has the word "good"."""
  folder = tmp_path_factory.mktemp("files")
  draw = random.Random(0)
  for name, number in (("train", 64), ("dev", 16)):
    lines = []
    for i in range(number):
      words = draw.choices("a film that is long and old about the sea".split(), k=i % 30 + 1)
      words[draw.randrange(min(len(words), 5))] = "good" if i % 2 else "bad"
      lines.append(" ".join(words) + ("\tyes\n" if i % 2 else "\tno\n"))
    (folder / f"{name}.tsv").write_text("".join(lines))
  return folder


@pytest.fixture(scope="module")
def run(files, tmp_path_factory):
  config = classify.get_config(f"names=no+yes,max_length={LENGTH}")
  common.apply(config, {
      "model.stack": common.TINY_STACK, "epochs": 1.0, "batch_size": 16, "log_every": 2,
      "optim.lr": 3e-3, "tokenizer.kind.vocab_size": 100, "data.path": str(files),
      "evals.dev.every": 2, "checkpoint.every": 2, "checkpoint.best": "max:dev/accuracy"})
  workdir = tmp_path_factory.mktemp("run")
  loop.run(config.lock(), str(workdir), jax.devices()[:1])
  return str(workdir)


def predicted(run, capsys, *argv):
  run_command("predict", f"--workdir={run}", *argv)
  return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_the_label_is_no_second_text_and_texts_are_cut_as_in_training(files, run, tmp_path, capsys):
  texts = [line.split("\t")[0] for line in (files / "dev.tsv").read_text().splitlines()]
  bare = tmp_path / "texts.txt"
  bare.write_text("".join(text + "\n" for text in texts))
  found = predicted(run, capsys, f"--input={files / 'dev.tsv'}")
  assert found == predicted(run, capsys, f"--input={bare}")
  assert found != predicted(run, capsys, f"--input={bare}", "--max_length=32")
  model, params = open_saved(run).load(step="best")
  ready = trained(open_saved(run), model, params)
  assert ready.max_length == LENGTH
  # What the evaluator makes of the same file.
  rows = open_saved(run).data.encoded(("tsv:dev.tsv",))
  for row, x in zip(rows, found, strict=True):
    logits = ready.run([row])[0]
    np.testing.assert_allclose(list(x["scores"].values()), jax.nn.softmax(logits), atol=1e-6)
  assert predict(ready, reader(open_saved(run)).of_lines(texts, "-")) == found


def test_what_does_not_fit_names_file_and_line(run, tmp_path):
  path = tmp_path / "pairs.tsv"
  path.write_text("a film\tyes\na film\tanother text\n")
  with pytest.raises(DataError, match="pairs.tsv:2: '1' is 'another text', but in the data"):
    run_command("predict", f"--workdir={run}", f"--input={path}")


def test_translate_names_the_command_of_a_classifier(run):
  with pytest.raises(ConfigError, match=f"--workdir={run} holds a model with the head 'classes'"
                                        " and no translator; its command is predict"):
    run_command("translate", f"--workdir={run}", "--input=/dev/null")


def evaluated(run, capsys, *argv):
  run_command("evaluate", f"--workdir={run}", *argv)
  return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_another_file_is_evaluated_and_each_prediction_told(files, run, tmp_path, capsys):
  other, output = tmp_path / "other-one.tsv", tmp_path / "predictions.jsonl"
  other.write_text("a good film\tyes\na bad film\tno\nlong and old\tyes\n")
  results = evaluated(run, capsys, f"--source={other}", "--scores=f1,accuracy",
                      f"--output={output}")
  assert results.keys() == {"step", *(f"other_one/{name}" for name in (
      "f1", "accuracy", "examples", "report", "confusion"))}
  rows = [json.loads(line) for line in output.read_text().splitlines()]
  found = predicted(run, capsys, f"--input={other}")
  for i, (row, x, line) in enumerate(zip(rows, found, other.read_text().splitlines(),
                                         strict=True)):
    text, gold = line.split("\t")
    assert {key: row[key] for key in ("split", "id", "text", "gold")} == {
        "split": "other_one", "id": i, "text": text, "gold": gold}
    assert row["prediction"] == x["label"] and row["correct"] is (x["label"] == gold)
    assert row["scores"] == pytest.approx(x["scores"], abs=1e-6)
  assert results["other_one/accuracy"] == pytest.approx(np.mean([r["correct"] for r in rows]))
  # The config's own, by name; another step; nothing was changed.
  own = evaluated(run, capsys)
  assert own == evaluated(run, capsys, "--source=dev")
  assert evaluated(run, capsys, "--step=2")["step"] == 2
  assert evaluated(run, capsys, f"--source={files / 'dev.tsv'}", "--step=best") == own
  config = open_saved(run).config
  assert list(config.evals) == ["dev"] and config.evals.dev.scores == ("accuracy",)
