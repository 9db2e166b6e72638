"""Unknown config keys, told without JAX, whose import takes longer than all else of an answer.

A key that no constructor of jtx has at its place (`keys.txt`) is looked for in a copy of this
process in which JAX, Flax and Optax are stand-ins: names, types and decorators, with which modules
declare all their constructors, and configs have all their keys. A stand-in has no value. Where a
module asks for one, or has JAX and the key in its source, and wherever the config can't be made
there, nothing is told, and the caller makes it with JAX.
"""

from collections.abc import Callable, Iterable, Sequence
import dataclasses
import importlib.abc
import importlib.machinery
import os
import pathlib
import re
import sys
import sysconfig
import types
from typing import Any

import jtx

from .errors import UnknownKey

KEYS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "keys.txt")  # by docs/keys.py
STAND_INS = ("flax", "jax", "optax")
asked: list[str] = []  # what was asked for a stand-in's value; the code may have caught the error


def is_declared(path: str) -> bool:
  """Whether a constructor of jtx has the key, such as `data.ops[1].lengths`, at its place."""
  with open(KEYS, encoding="utf-8") as f:
    sections = {place: keys.split() for place, keys in (line.split(":") for line in f)}
  place = ""
  for part in path.split("."):
    key, *indices = part.split("[")
    if f"{place}.*" in sections:
      key = "*"  # evaluators have any name
    elif key not in sections.get(place, ()):
      return False
    place = f"{place}.{key}".lstrip(".") + "[]" * len(indices)
  return True


def unknown_key(check: Callable[[], Any]) -> str:
  """The sentence of the UnknownKey that `check()` is sure to raise; "" if it is not sure to."""
  if set(STAND_INS) & set(sys.modules) or not hasattr(os, "fork"):
    return ""
  readable, writable = os.pipe()
  child = os.fork()
  if not child:
    try:
      for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
      os.write(writable, _told(check).encode())
    finally:
      os._exit(0)
  os.close(writable)
  with open(readable, encoding="utf-8") as f:
    sentence = f.read()
  os.waitpid(child, 0)
  return sentence


def _told(check: Callable[[], Any]) -> str:
  before = set(sys.modules)
  sys.meta_path.insert(0, _Finder())
  try:
    check()
  except UnknownKey as error:
    own = _own_sources(set(sys.modules) - before)
    if not asked and not (_has_word(own, *STAND_INS) and _has_word(own, error.key)):
      return str(error)
  return ""


def _own_sources(names: Iterable[str]) -> list[bytes]:
  """Of the modules that are neither jtx's nor installed."""
  folders = (sysconfig.get_paths()[kind] for kind in ("stdlib", "purelib", "platlib"))
  others = tuple(f"{os.path.realpath(folder)}{os.sep}" for folder in (
      os.path.dirname(jtx.__file__), *folders))
  files = filter(None, (getattr(sys.modules[name], "__file__", None) for name in names))
  return [pathlib.Path(file).read_bytes() for file in files
          if not os.path.realpath(file).startswith(others)]


def _has_word(texts: Sequence[bytes], *words: str) -> bool:
  """Whether one of them is in a text, such as the name of a key that is only made on a TPU."""
  word = re.compile(rb"\b(%b)\b" % b"|".join(re.escape(word.encode()) for word in words))
  return any(map(word.search, texts))


def _part(name: str) -> type["Anything"]:
  if name.startswith("__"):
    raise AttributeError(name)
  return Anything


def _ask(name: str) -> Callable[..., Any]:
  def method(*_: Any) -> Any:
    asked.append(name)
    raise TypeError(f"a stand-in has no {name}")
  return method


class _Name(type):
  """Of a stand-in: its attributes, entries and results are stand-ins, too."""
  __getattr__ = lambda cls, name: _part(name)
  __call__ = __getitem__ = __or__ = __ror__ = lambda cls, *_, **__: Anything
  __hash__ = type.__hash__
  __signature__ = property(_ask("signature"))

  def __eq__(cls, other: Any) -> bool:
    return cls is other if isinstance(other, type) or "typing" in type(other).__module__ else (
        _ask("eq")())


for _name in ("bool", "contains", "format", "ge", "gt", "instancecheck", "iter", "le", "len", "lt",
              "repr", "str"):
  setattr(_Name, f"__{_name}__", _ask(_name))


class Anything(metaclass=_Name):
  """Stands in for all that is not a module, nor named below."""
  __init_subclass__ = _ask("subclass")


class _Module:
  """Of flax.linen: a dataclass."""

  def __init_subclass__(cls, **_: Any):
    dataclasses.dataclass(cls)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
  """Finds stand-ins of packages and of all their modules."""

  def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
    if name.split(".")[0] in STAND_INS:
      return importlib.machinery.ModuleSpec(name, self, is_package=True)
    return None

  def exec_module(self, module: types.ModuleType) -> None:
    module.__getattr__ = _part
    if module.__name__ == "flax.linen":
      module.Module = _Module
    if module.__name__ == "flax.struct":
      module.dataclass = dataclasses.dataclass(frozen=True)
      module.field = lambda pytree_node=True, **fields: dataclasses.field(**fields)
