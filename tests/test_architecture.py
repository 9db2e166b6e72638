"""The import law of jtx: a room imports only from rooms below it, and nothing goes in a circle."""

import ast
from collections.abc import Iterator, Mapping
import pathlib
from typing import NamedTuple

import pytest

ROOT = pathlib.Path(__file__).parent.parent

# Rooms from the ground up. Those of one line never import one another.
ROOMS = (
    ("errors", "config", "config_files", "ranges", "imports", "storage", "hub"),
    ("parallel",),
    ("nn",),
    ("objectives", "figures"),
    ("models",),
    ("data",),
    ("contracts",),
    ("build",),
    ("interop",),
    ("inference",),
    ("evals",),
    ("saved",),
    ("train",),
    ("launch", "compile"),
    ("sweeps",),
    ("api",),
    ("serve",),
)

# These three never import one another either.
APART = frozenset({"objectives", "models", "data"})
# The ground floor is of single files, which may use one another: config reports its errors.
GROUND = frozenset(ROOMS[0])
# What jtx never imports: entry points and experiments use it, not the other way round.
OUTSIDE = frozenset({"configs", "experiments", "benchmarks", "tests", "notebooks"})

# Files whose functions may import modules of jtx, or any by a computed name, and why.
LAZY = {
    "jtx/__init__.py": "`import jtx` is at once; what it exports is imported when asked for",
    "jtx/imports.py": "modules that a config names",
    "jtx/data/sources/tfds.py": "a module of TFDS, whose import takes seconds, registers a set",
}


class Import(NamedTuple):
  """One module that a file imports."""
  path: str
  line: int
  source: str  # module
  target: str  # module
  lazy: bool  # inside a function


COMPUTED = "a module by its name"  # the target where importlib is called


def module_of(path: str) -> str:
  return path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def room_of(module: str) -> str:
  """"nn" of jtx.nn.masks; jtx itself is part of the top room."""
  parts = module.split(".")
  return parts[1] if len(parts) > 1 else ROOMS[-1][0]


def folder_of(module: str, packages: frozenset[str]) -> str:
  """The innermost folder of a module; a file beside folders stands for itself."""
  folder = module if module in packages else module.rpartition(".")[0]
  return module if any(other.rpartition(".")[0] == folder for other in packages) else folder


def imports_of(sources: Mapping[str, str]) -> Iterator[Import]:
  """The imports of our own modules, and of what is outside of jtx, in all files."""
  modules = frozenset(map(module_of, sources))
  for path, text in sources.items():
    source = module_of(path)
    package = source if path.endswith("__init__.py") else source.rpartition(".")[0]
    for node, lazy in _walk(ast.parse(text), False):
      if isinstance(node, ast.Call):
        yield Import(path, node.lineno, source, COMPUTED, lazy)
        continue
      if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
      else:
        base = node.module or ""
        if node.level:
          parts = package.split(".")
          base = ".".join([*parts[:len(parts) - node.level + 1], *base.split(".")]).rstrip(".")
        # `from jtx.data import pipeline` is of the module where there is one.
        names = [f"{base}.{alias.name}" if f"{base}.{alias.name}" in modules else base
                 for alias in node.names]
      for name in dict.fromkeys(names):
        if name.split(".")[0] in OUTSIDE | {"jtx"} and name != source:
          yield Import(path, node.lineno, source, name, lazy)


def _walk(node: ast.AST, lazy: bool) -> Iterator[tuple[ast.AST, bool]]:
  """Import statements and calls of importlib, and whether they are inside a function."""
  for child in ast.iter_child_nodes(node):
    called = isinstance(child, ast.Call) and ast.unparse(child.func).split(".")[-1]
    if isinstance(child, (ast.Import, ast.ImportFrom)) or called in ("import_module", "__import__"):
      yield child, lazy
    inside = lazy or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
    yield from _walk(child, inside)


def circles(arrows: set[tuple[str, str]]) -> list[list[str]]:
  """The strongly connected parts of a graph that have more than one node (Tarjan 1972)."""
  after: dict[str, list[str]] = {}
  for a, b in sorted(arrows):
    after.setdefault(a, []).append(b)
  number, low, stack, found = {}, {}, [], []

  def visit(node):
    number[node] = low[node] = len(number)
    stack.append(node)
    for other in after.get(node, ()):
      if other not in number:
        visit(other)
        low[node] = min(low[node], low[other])
      elif other in stack:
        low[node] = min(low[node], number[other])
    if low[node] == number[node]:
      part = stack[stack.index(node):]
      del stack[stack.index(node):]
      if len(part) > 1:
        found.append(sorted(part))

  for node in sorted(after):
    if node not in number:
      visit(node)
  return found


