"""Sweeps: what the items are, how the devices are divided, and what the table says."""

import csv
import inspect
import io
import json
import math
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from configs import common, nmt_base, t5
from experiments import cli
from jtx import config_files
from jtx.errors import ConfigError
from jtx.launch.shares import Share
from jtx.sweeps import jobs, report, sweep
from tests.helpers import losses, one_device, refused, run_command

ROOT = pathlib.Path(__file__).parent.parent.parent
BASE = "configs/nmt_base.py"
LEARNED = common.position("learned", max_length=256)
ENV = one_device()


def plan(*edits):
  """The items of typed edits of nmt_base, through the command line."""
  config = cli.config_of([f"--config={BASE}"])
  texts = [sweep.overrides(e, config, f"item {i}") for i, e in enumerate(edits, 1)]
  arguments = [[f"--config={BASE}", *(f"--config.{k}={v}" for k, v in t.items())] for t in texts]
  return sweep.plan(texts, [cli.config_of(a) for a in arguments], arguments, "w", ["train"])


def command(module, *args):
  return subprocess.run([sys.executable, "-m", f"experiments.{module}", *args], cwd=ROOT, env=ENV,
                        capture_output=True, text=True)


# ------------------------------------------------------------------------------- items


def test_grid_is_the_product_with_the_last_flag_fastest():
  config = cli.config_of([f"--config={BASE}"])
  assert sweep.grid(["optim.lr=1e-4,3e-4", "seed=0,1"], config) == [
      {"optim.lr": "1e-4", "seed": "0"}, {"optim.lr": "1e-4", "seed": "1"},
      {"optim.lr": "3e-4", "seed": "0"}, {"optim.lr": "3e-4", "seed": "1"}]
  assert sweep.grid([], config) == [{}]
  assert sweep.grid(['data.train=("text:a,b",),("text:c",)', "data.path='a,b',it's=1"], config) == [
      {"data.train": train, "data.path": path}
      for train in ('("text:a,b",)', '("text:c",)') for path in ("a,b", "it's=1")]


@pytest.mark.parametrize("texts,message", [
    (["seed"], "--grid=seed is not of the form KEY=VALUE,VALUE"),
    (["seed=0,,1"], "not of the form"),
    (["seed=0", "seed=1"], "seed has a --grid already"),
    (["model.encoder.position=rope"], "model.encoder.position is a section.*sweep_NAME()"),
    (["data.ops[4].lengths=3,4"], "is a tuple; put each value in brackets"),
])
def test_grid_mistakes(texts, message):
  with pytest.raises(ConfigError, match=message):
    sweep.grid(texts, cli.config_of([f"--config={BASE}"]))


SWEEPS = {name: f for name, f in inspect.getmembers(nmt_base, inspect.isfunction)
          if name.startswith("sweep_")}


@pytest.mark.parametrize("name", SWEEPS)
def test_the_commands_make_the_configs_that_the_edits_mean(name):
  edits = list(SWEEPS[name]())
  items = plan(*edits)
  assert len({item.name for item in items}) == len(items) == len(edits)
  for item, edit in zip(items, edits):
    meant = common.apply(nmt_base.get_config(), edit)
    assert config_files.flatten(item.config) == config_files.flatten(meant)
    again = cli.config_of([a for a in shlex.split(shlex.join(item.command[1:]))
                           if not a.startswith("--workdir")])
    assert config_files.flatten(again) == config_files.flatten(meant)


def test_every_kind_of_value_survives_the_command_line():
  ops = (common.op("clean"), common.op("tokenize"), common.op("pack", lengths=(8, 8)))
  edits = {"model": {"encoder": {"width": 64, "block": {"dropout": np.float64(1e-5)}}},
           "optim.optimizer": common.optimizer("adamw", weight_decay=0.1), "data.ops": ops,
           "data.train": ("text:a b,c'd\"",), "data.path": "a, 'b'", "tokenizer.shared": False,
           "data.smoothing": None}
  item, = plan(edits)
  assert config_files.flatten(item.config) == config_files.flatten(
      common.apply(nmt_base.get_config(), edits))
  assert "data.smoothing" not in item.edits
  assert item.edits["model.encoder.block.dropout"] == "1e-05"


