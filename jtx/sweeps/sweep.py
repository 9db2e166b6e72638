"""Sweeps: many runs of one config side by side, whose results `jtx/sweeps/report.py` tables.

A sweep is a list of items, each a few edits of one config. An item is run by the train command
that a user could type, in a folder of its own below the sweep's. What is known of a sweep is in
those folders and in `sweep.json`: one that was stopped goes on with the same command, and its
table can be made at any time.

`jtx/sweeps/jobs.py` runs the items. Nothing here imports JAX.
"""

import collections
from collections.abc import Iterator, Mapping, Sequence
import copy
import dataclasses
import hashlib
import itertools
import json
import os
import re
from typing import Any

from ml_collections.config_flags import config_path
import numpy as np

from jtx import config as config_lib
from jtx import config_files, storage
from jtx.config import ConfigDict
from jtx.errors import ConfigError

SWEEP_FILE = "sweep.json"
SEED = "seed"  # the key over which a table averages

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
    key, words = values_of("grid", text, config)
    if key in axes:
      raise ConfigError(f"--grid={text}: {key} has a --grid already; give it all values at once")
    axes[key] = words
  return [dict(zip(axes, values)) for values in itertools.product(*axes.values())]


def values_of(flag: str, text: str, config: ConfigDict) -> tuple[str, list[str]]:
  """The key of "optim.lr=1e-4,3e-4" and the texts of its values.

  Args:
    flag: whose value the text is.
    text: as above.
    config: that has the key.

  Raises:
    ConfigError: as `grid`.
  """
  key, _, values = text.partition("=")
  words = _split(values)
  if not key or not all(words):
    raise ConfigError(f"--{flag}={text} is not of the form KEY=VALUE,VALUE")
  old = value_at(config, key)
  if isinstance(old, ConfigDict):
    raise ConfigError(f"--{flag}={text}: {key} is a section, and a {flag} has plain values;"
                      " write a sweep_NAME() in the config file, or give one of its keys")
  if isinstance(old, tuple) and any(word[0] not in "([" for word in words):
    raise ConfigError(f"--{flag}={text}: {key} is a tuple; put each value in brackets,"
                      f" as --{flag}={key}=(1,2),(3,4)")
  return key, words if isinstance(old, tuple) else [_unquoted(word) for word in words]


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


def value_at(config: ConfigDict, key: str) -> Any:
  """The value at a dotted key, or None where another constructor has no such field."""
  try:
    return config_path.get_value(key, config)
  except (KeyError, AttributeError, IndexError, TypeError):
    return None


def check_folder(workdir: str) -> None:
  """Raises ConfigError for a sweep's folder in a bucket."""
  if storage.is_remote(workdir):
    raise ConfigError(f"--workdir={workdir}: that of a sweep must be a folder of this machine")


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
    ConfigError: no items, or two that are the same; the workdir is in a bucket.
  """
  check_folder(workdir)
  if not edits:
    raise ConfigError("the sweep has no items")
  seen: dict[str, int] = {}
  for i, config in enumerate(configs):
    other = seen.setdefault(repr(sorted(config_files.flatten(config).items())), i)
    if other != i:
      raise ConfigError(f"items {other + 1} and {i + 1} of the sweep are the same: "
                        + " ".join(f"{k}={v}" for k, v in edits[i].items()))

  keys = dict.fromkeys(key for item in edits for key in item)
  values = {key: [value_at(config, key) for config in configs] for key in keys}
  differing = [k for k in keys if len({override(v) for v in values[k]}) > 1] or list(keys)
  short = short_names(differing)
  cells = {key: _cells(values[key]) for key in differing}

  names = [",".join(f"{short[k]}={safe(word(cells[k][i]))}" for k in item if k in cells) or "base"
           for i, item in enumerate(edits)]
  number = collections.Counter(name.casefold() for name in names)  # some file systems fold case
  for i, name in enumerate(names):
    if len(name) > MAX_NAME or number[name.casefold()] > 1:
      digest = hashlib.sha1(repr(sorted(edits[i].items())).encode()).hexdigest()[:8]
      names[i] = f"{name[:MAX_NAME]}-{digest}"

  return [
      Item(name, item, settings={short[k]: cells[k][i] for k in differing}, config=config,
           command=[*train, *args, f"--workdir={os.path.join(workdir, name)}"])
      for i, (name, item, config, args) in enumerate(zip(names, edits, configs, arguments))]


def trial(number: int, edits: Mapping[str, str], arguments: Sequence[str], *, config: ConfigDict,
          workdir: str, train: Sequence[str]) -> Item:
  """An item of a search, whose name does not depend on those of others.

  Args:
    number: of the trial.
    edits: texts by config key, the same keys for all trials.
    arguments: its config arguments on the command line.
    config: of the run.
    workdir: of the search.
    train: the train command, without arguments.
  """
  short = short_names(list(edits))
  settings = {short[key]: _cells([value_at(config, key)])[0] for key in edits}
  words = [f"{key}={safe(word(value))}" for key, value in settings.items()]
  name = ",".join([f"trial={number}", *words])[:MAX_NAME]
  return Item(name, edits, settings=settings, config=config,
              command=[*train, *arguments, f"--workdir={os.path.join(workdir, name)}"])


def short_names(keys: Sequence[str]) -> dict[str, str]:
  """By key its shortest dotted end that no other key, nor the seed, has."""
  ends = {key: [key.split(".", n)[n] for n in range(key.count("."), -1, -1)]
          for key in {*keys, SEED}}
  count = collections.Counter(end for all_ends in ends.values() for end in all_ends)
  return {key: next((e for e in ends[key] if count[e] == 1), key) for key in keys}


def _cells(values: Sequence[Any]) -> list[Any]:
  """The cells of one key's values in a table: numbers as they are, and sections by their name.

  Where that name is another's too, the fields that tell them apart follow it.
  """
  short = [_cell(v) for v in values]
  cells = []
  for cell, value in zip(short, values):
    same = [v for c, v in zip(short, values) if c == cell]
    if isinstance(value, ConfigDict):
      own, others = config_files.flatten(value), [config_files.flatten(v) for v in same]
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


def safe(text: str) -> str:
  """`text` with only what every file system and shell takes as it is."""
  return re.sub(r"[^\w.+=-]+", "-", text, flags=re.ASCII).rstrip("-")


def write(items: Sequence[Item], failed: Mapping[str, str], workdir: str, *,
          pruned: Mapping[str, str] | None = None, search: Mapping[str, Any] | None = None) -> None:
  """Writes `sweep.json`, from which a table can be made.

  Args:
    items: of the sweep.
    failed: how runs ended, by the name of their item.
    workdir: of the sweep.
    pruned: why a search stopped runs, by the name of their item.
    search: of a search its space and objective, as its report takes them.
  """
  os.makedirs(workdir, exist_ok=True)
  config_files.write_json({"search": search, "items": [
      {"name": i.name, "edits": i.edits, "settings": i.settings, "command": i.command,
       "failed": failed.get(i.name), "pruned": (pruned or {}).get(i.name),
       "config": json.loads(i.config.to_json())}
      for i in items]}, os.path.join(workdir, SWEEP_FILE))
