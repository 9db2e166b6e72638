"""Searches: their space, that they repeat and go on after kills, and what they stop."""

import dataclasses
import fcntl
import json
import math
import re
import sys
import threading

import numpy as np
import optuna
import pytest

from configs import common
from experiments import cli
from jtx import config_files
from jtx.errors import ConfigError
from jtx.launch.shares import Share
from jtx.sweeps import importance, jobs, page, report, search, space, sweep
from tests.helpers import refused, run_command

BASE = "configs/nmt_base.py"
LR = space.Axis("optim.lr", low=1e-4, high=1e-1, log=True)
LAYERS = space.Axis("log_every", choices=("1", "2", "4"))  # by another name
METRIC = "val/loss"


# ------------------------------------------------------------------------------- space


def test_axes():
  config = cli.config_of([f"--config={BASE}"])
  texts = ["optim.lr=1e-4..1e-1:log", "log_every=1,2,4", "steps=10..20",
           "optim.betas=(0.9,0.98),(0.9,0.999)", "model.encoder.block.dropout=0..0.5"]
  lr, layers, steps, betas, dropout = space.parse(texts, config)
  assert (lr, layers) == (LR, LAYERS)
  assert steps == space.Axis("steps", low=10, high=20, whole=True) and steps.ends() == ("10", "20")
  assert betas.choices == ("(0.9,0.98)", "(0.9,0.999)") and dropout.ends() == ("0.0", "0.5")
  warmup, = space.parse(["optim.schedule.warmup=5..100:int:log"], config)
  assert warmup == space.Axis("optim.schedule.warmup", low=5, high=100, log=True, whole=True)
  assert [lr.rounded(x) for x in (0.00123456, 0.0999999, 2e-4)] == [0.001235, 0.1, 2e-4]
  assert space.checks([lr, layers]) == [
      {"optim.lr": a, "log_every": b}
      for a, b in (("0.0001", "1"), ("0.1", "1"), ("0.0001", "2"), ("0.0001", "4"))]


@pytest.mark.parametrize("texts,message", [
    (["seed"], "--space=seed is not of the form"), (["seed=1"], "give several values, each once"),
    (["seed=1,1"], "each once"), (["seed=1..2", "seed=3,4"], "seed has a --space already"),
    (["optim.lr=1e-4,1e-3", "seed=0,1"], "--space=seed: the best of several seeds is luck"),
    (["seed=1..2.5"], "the ends of a range are integers"), (["optim.lr=a..b"], "are numbers"),
    (["optim.lr=1e-2..1e-4"], "with LOW below HIGH"), (["optim.lr=0..1:log"], "and above 0"),
    (["optim.lr=1..2:ln"], ":log and :int only"), (["optim.lr=1..inf"], "LOW..HIGH"),
    (["optim.lr=1..nan"], "LOW..HIGH"), (["optim=1,2"], "optim is a section, and a space has"),
])
def test_mistakes_of_a_space(texts, message):
  with pytest.raises(ConfigError, match=message):
    space.parse(texts, cli.config_of([f"--config={BASE}"]))


# ------------------------------------------------------------------------------- trials


def loss_of(edits):
  """Has its least value, 0, at a rate of 0.01 and 2 layers."""
  rate, layers = float(edits[LR.key]), int(edits[LAYERS.key])
  return (math.log10(rate) + 2) ** 2 + abs(layers - 2)


RUN = """
import json, os, pathlib, sys
folder = pathlib.Path({folder!r})
marks = pathlib.Path({marks!r})
{first}
with open(folder / "metrics.jsonl", "w") as f:
  for step, value in enumerate({values!r}):
    print(json.dumps({{"step": 10 * step, "val/loss": value}}), file=f)
(folder / "config.json").write_text({config!r})
(folder / "results.json").write_text(json.dumps({{"step": 9, "val/loss": {result!r}}}))
with open(marks / "runs.txt", "a") as f: print(folder.name, file=f)
"""


