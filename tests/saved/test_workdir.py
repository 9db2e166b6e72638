"""The checkpoints of a workdir: which are kept, by which scores, and what they hold."""

import json
import os
import types

import jax
import pytest

from configs import common, vit
from experiments import cli
from jtx import config_files
from jtx.data.dataset import Dataset
from jtx.data.tokenizers.files import load_tokenizers
from jtx.errors import CheckpointError, ConfigError, Preempted
from jtx.saved import claims, lock, workdir as workdirs
from jtx.saved.checkpoint import Checkpointer
from jtx.saved.workdir import load_run
from jtx.train import loop, trackers
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


def test_a_field_that_came_later_has_its_default(tmp_path):
  """So a run that was begun before goes on, and another value is another config."""
  config = vit.get_config("tiny").lock()
  plain = json.loads(config.to_json())
  for section, key in ((plain["model"]["head"], "threshold"), (plain["objective"], "focal_gamma"),
                       (plain["data"]["ops"][0], "multi_label")):
    del section[key]
  (tmp_path / "config.json").write_text(json.dumps(plain))
  (tmp_path / "checkpoints" / "5").mkdir(parents=True)
  claims.check(config, str(tmp_path))
  assert json.loads(workdirs.read_config(str(tmp_path)).to_json()) == json.loads(config.to_json())
  other = vit.get_config("tiny")
  other.objective.focal_gamma = 2.0
  with pytest.raises(ConfigError, match="objective.focal_gamma is 0.0 there and 2.0 here"):
    claims.check(other.lock(), str(tmp_path))


def test_a_start_that_saved_nothing_holds_no_workdir(tmp_path, monkeypatch):
  """Neither its config nor its tokenizer is in the way of the command that comes after it."""
  def fail(self, run):
    raise ConfigError("config.trackers: it is away")

  monkeypatch.setattr(trackers.TRACKERS["tensorboard"], "__init__", fail)
  first, second = tiny_config(), tiny_config(**{"optim.lr": 0.1, "tokenizer.kind.vocab_size": 150})
  with pytest.raises(ConfigError, match="it is away"):
    loop.run(first, str(tmp_path), jax.devices()[:1])
  assert {"config.json", "tokenizer.json"} <= {path.name for path in tmp_path.iterdir()}
  with pytest.raises(ConfigError, match="it is away"):  # again, and not of another config
    loop.run(second, str(tmp_path), jax.devices()[:1])
  assert workdirs.read_config(str(tmp_path)).optim.lr == 0.1
  checkpoints = workdirs.make_checkpoints(first, str(tmp_path))
  for config in (first, second):
    texts = workdirs.open_data(config, str(tmp_path), checkpoints).tokenizer_texts()
    assert (texts == load_tokenizers(str(tmp_path))) == (config is second)
  (tmp_path / "corrupt" / "5").mkdir(parents=True)  # a run whose checkpoints were all damaged
  with pytest.raises(ConfigError, match="another config: optim.lr is 0.1 there and 0.005 here"):
    loop.run(first, str(tmp_path), jax.devices()[:1])


def test_a_workdir_is_one_process_s(tmp_path):
  folder = str(tmp_path / "a" / "b")
  with lock.claimed(folder):
    with pytest.raises(ConfigError, match=f"process {os.getpid()} of .* trains there; wait"):
      with lock.claimed(folder):
        pass
  with lock.claimed(folder):
    pass
  (tmp_path / "file").write_text("")
  for path in ("file", "file/w"):
    with pytest.raises(ConfigError, match="is a file and no folder"):
      with lock.claimed(str(tmp_path / path)):
        pass


