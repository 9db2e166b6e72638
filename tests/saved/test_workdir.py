"""The checkpoints of a workdir: which are kept, by which scores, and what they hold."""

import json

import jax
import pytest

from configs import common
from experiments import cli
from jtx.errors import ConfigError, Preempted
from jtx.saved import workdir as workdirs
from jtx.saved.checkpoint import Checkpointer
from jtx.saved.workdir import load_run
from jtx.train import loop
from tests.helpers import command, tiny_config


@pytest.mark.parametrize("best, message", [
    ("val/loss", "min or max and a number of an evaluation, such as min:val/loss"),
    ("min:loss", "min or max and a number"),
    ("max:test/bleu", "evaluations are rare, val$"),
    ("max:val/loss", "checkpoint.every=5 is no multiple of config.evals.val.every=2"),
    ("max:rare/loss", "checkpoint.every=5 is no multiple of config.evals.rare.every=0"),
])
def test_what_best_can_not_be(tmp_path, best, message):
  loss = lambda every: common.evaluator("loss", source=("embedded:number_words/time:val",),
                                        every=every)
  config = tiny_config(**{"checkpoint.best": best})
  with config.unlocked():
    config.evals = {"val": loss(2), "rare": loss(0)}
  with pytest.raises(ConfigError, match=message) as e:
    workdirs.make_checkpoints(config, str(tmp_path))
  assert best in str(e.value)


def test_the_best_is_a_number_of_its_evaluation(tmp_path):
  config = tiny_config(**{"checkpoint.best": "max:val/acuracy"})
  checkpoints = Checkpointer(tmp_path, best="max")
  workdirs.rate(config, checkpoints, 5, {"test/accuracy": 0.5})  # another's turn
  assert not checkpoints.scores
  with pytest.raises(ConfigError, match="did you mean 'val/accuracy'"):
    workdirs.rate(config, checkpoints, 5, {"val/accuracy": 0.5, "val/signature": "text"})


@pytest.mark.slow
def test_scores_of_another_number_are_forgotten(tmp_path):
  config = tiny_config(steps=4, **{"checkpoint.every": 1, "checkpoint.best": "min:val/loss"})
  with config.unlocked():
    config.evals.val = common.evaluator("loss", source=("embedded:number_words/time:val",), every=1)
  for best in ("min:val/loss", "min:val/loss", "max:val/accuracy"):
    config.checkpoint.best = best
    with pytest.raises(Preempted):
      loop.run(config, str(tmp_path), jax.devices()[:1], max_seconds=1e-6)
  loop.run(config, str(tmp_path), jax.devices()[:1])
  scores = dict(Checkpointer(tmp_path / "checkpoints").read_manifest().scores)
  accuracies = {line["step"]: line["val/accuracy"] for line in map(
      json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines()) if "val/accuracy" in line}
  assert scores == {step: accuracies[step] for step in scores} and sorted(scores)[-1] == 3


def test_what_a_checkpoint_holds(tmp_path, capsys):
  config = tiny_config(steps=1)
  loop.run(config, str(tmp_path), jax.devices()[:1])
  with command("inspect") as module:
    cli.parse(["inspect", f"--workdir={tmp_path}"], ("workdir",))
    module.main()
  *lines, last = capsys.readouterr().out.splitlines()
  found = json.loads(last)
  assert found["steps"] == [1] and found["step"] == 1
  assert found["config"] == json.loads(config.to_json())
  _, params, _ = load_run(str(tmp_path))
  leaves = jax.tree_util.tree_leaves_with_path({"params": params})
  assert found["items"]["params"]["arrays"] == {
      jax.tree_util.keystr(path, simple=True, separator="/"): {
          "shape": list(x.shape), "dtype": "float32"} for path, x in leaves}
  assert found["items"]["params"]["bytes"] == sum(x.nbytes for _, x in leaves)
  assert sum(line.startswith("params/") for line in lines) == len(leaves)