def make_item(folder, first="", values=lambda loss: [9.0, loss]):
  """A function that makes the item of a trial, whose command writes what training would."""
  def make(number, edits):
    config = common.get_config()
    config.steps = 30
    config.optim.lr, config.log_every = float(edits[LR.key]), int(edits[LAYERS.key])
    item = sweep.trial(number, edits, [], config=config, workdir=str(folder / "w"), train=[])
    loss = loss_of(edits)
    body = RUN.format(folder=str(folder / "w" / item.name), marks=str(folder), first=first,
                      values=values(loss), result=loss, config=config.to_json())
    return sweep.Item(item.name, item.edits, item.settings, config=config,
                      command=[sys.executable, "-S", "-c", body])
  return make


def searched(folder, trials, make=None, **options):
  work = search.Search([LR, LAYERS], search.Objective(METRIC, True), trials,
                       workdir=str(folder / "w"), make_item=make or make_item(folder), **options)
  try:
    assert jobs.work_off(work, str(folder / "w"), [Share()]) == 0
  finally:
    work.close()
  return work


def names(folder):
  return [item["name"] for item in json.loads((folder / "w" / "sweep.json").read_text())["items"]]


@pytest.fixture(autouse=True)
def fast(monkeypatch):
  monkeypatch.setattr(jobs, "POLL_SECONDS", 0.01)


def test_a_search_repeats_and_goes_on_where_it_was(tmp_path, monkeypatch):
  """One of 10 trials, and one of 5 that then has 10 and whose record lost its last line."""
  monkeypatch.setattr(search, "STARTUP", 5)
  once, again = tmp_path / "a", tmp_path / "b"
  once.mkdir(), again.mkdir()
  searched(once, 10, pruner="none")
  searched(again, 5, pruner="none")
  journal = again / "w" / search.JOURNAL_FILE
  journal.write_bytes(journal.read_bytes()[:-7])  # that trial 4 is done, in a power cut
  searched(again, 10, pruner="none")
  assert names(once) == names(again) == (again / "runs.txt").read_text().split()
  assert len(set(names(once))) == 10
  table = report.rows(str(once / "w"))
  found = [row.statistics(METRIC)[0] for row in table]
  best = int(np.argmin(found))  # is not one of those drawn at random
  assert best >= search.STARTUP and table[best].settings["log_every"] == 2 and found[best] < 0.05
  loaded = optuna.load_study(study_name="search", storage=optuna.storages.JournalStorage(
      optuna.storages.journal.JournalFileBackend(str(journal))))
  assert loaded.best_value == min(found) and len(loaded.trials) == 10


def test_runs_below_the_median_are_stopped_and_marked(tmp_path):
  """Hangs are runs that would never end by themselves: the search tells them to save and stop.

  The values at step 0 are worse from run to run, but the first third of the steps does not count.
  """
  losses = []
  hang = ("import signal, time\n"
          "def save(*_): (folder / 'saved').touch(); sys.exit(75)\n"
          "signal.signal(signal.SIGTERM, save)\n"
          "lines = [json.dumps({{'step': 10 * i, 'val/loss': x}}) for i, x in enumerate({})]\n"
          "(folder / 'metrics.jsonl').write_text('\\n'.join(lines) + '\\n')\n"
          "time.sleep(60)")

  def make(number, edits):
    loss = loss_of(edits)
    losses.append(loss)
    hangs = number > 4 and loss > np.median(losses[:5])  # which no median of fewer losses forgives
    values = [9.0 + number, loss]
    first = hang.format(values) if hangs else ""
    return make_item(tmp_path, first, lambda _: values)(number, edits)

  searched(tmp_path, 9, make)
  complete, pruned = [], set()
  for number, loss in enumerate(losses):
    if len(complete) >= 4 and loss > np.median(complete):
      pruned.add(number)
    else:
      complete.append(loss)
  items = json.loads((tmp_path / "w" / "sweep.json").read_text())["items"]
  assert {i for i, item in enumerate(items) if item["pruned"]} == pruned != set()
  saved = {i for i, item in enumerate(items) if (tmp_path / "w" / item["name"] / "saved").exists()}
  assert saved and saved <= pruned
  told = [row.n() for row in report.rows(str(tmp_path / "w"))]
  assert {i for i, n in enumerate(told) if n == "pruned"} == pruned
  assert items[min(saved)]["pruned"] == "pruned at step 10"


