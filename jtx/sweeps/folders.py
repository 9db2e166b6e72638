"""The runs of a folder, a sweep's or the one that lies there, with all that they left in it."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import json
import os
import re
import statistics
from typing import Any

from jtx import config_files, storage
from jtx.errors import ConfigError
from jtx.saved import workdir as workdirs
from jtx.sweeps.jobs import LOG_FILE, failure_of, finished
from jtx.sweeps.sweep import SEED, SWEEP_FILE

METRICS_FILE = "metrics.jsonl"
REPORTS = frozenset({"loss.png", "curves.png"})  # pictures that a report draws, and no run
PICTURES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg"}
TEXTS = (".txt", ".jsonl", ".tsv")  # of predictions, translations and replies
LINES, CHARACTERS = 20, 2000  # of a sample: how many are shown, and of each
INSTALLED, CLONED = ("jtx", "train"), ("python", "-m", "experiments.train")
STAMPED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [A-Z] (.*)")
EVALUATED = re.compile(r"eval +step (\d+) (?:([^/ ]+)/)?")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
  """A run, finished or not.

  Attributes:
    name: of its folder.
    folder: the path.
    settings: by short key, without the seed; none where it is no sweep's.
    command: that repeats it; nothing where none is recorded.
    config: plain values by key.
    failed: how it failed, or "".
    pruned: where a search has stopped it, or "".
    results: of the final evaluation; None where that is not done.
    logged: the lines of `metrics.jsonl`.
    environment: of `environment.json`, or nothing.
  """
  name: str
  folder: str
  settings: Mapping[str, Any]
  command: Sequence[str]
  config: Mapping[str, Any]
  failed: str
  results: Mapping[str, Any] | None
  logged: Sequence[Mapping[str, Any]]
  environment: Mapping[str, Any]
  pruned: str = ""

  @property
  def step(self) -> int:
    """The last that was logged; 0 where none was."""
    return max((line["step"] for line in self.logged), default=0)

  def last(self, metric: str) -> float | None:
    """The newest value of a metric, where it has one."""
    return next((line[metric] for line in reversed(self.logged)
                 if line.get(metric) is not None), None)

  def median(self, metric: str) -> float | None:
    """Over what was logged of it."""
    values = [line[metric] for line in self.logged if line.get(metric) is not None]
    return statistics.median(values) if values else None

  def state(self) -> str:
    if self.results is not None:
      return "finished"
    if self.failed:
      return f"failed: {self.failed}"
    if self.pruned:
      return self.pruned
    known = self.config.get("steps") and not self.config.get("epochs")  # by which they are others
    of = f" of {self.config['steps']}" if known else ""
    return f"not finished: step {self.step}{of}" if self.logged else "not started"


def read(workdir: str) -> list[Run]:
  """The runs of a sweep in its order, or the one whose workdir it is."""
  if not storage.exists(os.path.join(workdir, SWEEP_FILE)):
    return [_single(workdir)]
  runs = []
  for item in _json(workdir, SWEEP_FILE)["items"]:
    folder = os.path.join(workdir, item["name"])
    pruned = item.get("pruned") or ""
    done = not pruned and finished(config_files.from_plain(item["config"]), folder)
    runs.append(Run(
        name=item["name"], folder=folder, command=item["command"],
        settings={k: v for k, v in item["settings"].items() if k != SEED},
        config=item["config"], failed="" if done else failure_of(item, folder),
        results=_json(folder, workdirs.RESULTS_FILE) if done else None,
        logged=read_metrics(folder), environment=_json(folder, "environment.json"), pruned=pruned))
  return runs


def _single(workdir: str) -> Run:
  name = os.path.basename(os.path.abspath(workdir))
  environment = _json(workdir, "environment.json")
  return Run(
      name=name, folder=workdir, settings={}, command=_typed(environment.get("argv", ())),
      config=_json(workdir, workdirs.CONFIG_FILE), failed="",
      results=_json(workdir, workdirs.RESULTS_FILE) if workdirs.has_results(workdir) else None,
      logged=read_metrics(workdir), environment=environment)


def _typed(argv: Sequence[str]) -> Sequence[str]:
  """The command of `sys.argv`, which has the file of a module in the place of its name."""
  if not argv or not argv[0].endswith("experiments/train.py"):
    return argv
  installed = argv[0].endswith("site-packages/jtx/experiments/train.py")
  return [*(INSTALLED if installed else CLONED), *argv[1:]]


def _json(folder: str, name: str) -> dict[str, Any]:
  """An object, or nothing where there is no such file, or half of one."""
  path = os.path.join(folder, name)
  try:
    return config_files.read_json(path, missing="")
  except ConfigError:
    return {}


def read_metrics(folder: str) -> list[dict[str, Any]]:
  """The lines of `metrics.jsonl`; one that is being written does not count yet."""
  path = os.path.join(folder, METRICS_FILE)
  if not storage.exists(path):
    return []
  lines = storage.read_text(path).splitlines(keepends=True)
  return [json.loads(line) for line in lines if line.endswith("\n")]


# ------------------------------------------------------------------------------- samples


def pictures(folder: str) -> Iterator[tuple[str, str, bytes]]:
  """Name, media type and content of each picture that a run drew, by name."""
  for name in _names(folder):
    kind = PICTURES.get(os.path.splitext(name)[1].lower())
    if kind and name not in REPORTS:
      yield name, kind, storage.read_bytes(os.path.join(folder, name))


def samples(folder: str) -> dict[str, list[str]]:
  """The first lines of what a run wrote, by their source.

  These are the texts that evaluators showed last, from `log.txt`, and files of predictions.
  """
  found = {}
  if storage.exists(path := os.path.join(folder, LOG_FILE)):
    found = _shown(storage.read_text(path, errors="replace"))
  for name in _names(folder):
    if name.endswith(TEXTS) and name not in (METRICS_FILE, LOG_FILE):
      with storage.opened(os.path.join(folder, name)) as path, path.open("rb") as f:
        text = f.read(2 * LINES * CHARACTERS).decode("utf-8", "replace")
      found[name] = text.splitlines()
  return {source: [line[:CHARACTERS] for line in lines[:LINES]]
          for source, lines in found.items() if lines}


def _shown(log: str) -> dict[str, list[str]]:
  """The lines below the last evaluation of each split; a text may have several lines."""
  found: dict[str, tuple[str, list[str]]] = {}
  current = None
  for line in log.splitlines():
    stamped = STAMPED.fullmatch(line)
    text = stamped[1] if stamped else line
    if evaluated := EVALUATED.match(text):
      split, current = evaluated[2] or "evaluation", []
      found[split] = f"{split} at step {evaluated[1]}", current
    elif current is not None and stamped and text.startswith("  "):
      current.append(text[2:])
    elif current and not stamped:
      current[-1] += f"\n{line}"
    else:
      current = None
  return dict(found.values())


def _names(folder: str) -> list[str]:
  """The names of the files of a folder, in order."""
  if not storage.is_folder(folder):
    return []
  with storage.opened(folder) as path:
    return sorted(p.name for p in path.iterdir() if not p.is_dir())
