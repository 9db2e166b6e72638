"""Writes docs/api.md: what `import jtx` gives, from the docstrings.

  python docs/api.py
"""

import ast
import pathlib
import re
from typing import Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODULES = ("jtx/api.py", "jtx/saved/pretrained.py")  # where the names are defined

HEAD = """# Python

What `import jtx` gives. [Using what was trained](use.md#python) and
[Encoders](encoders.md#open-one) have examples. All other modules may be imported, too; their
docstrings describe them.

Unless they say otherwise, classes take the arguments of `Opening a model`. This file is made by
`python docs/api.py` from the docstrings.
"""


def documents() -> str:
  nodes = {node.name: node for path in MODULES for node in parsed(path).body
           if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
  names = next(ast.literal_eval(node.value) for node in parsed("jtx/__init__.py").body
               if isinstance(node, ast.Assign) and node.targets[0].id == "__all__")
  opened = f"\n## Opening a model\n\n{section(nodes.pop('Opened'))}"
  return HEAD + opened + "".join(f"\n## {name}\n\n{section(nodes[name])}" for name in names)


def parsed(path: str) -> ast.Module:
  return ast.parse((ROOT / path).read_text(encoding="utf-8"))


def section(node: ast.ClassDef | ast.FunctionDef) -> str:
  """A class with its methods, or a function."""
  if isinstance(node, ast.FunctionDef):
    return f"{signature(node, f'jtx.{node.name}')}\n{described(node)}"
  name = "jtx.CLASS" if node.name == "Opened" else f"jtx.{node.name}"
  methods = {m.name: m for m in node.body if isinstance(m, ast.FunctionDef)}
  text = signature(methods["__init__"], name) if "__init__" in methods else ""
  text += f"{chr(10) * bool(text)}{described(node)}"
  for method in methods.values():
    call = {"__call__": "model"}.get(method.name, f"model.{method.name}")
    if ast.get_docstring(method) and not method.decorator_list and "._" not in call:
      text += f"\n{signature(method, call)}\n{described(method)}"
  return text


def signature(node: ast.FunctionDef, name: str) -> str:
  """The head of a function as code, with an argument a line where it is long."""
  found = ast.unparse(node.args).removeprefix("self, ").removeprefix("self")
  result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
  if len(f"{name}({found}){result}") > 100:
    found = re.sub(r", (?=(\*|\w+[:,]))", ",\n    ", f"\n    {found}")
  return f"```python\n{name}({found}){result}\n```\n"


def described(node: ast.ClassDef | ast.FunctionDef) -> str:
  """A docstring with its arguments as a list.

  Raises:
    ValueError: there is none.
  """
  if not (doc := ast.get_docstring(node)):
    raise ValueError(f"{node.name} has no docstring")
  return "\n\n".join(paragraphs(doc)) + "\n"


def paragraphs(doc: str) -> Iterator[str]:
  for part in doc.split("\n\n"):
    head, _, rest = part.partition("\n")
    if head not in ("Args:", "Returns:", "Raises:"):
      yield part
      continue
    items = [" ".join(item.split()) for item in re.split(r"\n(?=  \S)", f"\n{rest}")]
    named = [re.sub(r"^(\*{0,2}\w+): ", r"`\1`: ", item) for item in items if item]
    yield f"{head}\n\n" + "\n".join(f"- {item}" for item in named)


if __name__ == "__main__":
  (ROOT / "docs" / "api.md").write_text(documents(), encoding="utf-8")
