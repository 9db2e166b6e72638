"""Writes docs/commands.md: the commands and their flags, as the entry points define them.

  python docs/commands.py
"""

import ast
import pathlib
import sys
from typing import Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from experiments.__main__ import commands

HEAD = """# Commands

Every command is a module of [experiments](../experiments): `python -m experiments.NAME` in a
clone, or `jtx NAME` where jtx is installed, such as `jtx launch local` for
`experiments.launch.local`. A flag is written `--name=value`. A flag that does not exist is an error
that names the nearest one that does. `--verbosity=1` adds the traceback to an error's sentence.
`--config.KEY=VALUE` changes a [key](keys.md) of the config that `--config` names.

The exit status is 0, 1 for an error that a command met on its way, 2 for one of the command line or
the config, 75 for a run that was stopped and saved, and 130 for a run that ctrl-C stopped.

This file is made by `python docs/commands.py` from the flags that the commands declare.
"""
KINDS = {"string": "text", "integer": "int", "float": "float", "bool": "bool",
         "list": "names with commas", "multi_string": "text, repeatable", "config_file": "a file"}


def documents() -> str:
  return HEAD + "".join(section(name) for name in commands())


def section(name: str) -> str:
  """A command: its docstring, and a table of its flags."""
  tree = parsed(*name.split())
  first, _, rest = ast.get_docstring(tree).partition("\n\n")
  usage, _, text = rest.partition("\n\n")
  shared = flags_of(parsed("launch", "common")) if name.startswith("launch ") else ()
  rows = "".join(f"| `--{flag}` | {kind} | {shown(default)} | {said} |\n"
                 for flag, kind, default, said in (*flags_of(tree), *shared))
  shown_text = f"\n{text}\n" if text else ""
  return (f"\n## {name}\n\n{first}\n\n```\n{dedented(usage)}\n```\n{shown_text}"
          f"\n| flag | takes | default | |\n|---|---|---|---|\n{rows}")


def parsed(*words: str) -> ast.Module:
  path = ROOT.joinpath("experiments", *words).with_suffix(".py")
  return ast.parse(path.read_text(encoding="utf-8"))


def dedented(text: str) -> str:
  return "\n".join(line.removeprefix("  ") for line in text.splitlines())


def flags_of(tree: ast.Module) -> Iterator[tuple[str, str, object, str]]:
  """Name, kind, default and help of every flag that a module defines, with its helpers' flags.

  Raises:
    ValueError: a flag has no help.
  """
  for node in ast.walk(tree):
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
      continue
    call, args = node.func.attr, node.args
    if call.startswith("DEFINE_"):
      kind, values = call.removeprefix("DEFINE_"), [ast.literal_eval(arg) for arg in args]
      name, default, said = values[0], values[1], values[-1]
      takes = " or ".join(f"`{value}`" for value in values[2]) if kind == "enum" else KINDS[kind]
    elif call == "define_output":
      name, takes = "output", "a file"
      default, said = map(ast.literal_eval, args)
    elif call == "define_step":
      helper = next(n for n in parsed("cli").body if getattr(n, "name", "") == call)
      declared = helper.body[-1].value.args
      name, takes, default, said = "step", "text", None, ast.literal_eval(declared[3])
    else:
      continue
    if not said:
      raise ValueError(f"--{name} has no help; say in its last argument what it is")
    yield name, takes, default, said.replace("|", "\\|")


def shown(default: object) -> str:
  return "" if default in (None, "", []) else f"`{default}`"


if __name__ == "__main__":
  (ROOT / "docs" / "commands.md").write_text(documents(), encoding="utf-8")
