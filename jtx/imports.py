"""Modules that a config names in `imports`, whose registrations are not part of jtx.

A module is looked for where Python looks: beside the config file, in the working directory, on
PYTHONPATH and among installed packages. Whoever opens a workdir looks for it also in the folder
that it was imported from when the run was trained.
"""

from collections.abc import Mapping, Sequence
import importlib
import importlib.machinery
import importlib.util
import os
import sys
import traceback

from absl import logging

from jtx.errors import ConfigError

# What this process has imported, and the folder that each module was found in.
found_in: dict[str, str] = {}


def load(names: Sequence[str], folders: Mapping[str, str] | None = None) -> None:
  """Imports modules that are not imported yet.

  Args:
    names: of modules, as after `import`.
    folders: by name, in which a module is looked for that is nowhere else.

  Raises:
    ConfigError: a module that is not found, or that raises while it runs, or ends the program.
  """
  for name in names:
    if name in found_in:
      continue
    if not isinstance(name, str) or name.endswith(".py") or not all(
        part.isidentifier() for part in name.split(".")):
      raise ConfigError(f"config.imports: {name!r} is not the name of a module, as my_module is"
                        " that of my_module.py")
    places = [os.getcwd(), *filter(None, [(folders or {}).get(name)])]
    _extend_path(name.split(".")[0], places)
    try:
      module = importlib.import_module(name)
    except (Exception, SystemExit) as error:  # the latter would end this program without a word
      raise ConfigError(f"config.imports: {_reason(name, error, places)}") from error
    found_in[name] = _folder(name)
    logging.info("imported %s from %s", name, getattr(module, "__file__", None))


def _extend_path(package: str, places: Sequence[str]) -> None:
  """Adds the first place that has the module or package, which Python would not find."""
  for place in places:
    if package in sys.modules:
      return
    spec = importlib.util.find_spec(package)
    if spec and spec.origin:  # a folder without __init__.py may be another's of that name
      return
    if importlib.machinery.PathFinder.find_spec(package, [place]):
      sys.path.append(place)


def _folder(name: str) -> str:
  """The folder that the module, or the package that it is in, was found in."""
  top = sys.modules[name.split(".")[0]]
  path = next(iter(getattr(top, "__path__", ())), None) or getattr(top, "__file__", None)
  return os.path.dirname(os.path.abspath(path)) if path else ""


def _reason(name: str, error: BaseException, places: Sequence[str]) -> str:
  """Why a module can't be imported, in a clause."""
  if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
    return (f"there is no module {name!r} beside the config file, in {' or '.join(places)}, on"
            " PYTHONPATH or installed; start in its folder, or put that on PYTHONPATH")
  if isinstance(error, SyntaxError):
    where, text = f"{error.filename}, line {error.lineno}", error.msg
  else:
    ours = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
    where, text = f"{ours[-1].filename}, line {ours[-1].lineno}", str(error)
    if isinstance(error, SystemExit):
      text += "; a module that registers names must not end the program"
  return f"module {name!r} can't be imported: {where}: {type(error).__name__}: {text}"
