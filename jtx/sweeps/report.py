"""Tables and curves of a sweep or a run, from what its folder holds by now."""

from collections.abc import Mapping, Sequence
import csv
import dataclasses
import io
import json
import math
import os
import re
from typing import Any

from absl import logging
import numpy as np

from jtx import config_files, storage
from jtx.config import ConfigDict, build
from jtx.errors import ConfigError, nearest
from jtx.evals import EVALS
from jtx.figures.curves import Line, curves, mean_line
from jtx.figures.figure import save_figure
from jtx.sweeps import searched
from jtx.sweeps.folders import read_metrics
from jtx.sweeps.jobs import failure_of, finished
from jtx.sweeps.sweep import SEED, SWEEP_FILE, word

REPORT_FILE = "report.json"
# Metrics of which the lowest is the best, unless a config's checkpoint.best says otherwise.
LOWER = re.compile(r"loss|nll|perplexity|error|bits_per_|nats_per_")
COUNTS = ("step", "examples")  # numbers of results.json that measure nothing


@dataclasses.dataclass(frozen=True)
class Row:
  """The runs of one setting, which differ in their seeds.

  Attributes:
    settings: by short key, without the seed.
    runs: how many there are to be.
    failed: how many failed.
    results: of the finished ones, by metric.
    pruned: how many a search has stopped.
  """
  settings: Mapping[str, Any]
  runs: int
  failed: int
  results: Sequence[Mapping[str, Any]]
  pruned: int = 0

  def n(self) -> str:
    done = len(self.results)
    if done == self.runs:
      return str(done)
    if self.pruned == self.runs:
      return "pruned"
    if self.failed == self.runs:
      return "failed"
    return f"{done}/{self.runs}" + (f" ({self.failed} failed)" if self.failed else "")

  def statistics(self, metric: str) -> tuple[float | None, float | None]:
    """Mean and standard error over seeds; None where there are too few for it."""
    values = np.array([r[metric] for r in self.results if metric in r], np.float64)
    mean = float(values.mean()) if len(values) else None
    error = float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None
    return mean, error


def rows(workdir: str) -> list[Row]:
  """A row for each setting of the sweep in `workdir`, in order; from what there is now."""
  groups: dict[str, list[dict[str, Any]]] = {}
  for item in _read_json(os.path.join(workdir, SWEEP_FILE))["items"]:
    item["settings"].pop(SEED, None)
    groups.setdefault(json.dumps(item["settings"]), []).append(item)
  result = []
  for group in groups.values():
    done = [i for i in group if not i.get("pruned") and finished(
        config_files.from_plain(i["config"]), os.path.join(workdir, i["name"]))]
    results = [_read_json(os.path.join(workdir, i["name"], "results.json")) for i in done]
    failed = sum(bool(failure_of(i, os.path.join(workdir, i["name"])))
                 for i in group if i not in done)
    pruned = sum(bool(i.get("pruned")) for i in group)
    result.append(Row(group[0]["settings"], len(group), failed, results, pruned=pruned))
  return result


def numbers_of(split: str, config: ConfigDict) -> Sequence[str] | None:
  """The names of an evaluation's scores; None where only its results tell them."""
  evaluator = build(EVALS, config.evals[split], what=f"config.evals.{split}")
  return getattr(evaluator, "numbers", None)


def check_evaluators(metrics: Sequence[str], configs: Sequence[ConfigDict]) -> None:
  """Raises ConfigError for a metric that no config has: of no evaluator, or no score of it."""
  splits = dict.fromkeys(split for config in configs for split in config.evals)
  for metric in metrics:
    split, _, name = metric.partition("/")
    if split not in splits:
      raise ConfigError(f"--metrics: {metric!r} is of no evaluator; metrics are written split/name,"
                        " and config.evals has: " + (", ".join(splits) or "nothing"))
    known = [numbers_of(split, config) for config in configs if split in config.evals]
    if None not in known and not any(name in numbers for numbers in known) and name not in COUNTS:
      valid = dict.fromkeys(f"{split}/{number}" for numbers in known for number in numbers)
      raise ConfigError(f"--metrics: config.evals.{split} has no {metric!r}; "
                        + nearest(metric, valid))


def choose_metrics(results: Sequence[Mapping[str, Any]], metrics: Sequence[str]) -> list[str]:
  """`metrics`, or all numbers of `results` that measure something.

  Raises:
    ConfigError: a metric that no result has, if there are results.
  """
  known = list(dict.fromkeys(
      k for r in results for k, v in r.items()
      if isinstance(v, (int, float)) and k.rpartition("/")[2] not in COUNTS))
  for metric in metrics:
    if known and metric not in known:
      raise ConfigError(f"--metrics: there is no {metric!r}; there are: " + ", ".join(known))
  return list(metrics) or known