def breaches(sources: Mapping[str, str]) -> list[str]:
  """Sentences on what the imports of files break, in order of the files.

  Args:
    sources: the text of each file by its path from the repository's root, all of jtx.
  """
  floor = {room: i for i, rooms in enumerate(ROOMS) for room in rooms}
  packages = frozenset(module_of(p) for p in sources if p.endswith("__init__.py"))
  imports = list(imports_of(sources))
  found = []
  for path in sources:
    if room_of(module_of(path)) not in floor:
      found.append(f"{path} is in no room of the house")
  for i in imports:
    where = f"{i.path} imports {i.target}"
    if i.target == COMPUTED:
      found += [where] * (i.path not in LAZY)
      continue
    if i.target.split(".")[0] in OUTSIDE:
      found.append(f"{where}, which is no part of jtx")
      continue
    if i.lazy and i.path not in LAZY:
      found.append(f"{where} inside a function")
    own, other = room_of(i.source), room_of(i.target)
    if own == other or own not in floor or other not in floor or {own, other} <= GROUND:
      continue
    if floor[other] >= floor[own]:
      found.append(f"{where}, which is not below")
    elif {own, other} <= APART:
      found.append(f"{where}, which must not know each other")
  eager = {(i.source, i.target) for i in imports if i.target.startswith("jtx")}
  found += ["circle of modules: " + ", ".join(part) for part in circles(eager)]
  folders = {(folder_of(a, packages), folder_of(b, packages)) for a, b in eager}
  found += ["circle of folders: " + ", ".join(part)
            for part in circles({(a, b) for a, b in folders if a != b})]
  return list(dict.fromkeys(found))


# -------------------------------------------------------------------------------- tests


def jtx_sources() -> dict[str, str]:
  return {str(p.relative_to(ROOT)): p.read_text(encoding="utf-8")
          for p in sorted((ROOT / "jtx").rglob("*.py"))}


@pytest.fixture(scope="module")
def found():
  return breaches(jtx_sources())


def test_jtx_keeps_the_law(found):
  assert found == []


def test_lazy_files_are_lazy():
  lazy = {i.path for i in imports_of(jtx_sources()) if i.lazy or i.target == COMPUTED}
  assert lazy & LAZY.keys() == LAZY.keys()


CLEAN = {
    "jtx/__init__.py": "def __getattr__(name):\n  from jtx import api\n  return api",
    "jtx/api.py": "from jtx.train import loop",
    "jtx/errors.py": "",
    "jtx/config.py": "from jtx import errors",
    "jtx/nn/__init__.py": "",
    "jtx/nn/masks.py": "import jax\nfrom jtx.errors import ConfigError",
    "jtx/nn/block.py": "from jtx.nn import masks",
    "jtx/data/__init__.py": "",
    "jtx/data/lines.py": "",
    "jtx/data/rows.py": "from jtx.data.ops import text",
    "jtx/data/ops/__init__.py": "",
    "jtx/data/ops/text.py": "from jtx import config\nfrom jtx.data import lines",
    "jtx/models/__init__.py": "from jtx.models.encoder import Encoder",
    "jtx/models/encoder.py": "from jtx.nn.block import Block",
    "jtx/train/__init__.py": "",
    "jtx/train/loop.py": "from jtx.models import encoder\nfrom jtx.data import rows",
}


def test_a_clean_house():
  assert breaches(CLEAN) == []


@pytest.mark.parametrize("edits,breach", [
    ({"jtx/nn/masks.py": "from jtx.models.encoder import Encoder"},
     "jtx/nn/masks.py imports jtx.models.encoder, which is not below"),
    ({"jtx/data/rows.py": "import jtx.train.loop as loop"},
     "jtx/data/rows.py imports jtx.train.loop, which is not below"),
    ({"jtx/errors.py": "if True:\n  from jtx.nn import masks"},
     "jtx/errors.py imports jtx.nn.masks, which is not below"),
    ({"jtx/train/loop.py": "def run():\n  if run:\n    from jtx.models import encoder"},
     "jtx/train/loop.py imports jtx.models.encoder inside a function"),
    ({"jtx/train/loop.py": "class A:\n  def run(self):\n    from jtx import api"},
     "jtx/train/loop.py imports jtx.api, which is not below"),
    ({"jtx/models/encoder.py": "from jtx.nn import block\nimport jtx.data.rows"},
     "jtx/models/encoder.py imports jtx.data.rows, which is not below"),
    ({"jtx/data/rows.py": "from jtx.models.encoder import Encoder"},
     "jtx/data/rows.py imports jtx.models.encoder, which must not know each other"),
    ({"jtx/train/loop.py": "from configs import common"},
     "jtx/train/loop.py imports configs, which is no part of jtx"),
    ({"jtx/train/loop.py": "from experiments.cli import run"},
     "jtx/train/loop.py imports experiments.cli, which is no part of jtx"),
    ({"jtx/nn/masks.py": "from .block import Block"},
     "circle of modules: jtx.nn.block, jtx.nn.masks"),
    ({"jtx/nn/masks.py": "def mask():\n  from jtx.nn import block"},
     "circle of modules: jtx.nn.block, jtx.nn.masks"),
    ({"jtx/config.py": "from jtx import errors", "jtx/errors.py": "from jtx import config"},
     "circle of modules: jtx.config, jtx.errors"),
    ({"jtx/data/ops/image.py": "from jtx.data import rows"},
     "circle of folders: jtx.data.ops, jtx.data.rows"),
    ({"jtx/nn/masks.py": "import importlib\nloop = importlib.import_module('jtx.' + 'train')"},
     "jtx/nn/masks.py imports a module by its name"),
    ({"jtx/attic/old.py": ""}, "jtx/attic/old.py is in no room of the house"),
])
def test_a_planted_breach_is_found(edits, breach):
  assert breach in breaches(CLEAN | edits)
