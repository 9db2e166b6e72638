"""A search for its report: its runs, the best first, and the importance of each parameter."""

from collections.abc import Mapping, Sequence
import dataclasses
import math
import os
from typing import Any

import numpy as np

from jtx import config_files
from jtx.sweeps import folders
from jtx.sweeps.folders import Run
from jtx.sweeps.importance import explained
from jtx.sweeps.sweep import SWEEP_FILE, word


@dataclasses.dataclass(frozen=True)
class Searched:
  """A search by now.

  Attributes:
    metric: the objective.
    lower: whether its lowest value is the best.
    axes: by name, low, high and log, as in `sweep.json`; `choices` is of texts, or empty.
    runs: all, those with a result first, the best of them at the head.
  """
  metric: str
  lower: bool
  axes: Sequence[Mapping[str, Any]]
  runs: Sequence[Run]

  def result(self, run: Run) -> float | None:
    """A finite value of the objective, where the run has one."""
    value = (run.results or {}).get(self.metric)
    return value if value is not None and math.isfinite(value) else None

  def finished(self) -> list[Run]:
    return [run for run in self.runs if self.result(run) is not None]

  def importances(self) -> dict[str, float | None]:
    """What each parameter explains, by its name, the most first; None where that is not known."""
    runs = self.finished()
    results = np.array([self.result(run) for run in runs], np.float64)
    found = {}
    for axis in self.axes:
      values = [run.settings[axis["name"]] for run in runs]
      found[axis["name"]] = explained(
          list(map(word, values)) if axis["choices"] else
          np.log(values) if axis["log"] else np.array(values, np.float64),
          results) if runs else None
    return dict(sorted(found.items(), key=lambda item: -math.inf if item[1] is None else -item[1]))

  def drawn(self) -> dict[str, Any]:
    """The points, as the script of the page draws them: a choice is its number among the labels."""
    axes = [{"name": axis["name"], "log": axis["log"], "labels": self._labels(axis)}
            for axis in self.axes]
    place = lambda axis, value: axis["labels"].index(word(value)) if axis["labels"] else value
    return {"metric": self.metric, "lower": self.lower, "axes": axes, "trials": [
        {"name": run.name, "state": run.state(), "result": self.result(run),
         "values": [place(axis, run.settings[axis["name"]]) for axis in axes]}
        for run in self.runs]}

  def _labels(self, axis: Mapping[str, Any]) -> list[str]:
    """The choices that runs have, numbers in their order; none of a range."""
    if not axis["choices"]:
      return []
    values = {word(run.settings[axis["name"]]): run.settings[axis["name"]] for run in self.runs}
    numeric = all(isinstance(v, (int, float)) for v in values.values())
    return sorted(values, key=values.get) if numeric else sorted(values)


def read(workdir: str, runs: Sequence[Run]) -> Searched | None:
  """The search of a workdir, with its runs; None where it is no search."""
  path = os.path.join(workdir, SWEEP_FILE)
  about = config_files.read_json(path, missing="there is no sweep").get("search")
  if not about or not runs:
    return None
  found = Searched(about["metric"], about["lower"], about["axes"], runs)
  sign = 1 if found.lower else -1
  key = lambda run: math.inf if found.result(run) is None else sign * found.result(run)
  return dataclasses.replace(found, runs=sorted(runs, key=key))


def markdown(workdir: str) -> str:
  """Lines on the best run and on what parameters explain; "" where nothing is finished."""
  search = read(workdir, folders.read(workdir))
  if search is None or not search.finished():
    return ""
  best = search.finished()[0]
  shares = "".join(f"| {name} | {percent(share)} |\n"
                   for name, share in search.importances().items())
  return (f"\nBest: {best.name}, {search.metric} {search.result(best):.4g}.\n\n"
          f"| parameter | explains |\n| --- | ---: |\n{shares}")


def percent(share: float | None) -> str:
  return "" if share is None else f"{100 * share:.0f}%"
