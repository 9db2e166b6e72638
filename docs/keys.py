"""Writes docs/keys.md and experiments/keys.txt: all keys of a run, as constructors declare them.

  python docs/keys.py
"""

import dataclasses
import inspect
import pathlib
import re
import sys
import typing
from typing import Any, Callable, Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from jtx.config import OneOf, Registry, edits_of, fields
from jtx.nn.grid_positions import GridPosition
from jtx.nn.positions import Position
from jtx.ranges import Within
from jtx.train.keys import RunKeys

HEAD = """# Keys

All keys of a run: `config.KEY` in a config file, `--config.KEY=VALUE` on the command line. A value
that is out of its range, an unknown key and an unknown name are refused before any data is read.
Sections that are chosen by `name` have the keys of that name. This file is made by
`python docs/keys.py` from the declarations that the program itself reads.
"""


def documents() -> str:
  parts = [HEAD]
  for heading, key, constructor in constructors():
    rows = list(rows_of(constructor))
    if heading:
      parts.append(f"\n## {heading}\n")
    parts.append(f"\n### {key}\n\n{first_sentence(constructor)}\n")
    if rows:
      parts.append("\n| key | default | takes | |\n|---|---|---|---|\n" + "".join(rows))
  return "".join(parts)


def constructors() -> Iterator[tuple[str, str, Callable]]:
  """The constructors of all sections, each once: the heading before it, its key, and itself."""
  waiting, done = [("", "config", RunKeys)], set()
  while waiting:
    heading, key, constructor = waiting.pop(0)
    if constructor in done:
      continue
    done.add(constructor)
    yield heading, key, constructor
    for name, (hint, _) in fields(constructor).items():
      waiting += inner(f"{key}.{name}".removeprefix("config."), hint)


def sections() -> str:
  """A line of keys for each section, such as `data.ops[]`, whatever names it has."""
  found = {}

  def add(place, constructor):
    for name, (hint, _) in fields(constructor).items():
      found.setdefault(place, {})[name] = None
      kind = {tuple: "[]", dict: ".*"}.get(typing.get_origin(hint), "")
      child = f"{place}.{name}{kind}".lstrip(".")
      for _, key, part in inner("", hint):
        if key:
          found.setdefault(child, {})["name"] = None
        add(child, part)

  add("", RunKeys)
  return "".join(f"{place}: {' '.join(keys)}\n" for place, keys in found.items())


def inner(key: str, hint: Any) -> Iterator[tuple[str, str, Callable]]:
  """What else is to be described: the sections in a field's type."""
  for registry in registries(hint):
    for i, (name, constructor) in enumerate(registry.items()):
      yield f"Names of {key}" if not i else "", f'{key}, name "{name}"', constructor
  for part in plain_sections(hint):
    yield "", key, part


def plain_sections(hint: Any) -> list[type]:
  """The sections in a field's type that are not chosen by name."""
  return [part for part in parts_of(hint)
          if dataclasses.is_dataclass(part) and not hasattr(part, "registry")]


def parts_of(hint: Any) -> Iterator[Any]:
  yield hint
  for part in typing.get_args(hint):
    yield from parts_of(part)


def registries(hint: Any) -> Iterator[Registry]:
  for part in parts_of(hint):
    if part in (Position, GridPosition) or isinstance(part, type) and hasattr(part, "registry"):
      yield part.registry()
    yield from (m.registry for m in getattr(part, "__metadata__", ()) if isinstance(m, OneOf))


def first_sentence(constructor: Callable) -> str:
  doc = inspect.getdoc(constructor) or ""
  return "" if doc.startswith(f"{constructor.__name__}(") else " ".join(doc.split("\n\n")[0].split())


def rows_of(constructor: Callable) -> Iterator[str]:
  said = comments(constructor)
  for name, (hint, default) in fields(constructor).items():
    kinds = "a section, by name" if any(registries(hint)) else takes(hint)
    yield f"| `{name}` | {shown(default)} | {kinds} | {said.get(name, '')} |\n"


def shown(default: Any) -> str:
  if default is inspect.Parameter.empty:
    return ""
  value = edits_of(default)
  if isinstance(value, dict) or hasattr(value, "to_dict"):
    return f'`"{value["name"]}"`' if "name" in value else ""
  return f"`{value!r}`" if value is not None else "unset"


def takes(hint: Any) -> str:
  """A type in words, with its range."""
  if typing.get_origin(hint) is typing.Annotated:
    ranges = [str(m) for m in hint.__metadata__ if isinstance(m, Within)]
    return ", ".join([takes(hint.__origin__), *ranges])
  if typing.get_origin(hint) is typing.Literal:
    return " or ".join(f"`{word!r}`" for word in typing.get_args(hint))
  if typing.get_origin(hint) is tuple:
    kinds = typing.get_args(hint)
    if kinds[1:] == (Ellipsis,):
      return f"a tuple, each {takes(kinds[0])}"
    return f"({'; '.join(map(takes, kinds))})"
  kinds = [part for part in typing.get_args(hint) if part is not type(None)]
  if kinds and typing.get_origin(hint) is not dict:
    return " or ".join(map(takes, kinds))
  if dataclasses.is_dataclass(hint) or typing.get_origin(hint) is dict:
    return "a section"
  return {int: "int", float: "float", bool: "bool", str: "text"}.get(hint, str(hint))


def comments(constructor: Callable) -> dict[str, str]:
  """The description of each field, "" where there is none.

  It is what the source says of the field. A section of which it says nothing is described by the
  first sentence of its own docstring.
  """
  said = of_fields(constructor) if isinstance(constructor, type) else of_arguments(constructor)
  found = {}
  for name, (hint, _) in fields(constructor).items():
    of_section = [sentence(first_sentence(part)) for part in plain_sections(hint)]
    text = next(filter(None, [said.get(name), *of_section]), "")
    found[name] = text.replace("|", "\\|").replace("<", "&lt;")  # of a table's cell, and no tag
  return found


def of_fields(constructor: type) -> dict[str, str]:
  """The comment behind a field of a class, or on the lines above it; else that of its bases."""
  found, above = {}, []
  kinds = [kind for kind in constructor.__mro__[:-1]
           if dataclasses.is_dataclass(kind) or kind is constructor]
  for kind in reversed(kinds):
    for line in inspect.getsource(kind).splitlines():
      if match := re.match(r"\s+# (.*)", line):
        above.append(match[1])
        continue
      if match := re.match(r"  (\w+): [^#]*?(?:# (.*))?$", line):
        found[match[1]] = match[2] or " ".join(above) or found.get(match[1], "")
      above = []
  return found


def of_arguments(function: Callable) -> dict[str, str]:
  """The first sentence on each argument in the section `Args:` of a function's docstring."""
  _, _, text = (inspect.getdoc(function) or "").partition("\nArgs:\n")
  found = re.findall(r"^  (\w+): (.*(?:\n {3}.*)*)", text.partition("\n\n")[0], re.MULTILINE)
  return {name: sentence(" ".join(said.split())) for name, said in found}


def sentence(text: str) -> str:
  """The first sentence of a text, without its full stop."""
  return re.split(r"\. (?=[A-Z`])", text)[0].removesuffix(".")


if __name__ == "__main__":
  (ROOT / "docs" / "keys.md").write_text(documents(), encoding="utf-8")
  (ROOT / "experiments" / "keys.txt").write_text(sections(), encoding="utf-8")