def test_edits_of_an_item_are_checked():
  for edits, message in (({"optim.lrr": 3}, "item 1: config.optim.lrr: unknown key; did you mean"),
                         ({"seed": "x"}, "item 1: config.seed: 'x' is not a int")):
    with pytest.raises(ConfigError, match=message):
      plan(edits)


@pytest.mark.parametrize("edits,names", [
    ([{"optim.lr": 1e-3, "seed": 0}, {"optim.lr": 1e-5, "seed": 1}], ["lr=0.001,seed=0",
                                                                      "lr=1e-05,seed=1"]),
    ([{}, {"seed": 1, "steps": 5}, {"seed": 2, "steps": 5}], ["base", "seed=1,steps=5",
                                                              "seed=2,steps=5"]),
    ([{"steps": 5, "seed": 1}, {"steps": 5, "seed": 2}], ["seed=1", "seed=2"]),
    ([{"steps": 5}], ["steps=5"]),
    ([{"model.encoder.width": 256, "model.decoder.width": 256}, {"model.encoder.width": 64}],
     ["encoder.width=256,decoder.width=256", "encoder.width=64"]),
    ([{"decode.method": common.method("sample", seed=3)}, {"seed": 3}], ["method=sample",
                                                                         "seed=3"]),
    ([{"model.encoder.position": LEARNED}, {"model.encoder.position": common.position("rope")}],
     ["position=learned", "position=rope"]),
    ([{"model.encoder.position": LEARNED},
      {"model.encoder.position": common.position("learned", max_length=512)}],
     ["position=learned-max_length=256", "position=learned-max_length=512"]),
    ([{"data.path": "/a/b"}, {"data.path": "c"}], ["path=-a-b", "path=c"]),
])
def test_names(edits, names):
  assert [item.name for item in plan(*edits)] == names


def test_names_that_fall_together_or_are_long_get_a_digest():
  same = [item.name for item in plan({"data.path": "a/b"}, {"data.path": "a b"})]
  assert [n.rpartition("-")[0] for n in same] == ["path=a-b"] * 2 and same[0] != same[1]
  assert same == [item.name for item in plan({"data.path": "a/b"}, {"data.path": "a b"})]
  long, _ = plan({"data.path": "x" * 300}, {})
  assert len(long.name) < 140


def test_settings_are_of_every_item():
  items = plan({"optim.lr": 0.5, "seed": 1}, {"model.encoder.position": LEARNED})
  assert [item.settings for item in items] == [
      {"lr": 0.5, "seed": 1, "position": "sinusoidal"},
      {"lr": 1.0, "seed": 0, "position": "learned"}]
  assert items[0].command == ["train", f"--config={BASE}", "--config.optim.lr=0.5",
                              "--config.seed=1", "--workdir=w/lr=0.5,seed=1"]


def test_two_items_that_are_the_same_are_refused():
  with pytest.raises(ConfigError, match="items 1 and 3 of the sweep are the same: optim.lr=1.0"):
    plan({}, {"seed": 3}, {"optim.lr": 1.0})  # which is the config's own
  with pytest.raises(ConfigError, match="no items"):
    plan()


def test_a_sweep_in_a_bucket_is_refused():
  with pytest.raises(ConfigError, match="--workdir=gs://b/w: .* must be a folder of this machine"):
    sweep.plan([{}], [], [[]], "gs://b/w", ["train"])


# ----------------------------------------------------------------------------- running


def script_items(*bodies):
  """Items whose commands are Python scripts, in the place of training."""
  config = common.get_config()
  return [sweep.Item(f"run={i}", {}, {"run": i}, config, [sys.executable, "-c", body])
          for i, body in enumerate(bodies)]


