"""Config keys on the command line, `--config.a.b=value`: which there are, and what they take."""

import ast
from collections.abc import Iterator, Sequence
import difflib
import numbers
import re
from typing import Any

from absl import flags
from ml_collections import ConfigDict
from ml_collections.config_flags import config_path, tuple_parser

from jtx.config_files import from_plain

from . import without_jax
from .config_files import load_config
from .errors import UnknownKey, UsageError


class ConfigParser(flags.ArgumentParser):
  """The value of a config flag, checked against the overrides that follow it."""

  def __init__(self, name: str, argv: Sequence[str]):
    self._name = name
    matches = (re.match(rf"--?(?:no)?{name}\.([^=]+)", arg) for arg in argv)
    self._overrides = [match[1] for match in matches if match]
    self._tuples = {}

  def parse(self, argument: str) -> ConfigDict:
    if not all(map(without_jax.is_declared, self._overrides)):
      if sentence := without_jax.unknown_key(lambda: self._load(argument)):
        raise UsageError(sentence)
    return self._load(argument)

  def _load(self, argument: str) -> ConfigDict:
    config = load_config(argument)
    for path in self._overrides:
      if whole := next((p for p in self._overrides if path.startswith(f"{p}.")), ""):
        raise UsageError(f"--{self._name}.{path} is a key of --{self._name}.{whole}, which is given"
                         " whole: put it there")
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

  def choose_length(self, config: ConfigDict, overrides: dict[str, Any]) -> None:
    """`steps` on the command line take the place of the `epochs` that a recipe has.

    Raises:
      UsageError: both are on the command line.
    """
    if "steps" not in overrides or config.get("epochs") is None:
      return
    if "epochs" in overrides:
      raise UsageError(f"--{self._name}.steps and --{self._name}.epochs exclude each other:"
                       " both say how long a run is; give one of them")
    config.epochs = None

  def flag_type(self) -> str:
    return "config file"


class TupleParser(tuple_parser.TupleParser):
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


def no_section(config: ConfigDict, name: str, path: str, value: str) -> str:
  """Says that a text, which stands for the section at a path, is none, and how one is given."""
  key = f"--{name}.{path}"
  section = _value_at(config, path, name)
  told = f"{key} is a section, and {value!r} is none; set its keys one by one, as "
  if section and "name" in section:
    return f"{told}{key}.KEY=VALUE, or all of it, as {key}='{{\"name\": \"{section.name}\"}}'"
  below = f"; it has {', '.join(section)}" if section else ""
  return f"{told}{key}.KEY=VALUE{below}"


def _value_at(config: ConfigDict, path: str, name: str) -> Any:
  """The value at a dotted path such as `model.stack.width` or `data.ops[1][1].lengths`."""
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
      raise UnknownKey(
          f"unknown config key --{name}.{path}; {_nearest_key(config, path, name, node, done)}",
          str(part))
    node = node[part]
    done += f".{part}" if in_section else f"[{part}]"
  return node


def _nearest_key(config: ConfigDict, path: str, name: str, node: Any, done: str) -> str:
  """A clause that names the key meant by `path`, or the valid ones at `done`."""
  last = path.rsplit(".", 1)[-1]
  if last == "path" and (sources := _sources(node, done)):
    return (f"a source has its folder in its name, as {sources}=KIND:/FOLDER/FILE; those without"
            f" one are in --{name}.data.path")
  if isinstance(node, (list, tuple)):
    return f"{done} has {len(node)} entries"
  keys = list(_keys(config))
  elsewhere = [key for key in keys if key.rsplit(".", 1)[-1] == last]
  close = (difflib.get_close_matches(path, elsewhere, n=1, cutoff=0)
           or difflib.get_close_matches(path, keys, n=1, cutoff=0.75))
  if close:
    return f"did you mean --{name}.{close[0]}?"
  if isinstance(node, (ConfigDict, dict)):
    return f"{done} has: " + ", ".join(node)
  return f"{done} is not a section"


def _sources(node: Any, done: str) -> str:
  """The key of the sources of data at `done`, or of the section there; "" where there are none."""
  if isinstance(node, (ConfigDict, dict)) and "source" in node:
    return f"{done}.source"
  return done if done.endswith(".data.train") else ""


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
