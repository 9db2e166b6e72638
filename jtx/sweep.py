"""Sweeps: many runs of one config side by side. `jtx/report.py` makes the table of their results.

A sweep is a list of items, each a few edits of one config. An item is run by the train command
that a user could type, in a folder of its own below the sweep's. What is known of a sweep is in
those folders and in `sweep.json`: one that was stopped goes on with the same command, and its
table can be made at any time.

The parent of the runs holds no device, so nothing here imports JAX before a run is looked at.
"""

import collections
import contextlib
import copy
import dataclasses
import datetime
import fcntl
import hashlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import logging
from ml_collections.config_flags import config_path
import numpy as np

from jtx import config as config_lib
from jtx import preemption
from jtx.config import ConfigDict, ConfigError

SWEEP_FILE = "sweep.json"
LOG_FILE = "log.txt"
SEED = "seed"  # the key over which a table averages

POLL_SECONDS = 0.2
GRACE_SECONDS = 10.0  # between asking a run to end and killing it
MAX_NAME = 120  # characters; file systems take 255 bytes


# ------------------------------------------------------------------------------- items


@dataclasses.dataclass(frozen=True)
class Item:
  """One run of a sweep.

  Attributes:
    name: of its folder.
    edits: text by config key, as after `--config.`.
    settings: what differs among the items, by the short name of its key.
    config: of the run.
    command: that runs it.
  """
  name: str
  edits: Mapping[str, str]
  settings: Mapping[str, Any]
  config: ConfigDict
  command: Sequence[str]


def grid(texts: Sequence[str], config: ConfigDict) -> list[dict[str, str]]:
  """The product of "optim.lr=1e-4,3e-4" and its like, the last one fastest.

  Commas inside brackets and quotes do not part values: "optim.betas=(0.9,0.98),(0.9,0.999)".

  Raises:
    ConfigError: a text of another form, a key that comes twice or is a section, or a tuple
      without brackets. What the train command would refuse is left to it.
  """
  axes: dict[str, list[str]] = {}
  for text in texts:
    key, _, values = text.partition("=")
    words = _split(values)
    if not key or not all(words):
      raise ConfigError(f"--grid={text} is not of the form KEY=VALUE,VALUE")
    if key in axes:
      raise ConfigError(f"--grid={text}: {key} has a --grid already; give it all values at once")
    old = _value(config, key)
    if isinstance(old, ConfigDict):
      raise ConfigError(f"--grid={text}: {key} is a section, and a grid has plain values;"
                        " write a sweep_NAME() in the config file, or give one of its keys")
    if isinstance(old, tuple) and any(word[0] not in "([" for word in words):
      raise ConfigError(f"--grid={text}: {key} is a tuple; put each value in brackets,"
                        f" as --grid={key}=(1,2),(3,4)")
    axes[key] = words if isinstance(old, tuple) else [_unquoted(word) for word in words]
  return [dict(zip(axes, values)) for values in itertools.product(*axes.values())]


def _split(text: str) -> list[str]:
  """Words between commas that are not in brackets or quotes."""
  words, depth, quote = [""], 0, ""
  for c in text:
    if c == "," and not depth and not quote:
      words.append("")
      continue
    if quote:
      quote = "" if c == quote else quote
    elif c in "'\"" and (depth or not words[-1]):
      quote = c
    else:
      depth += (c in "([{") - (c in ")]}")
    words[-1] += c
  return words


def _unquoted(word: str) -> str:
  return word[1:-1] if len(word) > 1 and word[0] in "'\"" and word[-1] == word[0] else word


def overrides(edits: Mapping[str, Any], config: ConfigDict, what: str) -> dict[str, str]:
  """A sweep function's edits as the command line takes them: text by dotted key.

  Args:
    edits: as `config.edit` takes them.
    config: that they edit; it stays as it is.
    what: names them in errors.

  Raises:
    ConfigError: an unknown key, or a value of another type.
  """
  flat = dict(_flat(edits))
  try:
    config_lib.edit(copy.deepcopy(config), flat)
  except ConfigError as error:
    raise ConfigError(f"{what}: {error}") from None
  # `edit` lets None stand where nothing was set, which is no edit.
  return {key: override(value) for key, value in flat.items() if value is not None}