def test_a_metric_that_no_evaluation_tells_does_not_hold_the_workdir(tmp_path):
  """The first evaluation tells it; the run stops, and goes on by the command with another one."""
  first = ("import time\n"
           "if not (marks / 'again').exists():\n"
           "  (marks / 'again').touch()\n"
           "  line = json.dumps({'step': 10, 'val/loss': 3.0}) + '\\n'\n"
           "  (folder / 'metrics.jsonl').write_text(line)\n"
           "  time.sleep(60)")
  make = make_item(tmp_path, first)

  def making(number, edits):
    item = make(number, edits)
    item.config.evals.val = common.evaluator("loss", source=("a",))
    return item

  options = dict(workdir=str(tmp_path / "w"), make_item=making, pruner="none")
  for metric, lower in (("val/los", True), ("val/accuracy", False)):
    (tmp_path / "again").unlink(missing_ok=True)
    work = search.Search([LR, LAYERS], search.Objective(metric, lower), 2, **options)
    with pytest.raises(ConfigError, match=f"no '{metric}'; there are: val/loss; the same command"):
      jobs.work_off(work, str(tmp_path / "w"), [Share()])
    work.close()
  begun = names(tmp_path)
  assert len(begun) == 1 and not (tmp_path / "runs.txt").exists()
  searched(tmp_path, 2, making, pruner="none")
  assert names(tmp_path)[:1] == begun and len(names(tmp_path)) == 2
  assert (tmp_path / "runs.txt").read_text().split() == names(tmp_path)
  with pytest.raises(ConfigError, match="the search there is of another objective"):
    search.Search([LR, LAYERS], search.Objective("val/los", True), 2, **options)


def test_a_search_does_not_replace_a_sweep(tmp_path):
  item = make_item(tmp_path)(0, {LR.key: "0.1", LAYERS.key: "1"})
  sweep.write([item], {}, str(tmp_path / "w"))
  (tmp_path / "w" / item.name / "checkpoints" / "3").mkdir(parents=True)
  with pytest.raises(ConfigError, match="holds another sweep: its run trial=0,lr=0.1,log_every=1"):
    searched(tmp_path, 1)
  assert not (tmp_path / "w" / search.JOURNAL_FILE).exists()


@pytest.mark.parametrize("epochs, told", [(None, "pruned at step 10"),
                                          (2.0, "pruned at step 10, after 1.5 epochs")])
def test_a_run_without_a_finite_result_is_told_with_the_steps_that_it_made(tmp_path, epochs, told):
  """Not with those of its config, which the data give where it is in epochs."""
  lines = [{"step": 5, "seen/epochs": 0.75}, {"step": 10, "seen/epochs": 1.5}]
  files = {"metrics.jsonl": "".join(json.dumps(line) + "\n" for line in lines),
           "results.json": json.dumps({"step": 10, METRIC: math.inf})}

  def make(number, edits):
    item = make_item(tmp_path)(number, edits)
    item.config.epochs = epochs
    body = "import pathlib\n" + "".join(
        f"(pathlib.Path({str(tmp_path / 'w' / item.name)!r}) / {name!r}).write_text({text!r})\n"
        for name, text in (files | {"config.json": item.config.to_json()}).items())
    return dataclasses.replace(item, command=[sys.executable, "-S", "-c", body])

  searched(tmp_path, 1, make)
  item, = json.loads((tmp_path / "w" / "sweep.json").read_text())["items"]
  assert item["pruned"] == told


def test_a_failed_trial_is_tried_again_and_a_small_space_is_used_up(tmp_path):
  failing = (f"if not pathlib.Path({str(tmp_path / 'mended')!r}).exists():\n"
             "  print('error: no data'); sys.exit(1)")

  def make(number, edits):
    return make_item(tmp_path, failing if number == 1 else "")(number, edits)

  two = space.Axis(LR.key, choices=("0.01", "0.1"))
  options = dict(workdir=str(tmp_path / "w"), make_item=make, pruner="none")
  for failed in (["exit status 1: error: no data"], []):
    work = search.Search([two, LAYERS], search.Objective(METRIC, True), 10, **options)
    assert jobs.work_off(work, str(tmp_path / "w"), [Share()]) == 0
    assert [reason.partition(" (")[0] for reason in work.failed.values()] == failed
    with pytest.raises(ConfigError, match="another process searches there"):
      search.Search([two, LAYERS], search.Objective(METRIC, True), 10, **options)
    work.close()
    (tmp_path / "mended").touch()
  ran = (tmp_path / "runs.txt").read_text().split()
  assert len(ran) == len(set(ran)) == 6 and ran[-1] == names(tmp_path)[1]
  with pytest.raises(ConfigError, match="the search there is of another objective"):
    search.Search([two, LAYERS], search.Objective(METRIC, False), 10, **options)
  other = lambda number, edits: dataclasses.replace(make(number, edits), config=common.get_config())
  with pytest.raises(ConfigError, match="trial=0,.* is no finished run of this config"):
    search.Search([two, LAYERS], search.Objective(METRIC, True), 10,
                  **options | {"make_item": other})




