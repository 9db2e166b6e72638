"""Config files, such as `configs/bert.py:large`, and the sweeps beside them, loaded by path."""

from collections.abc import Callable
import difflib
import importlib.machinery
import importlib.util
import inspect
import os
import re
import sys
import traceback
import types
from typing import Any

from ml_collections import ConfigDict

from jtx.errors import nearest

from .errors import UsageError, is_user_error, sentence

SHIPPED = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "configs")


def find_file(path: str) -> str:
  """`path`, or the file of a module such as jtx.configs.bert.

  Raises:
    UsageError: there is no such file.
  """
  if not os.path.isfile(path):
    if re.fullmatch(r"\w+(\.\w+)+", path) and not path.endswith(".py"):
      try:
        spec = importlib.util.find_spec(path)
      except ModuleNotFoundError:
        spec = None
      if spec and spec.origin:
        return spec.origin
    folder = os.path.dirname(path)
    others = sorted(os.listdir(folder or ".")) if os.path.isdir(folder or ".") else []
    files = [os.path.join(folder, f) for f in others if f.endswith(".py")]
    close = difflib.get_close_matches(path, files, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    shipped = os.path.splitext(os.path.basename(path))[0]
    if not hint and os.path.isfile(os.path.join(SHIPPED, f"{shipped}.py")):
      hint = f"; did you mean jtx.configs.{shipped}, which comes with jtx?"
    raise UsageError(f"there is no config file {path}{hint}")
  return path


def load_module(path: str) -> types.ModuleType:
  """The config file at `path` as a module.

  Python looks for modules in its folder last, so that a config file named as a package does not
  hide it. A file of a package, such as the configs that come with jtx, may import others of the
  package by relative imports.

  Raises:
    UsageError: an exception while it ran.
  """
  name = _in_file(path, lambda: _module_name(path))
  loader = importlib.machinery.SourceFileLoader(name, path)
  module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
  sys.modules[name] = module  # dataclasses look their module up
  _in_file(path, lambda: loader.exec_module(module))
  return module


def _module_name(path: str) -> str:
  """The name of a file of a package by which others of the package are found, or one of its own."""
  folder, parts = os.path.dirname(os.path.abspath(path)), []
  while os.path.isfile(os.path.join(folder, "__init__.py")):
    folder, package = os.path.split(folder)
    parts.insert(0, package)
  if folder not in sys.path:
    sys.path.append(folder)
  if parts:
    package = importlib.import_module(".".join(parts))
    own = os.path.realpath(os.path.dirname(path))
    if own in map(os.path.realpath, getattr(package, "__path__", ())):
      return ".".join([*parts, os.path.splitext(os.path.basename(path))[0]])
  return "config_" + re.sub(r"\W", "_", path)


def load_config(argument: str) -> ConfigDict:
  """The config of `configs/X.py`, `configs/X.py:arguments` or `jtx.configs.X:arguments`, locked.

  Raises:
    UsageError: as `find_file` and `load_module`; or `get_config` is missing, takes no arguments but
      got some, or raised.
  """
  name, colon, text = argument.partition(":")
  path = find_file(name)
  get_config = getattr(load_module(path), "get_config", None)
  if get_config is None:
    raise UsageError(f"{path} has no function get_config")
  if colon and not inspect.signature(get_config).parameters:
    raise UsageError(f"{path} takes no arguments, so {':' + text!r} must go")
  config = _in_file(path, lambda: get_config(text) if colon else get_config())
  if not isinstance(config, ConfigDict):
    raise UsageError(f"{path}: get_config returned {type(config).__name__}, not a ConfigDict")
  return config.lock()


def load_sweep(argument: str, name: str, config: ConfigDict) -> list[dict[str, Any]]:
  """The edits, by config key, that `sweep_NAME()` beside `get_config` of `argument` yields.

  A function with a parameter, `sweep_NAME(config)`, gets the config that its items edit.

  Raises:
    UsageError: there is no such function, or it raised, or yields something else.
  """
  path = find_file(argument.partition(":")[0])
  module = load_module(path)
  sweeps = [key.removeprefix("sweep_") for key in vars(module) if key.startswith("sweep_")]
  if name not in sweeps:
    hint = nearest(name, sweeps) if sweeps else "it has none"
    raise UsageError(f"{path} has no function sweep_{name}; {hint}")
  function = getattr(module, f"sweep_{name}")
  takes_config = bool(inspect.signature(function).parameters)
  items = _in_file(path, lambda: list(function(config) if takes_config else function()))
  for i, item in enumerate(items, 1):
    if not isinstance(item, dict):
      raise UsageError(f"{path}: item {i} of sweep_{name} is {item!r}, not a dict of edits such as"
                       ' {"optim.lr": 1e-3}')
  return items


def _in_file(path: str, call: Callable[[], Any]) -> Any:
  """`call()`; what it raises is told with the line of the config file."""
  try:
    return call()
  except SystemExit as error:
    raise UsageError(f"{path} ends the program (SystemExit: {error}); a config file only returns"
                     " its config") from error
  except Exception as error:
    if is_user_error(error):
      raise UsageError(sentence(error)) from error
    if isinstance(error, SyntaxError):
      line, text = error.lineno, error.msg
    else:
      frames = traceback.extract_tb(error.__traceback__)
      line = next((f.lineno for f in reversed(frames) if f.filename == path), 1)
      text = _brief(str(error))
    raise UsageError(
        f"{path}, line {line}: {type(error).__name__}: {text} "
        "(--verbosity=1 shows the traceback)") from error


def _brief(message: str) -> str:
  """`message`, without the whole config that ml_collections prints with an unknown key."""
  if match := re.search(r'Did you mean "(.*?)" instead of "(.*?)"', message):
    return f"unknown config key {match[2]!r}; did you mean {match[1]!r}?"
  if match := re.search(r'Key "(.*?)" does not exist', message):
    return f"unknown config key {match[1]!r}"
  return message