def lower_is_better(metric: str, configs: Sequence[Mapping[str, Any]]) -> bool:
  """Whether the lowest value is the best: as the configs choose checkpoints, or by the name."""
  for config in configs:
    how, _, name = (config.get("checkpoint") or {}).get("best", "").partition(":")
    if name == metric:
      return how == "min"
  return bool(LOWER.search(metric.rpartition("/")[2]))


def number_text(mean: float | None, error: float | None = None) -> str:
  """ "27.31 ± 0.12": two digits of the error, and the mean to the same place; else four digits."""
  if mean is None:
    return ""
  if error is None:
    return f"{mean:.4g}"
  size = max(abs(mean), error)
  if not math.isfinite(mean + error) or error <= 1e-9 * size:
    return f"{mean:.4g} ± {error:.2g}"
  last = _exponent(float(f"{error:.1e}")) - 1  # the power of ten of the last digit shown
  mean, error = round(mean, -last), round(error, -last)
  first = _exponent(size)
  if -4 <= first < 6:
    return f"{mean:.{max(-last, 0)}f} ± {error:.{max(-last, 0)}f}"
  scaled = lambda x: f"{x / 10.0**first:.{max(first - last, 0)}f}e{first:+03d}"
  return f"{scaled(mean)} ± {scaled(error)}"


def _exponent(x: float) -> int:
  return math.floor(math.log10(x))


def markdown(table: Sequence[Row], metrics: Sequence[str]) -> str:
  """The table for people."""
  keys = list(table[0].settings)
  lines = [[word(row.settings[k]) for k in keys] + [row.n()]
           + [number_text(*row.statistics(m)) for m in metrics] for row in table]
  return _markdown([*keys, "n", *metrics], lines, left=len(keys))


def _markdown(header: Sequence[str], lines: Sequence[Sequence[str]], left: int) -> str:
  """A table whose first `left` columns are flush left."""
  rule = ["---"] * left + ["---:"] * (len(header) - left)
  escaped = lambda cell: re.sub(r"\s+", " ", cell).replace("|", "\\|")
  return "".join("| " + " | ".join(map(escaped, line)) + " |\n" for line in (header, rule, *lines))


def csv_text(table: Sequence[Row], metrics: Sequence[str]) -> str:
  """The table for programs: full precision, mean and error in columns of their own."""
  keys = list(table[0].settings)
  out = io.StringIO()
  writer = csv.writer(out, lineterminator="\n")
  writer.writerow([*keys, "n", "runs", "failed",
                   *(name for m in metrics for name in (m, f"{m} stderr"))])
  for row in table:
    writer.writerow([*(word(row.settings[k]) for k in keys), len(row.results), row.runs,
                     row.failed, *(x for m in metrics for x in row.statistics(m))])
  return out.getvalue()


# -------------------------------------------------------------------------------- report


def report(workdir: str, metrics: Sequence[str] = ()) -> str:
  """The results in `workdir`, a sweep's or a run's, as Markdown; files are written beside them.

  A sweep's table goes to `sweep.md` and `sweep.csv`, its losses to `loss.png`, and the metrics that
  were asked for to `curves.png`, as means over seeds with their standard error; a run's losses, or
  the metrics that were asked for, to `curves.png`. Either may still be running. Metrics are kept
  in `report.json` for the next report that asks for none, so that it does not replace what was
  made with them; `("all",)` is all of them again.

  Raises:
    ConfigError: there is neither, or no such metric.
  """
  if is_sweep(workdir):
    make = _report_sweep
  elif any(storage.exists(os.path.join(workdir, f)) for f in ("metrics.jsonl", "results.json")):
    make = _report_run
  else:
    raise ConfigError(f"--workdir={workdir} holds neither a sweep ({SWEEP_FILE}) nor a run"
                      " (metrics.jsonl)")
  asked = list(metrics)
  if not asked and (metrics := kept_metrics(workdir)):
    logging.info("report   --metrics=%s, as before; --metrics=all is all", ",".join(metrics))
  text = make(workdir, [] if asked == ["all"] else list(metrics))
  if asked:
    config_files.write_json({"metrics": [] if asked == ["all"] else asked},
                            os.path.join(workdir, REPORT_FILE))
  return text


def is_sweep(workdir: str) -> bool:
  return storage.exists(os.path.join(workdir, SWEEP_FILE))


def kept_metrics(workdir: str) -> list[str]:
  """The metrics that were last asked for; none are all."""
  path = os.path.join(workdir, REPORT_FILE)
  return _read_json(path)["metrics"] if storage.exists(path) else []


