"""The evaluations that a command asks for: other splits and scores than those of a run's config."""

import os
import re
from typing import Callable, Sequence

from jtx import storage
from jtx.config import ConfigDict, edit, section
from jtx.data.inputs import file_of
from jtx.errors import ConfigError
from jtx.evals import EVALS


def chosen(config: ConfigDict, heads: frozenset[str], sources: Sequence[str] = (),
           scores: Sequence[str] = (), spec_of: Callable[[str], str] = str,
           predictions: bool = False) -> ConfigDict:
  """The `evals` section of a config, on other sources or by other scores.

  Args:
    config: of a run.
    heads: of its model, by which an evaluator is found where the config has none.
    sources: names of the config's evaluations, which are made and no other; or files and specs
      of sources, which are evaluated together, as one split of the name of the first.
    scores: what is scored; () is what the config says.
    spec_of: the spec of a file, or of a spec.
    predictions: one that predicts each example is added, where there are only losses.

  Raises:
    ConfigError: no evaluator has the scores, or is of a split.
  """
  evals = config.evals.copy_and_resolve_references()
  if not len(evals) and (sources or scores or predictions):
    evals = default(heads)
  with evals.unlocked():
    if sources and all(name in evals for name in sources):
      evals = ConfigDict({name: evals[name] for name in sources})
    elif sources:
      evals = moved(evals, tuple(there(spec_of(source)) for source in sources))
    if predictions and not any(EVALS[e.name].heads for e in evals.values()):
      of_split = next((e.source for e in evals.values() if "source" in e), ())
      evals["predictions"] = edit(default(heads)["val"], {"source": of_split})
    if scores:
      _set_scores(evals, scores, heads)
  return evals


def default(heads: frozenset[str]) -> ConfigDict:
  """An evaluation, "val", by the first evaluator that is for a head of the model."""
  for name, constructor in EVALS.items():
    if constructor.heads and constructor.heads <= heads:
      return ConfigDict({"val": section(EVALS, name)})
  raise ConfigError("config.evals is empty, and no evaluator is for a model with the heads"
                    f" {', '.join(sorted(heads)) or 'none'}")


def moved(evals: ConfigDict, specs: tuple[str, ...]) -> ConfigDict:
  """Each kind of evaluation once, on other sources."""
  kinds: dict[str, ConfigDict] = {}
  for name, evaluation in evals.items():
    if "source" not in evaluation or hasattr(EVALS[evaluation.name], "of_classes"):
      continue
    copy = evaluation.copy_and_resolve_references()
    with copy.unlocked():
      copy.source, copy.every = specs, 0
    if copy not in kinds.values():
      kinds[name] = copy
  if not kinds:
    raise ConfigError(f"--source={specs[0]}: no evaluation of the config is of a split;"
                      f" config.evals has {', '.join(evals) or 'none'}")
  stem = re.sub(r"\W+", "_", os.path.basename(file_of(specs[0])).partition(".")[0]) or "source"
  alone = len(kinds) == 1
  return ConfigDict({stem if alone else f"{stem}_{name}": e for name, e in kinds.items()})


def there(spec: str) -> str:
  """A spec whose files are named from the working directory, where they are; else as it is."""
  files = file_of(spec).split(",")
  if not all(file and storage.exists(file) for file in files):
    return spec
  return spec.replace(",".join(files), ",".join(map(storage.absolute, files)), 1)


def _set_scores(evals: ConfigDict, scores: Sequence[str], heads: frozenset[str]) -> None:
  """Sets the scores of all evaluations that have some, or scores those of the model's head."""
  if not _scored(evals):
    _by_scores(evals, heads)
  scored = _scored(evals)
  if not scored:
    have = ", ".join(f"{name} ({evaluation.name})" for name, evaluation in evals.items())
    raise ConfigError(f"--scores={','.join(scores)}: no evaluation can have scores; config.evals"
                      f" has {have or 'none'}")
  for name in scored:
    edit(evals[name], {"scores": tuple(scores)}, f"evals.{name}")


def _scored(evals: ConfigDict) -> list[str]:
  return [name for name, evaluation in evals.items() if "scores" in evaluation]


def _by_scores(evals: ConfigDict, heads: frozenset[str]) -> None:
  """Makes evaluations of the head, such as that of images, ones that have scores."""
  of_head = lambda make: bool(make.heads) and make.heads <= heads
  scored = [name for name, make in EVALS.items()
            if of_head(make) and "scores" in section(EVALS, name)]
  for name, evaluation in evals.items() if scored else ():
    if of_head(EVALS[evaluation.name]):
      evals[name] = edit(section(EVALS, scored[0]), {"source": evaluation.source})