def test_runs_share_the_cores_and_failures_are_told(tmp_path, capfd):
  folder = lambda i: tmp_path / f"run={i}"
  done = "import os; open({!r}, 'w').write('{{}}'); print(len(os.sched_getaffinity(0)))"
  items = script_items(
      done.format(str(folder(0) / "results.json")),
      "import sys; print('error: no such thing'); print('more'); sys.exit(3)",
      "import os, signal; print('last words', flush=True); os.kill(os.getpid(), signal.SIGKILL)",
      "pass")
  core = min(os.sched_getaffinity(0))
  failed, stopped = jobs.run(items, str(tmp_path), [Share(cores=frozenset([core]))])
  assert stopped == 0
  assert (folder(0) / "log.txt").read_text() == "1\n"
  assert len(os.sched_getaffinity(0)) >= 1
  assert failed == {
      "run=1": f"exit status 3: error: no such thing ({folder(1)}/log.txt)",
      "run=2": f"signal SIGKILL: last words ({folder(2)}/log.txt)",
      "run=3": f"exit status 0: no output ({folder(3)}/log.txt)"}
  assert [i["failed"] for i in json.loads((tmp_path / "sweep.json").read_text())["items"]] == [
      None, *failed.values()]

  config_files.save(items[0].config, str(folder(0) / "config.json"))
  again, _ = jobs.run(items[:2], str(tmp_path), [Share()])
  assert list(again) == ["run=1"]
  assert (folder(0) / "log.txt").read_text() == "1\n"  # not run again
  assert (folder(1) / "log.txt").read_text().count("no such thing") == 2


def test_runs_share_what_they_compile(tmp_path, monkeypatch):
  tell = "import os; print(os.environ['JAX_COMPILATION_CACHE_DIR'])"
  for given, expected in ((None, str(tmp_path / "compiled")), ("/elsewhere", "/elsewhere")):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    if given:
      monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", given)
    jobs.run(script_items(tell), str(tmp_path), [Share()])
    assert (tmp_path / "run=0" / "log.txt").read_text().splitlines()[-1] == expected


def test_a_run_that_was_told_to_stop_is_started_again(tmp_path):
  results = str(tmp_path / "run=0" / "results.json")
  script = (f"import os, sys; mark = {str(tmp_path / 'mark')!r}\n"
            "if not os.path.exists(mark): open(mark, 'w'); sys.exit(75)\n"
            f"open({results!r}, 'w').write('{{}}')")
  failed, _ = jobs.run(script_items(script), str(tmp_path), [Share()])
  assert not failed and (tmp_path / "mark").exists()


def test_a_folder_in_which_another_process_runs_is_left_alone(tmp_path):
  items = script_items("import time; time.sleep(60)")
  first = jobs._Run(items[0], str(tmp_path / "run=0"), Share(), {})
  try:
    failed, _ = jobs.run(items, str(tmp_path), [Share()])
  finally:
    jobs._end([first.process])
  assert failed == {"run=0": f"another process is running in {tmp_path}/run=0"}
  assert first.process.returncode == -signal.SIGTERM


def test_a_sweep_that_was_stopped_exits_as_a_run_does():
  assert jobs.status_of(signal.SIGTERM) == 75
  assert jobs.status_of(signal.SIGINT) == 130


def test_another_sweep_does_not_replace_one_that_has_begun(tmp_path):
  """More items are the same sweep, and so is one of which no run has begun."""
  def items(**edits):
    made = []
    for seed in (0, 1, 2):
      config = common.get_config()
      common.apply(config, edits)
      config.seed = seed
      made.append(sweep.Item(f"seed={seed}", {}, {}, config, []))
    return made

  ours, folder = items(), tmp_path / "seed=1"
  jobs.check_same(ours, str(tmp_path))
  sweep.write(ours[:2], {}, str(tmp_path))
  jobs.check_same([], str(tmp_path))
  (folder / "checkpoints" / "10").mkdir(parents=True)
  config_files.save(ours[1].config, str(folder / "config.json"))
  jobs.check_same(ours, str(tmp_path))
  jobs.check_same(items(log_every=7)[1:], str(tmp_path))
  with pytest.raises(ConfigError, match=f"--workdir={tmp_path} holds another sweep: its run seed=1"
                     " is none of this one's, such as seed=0; choose another workdir"):
    jobs.check_same(ours[:1], str(tmp_path))
  with pytest.raises(ConfigError, match="seed=1 holds a run of another config: steps is 100000"
                     " there and 7 here"):
    jobs.check_same(items(steps=7), str(tmp_path))


