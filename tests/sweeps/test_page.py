"""The page of a report: its numbers, what it shows of unfinished runs, and that it is all there."""

import html.parser
import json
import math
import pathlib
import shutil

import numpy as np
import pytest

from configs import common
from jtx import config_files
from jtx.errors import ConfigError
from jtx.sweeps import cells, folders, page, report, sweep
from tests.helpers import refused, run_command

HTML = pathlib.Path(page.__file__).parent / "html"
EVIL = "<script>alert('a&b')</script>"
KINDS = ("plain", EVIL)
SCORES = {("plain", 0): 27.0, ("plain", 1): 27.5, ("plain", 2): 28.75, (EVIL, 0): 1 / 3}
LOSSES = {0: [3.0, 2.0, None], 1: [4.0, 2.5, 1.0], 2: [5.5, 2.25, 1.5]}  # by seed
ENVIRONMENT = {"argv": ["/x/experiments/train.py", "--workdir=w", "--config=my configs/a.py"],
               "git_revision": "0123abc-dirty", "python": "3.12.1", "versions": {"jax": "0.10.2"},
               "platform": "gpu", "device_kind": "NVIDIA <H100>", "devices": 8, "processes": 2,
               "cpu_cores": 16}


class Parsed(html.parser.HTMLParser):
  """The tables of a page under the ids of their headings, and what else tests ask for."""

  def __init__(self, text):
    super().__init__()
    self.tables, self.attributes, self.scripts, self.texts = {}, [], [], []
    self._cell = self._script = self._table = None
    self.feed(text)

  def handle_starttag(self, tag, attrs):
    attrs = dict(attrs)
    self.attributes += [(tag, *item) for item in attrs.items()]
    if tag == "div" and attrs.get("class") == "scroll":
      self._table = self.tables.setdefault(attrs["aria-labelledby"], [])
    elif tag == "tr":
      self._table.append([])
    elif tag in ("th", "td"):
      self._cell = {**attrs, "text": ""}
      self._table[-1].append(self._cell)
    elif tag == "script":
      self.scripts.append("")
      self._script = True

  def handle_endtag(self, tag):
    if tag in ("th", "td"):
      self._cell = None
    self._script = self._script and tag != "script"

  def handle_data(self, data):
    self.texts.append(data)
    if self._script:
      self.scripts[-1] += data
    if self._cell is not None:
      self._cell["text"] += data

  def rows(self, name):
    """The texts of a table's cells, without white space around them."""
    return [[" ".join(cell["text"].split()) for cell in row] for row in self.tables[name]]

  def curve(self, name):
    metric, = (m for m in json.loads(self.scripts[0])["metrics"] if m["name"] == name)
    return {line["setting"]: line for line in metric["lines"]}