def test_a_run_that_a_killed_search_has_left_is_waited_for(tmp_path):
  """It has the lock of its log; where it ends before it is done, it is started again."""
  def make(number, edits):
    item = make_item(tmp_path)(number, edits)
    (tmp_path / "w" / item.name).mkdir(parents=True)
    log = open(tmp_path / "w" / item.name / "log.txt", "ab")
    fcntl.flock(log, fcntl.LOCK_EX)
    threading.Timer(0.2, log.close).start()
    return item

  assert searched(tmp_path, 1, make).failed == {}
  assert (tmp_path / "runs.txt").read_text().split() == names(tmp_path)


def test_failed_trials_are_bad_places():
  """The next point is that of a study in which they were pruned before their first value."""
  state, rates = optuna.trial.TrialState, np.geomspace(1e-4, 1e-1, 12).tolist()

  def suggested(*failed):
    study = optuna.create_study()
    for i, rate in enumerate(rates):
      how = (failed[0] if i > 8 and failed else
             dict(state=state.COMPLETE, value=-math.log10(rate)) if i <= 8 else None)
      if how:
        study.add_trial(optuna.trial.create_trial(
            params={LR.key: rate}, distributions=search.distributions([LR]), **how))
    return [search.suggest(study, [LR], number)[LR.key] for number in range(12, 16)]

  bad = suggested(dict(state=state.RUNNING, user_attrs={search.FAILED: "exit status 1"}))
  assert bad == suggested(dict(state=state.PRUNED)) != suggested()


# ------------------------------------------------------------------------------- report


def test_what_a_parameter_explains():
  x, rng = np.arange(12.0), np.random.default_rng(0)
  assert importance.explained(x, np.exp(x)) == pytest.approx(1)  # ranks are a line
  noisy = x + 4 * rng.standard_normal(12)
  ranks = np.argsort(np.argsort(noisy)) + 1.0
  left = np.square(ranks - np.polyval(np.polyfit(x, ranks, 2), x)).sum()
  total = np.square(ranks - ranks.mean()).sum()
  assert importance.explained(x, noisy) == pytest.approx(1 - left / total * 11 / 9)
  assert importance.explained([*"abba"], np.arange(4.0)) == 0
  # Ranks 1, 2.5, 2.5 and 4, whose means by the text are 1.75 and 3.25: of 4.5 they leave 2.25.
  assert importance.explained([*"aabb"], np.array([1.0, 5.0, 5.0, 7.0])) == pytest.approx(0.25)
  assert importance.explained([*"aaabbb"], np.arange(6.0)) == pytest.approx(1 - 4 / 17.5 * 5 / 4)
  assert importance.explained(x[:3], x[:3]) is importance.explained(x, 0 * x) is None