def test_a_signal_ends_the_runs(tmp_path):
  pid_file = str(tmp_path / "pid")
  body = (f"import os, time; open({pid_file!r}, 'w').write(str(os.getpid()))\n"
          "time.sleep(60)")
  script = ("import sys; from jtx.launch.shares import Share; from jtx.sweeps import jobs, sweep\n"
            "from ml_collections import ConfigDict\n"
            f"item = sweep.Item('a', {{}}, {{}}, ConfigDict(), [sys.executable, '-c', {body!r}])\n"
            f"print(jobs.run([item], {str(tmp_path)!r}, [Share()]))")
  parent = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, env=ENV, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
  wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
  parent.send_signal(signal.SIGTERM)  # a test that runs in the background may ignore SIGINT
  out, err = parent.communicate()
  assert out == f"({{}}, {signal.SIGTERM:d})\n"
  assert "stopped by SIGTERM, with 1 running; the same command goes on" in err
  with pytest.raises(ProcessLookupError):
    os.kill(int((tmp_path / "pid").read_text()), 0)


def wait_for(condition, process=None):
  for _ in range(6000):
    if condition():
      return
    assert process is None or process.poll() is None, "ended too early"
    time.sleep(0.05)
  raise AssertionError("waited in vain")


# --------------------------------------------------------------------------------- table


def make_sweep(tmp_path, settings, results, failed=()):
  """A sweep's folder as its runs leave it; None is a run that is not finished."""
  config = common.get_config()
  items = [sweep.Item(f"i{n}", {}, s, config, []) for n, s in enumerate(settings)]
  sweep.write(items, {f"i{n}": "exit status 1" for n in failed}, str(tmp_path))
  for item, result in zip(items, results):
    if result is not None:
      (tmp_path / item.name).mkdir()
      config_files.save(config, str(tmp_path / item.name / "config.json"))
      (tmp_path / item.name / "results.json").write_text(json.dumps(result))


SETTINGS = [{"lr": lr, "seed": seed, "norm": "a|b,c"} for lr in (1e-3, 3e-4) for seed in (0, 1, 2)]
SCORES = [27.0, 27.5, 28.75, 1 / 3, None, None]
RESULTS = [None if x is None else {
    "step": 9, "val/bleu": x, "val/examples": 7, "val/bleu_signature": "s", "val/loss": 2 * x}
           for x in SCORES]


def test_table_against_numpy(tmp_path):
  make_sweep(tmp_path, SETTINGS, RESULTS, failed=[4])
  text = report.report(str(tmp_path))
  mean, error = np.mean(SCORES[:3]), np.std(SCORES[:3], ddof=1) / math.sqrt(3)
  assert text == (tmp_path / "sweep.md").read_text() == (
      "| lr | norm | n | val/bleu | val/loss |\n"
      "| --- | --- | ---: | ---: | ---: |\n"
      "| 0.001 | a\\|b,c | 3 | 27.75 ± 0.52 | 55.5 ± 1.0 |\n"
      "| 0.0003 | a\\|b,c | 1/3 (1 failed) | 0.3333 | 0.6667 |\n")
  lines = list(csv.reader(io.StringIO((tmp_path / "sweep.csv").read_text())))
  assert lines[0] == ["lr", "norm", "n", "runs", "failed", "val/bleu", "val/bleu stderr",
                      "val/loss", "val/loss stderr"]
  assert lines[1][:5] == ["0.001", "a|b,c", "3", "3", "0"]
  np.testing.assert_allclose([float(x) for x in lines[1][5:]],
                             [mean, error, 2 * mean, 2 * error], rtol=1e-15)
  assert lines[2] == ["0.0003", "a|b,c", "1", "3", "1", repr(1 / 3), "", repr(2 / 3), ""]
  assert not (tmp_path / "loss.png").exists()


