"""Configs as JSON files and as flat dicts, for saving and comparing them."""

import errno
import json
from typing import Any, Mapping

from ml_collections import ConfigDict

from jtx import storage
from jtx.errors import ConfigError


def save(cfg: ConfigDict, path: str) -> None:
  """Writes a config as JSON; unset placeholders become null."""
  write_json(json.loads(cfg.to_json()), path)


def write_json(value: Any, path: str) -> None:
  """Writes a JSON file that readers see whole or not at all."""
  storage.write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def load(path: str) -> ConfigDict:
  """The config that `save` wrote.

  Raises:
    ConfigError: the file is missing, or is not a JSON object.
  """
  return from_plain(read_json(path, missing="no run was started there"))


def read_json(path: str, missing: str) -> dict[str, Any]:
  """The JSON object that a file holds.

  Args:
    path: of the file.
    missing: what it means if it does not exist.

  Raises:
    ConfigError: it is missing, or is not a JSON object.
  """
  try:
    loaded = storage.parse_json(storage.read_text(path))
  except FileNotFoundError:
    raise ConfigError(f"{path} does not exist: {missing}") from None
  except NotADirectoryError:
    raise ConfigError(f"{path} does not exist: what it would lie in is a file and no folder"
                      ) from None
  except OSError as e:
    if e.errno == errno.ESPIPE:
      raise ConfigError(f"{path}: {e.strerror}") from None
    raise
  except ValueError as e:
    raise ConfigError(f"{path} is not valid JSON ({e})") from e
  if not isinstance(loaded, dict):
    raise ConfigError(f"{path} is not a config: its top level must be a JSON object")
  return loaded


def from_plain(value: Any) -> Any:
  """JSON values as a config holds them: objects as sections, arrays as tuples."""
  if isinstance(value, Mapping):
    return ConfigDict({k: from_plain(v) for k, v in value.items()})
  if isinstance(value, list):
    return tuple(from_plain(v) for v in value)
  return value


def flatten(cfg: Any, prefix: str = "") -> dict[str, Any]:
  """Leaves by dotted path, entries of tuples by their index, for comparing configs."""
  if isinstance(cfg, ConfigDict):
    items = ((f"{prefix}.{k}" if prefix else k, cfg[k]) for k in cfg)
  elif isinstance(cfg, (tuple, list)):
    items = ((f"{prefix}[{i}]", v) for i, v in enumerate(cfg))
  else:
    return {prefix: cfg}
  return {k: v for path, item in items for k, v in flatten(item, path).items()}