def label_of(settings: Mapping[str, Any]) -> str:
  """Of a setting, under which it is drawn; "" where it sets nothing."""
  return ",".join(f"{k}={word(v)}" for k, v in settings.items() if k != SEED)


def _report_sweep(workdir: str, metrics: Sequence[str]) -> str:
  table = rows(workdir)
  asked, metrics = metrics, choose_metrics(
      [result for row in table for result in row.results], metrics)
  text = markdown(table, metrics) + searched.markdown(workdir)
  for name, content in (("sweep.md", text), ("sweep.csv", csv_text(table, metrics))):
    storage.write_text(os.path.join(workdir, name), content)
  for path, drawn in (("loss.png", ["loss"]), ("curves.png", asked)):
    _draw(_panels_of_sweep(workdir, drawn), os.path.join(workdir, path))
  return text


def _panels_of_sweep(workdir: str, metrics: Sequence[str]) -> dict[str, dict[str, Line]]:
  """A panel a metric, a line a setting."""
  groups: dict[str, list[list[dict[str, Any]]]] = {}
  for item in _read_json(os.path.join(workdir, SWEEP_FILE))["items"]:
    logged = read_metrics(os.path.join(workdir, item["name"]))
    groups.setdefault(label_of(item["settings"]), []).append(logged)
  return {metric: {label: mean_of([line_of(logged, metric) for logged in group])
                   for label, group in groups.items()} for metric in metrics}


def _report_run(workdir: str, metrics: Sequence[str]) -> str:
  logged = read_metrics(workdir)
  path = os.path.join(workdir, "results.json")
  latest = {k: v for line in logged for k, v in line.items()}
  results = _read_json(path) if storage.exists(path) else latest
  choose_metrics([latest, results], metrics)  # known in one or the other
  shown = {k: v for k, v in results.items() if k in metrics or not metrics}
  _draw(_panels_of_run(logged, metrics), os.path.join(workdir, "curves.png"))
  cell = lambda v: number_text(v) if isinstance(v, float) else word(v)
  tables = {k: v for k, v in shown.items() if isinstance(v, Mapping)}
  text = _markdown(["metric", "value"],
                   [[k, cell(v)] for k, v in shown.items() if k not in tables], left=1)
  for name, table in tables.items():  # by rows, then columns
    columns = next(iter(table.values()))
    text += "\n" + _markdown([name, *columns], [[row, *map(cell, values.values())]
                                                for row, values in table.items()], left=1)
  return text


def _panels_of_run(logged: Sequence[Mapping[str, Any]], metrics: Sequence[str]
                   ) -> dict[str, dict[str, Line]]:
  """The metrics, or the losses; numbers of the same name, of several splits, share a panel."""
  panels: dict[str, dict[str, Line]] = {}
  names = dict.fromkeys(k for line in logged for k in line)
  for metric in metrics or [k for k in names if k.rpartition("/")[2] == "loss"]:
    panels.setdefault(metric.rpartition("/")[2], {})[metric] = line_of(logged, metric)
  return panels


def save_curves(workdir: str, output: str, metrics: Sequence[str] = ()) -> None:
  """Draws the metrics, or the losses, of a sweep or a run into a file for a paper.

  Raises:
    ConfigError: no such metric was logged.
  """
  panels = (_panels_of_sweep(workdir, metrics or ["loss"]) if is_sweep(workdir) else
            _panels_of_run(read_metrics(workdir), metrics))
  if not _draw(panels, output):
    raise ConfigError(f"--output={output}: there is no curve of {', '.join(metrics) or 'loss'} in"
                      f" {workdir}")


def line_of(logged: Sequence[Mapping[str, Any]], metric: str) -> Line:
  """Its values over the steps that have one; null, which is not finite, is NaN."""
  values = {line["step"]: math.nan if line[metric] is None else line[metric]
            for line in logged if metric in line}
  steps = sorted(values)  # the best checkpoint's come last
  return Line(steps, [values[step] for step in steps])


def mean_of(runs: Sequence[Line]) -> Line:
  """Over the runs that have points by now."""
  there = [run for run in runs if len(run.xs)]
  return mean_line(there) if there else Line([], [])


def _draw(panels: Mapping[str, Mapping[str, Line]], path: str) -> bool:
  """Draws the lines that have points, and says whether any had; nothing is drawn to no file."""
  there = {ylabel: {label: line for label, line in lines.items() if len(line.xs)}
           for ylabel, lines in panels.items()}
  if there := {ylabel: lines for ylabel, lines in there.items() if lines}:
    save_figure(curves(there, "step"), path)
  return bool(there)


def _read_json(path: str) -> Any:
  return json.loads(storage.read_text(path))
