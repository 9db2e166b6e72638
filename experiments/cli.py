"""The command line of every entry point: flags and configs in, sentences out.

An entry point defines its flags with absl and ml_collections and ends with

    if __name__ == "__main__":
      cli.run(main, required=("config", "workdir"))

What the user can put right is told in one sentence on stderr: exit status 2 for the
command line and the config, 1 for what the run met later. `--verbosity=1` adds the
traceback. Any other exception is a fault of the program and keeps its traceback.

Nothing here imports JAX, so a mistyped flag is answered at once.
"""

import ast
from collections.abc import Callable, Iterator, Sequence
import difflib
import importlib.machinery
import importlib.util
import inspect
import logging as py_logging
import numbers
import os
import re
import sys
import traceback
import types
from typing import Any

from absl import app, flags, logging
from ml_collections import ConfigDict
from ml_collections.config_flags import config_flags, config_path, tuple_parser

from jtx.config import from_plain
from jtx.errors import (
  RESTART,
  CheckpointError,
  ConfigError,
  DataError,
  Preempted,
  TrainError,
  nearest,
)

USER_ERRORS = (CheckpointError, ConfigError, DataError, Preempted, TrainError)
FILE_ERRORS = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)


class UsageError(Exception):
  """A command line that can't be used; the message is one sentence."""

  status = 2


def run(main: Callable[[], int | None], required: Sequence[str] = ()) -> None:
  """Parses the command line, calls `main()`, and exits with its status; None is 0.

  Args:
    main: the entry point; it reads its flags from their holders.
    required: names of flags that must be given.
  """

  def parse_or_exit(argv: Sequence[str]) -> None:
    try:
      parse(argv, required)
    except UsageError as error:
      sys.exit(_report(error, argv, status=2))
    _set_up_logging(argv)

  def main_or_sentence(_: None) -> int | None:
    try:
      return main()
    except Exception as error:
      expected, status = _is_user_error(error), getattr(error, "status", 1)
      try:
        if expected:
          _report(error, sys.argv, status)
      finally:
        if (job := sys.modules.get("jtx.parallel.processes")) and status != RESTART:
          job.leave(status, None if expected else error)
      if not expected:
        raise
      return status

  app.run(main_or_sentence, flags_parser=parse_or_exit)


def after_dashes() -> list[str]:
  """Takes `--` and what follows it from the command line, for another command."""
  at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
  rest = sys.argv[at + 1:]
  del sys.argv[at:]
  return rest


def parse(
    argv: Sequence[str],
    required: Sequence[str] = (),
    flag_values: flags.FlagValues = flags.FLAGS,
) -> None:
  """Parses `argv`, whose first entry is the program, into `flag_values`.

  Raises:
    UsageError: an unknown or missing flag, a positional argument, a config file that
      can't be loaded, an unknown config key, or a value of the wrong type.
  """
  config_flags.register_flag_parser_for_type(tuple, _TupleParser())
  configs = [name for name in flag_values if config_flags.is_config_flag(flag_values[name])]
  parsers = {name: _ConfigParser(name, argv) for name in configs}
  for name, parser in parsers.items():
    flag_values[name].parser = parser
  try:
    rest = flag_values(argv)
  except SystemExit as help_was_shown:
    raise SystemExit(0) from help_was_shown
  except flags.UnrecognizedFlagError as error:
    raise UsageError(_unknown_flag(error.flagname, configs, flag_values)) from error
  except (flags.Error, TypeError, ValueError) as error:
    raise UsageError(_illegal_value(str(error), flag_values)) from error
  if len(rest) > 1:
    raise UsageError(f"unexpected argument {rest[1]!r}; flags are written --name=value")
  for name in required:
    if flag_values[name].value in (None, ""):
      raise UsageError(f"--{name} must be given: {flag_values[name].help}")
  for name, parser in parsers.items():
    if flag_values[name].value is not None:
      parser.check_values(flag_values[name].override_values)


