"""What setup.py requires is what the package imports, and nothing of either is forgotten."""

import ast
from collections.abc import Iterator
import importlib.metadata
import json
import pathlib
import re
import sys

from packaging.requirements import Requirement

ROOT = pathlib.Path(__file__).parent.parent
# Packages of extras, that are imported where they are asked for.
OPTIONAL = {"apache_beam": "beam", "libtpu": "aot", "flatbuffers": "stablehlo", "mlflow": "mlflow",
            "optuna": "search", "starlette": "serve", "uvicorn": "serve", "wandb": "wandb"}
NAMES = {"PIL": "pillow", "sklearn": "scikit-learn", "orbax": "orbax-checkpoint"}  # of two or more


def imported() -> Iterator[tuple[str, str]]:
  """The package of each import that is not of Python nor ours, and its file."""
  for room in ("jtx", "configs", "experiments"):
    for path in (ROOT / room).rglob("*.py"):
      for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
          modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
          modules = [node.module]
        else:
          continue
        for package in {module.split(".")[0] for module in modules}:
          if package not in sys.stdlib_module_names | {"jtx"}:
            yield package, str(path.relative_to(ROOT))


def setup() -> dict[str, ast.expr]:
  """The arguments of setup.py, and its lists by name."""
  tree = ast.parse((ROOT / "setup.py").read_text(encoding="utf-8"))
  call = next(n for n in ast.walk(tree) if isinstance(n, ast.Call)
              and ast.unparse(n.func) == "setuptools.setup")
  return {keyword.arg: keyword.value for keyword in call.keywords}


def normal(requirement: str) -> str:
  """The name of a requirement, as package indexes have it."""
  return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", requirement)[0]).lower()


def required() -> set[str]:
  return set(map(normal, ast.literal_eval(setup()["install_requires"])))


def test_what_is_imported_is_required_and_the_other_way_round():
  distributions = importlib.metadata.packages_distributions()
  needed = {}
  for package, path in imported():
    if package not in OPTIONAL:
      name = NAMES.get(package) or distributions[package][0]
      needed.setdefault(normal(name), path)
  assert needed.keys() == required(), {k: needed.get(k) for k in needed.keys() ^ required()}


def test_extras_have_what_is_optional_and_repeat_nothing():
  extras = {key.value: ast.unparse(value) for key, value in zip(
      setup()["extras_require"].keys, setup()["extras_require"].values) if key}
  assert set(OPTIONAL.values()) <= extras.keys()
  for extra, text in extras.items():
    names = set(map(normal, re.findall(r"['\"]([\w.-]+)(?=[><=\"'])", text)))
    assert not names & required(), extra


def test_the_lock_has_what_is_required():
  lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
  locked = {normal(line) for line in lines if line and not line.startswith("#")}
  assert required() <= locked


def test_the_lock_is_complete():
  """It is installed without what its packages ask for beside it."""
  lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
  locked = dict(line.split("==") for line in lines if line and not line.startswith("#"))
  versions = {normal(name): version for name, version in locked.items()}
  for name in locked:
    for text in importlib.metadata.requires(name) or ():
      need = Requirement(text)
      if need.marker is None or need.marker.evaluate({"extra": ""}):
        assert normal(need.name) in versions, (name, text)
        assert need.specifier.contains(versions[normal(need.name)], prereleases=True), (name, text)


def test_the_image_is_built_from_what_is_here():
  """Files that are copied, extras by the name of a chip, the command, and the version of Python."""
  text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
  copied = re.findall(r"^COPY (\S+) ", text, re.MULTILINE)
  assert "requirements.lock" in copied and all((ROOT / name).exists() for name in copied)
  extras = {key.value for key in setup()["extras_require"].keys if key}
  chips = re.findall(r"CHIP=(\w+)", text)
  assert set(chips) == {"cuda", "tpu"} <= extras
  assert json.loads(re.search("^ENTRYPOINT (.*)", text, re.MULTILINE)[1]) == ["jtx"]
  version = re.search(r"^FROM python:([\d.]+)", text, re.MULTILINE)[1]
  assert f"Python {version}," in (ROOT / "requirements.lock").read_text(encoding="utf-8")
