"""The report of a sweep or a run as one page of HTML, which refers to nothing outside itself.

The template, its style and its scripts are the files of `html/`. The same folder gives the same
bytes: nothing in the page tells when it was made.
"""

import base64
from collections.abc import Iterator, Mapping, Sequence
import datetime
import json
import math
import os
import shlex
from typing import Any

import jinja2
import numpy as np

from jtx import config_files, storage
from jtx.figures.curves import Line
from jtx.sweeps import folders, report, searched
from jtx.sweeps.cells import Cell, Column, Table, long, measured, number, plain, rate, sort_key
from jtx.sweeps.folders import Run
from jtx.sweeps.sweep import SEED, override

POINTS = 200_000  # of all curves together, about
LINE_POINTS = (50, 500)  # the fewest and the most of a line, where it has more
PICTURE_BYTES, ALL_PICTURES_BYTES = 2**20, 10 * 2**20
GROUPS = ("training", "evaluations", "progress and speed")
FACTS = {"device_kind": "device", "devices": "devices", "processes": "processes",
         "cpu_cores": "CPU cores", "python": "Python"}
MISSING = "–"


def write(workdir: str, output: str, metrics: Sequence[str] = ()) -> None:
  """Writes the page of a sweep or a run, finished or not.

  Args:
    workdir: of the sweep or the run.
    output: the file.
    metrics: of the table of results; all if none is given.

  Raises:
    ConfigError: there is no such metric.
  """
  storage.write_text(output, text(workdir, metrics))