def test_tables_of_a_run_stand_below_its_numbers(tmp_path):
  table = {"a": {"f1": 0.5, "support": 3}, "b": {"f1": 1.0, "support": 12}}
  (tmp_path / "results.json").write_text(json.dumps({"dev/report": table, "dev/accuracy": 0.75}))
  (tmp_path / "metrics.jsonl").write_text("")
  assert report.report(str(tmp_path)) == (
      "| metric | value |\n| --- | ---: |\n| dev/accuracy | 0.75 |\n\n"
      "| dev/report | f1 | support |\n| --- | ---: | ---: |\n| a | 0.5 | 3 |\n| b | 1 | 12 |\n")


def test_metrics_that_are_asked_for(tmp_path):
  make_sweep(tmp_path, SETTINGS, RESULTS)
  assert report.report(str(tmp_path), ["val/loss"]).startswith("| lr | norm | n | val/loss |\n")
  with pytest.raises(ConfigError, match="no 'val/blue'; there are: val/bleu, val/loss"):
    report.report(str(tmp_path), ["val/blue"])
  with pytest.raises(ConfigError, match="'vla/bleu' is of no.* has: newstest2013, newstest2014"):
    report.check_evaluators(["vla/bleu"], [nmt_base.get_config()])
  with pytest.raises(ConfigError, match="newstest2014 has no 'newstest2014/blue'; did you mean"
                     " 'newstest2014/bleu'"):
    report.check_evaluators(["newstest2014/blue"], [nmt_base.get_config()])
  report.check_evaluators(["newstest2014/bleu", "newstest2013/los"], [nmt_base.get_config()])


def test_a_table_of_seeds_alone_and_one_without_results(tmp_path):
  (tmp_path / "a").mkdir()
  (tmp_path / "b").mkdir()
  make_sweep(tmp_path / "a", [{"seed": 0}, {"seed": 1}], [{"x": 1.0}, {"x": math.nan}])
  assert report.report(str(tmp_path / "a")) == "| n | x |\n| ---: | ---: |\n| 2 | nan ± nan |\n"
  make_sweep(tmp_path / "b", [{"lr": 1.0}, {"lr": 2.0}], [None, None], failed=[1])
  assert report.report(str(tmp_path / "b"), ["val/bleu"]) == (
      "| lr | n | val/bleu |\n| --- | ---: | ---: |\n| 1.0 | 0/1 |  |\n| 2.0 | failed |  |\n")


def test_results_of_another_config_do_not_count(tmp_path):
  make_sweep(tmp_path, SETTINGS[:1], RESULTS[:1])
  other = common.get_config()
  other.seed = 1
  config_files.save(other, str(tmp_path / "i0" / "config.json"))
  assert report.rows(str(tmp_path))[0].results == []


@pytest.mark.parametrize("mean,error,text", [
    (None, None, ""), (27.3149, None, "27.31"), (27.3149, 0.1234, "27.31 ± 0.12"),
    (100.0, 0.0, "100 ± 0"), (1.23456e-5, 1e-7, "1.235e-05 ± 0.010e-05"),
    (27.3149, 0.0012345, "27.3149 ± 0.0012"), (0.3333, 0.0996, "0.33 ± 0.10"),
    (27.3149, 12.3, "27 ± 12"), (12345.6, 1234.0, "12300 ± 1200"), (0.0, 0.5, "0.00 ± 0.50"),
    (-2.5e7, 1.25e5, "-2.500e+07 ± 0.012e+07"), (0.1, 1e-17, "0.1 ± 1e-17"),
    (math.inf, 1.0, "inf ± 1")])
def test_numbers(mean, error, text):
  assert report.number_text(mean, error) == text


