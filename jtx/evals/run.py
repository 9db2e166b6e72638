"""Runs the evaluators of a config."""

import os
import time
from typing import Any, Callable, Iterator, Mapping, Sequence

from absl import logging
import jax

from jtx.build import check_heads, check_keys
from jtx.config import ConfigDict, build
from jtx.data.inputs import FILES
from jtx.data.sources.registry import open_source
from jtx.errors import DataError
from jtx.evals import EVALS
from jtx.evals.table import Table
from jtx.evals.task import Record, Task
from jtx.figures.figure import save_figure
from jtx.parallel import processes

QUICK = ("text", "documents", *FILES)  # kinds of sources that are quick to open


def make_evaluators(config: ConfigDict, model: Any = None,
                    example: Mapping[str, Any] | None = None) -> dict[str, Any]:
  """The evaluators of a config by the name of their split.

  Args:
    config: of a run.
    model: that they are to evaluate, where it is known.
    example: a batch's arrays, where they are known.

  Raises:
    ConfigError: an evaluator can't be made, or needs what the model or a batch lacks.
  """
  made = {name: build(EVALS, config.evals[name], what=f"evals.{name}") for name in config.evals}
  for name, evaluator in made.items():
    what = f"config.evals.{name}.name={config.evals[name].name!r}"
    if model is not None:
      check_heads(config, model, evaluator.heads, what)
      if hasattr(evaluator, "check_model"):
        evaluator.check_model(model)
    if example is not None:
      check_keys(example, evaluator.keys, what)
  return made


def check_early(config: ConfigDict) -> None:
  """Makes the evaluators of a config and opens their files, before any data is prepared.

  Raises:
    ConfigError: an evaluator can't be made.
    DataError: a file is missing, empty or broken.
  """
  for name, evaluator in make_evaluators(config).items():
    try:
      open_quick(getattr(evaluator, "source", ()), config.data.path)
    except DataError as e:
      open_quick(config.data.train, config.data.path)  # what is missing there is told first
      raise DataError(f"config.evals.{name}: {e}") from e


def open_quick(specs: Sequence[str], path: str) -> None:
  """Opens those of the sources for which it takes little time; see `open_source`."""
  for spec in specs:
    if spec.partition(":")[0] in QUICK:
      open_source(spec, path)


def checked(evaluators: dict[str, Any], data: Any) -> dict[str, Any]:
  """The evaluators; raises DataError where one will not be able to use its data."""
  for name, evaluator in evaluators.items():
    try:
      if hasattr(evaluator, "check_data"):
        evaluator.check_data(data)
      elif specs := getattr(evaluator, "source", ()):
        data.check(specs)
    except DataError as e:
      raise DataError(f"config.evals.{name}: {e}") from e
  return evaluators


def evaluate(task: Task, params: Any, evaluators: Mapping[str, Any], step: int, workdir: str,
             write: Callable[[int, Mapping[str, float]], None] | None = None,
             records: dict[str, list[Record]] | None = None) -> dict[str, Any]:
  """Runs evaluators: numbers are written, texts logged, figures drawn into the workdir.

  Args:
    task: the model and its data.
    params: of the model.
    evaluators: by split.
    step: of the parameters.
    workdir: for the figures.
    write: takes the step and each evaluator's numbers by `split/name`.
    records: gets a record of each example, by split; None where they are not wanted.

  Returns:
    Numbers, signatures and tables by `split/name`.
  """
  results: dict[str, Any] = {}
  for split, evaluator in evaluators.items():
    start = time.monotonic()
    numbers, lines = {}, []
    with jax.set_mesh(task.mesh):
      for name, value in evaluator(task, params):
        key = f"{split}/{name}"
        if isinstance(value, (int, float)):
          numbers[key] = value
        elif isinstance(value, Table):
          results[key] = value.plain()
          lines += [f"{key}:", *value.lines()]
        elif isinstance(value, Iterator):
          if records is not None:
            records[split] = list(value)
        elif not isinstance(value, str):
          if processes.is_main():
            save_figure(value, os.path.join(workdir, f"{split}_{name}.png"))
        elif name.startswith("sample"):
          lines.append(value)
        else:
          results[key] = value
    logging.info("eval     step %d %s in %.1f s", step,
                 " ".join(f"{k}={v:.4g}" for k, v in numbers.items()), time.monotonic() - start)
    for line in lines:
      logging.info("  %s", line)
    if write is not None:
      write(step, numbers)
    results |= numbers
  return results