def _flat(edits: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
  """Edits by dotted key; a section that a registry made stays whole."""
  for key, value in edits.items():
    if isinstance(value, ConfigDict) and "name" in value or not isinstance(
        value, (Mapping, ConfigDict)):
      # NumPy's scalars, as of a logspace, are no config values.
      yield prefix + key, value.item() if isinstance(value, np.generic) else value
    else:
      yield from _flat(value, f"{prefix}{key}.")


def override(value: Any) -> str:
  """`value` as it stands after `--config.key=`."""
  if isinstance(value, bool):
    return str(value).lower()
  return value if isinstance(value, str) else _literal(value)


def _literal(value: Any) -> str:
  """As Python reads it; with double quotes, since a shell's are single ones."""
  if isinstance(value, ConfigDict):
    return "{" + ", ".join(f"{_literal(k)}: {_literal(value[k])}" for k in value) + "}"
  if isinstance(value, (tuple, list)):
    return "(" + "".join(f"{_literal(v)}, " for v in value).rstrip(" ") + ")"
  return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _value(config: ConfigDict, key: str) -> Any:
  """The value at a dotted key, or None where another constructor has no such field."""
  try:
    return config_path.get_value(key, config)
  except (KeyError, AttributeError, IndexError, TypeError):
    return None


def plan(edits: Sequence[Mapping[str, str]], configs: Sequence[ConfigDict],
         arguments: Sequence[Sequence[str]], workdir: str, train: Sequence[str]) -> list[Item]:
  """Names the items of a sweep.

  Args:
    edits: of each item.
    configs: each item's whole config.
    arguments: each item's config arguments on the command line.
    workdir: of the sweep.
    train: the train command, without arguments.

  Raises:
    ConfigError: no items, or two that are the same.
  """
  if not edits:
    raise ConfigError("the sweep has no items")
  seen: dict[str, int] = {}
  for i, config in enumerate(configs):
    other = seen.setdefault(repr(sorted(config_lib.flatten(config).items())), i)
    if other != i:
      raise ConfigError(f"items {other + 1} and {i + 1} of the sweep are the same: "
                        + " ".join(f"{k}={v}" for k, v in edits[i].items()))

  keys = dict.fromkeys(key for item in edits for key in item)
  values = {key: [_value(config, key) for config in configs] for key in keys}
  differing = [k for k in keys if len({override(v) for v in values[k]}) > 1] or list(keys)
  short = _short_names(differing)
  cells = {key: _cells(values[key]) for key in differing}

  names = [",".join(f"{short[k]}={_safe(word(cells[k][i]))}" for k in item if k in cells) or "base"
           for i, item in enumerate(edits)]
  number = collections.Counter(name.casefold() for name in names)  # some file systems fold case
  for i, name in enumerate(names):
    if len(name) > MAX_NAME or number[name.casefold()] > 1:
      digest = hashlib.sha1(repr(sorted(edits[i].items())).encode()).hexdigest()[:8]
      names[i] = f"{name[:MAX_NAME]}-{digest}"

  return [
      Item(name, item, {short[k]: cells[k][i] for k in differing}, config,
           [*train, *args, f"--workdir={os.path.join(workdir, name)}"])
      for i, (name, item, config, args) in enumerate(zip(names, edits, configs, arguments))]


def _short_names(keys: Sequence[str]) -> dict[str, str]:
  """By key its shortest dotted end that no other key, nor the seed, has."""
  ends = {key: [key.split(".", n)[n] for n in range(key.count("."), -1, -1)]
          for key in {*keys, SEED}}
  count = collections.Counter(end for all_ends in ends.values() for end in all_ends)
  return {key: next((e for e in ends[key] if count[e] == 1), key) for key in keys}


def _cells(values: Sequence[Any]) -> list[Any]:
  """What a table shows of one key's values: numbers as they are, and sections by their name.

  Where that name is another's too, the fields that tell them apart follow it.
  """
  short = [_cell(v) for v in values]
  cells = []
  for cell, value in zip(short, values):
    same = [v for c, v in zip(short, values) if c == cell]
    if isinstance(value, ConfigDict):
      own, others = config_lib.flatten(value), [config_lib.flatten(v) for v in same]
      fields = [k for k in own if any(k not in o or o[k] != own[k] for o in others)]
      cell += f"({', '.join(f'{k}={word(own[k])}' for k in fields)})" if fields else ""
    elif any(override(v) != override(value) for v in same):
      cell = override(value)
    cells.append(cell)
  return cells


def _cell(value: Any) -> Any:
  if isinstance(value, ConfigDict):
    return value.name
  if isinstance(value, (tuple, list)):
    return ", ".join(word(_cell(v)) for v in value)
  return value


def word(value: Any) -> str:
  return "" if value is None else override(value)


def _safe(text: str) -> str:
  """`text` with only what every file system and shell takes as it is."""
  return re.sub(r"[^\w.+=-]+", "-", text, flags=re.ASCII).rstrip("-")


# ----------------------------------------------------------------------------- devices


@dataclasses.dataclass(frozen=True)
class Share:
  """The devices of one run: variables that show it no others, and CPU cores (None is all)."""
  env: Mapping[str, str] = dataclasses.field(default_factory=dict)
  cores: frozenset[int] | None = None


# Chips in the order of their numbers are rectangles of a host only at these sizes.
TPU_BOUNDS = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1"}


def shares(jobs: int) -> list[Share]:
  """This machine's devices in `jobs` equal parts.

  Raises:
    ConfigError: there are fewer devices than jobs.
  """
  if jobs == 1:
    return [Share()]
  platform, count = _probe()
  if platform == "cpu":
    if not hasattr(os, "sched_getaffinity"):
      return [Share()] * jobs  # the system has no way to divide cores
    return divide("cpu", sorted(os.sched_getaffinity(0)), jobs)
  visible = os.environ.get(_VISIBLE[platform]) if platform in _VISIBLE else None
  return divide(platform, visible.split(",")[:count] if visible else range(count), jobs)


_VISIBLE = {"gpu": "CUDA_VISIBLE_DEVICES", "tpu": "TPU_VISIBLE_CHIPS"}


def divide(platform: str, devices: Sequence[Any], jobs: int) -> list[Share]:
  """`devices` in `jobs` equal parts; equal, since a result can depend on their number.

  Args:
    platform: JAX's name: cpu, gpu or tpu.
    devices: CPU cores, or the numbers of GPUs or of TPU chips.
    jobs: number of parts.

  Raises:
    ConfigError: there are fewer devices than jobs, or devices that can't be divided.
  """
  noun = {"cpu": "CPU cores", "gpu": "GPUs", "tpu": "TPU chips"}.get(platform)
  if noun is None:
    raise ConfigError(f"--jobs={jobs}: the devices of platform {platform!r} can't be divided among"
                      " runs; leave --jobs at 1")
  if jobs > len(devices):
    raise ConfigError(f"--jobs={jobs} is more than the {noun} to divide, of which there are"
                      f" {len(devices)}")
  size = len(devices) // jobs
  if platform == "tpu":
    size = max(n for n in TPU_BOUNDS if n <= size)
  if idle := len(devices) - size * jobs:
    logging.warning("--jobs=%d: each run gets %d of %d %s, and %d stay idle", jobs, size,
                    len(devices), noun, idle)
  parts = [devices[i * size:(i + 1) * size] for i in range(jobs)]
  if platform == "cpu":
    return [Share(cores=frozenset(part)) for part in parts]
  env = [{_VISIBLE[platform]: ",".join(map(str, part))} for part in parts]
  if platform == "tpu":
    alone = {"TPU_CHIPS_PER_PROCESS_BOUNDS": TPU_BOUNDS[size], "TPU_PROCESS_BOUNDS": "1,1,1",
             "CLOUD_TPU_TASK_ID": "0", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    env = [e | alone for e in env]
  return [Share(env=e) for e in env]


def _probe() -> tuple[str, int]:
  """Platform and number of local devices (chips of a TPU), asked for in another process.

  A process that asks holds the devices as long as it lives.
  """
  code = ("import jax; d = jax.local_devices(); p = d[0].platform;"
          "print(p, len({tuple(x.coords) for x in d} if p == 'tpu' else d))")
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
  if done.returncode:
    lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    raise ConfigError(f"--jobs: JAX finds no devices here: {lines[-1]}")
  platform, count = done.stdout.split()[-2:]
  return platform, int(count)


# ------------------------------------------------------------------------------- running


def finished(config: ConfigDict, folder: str) -> bool:
  """Whether `folder` holds the finished run of `config`."""
  from jtx import experiment  # imports JAX

  try:
    experiment.check_workdir(config, folder)
  except ConfigError:
    return False  # the train command says what is wrong with it
  return os.path.exists(os.path.join(folder, "results.json"))


def write(items: Sequence[Item], failed: Mapping[str, str], workdir: str) -> None:
  """Writes `sweep.json`, from which a table can be made.

  Args:
    items: of the sweep.
    failed: how runs ended, by the name of their item.
    workdir: of the sweep.
  """
  os.makedirs(workdir, exist_ok=True)
  config_lib.write_json({"items": [
      {"name": i.name, "edits": i.edits, "settings": i.settings, "command": i.command,
       "failed": failed.get(i.name), "config": json.loads(i.config.to_json())}
      for i in items]}, os.path.join(workdir, SWEEP_FILE))


def run(items: Sequence[Item], workdir: str, parts: Sequence[Share]) -> tuple[dict[str, str], int]:
  """Runs what is not finished, as many at a time as there are `parts`.

  A signal that ends this process ends the runs first; a run that fails does not. Runs keep what
  they compile in `workdir`/compiled, for runs that differ in numbers only, unless
  JAX_COMPILATION_CACHE_DIR names another folder.

  Returns:
    How runs failed, a sentence by the name of the item; and the signal that stopped the sweep,
    or 0.
  """
  failed: dict[str, str] = {}
  write(items, failed, workdir)
  compiled = os.path.join(os.path.abspath(workdir), "compiled")
  env = {"JAX_COMPILATION_CACHE_DIR": compiled, **os.environ}
  waiting = collections.deque(
      i for i in items if not finished(i.config, os.path.join(workdir, i.name)))
  free, running = list(parts), []
  total, ended = len(items), len(items) - len(waiting)
  if ended:
    logging.info("%d/%d finished before", ended, total)

  def fail(item: Item, reason: str) -> None:
    failed[item.name] = reason
    write(items, failed, workdir)
    logging.error("%d/%d failed %s: %s", ended, total, item.name, reason)

  with _caught_signals() as caught:
    try:
      while (waiting or running) and not caught:
        while waiting and free:
          item = waiting.popleft()
          try:
            running.append(_Run(item, os.path.join(workdir, item.name), free[-1], env))
            free.pop()
            logging.info("%d/%d start  %s", ended, total, item.name)
          except BlockingIOError:
            ended += 1
            fail(item, f"another process is running in {os.path.join(workdir, item.name)}")
        time.sleep(POLL_SECONDS)
        for r in [r for r in running if r.process.poll() is not None]:
          running.remove(r)
          free.append(r.share)
          if r.process.returncode == preemption.RESTART:
            waiting.append(r.item)
            logging.info("%d/%d later  %s, which was told to stop", ended, total, r.item.name)
            continue
          ended += 1
          if reason := r.failure():
            fail(r.item, reason)
          else:
            logging.info("%d/%d done   %s in %s", ended, total, r.item.name, r.age())
    finally:
      _end([r.process for r in running])
  if caught:
    logging.error("stopped by %s, %d of %d runs ended before and %d now; the same command goes on",
                  signal.Signals(caught[0]).name, ended, total, len(running))
  return failed, caught[0] if caught else 0


class _Run:
  """An item that is running, its output going to its log.

  Raises:
    BlockingIOError: another process runs there.
  """

  def __init__(self, item: Item, folder: str, share: Share, env: Mapping[str, str]):
    self.item, self.share, self._folder = item, share, folder
    self._start = time.monotonic()
    os.makedirs(folder, exist_ok=True)
    self._path = os.path.join(folder, LOG_FILE)
    with open(self._path, "ab") as log:
      # The run inherits the lock with its output, and so has it even when we are killed.
      fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
      self._offset = log.tell()
      with _on_cores(share.cores):
        # A session of its own, so that Ctrl-C reaches only us, and the run's workers end with it.
        self.process = subprocess.Popen(
            item.command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            env={**env, **share.env}, start_new_session=True)

  def age(self) -> str:
    return str(datetime.timedelta(seconds=round(time.monotonic() - self._start)))

  def failure(self) -> str:
    """How the run failed: status or signal, its error, and its log; "" where it did not."""
    status = self.process.returncode
    if status == 0 and os.path.exists(os.path.join(self._folder, "results.json")):
      return ""
    with open(self._path, "rb") as f:
      f.seek(self._offset)
      text = f.read().decode(errors="replace")
    lines = [line for line in text.splitlines() if line.strip()] or ["no output"]
    last = next((line for line in reversed(lines) if line.startswith("error: ")), lines[-1])
    how = f"signal {_signal_name(-status)}" if status < 0 else f"exit status {status}"
    return f"{how}: {last} ({self._path})"


def _signal_name(number: int) -> str:
  try:
    return signal.Signals(number).name
  except ValueError:
    return str(number)


@contextlib.contextmanager
def _on_cores(cores: frozenset[int] | None) -> Iterator[None]:
  """A process that is started inside has only these cores, from its first instruction."""
  if cores is None:
    yield
    return
  before = os.sched_getaffinity(0)
  os.sched_setaffinity(0, cores)
  try:
    yield
  finally:
    os.sched_setaffinity(0, before)


@contextlib.contextmanager
def _caught_signals() -> Iterator[list[int]]:
  """A list to which the signals that would end us are added instead."""
  caught: list[int] = []
  # What is ignored, as SIGHUP below nohup, stays so.
  before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
  ours = [s for s, handler in before.items() if handler is not signal.SIG_IGN]
  for s in ours:
    signal.signal(s, lambda number, _: caught.append(number))
  try:
    yield caught
  finally:
    for s in ours:
      signal.signal(s, before[s])


def _end(processes: Sequence[subprocess.Popen]) -> None:
  """Ends processes, and what they started; those that take long are killed."""
  for p in processes:
    _signal_group(p, signal.SIGTERM)
  deadline = time.monotonic() + GRACE_SECONDS
  for p in processes:
    try:
      p.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
      _signal_group(p, signal.SIGKILL)
      p.wait()


def _signal_group(process: subprocess.Popen, number: int) -> None:
  with contextlib.suppress(ProcessLookupError):
    os.killpg(process.pid, number)