def test_report_of_a_run(tmp_path):
  with pytest.raises(ConfigError, match="neither a sweep .* nor a run"):
    report.report(str(tmp_path))
  lines = [{"step": 1, "loss": 3.0, "lr": 0.1}, {"step": 2, "val/bleu": 7.0, "val/loss": 2.0},
           {"step": 3, "loss": None}]
  (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(l) + "\n" for l in lines) + '{"st')
  assert "| val/bleu | 7 |" in report.report(str(tmp_path))
  assert (tmp_path / "curves.png").stat().st_size > 1000
  (tmp_path / "results.json").write_text(json.dumps({"step": 3, "val/bleu": 8.125, "name": "x|y"}))
  assert report.report(str(tmp_path)) == (
      "| metric | value |\n| --- | ---: |\n| step | 3 |\n| val/bleu | 8.125 |\n| name | x\\|y |\n")
  assert report.report(str(tmp_path), ["val/bleu"]).endswith("---: |\n| val/bleu | 8.125 |\n")
  with pytest.raises(ConfigError, match="no 'val/blue'"):
    report.report(str(tmp_path), ["val/blue"])


def test_a_report_without_metrics_keeps_those_of_the_last(tmp_path):
  make_sweep(tmp_path, SETTINGS, RESULTS)
  chosen, path = report.report(str(tmp_path), ["val/loss"]), tmp_path / "sweep.md"
  with pytest.raises(ConfigError, match="no 'val/blue'"):
    report.report(str(tmp_path), ["val/blue"])
  assert report.report(str(tmp_path)) == chosen == path.read_text()
  assert report.report(str(tmp_path), ["all"]) == path.read_text() != chosen
  assert report.report(str(tmp_path)) == path.read_text() != chosen


def test_curves_of_a_sweep_are_means_over_seeds(tmp_path, monkeypatch):
  make_sweep(tmp_path, SETTINGS, RESULTS)
  for i, (setting, steps) in enumerate(zip(SETTINGS, ((1, 2, 3), (1, 2), (2, 1), (5,), (), ()))):
    lines = [{"step": s, "loss": 10.0 * s + setting["seed"] ** 2, "val/bleu": 1.0} for s in steps]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / f"i{i}").mkdir(exist_ok=True)
    (tmp_path / f"i{i}" / "metrics.jsonl").write_text(text)
  drawn = {}
  monkeypatch.setattr(report, "save_figure", lambda figure, path: drawn.update({path: figure}))
  report.report(str(tmp_path), ["val/bleu"])
  assert {os.path.basename(path) for path in drawn} == {"loss.png", "curves.png"}
  axes, = drawn[str(tmp_path / "loss.png")].axes
  assert [line.get_label() for line in axes.lines] == [
      "lr=0.001,norm=a|b,c", "lr=0.0003,norm=a|b,c"]
  # At the steps that all three seeds have; their losses there differ by 0, 1 and 4.
  np.testing.assert_allclose(axes.lines[0].get_xydata(), [[1, 10 + 5 / 3], [2, 20 + 5 / 3]])
  band = axes.collections[0].get_paths()[0].vertices
  error = np.std([0, 1, 4], ddof=1) / math.sqrt(3)
  assert {(1, 10 + 5 / 3 - error), (2, 20 + 5 / 3 + error)} <= set(map(tuple, band))
  np.testing.assert_allclose(axes.lines[1].get_xydata(), [[5, 50]])  # one point of one seed
  assert axes.lines[1].get_markevery() == [0] and axes.lines[0].get_markevery() == []


# ------------------------------------------------------------------------------ commands


@pytest.mark.parametrize("case", [
    ([], "--sweep=NAME or --grid=KEY=VALUE,VALUE must be given"),
    (["--sweep=tabel3"], f"{BASE} has no function sweep_tabel3; did you mean 'table3'?"),
    (["--grid=optim.lrr=3"], "unknown config key --config.optim.lrr; did you mean"),
    (["--grid=seed=0,x"], "--config.seed: 'x' is not an int"),
    (["--sweep=table3", "--grid=steps=3"], "--grid=steps and sweep_table3 set the same key"),
    (["--grid=seed=0,1", "--config.seed=3"], "--config.seed would have no effect"),
    (["--grid=seed=0,1", "--metrics=val/bleu"], "'val/bleu' is of no evaluator"),
    (["--grid=seed=0,1", "--metrics=newstest2014/blue"], "did you mean 'newstest2014/bleu'?"),
    (["--grid=seed=0,1", "--sbatch=--mem=1G"], "--sbatch has no effect without --launcher=slurm"),
])
def test_mistakes_write_nothing(tmp_path, case, capsys):
  args, sentence = case
  status, told = refused("sweep", f"--config={BASE}", f"--workdir={tmp_path}/w", *args)
  assert status == 2 and sentence in told and capsys.readouterr().out == ""
  assert not (tmp_path / "w").exists()