def load_module(path: str) -> types.ModuleType:
  """The config file at `path` as a module.

  Raises:
    UsageError: no such file, or an exception while it ran.
  """
  if not os.path.isfile(path):
    folder = os.path.dirname(path)
    others = sorted(os.listdir(folder or ".")) if os.path.isdir(folder or ".") else []
    files = [os.path.join(folder, f) for f in others if f.endswith(".py")]
    close = difflib.get_close_matches(path, files, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise UsageError(f"there is no config file {path}{hint}")
  name = "config_" + re.sub(r"\W", "_", path)
  loader = importlib.machinery.SourceFileLoader(name, path)
  module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
  sys.modules[name] = module  # dataclasses look their module up
  _in_file(path, lambda: loader.exec_module(module))
  return module


def load_config(argument: str) -> ConfigDict:
  """The config of `configs/X.py` or `configs/X.py:arguments`, locked.

  Raises:
    UsageError: as `load_module`; or `get_config` is missing, takes no arguments but got
      some, or raised.
  """
  path, colon, text = argument.partition(":")
  get_config = getattr(load_module(path), "get_config", None)
  if get_config is None:
    raise UsageError(f"{path} has no function get_config")
  if colon and not inspect.signature(get_config).parameters:
    raise UsageError(f"{path} takes no arguments, so {':' + text!r} must go")
  config = _in_file(path, lambda: get_config(text) if colon else get_config())
  if not isinstance(config, ConfigDict):
    raise UsageError(f"{path}: get_config returned {type(config).__name__}, not a ConfigDict")
  return config.lock()


def load_sweep(argument: str, name: str) -> list[dict[str, Any]]:
  """What `sweep_NAME()` beside the `get_config` of `argument` yields: edits by config key.

  Raises:
    UsageError: there is no such function, or it raised, or yields something else.
  """
  path = argument.partition(":")[0]
  module = load_module(path)
  sweeps = [key.removeprefix("sweep_") for key in vars(module) if key.startswith("sweep_")]
  if name not in sweeps:
    hint = nearest(name, sweeps) if sweeps else "it has none"
    raise UsageError(f"{path} has no function sweep_{name}; {hint}")
  items = _in_file(path, lambda: list(getattr(module, f"sweep_{name}")()))
  for i, item in enumerate(items, 1):
    if not isinstance(item, dict):
      raise UsageError(f"{path}: item {i} of sweep_{name} is {item!r}, not a dict of edits such as"
                       ' {"optim.lr": 1e-3}')
  return items


def config_of(arguments: Sequence[str]) -> ConfigDict:
  """The config that `--config=FILE --config.a.b=value` would give an entry point.

  Raises:
    UsageError: as `parse`.
  """
  argv = ["", *arguments]
  values = flags.FlagValues()
  config_flags.DEFINE_config_file("config", flag_values=values, sys_argv=argv)
  parse(argv, ("config",), values)
  return values.config


def read_lines(path: str) -> list[str]:
  """The lines of a UTF-8 file, or of standard input for "-"."""
  from jtx.data.sources.lines import Lines
  from jtx.errors import DataError
  if path != "-":
    lines = Lines(path)
    return [lines[i] for i in range(len(lines))]
  try:
    text = sys.stdin.buffer.read().decode("utf-8")
  except UnicodeDecodeError as e:
    raise DataError(f"standard input: byte {e.start} is not valid UTF-8") from e
  return text.removesuffix("\n").replace("\r\n", "\n").split("\n") if text else []


def write_text(path: str, text: str) -> None:
  """Writes a UTF-8 file, or to standard output for "-"."""
  if path == "-":
    sys.stdout.write(text)
  else:
    with open(path, "w", encoding="utf-8") as f:
      f.write(text)


class _ConfigParser(flags.ArgumentParser):
  """The value of a config flag, checked against the overrides that follow it."""

  def __init__(self, name: str, argv: Sequence[str]):
    self._name = name
    matches = (re.match(rf"--?(?:no)?{name}\.([^=]+)", arg) for arg in argv)
    self._overrides = [match[1] for match in matches if match]
    self._tuples = {}

  def parse(self, argument: str) -> ConfigDict:
    config = load_config(argument)
    for path in self._overrides:
      value = _value_at(config, path, self._name)
      if isinstance(value, list):
        raise UsageError(
            f"--{self._name}.{path} is a list; set an entry of it, as --{self._name}.{path}[0]")
      if isinstance(value, tuple):
        self._tuples[path] = value
    return config

  def check_values(self, overrides: dict[str, Any]) -> None:
    """Checks what a field's type alone does not tell.

    Raises:
      UsageError: a section that a registry did not make was replaced, or a tuple of
        numbers, strings or sections was given something else.
    """
    for path, value in overrides.items():
      key = f"--{self._name}.{path}"
      if isinstance(value, ConfigDict) and "name" not in value:
        raise UsageError(f"{key} is a section; set its keys one by one, as {key}.KEY=VALUE")
      for kind, what in ((numbers.Number, "number"), (str, "string"), (ConfigDict, "section")):
        old = self._tuples.get(path)
        if old and all(isinstance(v, kind) for v in old):
          for wrong in (v for v in value if not isinstance(v, kind)):
            raise UsageError(f"{key}: {wrong!r} is not a {what}")

  def flag_type(self) -> str:
    return "config file"


class _TupleParser(tuple_parser.TupleParser):
  """`(1, 2)`, `1,2`, `global,local`, `("global", "local")`, or `({"name": "clean"},)`.

  ml_collections makes one word of `a,b`, an error of it where a word is a keyword, and no
  section of a dict in a tuple.
  """

  def parse(self, argument: Any) -> tuple[Any, ...]:
    if not isinstance(argument, str):
      return super().parse(argument)
    value = _literal(argument)
    if isinstance(value, str) and value == argument:
      if argument[:1] in ("(", "["):
        raise ValueError("the brackets do not hold a tuple")
      return tuple(_literal(word.strip()) for word in argument.split(",") if word.strip())
    return tuple(map(from_plain, value)) if isinstance(value, (tuple, list)) else (value,)


def _literal(text: str) -> Any:
  try:
    return ast.literal_eval(text)
  except (SyntaxError, ValueError):
    return text


def _in_file(path: str, call: Callable[[], Any]) -> Any:
  """`call()`; what it raises is told with the line of the config file."""
  try:
    return call()
  except Exception as error:
    if _is_user_error(error):
      raise UsageError(_sentence(error)) from error
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


def _value_at(config: ConfigDict, path: str, name: str) -> Any:
  """The value at a dotted path such as `model.width` or `data.ops[1][1].lengths`."""
  try:
    parts = config_path.split(path)
  except (SyntaxError, ValueError):
    parts = tuple(path.split("."))
  node, done = config, f"--{name}"
  for part in parts:
    in_section = isinstance(node, (ConfigDict, dict)) and isinstance(part, str) and part in node
    if not in_section and not (
        isinstance(node, (list, tuple)) and isinstance(part, int)
        and -len(node) <= part < len(node)):
      raise UsageError(
          f"unknown config key --{name}.{path}; {_nearest_key(config, path, name, node, done)}")
    node = node[part]
    done += f".{part}" if in_section else f"[{part}]"
  return node


def _nearest_key(config: ConfigDict, path: str, name: str, node: Any, done: str) -> str:
  """A clause that names the key meant by `path`, or the valid ones at `done`."""
  if isinstance(node, (list, tuple)):
    return f"{done} has {len(node)} entries"
  keys = list(_keys(config))
  last = path.rsplit(".", 1)[-1]
  elsewhere = [key for key in keys if key.rsplit(".", 1)[-1] == last]
  close = (difflib.get_close_matches(path, elsewhere, n=1, cutoff=0)
           or difflib.get_close_matches(path, keys, n=1, cutoff=0.75))
  if close:
    return f"did you mean --{name}.{close[0]}?"
  if isinstance(node, (ConfigDict, dict)):
    return f"{done} has: " + ", ".join(node)
  return f"{done} is not a section"


def _keys(node: Any, prefix: str = "") -> Iterator[str]:
  """The dotted paths of all keys below `node`, sections included."""
  if isinstance(node, (ConfigDict, dict)):
    for key in node:
      path = f"{prefix}.{key}" if prefix else str(key)
      yield path
      yield from _keys(node[key], path)
  elif isinstance(node, (list, tuple)):
    for i, value in enumerate(node):
      yield from _keys(value, f"{prefix}[{i}]")


def _unknown_flag(flag: str, configs: Sequence[str], flag_values: flags.FlagValues) -> str:
  if flag.split(".")[0].removeprefix("no") in configs and "." in flag:
    name = flag.split(".")[0].removeprefix("no")
    if flag_values[name].value is None:
      return f"--{flag} needs --{name}=FILE before it"
    return f"--{flag} is not a yes-or-no key, so it is written --{flag.removeprefix('no')}=VALUE"
  close = difflib.get_close_matches(flag, list(flag_values), n=1)
  if close:
    return f"unknown flag --{flag}; did you mean --{close[0]}?"
  own = sorted(f.name for f in flag_values.get_key_flags_for_module(sys.argv[0]))
  return f"unknown flag --{flag}; valid are: " + ", ".join(f"--{name}" for name in own)


def _illegal_value(message: str, flag_values: flags.FlagValues) -> str:
  """absl's message, with the type that was expected instead of Python's words for it."""
  match = re.match(
      r"flag --(?P<name>[^=]+)=(?P<value>.*?): "
      r"(invalid literal|could not convert|\('Non-boolean)", message, re.DOTALL)
  if not match:
    return message
  kind = {"int": "an int", "float": "a float", "bool": "true or false"}.get(
      flag_values[match["name"]].flag_type(), "valid")
  return f"--{match['name']}: {match['value']!r} is not {kind}"


def _is_user_error(error: Exception) -> bool:
  return isinstance(error, (UsageError, *USER_ERRORS, *FILE_ERRORS))


def _sentence(error: Exception) -> str:
  if isinstance(error, FILE_ERRORS) and error.filename is not None:
    return f"{os.fsdecode(error.filename)}: {error.strerror.lower()}"
  return " ".join(str(error).split())


def _is_verbose(argv: Sequence[str]) -> bool:
  """Whether `--verbosity=1` was given, in a command line that may not have parsed."""
  return bool(re.search(r"\s--?(verbosity|v)[= ][1-9]", " ".join(argv)))


def _report(error: Exception, argv: Sequence[str], status: int) -> int:
  if _is_verbose(argv):
    traceback.print_exception(error)
  print(f"error: {_sentence(error)}", file=sys.stderr)
  return status


def _set_up_logging(argv: Sequence[str]) -> None:
  """Our INFO and the libraries' warnings to stderr, after the time of day."""
  handler = logging.get_absl_handler()
  handler.setFormatter(py_logging.Formatter("%(asctime)s %(levelname).1s %(message)s", "%H:%M:%S"))
  if not _is_verbose(argv):
    handler.addFilter(
        lambda record: record.levelno >= py_logging.WARNING
        or "-packages" not in record.pathname)