def text(workdir: str, metrics: Sequence[str] = ()) -> str:
  """The page, as `write` writes it."""
  runs = folders.read(workdir)
  sweep = report.is_sweep(workdir)
  groups = grouped(runs)
  environment = jinja2.Environment(
      loader=jinja2.FileSystemLoader(os.path.join(os.path.dirname(__file__), "html")),
      autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
  drawn, thinned = curves(groups)
  search = searched.read(workdir, runs) if sweep else None
  results = (dict(settings=settings_table(groups, metrics), results=Table((), ()), tables={})
             if sweep else dict(settings=None, **_of_a_run(runs[0], metrics)))
  return environment.get_template("page.html").render(
      title=os.path.basename(os.path.abspath(workdir)), summary=_summary(runs, groups),
      search=_of_a_search(search) if search else None, curves=drawn, groups=_options(drawn),
      curves_note=_note(sweep, thinned),
      differing=differing(groups) if sweep else Table((), ()),
      config=json.dumps(runs[0].config, indent=2, ensure_ascii=False) if runs[0].config else "",
      config_of=runs[0].name, runs=_runs_table(runs), environments=_environments(runs),
      commands=[(run.name, map(shlex.quote, run.command)) for run in runs if run.command],
      samples=_samples(runs), results_of=_results_of(runs[0]), **results)


def grouped(runs: Sequence[Run]) -> dict[str, list[Run]]:
  """The runs of each setting, which differ in their seeds, by its label."""
  groups: dict[str, list[Run]] = {}
  for run in runs:
    groups.setdefault(json.dumps(run.settings), []).append(run)
  label = lambda group: report.label_of(group[0].settings) or (
      group[0].name if len(group) == 1 else "all seeds")
  return {label(group): group for group in groups.values()}


def _summary(runs: Sequence[Run], groups: Mapping[str, Any]) -> str:
  if len(runs) == 1:
    return f"One run, {runs[0].state()}."
  finished = sum(run.results is not None for run in runs)
  failed, pruned = (sum(map(bool, states)) for states in (
      [run.failed for run in runs], [run.pruned for run in runs]))
  states = {"finished": finished, "failed": failed, "pruned": pruned,
            "not finished": len(runs) - finished - failed - pruned}
  told = ", ".join(f"{number} {state}" for state, number in states.items() if number)
  return f"{len(runs)} runs of {len(groups)} setting{'s' * (len(groups) > 1)}: {told}."


# ------------------------------------------------------------------------------- results


def settings_table(groups: Mapping[str, Sequence[Run]], metrics: Sequence[str]) -> Table:
  """A row a setting: what it sets, how many runs are finished, and its metrics over them."""
  rows = [report.Row(group[0].settings, len(group), sum(bool(run.failed) for run in group),
                     [run.results for run in group if run.results is not None],
                     pruned=sum(bool(run.pruned) for run in group))
          for group in groups.values()]
  metrics = report.choose_metrics([r for row in rows for r in row.results], metrics)
  keys = list(rows[0].settings)
  configs = [run.config for group in groups.values() for run in group]
  ways = {m: "lower" if report.lower_is_better(m, configs) else "higher" for m in metrics}
  columns = [*map(Column, keys), Column("n", True),
             *(Column(m, True, way) for m, way in ways.items())]
  of_metrics = [_metric_cells(rows, m, way) for m, way in ways.items()]
  return Table(columns, [
      [*(plain(row.settings[k]) for k in keys), measured(len(row.results), row.n()), *values]
      for row, *values in zip(rows, *of_metrics)])


def _metric_cells(rows: Sequence[report.Row], metric: str, way: str) -> list[Cell]:
  """A metric of each row; the best one is told where another is worse."""
  means = [row.statistics(metric)[0] for row in rows]
  known = {mean for mean in means if mean is not None and math.isfinite(mean)}
  best = (min if way == "lower" else max)(known) if len(known) > 1 else None
  return [Cell(text=report.number_text(*row.statistics(metric)), sort=sort_key(mean),
               kind="number", best=best is not None and mean == best,
               n=sum(metric in result for result in row.results))
          for row, mean in zip(rows, means)]


def _of_a_run(run: Run, metrics: Sequence[str]) -> dict[str, Any]:
  """The table of a run's numbers, and the tables among its results."""
  latest = {k: math.nan if v is None else v for line in run.logged for k, v in line.items()}
  results = latest if run.results is None else run.results
  report.choose_metrics([latest, results], metrics)
  shown = {k: v for k, v in results.items() if k in metrics or not metrics}
  values = {k: v for k, v in shown.items() if not isinstance(v, Mapping)}
  tables = {
      name: Table([Column(name), *(Column(c, True) for c in next(iter(rows.values()), {}))],
                  [[plain(row), *map(number, cells.values())] for row, cells in rows.items()])
      for name, rows in shown.items() if isinstance(rows, Mapping)}
  return dict(tables=tables, results=Table(
      [Column("metric"), Column("value", True)],
      [[plain(k), number(v)] for k, v in values.items()]))


def _results_of(run: Run) -> str:
  return ("The final evaluation." if run.results is not None else
          "The run is not finished: these are the newest numbers that it logged.")


def _of_a_search(search: searched.Searched) -> dict[str, Any]:
  """The section on a search: a sentence, a table, and the points that a script draws."""
  done = search.finished()
  way = "lowest" if search.lower else "highest"
  best = f" The best run is {done[0].name}, with {search.result(done[0]):.4g}." if done else ""
  rows = [[plain(name), measured(share, searched.percent(share))]
          for name, share in search.importances().items()]
  return dict(
      summary=f"The objective is {search.metric}, of which the {way} value is the best.{best}",
      importances=Table([Column("parameter"), Column("explains", True)], rows),
      drawn=search.drawn())


# -------------------------------------------------------------------------------- curves


def curves(groups: Mapping[str, Sequence[Run]]) -> tuple[dict[str, Any], int]:
  """The points of all curves by metric, as the script draws them.

  Returns:
    The curves, where a value that is not finite is None, as is the error of a line without a band;
    and the points of a line that was thinned, or 0 where none was.
  """
  fewest, most = LINE_POINTS
  number_of_lines = sum(len({k for run in group for line in run.logged for k in line})
                        for group in groups.values())
  most = max(fewest, min(most, POINTS // max(number_of_lines, 1)))
  found, longest = [], 0
  for metric in _metrics_of(run for group in groups.values() for run in group):
    lines = []
    for setting, group in enumerate(groups.values()):
      line = report.mean_of([report.line_of(run.logged, metric) for run in group])
      longest = max(longest, len(line.xs))
      if len(line.xs):
        lines.append({"setting": setting, **_points(line, most)})
    found.append({"name": metric, "lines": lines})
  drawn = {"settings": list(groups), "metrics": [m for m in found if m["lines"]]}
  return drawn, most if longest > most else 0


def _metrics_of(runs: Iterator[Run]) -> list[str]:
  """The names of what was logged, by their groups; losses are first."""
  names = dict.fromkeys(name for run in runs for line in run.logged for name in line
                        if name.rpartition("/")[2] not in report.COUNTS)
  return sorted(names, key=lambda name: (GROUPS.index(_group(name)), name != "loss"))


def _group(metric: str) -> str:
  split = metric.rpartition("/")[0]
  return GROUPS[0] if not split else GROUPS[2] if split in ("perf", "seen") else GROUPS[1]


def _options(drawn: Mapping[str, Any]) -> list[tuple[str, list[tuple[int, str]]]]:
  """The choice of a metric: groups of places and names."""
  names = [metric["name"] for metric in drawn["metrics"]]
  groups = {group: [(i, name) for i, name in enumerate(names) if _group(name) == group]
            for group in GROUPS}
  return [(group, metrics) for group, metrics in groups.items() if metrics]


def _points(line: Line, most: int) -> dict[str, Any]:
  """A line's points, evenly thinned to `most`, in six digits."""
  places = np.unique(np.linspace(0, len(line.xs) - 1, min(len(line.xs), most)).round().astype(int))
  short = lambda x: float(f"{x:.6g}") if math.isfinite(x) else None
  return {"x": [line.xs[i] for i in places], "y": [short(line.ys[i]) for i in places],
          "error": None if line.error is None else [short(line.error[i]) for i in places]}


def _note(sweep: bool, thinned: int) -> str:
  mean = ("A line is the mean over the runs of a setting, at the steps that all of them have by"
          " now; the band around it is the standard error. " if sweep else "")
  most = f" Of a longer line {thinned} points are shown." if thinned else ""
  return f"{mean}A value that is not finite leaves a gap.{most}"


# ------------------------------------------------------------------------ configs and runs


def differing(groups: Mapping[str, Sequence[Run]]) -> Table:
  """The values of the keys in which the settings' configs differ, but for the seed."""
  flat = {label: config_files.flatten(config_files.from_plain(group[0].config))
          for label, group in groups.items()}
  shown = lambda values, k: override(values[k]) if k in values else MISSING
  keys = [k for k in dict.fromkeys(k for values in flat.values() for k in values)
          if k != SEED and len({shown(values, k) for values in flat.values()}) > 1]
  rows = [[plain(label), *(plain(values[k]) if k in values else Cell(text=MISSING, sort="")
                           for k in keys)] for label, values in flat.items()]
  return Table([Column("setting"), *map(Column, keys)], rows if keys else ())


def _runs_table(runs: Sequence[Run]) -> Table:
  rates = list(dict.fromkeys(
      k for run in runs for line in run.logged for k in line if k.endswith("_per_second")
      and k.startswith("perf/")))
  memory = [k for k in ("perf/device_memory_gib", "perf/host_memory_gib")
            if any(run.last(k) is not None for run in runs)]
  heads = {k: k.removeprefix("perf/").removesuffix("_per_second").replace("_", " ") + "/s"
           for k in rates}
  heads |= {"perf/mfu": "MFU"} if any(run.last("perf/mfu") is not None for run in runs) else {}
  heads |= {k: k.removeprefix("perf/").removesuffix("_gib").replace("_", " ") for k in memory}
  rows = []
  for run in runs:
    seconds, state = run.last("perf/seconds"), run.state()
    rows.append([
        plain(run.name),
        Cell(text=state, sort=state, kind="long failed" if run.failed else "long"),
        number(run.step), measured(seconds, str(datetime.timedelta(seconds=round(seconds or 0)))),
        *(rate(run.median(k)) for k in rates),
        *(measured(mfu, f"{100 * (mfu or 0):.1f}%") for mfu in
          map(run.median, heads.keys() & {"perf/mfu"})),
        *(measured(gib, f"{gib or 0:.2f} GiB") for gib in map(run.last, memory))])
  return Table([Column("run"), Column("state"), Column("step", True), Column("wall time", True),
                *(Column(name, True) for name in heads.values())], rows)


def _environments(runs: Sequence[Run]) -> Table:
  """Hardware, versions and the revision of the code; runs of the same share a row."""
  places: dict[str, list[Run]] = {}
  for run in runs:
    if run.environment:
      same = {k: v for k, v in run.environment.items() if k != "argv"}
      places.setdefault(json.dumps(same, sort_keys=True), []).append(run)
  of = [(place, place[0].environment) for place in places.values()]
  versions = list(dict.fromkeys(k for _, facts in of for k in facts.get("versions", {})))
  rows = []
  for place, facts in of:
    names = ", ".join(run.name for run in place)
    rows.append([long(names), *(plain(facts.get(k)) for k in FACTS),
                 long(facts.get("git_revision")),
                 *(plain(facts.get("versions", {}).get(k)) for k in versions)])
  return Table(list(map(Column, ("runs", *FACTS.values(), "revision", *versions))), rows)


def _samples(runs: Sequence[Run]) -> list[dict[str, Any]]:
  """Texts and pictures of each run that has some; a large picture is named only."""
  found, left = [], ALL_PICTURES_BYTES
  for run in runs:
    pictures = []
    for name, kind, content in folders.pictures(run.folder):
      shown = len(content) <= min(PICTURE_BYTES, left)
      left -= len(content) if shown else 0
      uri = f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}" if shown else ""
      pictures.append({"name": name, "uri": uri, "left_out":
                       f": left out, since it has {len(content) / 2**20:.1f} MiB"})
    texts = folders.samples(run.folder)
    if texts or pictures:
      found.append({"name": run.name, "texts": texts, "pictures": pictures})
  return found