def test_a_metric_that_no_result_has_leaves_the_table_of_all(tmp_path, monkeypatch, capsys):
  """What it is called shows when all are trained, which must not be for nothing."""
  make_sweep(tmp_path, SETTINGS, RESULTS)
  monkeypatch.setattr("jtx.sweeps.jobs.check_same", lambda items, workdir: None)
  monkeypatch.setattr("jtx.sweeps.jobs.run", lambda items, workdir, parts: ({}, 0))
  monkeypatch.setattr("jtx.launch.shares.shares", lambda jobs: ())
  status, told = refused("sweep", f"--config={BASE}:tiny", f"--workdir={tmp_path}",
                         "--grid=seed=0,1", "--metrics=newstest2013/los")
  assert status == 1
  assert told.startswith(
      "--metrics: there is no 'newstest2013/los'; there are: val/bleu, val/loss; all are"
      f" in the table that was made, and experiments.report --workdir={tmp_path} --metrics=NAME,")
  table = (tmp_path / "sweep.md").read_text()
  assert table.startswith("| lr | norm | n | val/bleu | val/loss |")
  assert capsys.readouterr().out == table


@pytest.mark.slow
def test_dry_run_prints_commands(tmp_path, capsys):
  workdir = tmp_path / "it's a dir"
  run_command("sweep", f"--config={BASE}:tiny", f"--workdir={workdir}", "--sweep=table3",
              "--grid=seed=0,1", "--config.data.train=embedded:number_words/year:train",
              "--config.model.encoder.num_layers=3", "--dry_run")
  assert not workdir.exists()
  lines = [shlex.split(line) for line in capsys.readouterr().out.splitlines()]
  edits = list(nmt_base.sweep_table3())
  assert len(lines) == 2 * len(edits)
  for i, line in enumerate(lines):
    assert line[:3] == [sys.executable, "-m", "experiments.train"]
    assert line[-1].startswith(f"--workdir={workdir}/")
    meant = nmt_base.get_config("tiny")
    common.apply(meant, {"data.train": ("embedded:number_words/year:train",),
                         "model.encoder.num_layers": 3, "seed": i % 2} | edits[i // 2])
    assert config_files.flatten(cli.config_of(line[3:-1])) == config_files.flatten(meant)
  assert len({line[-1] for line in lines}) == len(lines)


def test_a_sweep_may_take_the_config_that_it_edits(tmp_path, capsys):
  """Half the depth is half of this size's, and a whole model survives the command line."""
  run_command("sweep", "--config=configs/t5.py:t5_small", f"--workdir={tmp_path}/w",
              "--sweep=architectures", "--dry_run")
  lines = [shlex.split(line) for line in capsys.readouterr().out.splitlines()]
  edits = list(t5.sweep_architectures(t5.get_config("t5_small")))
  assert "--config.model.encoder.num_layers=3" in lines[2]
  for line, edit in zip(lines, edits, strict=True):
    meant = common.apply(t5.get_config("t5_small"), edit)
    assert config_files.flatten(cli.config_of(line[3:-1])) == config_files.flatten(meant)


CONFIG = """
from configs import common, nmt_numbers

def get_config():
  c = nmt_numbers.get_config("tiny")
  c.steps = 40
  c.checkpoint.every = 10
  c.evals.val.limit = c.evals.test.limit = 8
  c.evals.test.picture = False
  return c

def sweep_four():
  for seed in (0, 1):
    yield {"optim.lr": 1e-3, "seed": seed}
  learned = common.position("learned", max_length=64)
  yield {"model.encoder.position": learned, "model.decoder.position": learned}
  yield {"model.encoder.block.attention.num_heads": 3}
"""


def children(pid):
  return pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def kill_run(parent, folder):
  """Kills the run of `folder` once it has a checkpoint."""
  # The folder has its final name once the checkpoint is whole.
  wait_for(lambda: any(path.name.isdigit() for path in folder.glob("checkpoints/*")), parent)
  pid, = (p for p in children(parent.pid)
          if f"--workdir={folder}\0" in pathlib.Path(f"/proc/{p}/cmdline").read_text())
  os.kill(int(pid), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.long
def test_a_sweep_of_which_one_run_is_killed_and_one_fails(tmp_path):
  if not pathlib.Path("/proc/self/task").exists() or len(os.sched_getaffinity(0)) < 2:
    pytest.skip("needs /proc and two cores")
  (tmp_path / "four.py").write_text(CONFIG)
  workdir = tmp_path / "w"
  args = [sys.executable, "-m", "experiments.sweep", f"--config={tmp_path}/four.py", "--sweep=four",
          f"--workdir={workdir}", "--jobs=2"]
  killed = "lr=0.001,seed=1"
  good = ["lr=0.001,seed=0", "encoder.position=learned,decoder.position=learned"]
  bad = "num_heads=3"

  with open(tmp_path / "out", "w") as out, open(tmp_path / "err", "w") as err:
    parent = subprocess.Popen(args, cwd=ROOT, env=ENV, stdout=out, stderr=err)
    try:
      kill_run(parent, workdir / killed)
      parent.wait()
    finally:
      parent.terminate()
      parent.wait()
  messages, table = (tmp_path / "err").read_text(), (tmp_path / "out").read_text()
  assert parent.returncode == 1, messages
  failures = [line for line in messages.splitlines() if line.startswith("failed: ")]
  assert {line.split(": ")[1] for line in failures} == {killed, bad}
  assert sum("signal SIGKILL" in line for line in failures) == 1
  assert any("exit status 1: error: " in line and "num_heads" in line for line in failures)
  assert not any((workdir / name / "results.json").exists() for name in (killed, bad))
  assert "| 1/2 (1 failed) |" in table and "| failed |" in table
  logs = {name: (workdir / name / "log.txt").read_text() for name in good}
  assert {json.loads((workdir / name / "environment.json").read_text())["cpu_cores"]
          for name in good} == {len(os.sched_getaffinity(0)) // 2}

  again = subprocess.run(args, cwd=ROOT, env=ENV, capture_output=True, text=True)
  assert again.returncode == 1, again.stderr
  assert "2/4 finished before" in again.stderr
  failures = [line for line in again.stderr.splitlines() if line.startswith("failed: ")]
  assert [line.split(": ")[1] for line in failures] == [bad]
  for name in good:
    assert (workdir / name / "log.txt").read_text() == logs[name]
  log = (workdir / killed / "log.txt").read_text()
  restored = log.partition(" restore  step ")[2].split()
  assert restored and int(restored[0]) >= 10, log
  steps = [step for step, _ in losses(workdir / killed)]
  assert steps == sorted(set(steps)) and steps[-1] == 40

  result = lambda name: json.loads((workdir / name / "results.json").read_text())
  table = {(row["lr"], row["num_heads"], row["encoder.position"]): row
           for row in csv.DictReader((workdir / "sweep.csv").open())}
  assert len(table) == 3
  row = table["0.001", "4", "sinusoidal"]
  assert (row["n"], row["runs"], row["failed"]) == ("2", "2", "0")
  for metric in ("val/bleu", "test/chrf"):
    a, b = (result(f"lr=0.001,seed={seed}")[metric] for seed in (0, 1))
    np.testing.assert_allclose(float(row[metric]), (a + b) / 2, rtol=1e-12)
    np.testing.assert_allclose(float(row[f"{metric} stderr"]), abs(a - b) / 2, atol=1e-12)
  learned = table["0.005", "4", "learned"]
  assert learned["decoder.position"] == "learned"
  assert float(learned["val/chrf"]) == result(good[-1])["val/chrf"]
  assert table["0.005", "3", "sinusoidal"]["failed"] == "1"
  assert (workdir / "loss.png").stat().st_size > 1000
  assert command("report", f"--workdir={workdir}").stdout == again.stdout