@pytest.mark.parametrize("damage", [lambda text: text[:len(text) // 2], lambda text: "\0" * 99])
def test_a_config_that_a_power_cut_took(tmp_path, caplog, damage):
  """That of the newest checkpoint is the run's; without one nothing is lost."""
  config, path = tiny_config(steps=7), tmp_path / "config.json"
  config_files.save(config, str(path))
  path.write_text(damage(path.read_text()))
  (tmp_path / "results.json").write_text("{}")
  claims.check(config, str(tmp_path))
  assert "config.json is not valid JSON" in caplog.text and "written anew" in caplog.text
  checkpoints = workdirs.make_checkpoints(config, str(tmp_path))
  state = {"params": {"x": jax.numpy.zeros(1)}}
  checkpoints.save(5, state, {"config": json.loads(config.to_json())})
  checkpoints.close()
  claims.check(config, str(tmp_path))
  with pytest.raises(ConfigError, match="holds a run of another config: steps is 7 there and 8"):
    claims.check(tiny_config(steps=8), str(tmp_path))
  path.unlink()
  with pytest.raises(ConfigError, match="holds a run of another config: steps is 7 there and 8"):
    claims.check(tiny_config(steps=8), str(tmp_path))


def test_tokenizers_that_a_power_cut_took(tmp_path, caplog):
  config, folder = tiny_config(), str(tmp_path)
  checkpoints = workdirs.make_checkpoints(config, folder)
  data = workdirs.open_data(config, folder, checkpoints)
  (tmp_path / "tokenizer.json").write_text("{")
  texts = data.tokenizer_texts()
  checkpoints.save(5, {"params": {"x": jax.numpy.zeros(1)}}, {"tokenizers": texts})
  checkpoints.wait()
  assert workdirs.open_data(config, folder, checkpoints).tokenizer_texts() == texts
  assert "those of the checkpoint are used" in caplog.text
  checkpoints.close()


def test_half_a_file_of_results(tmp_path, caplog):
  (tmp_path / "results.json").write_text('{"step": 4, "val/lo')
  assert not workdirs.has_results(str(tmp_path))
  assert "results.json is not valid JSON" in caplog.text and "made anew" in caplog.text
  (tmp_path / "results.json").write_text('{"step": 4}')
  assert workdirs.has_results(str(tmp_path))


def with_evals(every=0, edits={}, **names):
  config = tiny_config(**edits)
  with config.unlocked():
    for name, source in names.items():
      config.evals[name] = common.evaluator("loss", source=(source,), every=every)
  return config


def test_what_a_finished_run_lacks(tmp_path):
  folder = str(tmp_path)
  config = with_evals(a="tsv:a", b="tsv:b")
  assert not workdirs.has_results(folder)
  config_files.save(config, os.path.join(folder, "config.json"))
  first = {"step": 10, "a/loss": 1.0, "b/loss": 2.0, "b/accuracy": 0.5}
  assert workdirs.save_results(config, folder, first) == first
  assert workdirs.has_results(folder) and workdirs.unevaluated(config, folder) == []
  assert workdirs.unevaluated(with_evals(a="tsv:a", every=5), folder) == []
  for edits in ({"decode.batch_size": 3}, {"checkpoint.average": 4}):
    assert workdirs.unevaluated(with_evals(0, edits, a="tsv:a"), folder) == ["a"]
  more = with_evals(a="tsv:a", b="tsv:other", c="tsv:c", edits={"log_every": 9})
  assert workdirs.unevaluated(more, folder) == ["b", "c"]
  results = workdirs.save_results(more, folder, {"step": 10, "b/loss": 3.0, "c/loss": 4.0})
  assert results == {"step": 10, "a/loss": 1.0, "b/loss": 3.0, "c/loss": 4.0}
  assert json.loads((tmp_path / "results.json").read_text()) == results
  kept = workdirs.read_config(folder)
  assert kept.log_every == 1 and kept.evals.b.source == ("tsv:other",)  # and what it did not do
  assert [workdirs.unevaluated(c, folder) for c in (more, config)] == [[], ["b"]]
  late = with_evals(every=5, a="tsv:a", edits={"checkpoint.best": "min:a/loss"})
  with pytest.raises(ConfigError, match="best='min:a/loss': .* is complete, and its checkpoints"):
    workdirs.unevaluated(late, folder)


def test_which_checkpoint_is_used(tmp_path):
  plain, best = tiny_config(), tiny_config(**{"checkpoint.best": "min:val/loss"})
  checkpoints = Checkpointer(tmp_path / "checkpoints", keep=5, best="min")
  for step in (5, 10):
    checkpoints.save(step, {"params": {"x": jax.numpy.zeros(1)}}, {})
  choose = lambda config, step: workdirs.chosen_step(config, checkpoints, step)
  assert [choose(plain, step) for step in (None, "newest", 5)] == [None, None, 5]
  assert [choose(best, step) for step in (None, "newest", 5)] == [None, None, 5]
  with pytest.raises(CheckpointError, match="step=best: no checkpoint of .* has a score"):
    choose(best, "best")
  with pytest.raises(ConfigError, match="step=best: the run of .* keeps no best checkpoint"):
    choose(plain, "best")
  for step, score in ((5, 1.0), (10, 2.0), (15, 0.5)):  # of which the last is not on disk
    checkpoints.rate(step, score)
  assert [choose(best, step) for step in (None, "best", "newest", 10)] == [5, 5, None, 10]
  assert [checkpoints.at_most(2, step) for step in (None, 5, 10)] == [2, 1, 2]
  checkpoints.close()


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
  assert scores == {step: accuracies[step] for step in scores} and sorted(scores)[-1] == 4


@pytest.mark.parametrize("ema, key", [(0.9, "ema"), (0.0, "params")])
def test_a_run_is_opened_with_its_average(monkeypatch, ema, key):
  config = tiny_config(**{"optim.ema": ema, "checkpoint.average": 3})
  checkpoints = types.SimpleNamespace(
      close=lambda: None, at_most=lambda number, step: number - 1,
      restore_params=lambda params, step, average, key: ((average, key), {}, 5))
  for name, value in (("read_config", config), ("opened_checkpoints", checkpoints),
                      ("open_data", Dataset(config.data, config.tokenizer))):
    monkeypatch.setattr(workdirs, name, lambda *_, value=value: value)
  assert load_run("run")[1:] == ((2, key), 5)


@pytest.mark.slow
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