def test_a_report_of_a_search(tmp_path):
  """Of four runs: the second is the best, the third was pruned, the last is not finished."""
  points = [("0.1", "1"), ("0.01", "4"), ("0.001", "1"), ("0.0001", "2")]
  items = []
  for number, (rate, every) in enumerate(points):
    config = common.get_config()
    config.steps = 30
    config.optim.lr, config.log_every = float(rate), int(every)
    items.append(sweep.trial(number, {LR.key: rate, LAYERS.key: every}, [], config=config,
                             workdir=str(tmp_path), train=["train"]))
    if number < 3:
      (tmp_path / items[-1].name).mkdir()
      config_files.save(config, str(tmp_path / items[-1].name / "config.json"))
      (tmp_path / items[-1].name / "results.json").write_text(json.dumps({METRIC: 3.0 - number}))
  sweep.write(items, {}, str(tmp_path), pruned={items[2].name: "pruned at step 7"}, search={
      "metric": METRIC, "lower": True,
      "axes": [space.as_json(LR, "lr"), space.as_json(LAYERS, "log_every")]})
  text = report.report(str(tmp_path))
  assert text.endswith("\nBest: trial=1,lr=0.01,log_every=4, val/loss 2.\n\n"
                       "| parameter | explains |\n| --- | ---: |\n| lr |  |\n| log_every |  |\n")
  assert "| 0.001 | 1 | pruned |  |\n| 0.0001 | 2 | 0/1 |  |\n" in text
  html = page.text(str(tmp_path))
  assert "4 runs of 4 settings: 2 finished, 1 pruned, 1 not finished." in html
  drawn = json.loads(re.search(r'id="search-data">(.*?)</script>', html, re.DOTALL)[1])
  assert drawn == {
      "metric": METRIC, "lower": True, "axes": [
          {"name": "lr", "log": True, "labels": []},
          {"name": "log_every", "log": False, "labels": ["1", "2", "4"]}],
      "trials": [{"name": items[i].name, "state": state, "result": result, "values": values}
                 for i, state, result, values in (
                     (1, "finished", 2.0, [0.01, 2]), (0, "finished", 3.0, [0.1, 0]),
                     (2, "pruned at step 7", None, [0.001, 0]),
                     (3, "not started", None, [0.0001, 1]))]}
  script = html.rpartition("<script>")[2]
  for name in ("parallel", "trial", "trial-told", "unfinished", "search-hint"):
    assert html.count(f'id="{name}"') == 1 and f'"{name}"' in script


# ------------------------------------------------------------------------------ command


SEARCH = ("--search=tpe", "--space=optim.lr=0.1..1", "--trials=3", "--metrics=newstest2013/loss")


@pytest.mark.parametrize("args,sentence", [
    (SEARCH[:1], "--space must be given for a search"),
    (SEARCH[:3], "--metrics must be given for a search"),
    (SEARCH[1:], "--space and --trials have no effect without --search=tpe"),
    ((*SEARCH, "--grid=seed=0,1"), "--search goes without --sweep, --grid and --launcher=slurm"),
    ((*SEARCH, "--space=optim.lrr=1,2"), "unknown config key --config.optim.lrr"),
    ((*SEARCH, "--space=batch_size=4,x"), "--config.batch_size: 'x' is not an int"),
    ((*SEARCH, "--config.optim.lr=3"), "--config.optim.lr would have no effect"),
    ((*SEARCH[:3], "--metrics=val/loss"), "'val/loss' is of no evaluator"),
])
def test_mistakes_write_nothing(tmp_path, args, sentence):
  status, told = refused("sweep", f"--config={BASE}", f"--workdir={tmp_path}/w", *args)
  assert status == 2 and sentence in told
  assert not (tmp_path / "w").exists()


def test_the_command_asks_for_runs_of_the_train_command(tmp_path, monkeypatch, capsys):
  """Two are asked for, and none is run."""
  asked = []
  monkeypatch.setattr(jobs, "work_off", lambda work, *_: asked.extend(
      [work.next(), work.next()]) or 0)
  args = (f"--config={BASE}:tiny", f"--workdir={tmp_path}/w", *SEARCH, "--config.steps=7")
  run_command("sweep", *args)
  texts = {item.edits["optim.lr"] for item in asked}
  assert len(texts) == 2 and all(0.1 <= float(text) <= 1 for text in texts)
  for number, item in enumerate(asked):
    rate = item.edits["optim.lr"]
    assert item.command == [
        sys.executable, "-m", "experiments.train", f"--config={BASE}:tiny", "--config.steps=7",
        f"--config.optim.lr={rate}", f"--workdir={tmp_path}/w/trial={number},lr={rate}"]
    assert (item.config.steps, item.config.optim.lr) == (7, float(rate))
  head = "| lr | n | newstest2013/loss |\n| --- | ---: | ---: |\n"
  rows = "".join(f"| {item.edits['optim.lr']} | 0/1 |  |\n" for item in asked)
  assert capsys.readouterr().out == head + rows
  run_command("sweep", *args)  # which goes on with these two
  assert asked[2:] == asked[:2]