def write_lines(folder, lines):
  (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def workdir(tmp_path):
  """A sweep of two settings and three seeds: four runs are finished, one failed, one waits."""
  folder, items = tmp_path / "w", []
  for kind in KINDS:
    for seed in range(3):
      config = common.get_config()
      config.seed, config.data.path, config.steps = seed, kind, 30
      items.append(sweep.Item(
          f"i{len(items)}", {}, {"path": kind, "seed": seed}, config,
          ["python", "-m", "experiments.train", f"--config.data.path={kind}"]))
  sweep.write(items, {"i4": f"exit status 1: {EVIL}"}, str(folder))
  for item in items[:5]:
    kind, seed = item.settings["path"], item.settings["seed"]
    run = folder / item.name
    run.mkdir()
    config_files.save(item.config, str(run / "config.json"))
    (run / "environment.json").write_text(json.dumps(ENVIRONMENT))
    write_lines(run, [{"step": 10 * (i + 1), "loss": loss, "perf/seconds": 3600.0 + i,
                       "perf/tokens_per_second": 1000.0 * (seed + 1) + i, "perf/mfu": 0.125,
                       "perf/host_memory_gib": 1.5}
                      for i, loss in enumerate(LOSSES[seed])])
    if (kind, seed) in SCORES:
      score = SCORES[kind, seed]
      (run / "results.json").write_text(json.dumps({
          "step": 30, "val/bleu": score, "val/loss": 2 * score, "val/examples": 7,
          "val/bleu_signature": "s"}))
  return folder


def test_results_against_numpy(workdir):
  found = Parsed(page.text(str(workdir)))
  scores = [SCORES["plain", seed] for seed in range(3)]
  mean, error = float(np.mean(scores)), np.std(scores, ddof=1) / math.sqrt(3)
  head, plain, evil = found.rows("results")
  assert head == ["path", "n", "val/bleu (higher is better)", "val/loss (lower is better)"]
  assert plain == ["plain", "3", f"{mean:.2f} ± {error:.2f} ★ best n 3", "55.5 ± 1.0 n 3"]
  assert evil == [EVIL, "1/3 (1 failed)", "0.3333 n 1", "0.6667 ★ best n 1"]
  keys = [[cell["data-sort"] for cell in row] for row in found.tables["results"][1:]]
  assert keys == [["plain", "3", repr(mean), repr(2 * mean)],
                  [EVIL, "1", repr(1 / 3), repr(2 / 3)]]
  # The first click on a head brings the best to the top.
  assert [cell.get("data-first") for cell in found.tables["results"][0]] == [
      None, None, "descending", None]
  only = Parsed(page.text(str(workdir), ["val/loss"])).rows("results")
  assert only[0] == ["path", "n", "val/loss (lower is better)"]
  with pytest.raises(ConfigError, match="no 'val/blue'"):
    page.text(str(workdir), ["val/blue"])


def test_bands_are_the_mean_and_its_standard_error(workdir):
  lines = Parsed(page.text(str(workdir))).curve("loss")
  assert lines[0]["x"] == [10, 20, 30]
  assert lines[0]["y"][2] is lines[0]["error"][2] is None  # one of the three is not finite
  for i in range(2):
    losses = [LOSSES[seed][i] for seed in range(3)]
    np.testing.assert_allclose(lines[0]["y"][i], np.mean(losses), rtol=1e-5)
    np.testing.assert_allclose(lines[0]["error"][i], np.std(losses, ddof=1) / math.sqrt(3),
                               rtol=1e-5)
  np.testing.assert_allclose(lines[1]["y"][:2], [3.5, 2.25])  # of the two that have begun


def test_long_lines_are_thinned(tmp_path):
  write_lines(tmp_path, [{"step": s, "loss": float(s)} for s in range(1, 2001)])
  line = Parsed(page.text(str(tmp_path))).curve("loss")[0]
  assert len(line["x"]) == page.LINE_POINTS[1] and line["x"] == line["y"]
  assert (line["x"][0], line["x"][-1]) == (1, 2000) and line["error"] is None
  assert set(np.diff(line["x"])) == {4, 5}


def test_unfinished_and_failed_runs_are_told(workdir):
  text = page.text(str(workdir))
  assert "6 runs of 2 settings: 4 finished, 1 failed, 1 not finished." in text
  states = [row[1] for row in Parsed(text).rows("runs")[1:]]
  assert states == ["finished"] * 4 + [f"failed: exit status 1: {EVIL}", "not started"]
  (workdir / "i0" / "results.json").unlink()
  assert Parsed(page.text(str(workdir))).rows("runs")[1][:3] == [
      "i0", "not finished: step 30 of 30", "30"]
  for folder in workdir.glob("i*"):
    shutil.rmtree(folder)
  found = Parsed(page.text(str(workdir)))
  assert found.rows("results")[1:] == [["plain", "0/3"], [EVIL, "0/3 (1 failed)"]]
  assert "chart" not in [value for _, name, value in found.attributes if name == "id"]


def test_speed_hardware_and_versions(workdir):
  found = Parsed(page.text(str(workdir)))
  assert found.rows("runs")[0] == [
      "run", "state", "step", "wall time", "tokens/s", "MFU", "host memory"]
  assert found.rows("runs")[2] == [
      "i1", "finished", "30", "1:00:02", "2.00 k", "12.5%", "1.50 GiB"]
  assert found.rows("environments") == [
      ["runs", "device", "devices", "processes", "CPU cores", "Python", "revision", "jax"],
      ["i0, i1, i2, i3, i4", "NVIDIA <H100>", "8", "2", "16", "3.12.1", "0123abc-dirty", "0.10.2"]]
  (workdir / "i2" / "environment.json").write_text(json.dumps(ENVIRONMENT | {"devices": 4}))
  assert [row[::2][:2] for row in Parsed(page.text(str(workdir))).rows("environments")[1:]] == [
      ["i0, i1, i3, i4", "8"], ["i2", "4"]]


def test_keys_in_which_configs_differ(workdir):
  assert Parsed(page.text(str(workdir))).rows("configs") == [
      ["setting", "data.path"], ["path=plain", "plain"], [f"path={EVIL}", EVIL]]


def test_texts_of_users_are_text(workdir):
  (workdir / "i0" / "log.txt").write_text(
      "2026-11-23 15:01:07 I eval     step 30 val/bleu=27 in 1.0 s\n"
      f"2026-11-23 15:01:07 I   {EVIL} -> b\nsecond line\n2026-11-23 15:01:08 I saved\n")
  (workdir / "i0" / "predictions.jsonl").write_text('{"a": "</pre><img src=x>"}\n')
  found = Parsed(page.text(str(workdir)))
  assert len(found.scripts) == 2  # the data, and our own
  assert "<" not in found.scripts[0]
  assert json.loads(found.scripts[0])["settings"] == ["path=plain", f"path={EVIL}"]
  assert f"{EVIL} -> b\nsecond line" in found.texts
  assert '{"a": "</pre><img src=x>"}' in found.texts
  assert "'--config.data.path=<script>alert('\"'\"'a&b'\"'\"')</script>'" in found.texts
  assert not [value for tag, _, value in found.attributes if tag == "img"]


def test_pictures_are_in_the_page_up_to_a_size(workdir, monkeypatch):
  monkeypatch.setattr(page, "PICTURE_BYTES", 5)
  monkeypatch.setattr(page, "ALL_PICTURES_BYTES", 8)
  for name, size in (("a.png", 5), ("b.png", 6), ("c.jpg", 4), ("d.png", 3), ("loss.png", 1)):
    (workdir / "i0" / name).write_bytes(bytes(size))
  found = Parsed(page.text(str(workdir)))
  assert [value for tag, name, value in found.attributes if (tag, name) == ("img", "src")] == [
      "data:image/png;base64,AAAAAAA=", "data:image/png;base64,AAAA"]
  told = [text for text in found.texts if "left out" in text]
  assert told == [f"{name}: left out, since it has 0.0 MiB" for name in ("b.png", "c.jpg")]


def test_nothing_outside_is_referred_to(workdir):
  (workdir / "i0" / "a.png").write_bytes(b"png")
  text = page.text(str(workdir))
  found = Parsed(text)
  assert "default-src 'none'" in next(
      value for _, name, value in found.attributes if name == "content" and "src" in value)
  for tag, name, value in found.attributes:
    assert name not in ("href", "srcset", "action", "data", "poster", "background")
    assert name != "src" or value.startswith("data:"), tag
  for outside in ("http://", "https://", "url(", "@import", "import(", "fetch(", "XMLHttp"):
    assert outside not in text
  assert "link" not in {tag for tag, _, _ in found.attributes}


def test_the_same_folder_gives_the_same_page(workdir, tmp_path):
  shutil.copytree(workdir, tmp_path / "other" / "w")  # in another order, perhaps, and later
  assert page.text(str(workdir)) == page.text(str(tmp_path / "other" / "w"))


def test_page_of_a_run(tmp_path):
  lines = [{"step": 1, "loss": 3.0}, {"step": 2, "val/bleu": 7.0}, {"step": 3, "loss": None}]
  write_lines(tmp_path, lines)
  config_files.save(common.get_config(), str(tmp_path / "config.json"))
  (tmp_path / "environment.json").write_text(json.dumps(ENVIRONMENT))
  text = page.text(str(tmp_path))
  found = Parsed(text)
  assert f"One run, not finished: step 3 of {common.get_config().steps}." in text
  assert "these are the newest numbers" in text
  assert ["val/bleu", "7"] in found.rows("results")
  assert ["loss", "nan"] in found.rows("results")
  assert found.curve("loss")[0] == {"setting": 0, "x": [1, 3], "y": [3.0, None], "error": None}
  command = " ".join(found.texts[found.texts.index("python"):][:9:2])
  assert command == "python -m experiments.train --workdir=w '--config=my configs/a.py'"

  table = {"a": {"f1": 0.5, "support": 3}, "b": {"f1": 1.0, "support": 12}}
  (tmp_path / "results.json").write_text(json.dumps(
      {"step": 3, "dev/report": table, "dev/accuracy": 0.75, "dev/loss": math.nan}))
  text = page.text(str(tmp_path))
  found = Parsed(text)
  assert "One run, finished." in text and "The final evaluation." in text
  assert found.rows("results")[1:] == [["step", "3"], ["dev/accuracy", "0.75"], ["dev/loss", "nan"]]
  assert found.rows("table-1") == [["dev/report", "f1", "support"], ["a", "0.5", "3"],
                                   ["b", "1", "12"]]


def test_the_command_of_an_installed_jtx():
  argv = ["/lib/site-packages/jtx/experiments/train.py", "--workdir=w"]
  assert folders._typed(argv) == ["jtx", "train", "--workdir=w"]


@pytest.mark.parametrize("metric,best,lower", [
    ("val/loss", "", True), ("val/perplexity", "", True), ("val/bits_per_byte", "", True),
    ("val/calibration_error", "", True), ("loss/accuracy", "", False), ("val/bleu", "", False),
    ("val/wer", "min:val/wer", True), ("val/wer", "min:val/cer", False),
    ("val/loss", "max:val/loss", False)])
def test_which_end_is_the_best(metric, best, lower):
  assert report.lower_is_better(metric, [{}, {"checkpoint": {"best": best}}]) is lower


def test_settings_that_are_equal_or_no_number_are_not_the_best(workdir):
  for name in ("i0", "i1", "i2"):
    (workdir / name / "results.json").write_text(json.dumps({"x": math.nan, "y": 1, "z": 2.0}))
  (workdir / "i3" / "results.json").write_text(json.dumps({"x": 1.0, "y": 1, "z": math.inf}))
  found = Parsed(page.text(str(workdir)))
  assert [row[2:] for row in found.rows("results")[1:]] == [
      ["nan ± nan n 3", "1 ± 0 n 3", "2 ± 0 n 3"], ["1 n 1", "1 n 1", "inf n 1"]]
  assert [cell["data-sort"] for row in found.tables["results"][1:] for cell in row[2:]] == [
      "", "1.0", "2.0", "1.0", "1.0", "Infinity"]


@pytest.mark.parametrize("x,text", [
    (0.0, "0.00"), (1.234, "1.23"), (999.4, "999"), (999.6, "1.00 k"), (5537.4, "5.54 k"),
    (1.94e11, "194 G"), (2e18, "2.00 E")])
def test_three_digits_and_a_prefix(x, text):
  assert cells.si(x) == text


def test_the_command_writes_the_page_beside_the_table(workdir, capsys):
  output = workdir.parent / "report.html"
  run_command("report", f"--workdir={workdir}", f"--output={output}", "--metrics=val/loss")
  assert capsys.readouterr().out.startswith("| path | n | val/loss |\n")
  assert output.read_text() == page.text(str(workdir), ["val/loss"])
  status, told = refused("report", f"--workdir={workdir}", f"--output={workdir}/report.txt")
  assert status == 2 and "its name must end in .html or .pdf or .svg" in told


def test_the_command_draws_curves_for_a_paper(workdir, capsys):
  output = workdir.parent / "loss.svg"
  run_command("report", f"--workdir={workdir}", f"--output={output}", "--metrics=all")
  first = output.read_bytes()
  assert b'width="234pt"' in first  # 3.25 inches
  run_command("report", f"--workdir={workdir}", f"--output={output}")
  assert output.read_bytes() == first
  status, told = refused("report", f"--workdir={workdir}", "--metrics=val/loss",
                         f"--output={workdir}/a.pdf")
  assert status == 1 and f"a.pdf: there is no curve of val/loss in {workdir}" in told


def test_templates_and_scripts_keep_the_limits_of_files():
  for path in HTML.iterdir():
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 350 and max(map(len, text.splitlines())) <= 100, path
