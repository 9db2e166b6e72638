"""README and docs/: links that resolve, pages of the site, commands of .ci/run, descriptions."""

import ast
from collections.abc import Callable, Iterable, Iterator
import dataclasses
import functools
import importlib.util
import pathlib
import re
import types

import pytest
import yaml

from jtx.data.ops.registry import OPS

ROOT = pathlib.Path(__file__).parent.parent
README, QUESTIONS = "README.md", "docs/questions.md"
LINES = 130  # of README
ROOT_PAGES = {"index.md": README, "RESULTS.md": "RESULTS.md", "CONTRIBUTING.md": "CONTRIBUTING.md",
              "CHANGELOG.md": "CHANGELOG.md"}  # of the site, that are not in docs/
FENCED = re.compile(r"^(`{3,}).*?^\1`*$", re.MULTILINE | re.DOTALL)
BASH = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MARK = re.compile(r"^<!-- ci -->$", re.MULTILINE)
MARKED = re.compile(r"^<!-- ci -->\n+```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SET_UP = {"make test", "make train", "source .venv/bin/activate"}  # which .ci/run does by itself


def pages() -> list[str]:
  """The Markdown files of the repository's root and docs/."""
  return [str(path.relative_to(ROOT))
          for path in (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")))]


def read(path: str) -> str:
  return (ROOT / path).read_text(encoding="utf-8")


def links(text: str) -> list[str]:
  """The targets of links and images of a Markdown text, that are no web addresses."""
  targets = re.findall(r"\]\(([^)\s]+)\)", FENCED.sub("", text))
  return [target for target in targets if not re.match(r"[a-z]+:", target)]


def anchors(text: str) -> set[str]:
  """The anchors of a text's headings, as both GitHub and Python-Markdown make them."""
  headings = re.findall(r"^#+ (.*)$", FENCED.sub("", text), re.MULTILINE)
  return {re.sub(r"[^\w\- ]", "", h).strip().lower().replace(" ", "-") for h in headings}


def broken(path: str, text: str) -> Iterator[str]:
  """Sentences on links of a page that lead nowhere."""
  for link in links(text):
    target, _, anchor = link.partition("#")
    place = ((ROOT / path).parent / target).resolve() if target else ROOT / path
    if not place.exists():
      yield f"{path}: {link}: there is no such file"
    elif anchor and (place.suffix != ".md" or anchor not in anchors(
        text if place == ROOT / path else place.read_text(encoding="utf-8"))):
      yield f"{path}: {link}: there is no such heading"


def in_nav() -> list[str]:
  """The pages of the site's navigation, in order, from the root."""
  def leaves(item):
    values = item if isinstance(item, list) else item.values() if isinstance(item, dict) else None
    return [item] if values is None else [leaf for value in values for leaf in leaves(value)]
  nav = yaml.safe_load(read("mkdocs.yml"))["nav"]
  return [ROOT_PAGES.get(page, f"docs/{page}") for page in leaves(nav)]


def run_by_ci() -> list[str]:
  """The pages whose commands .ci/run runs, in its order."""
  return re.search(r"^pages=\((.*?)\)$", read(".ci/run"), re.MULTILINE | re.DOTALL)[1].split()


def questions() -> list[str]:
  return re.findall(r"^\d+\. (.*?)(?=^\d+\. |\Z)", read(QUESTIONS), re.MULTILINE | re.DOTALL)


@functools.cache
def reference(name: str) -> types.ModuleType:
  """The script beside a page of the reference, which writes it."""
  spec = importlib.util.spec_from_file_location(f"{name}_reference", ROOT / "docs" / f"{name}.py")
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def undescribed(constructors: Iterable[tuple[str, Callable]]) -> Iterator[str]:
  """Sentences on constructors, by their keys, of which docs/keys.md would not say enough."""
  for key, constructor in constructors:
    name = f"{constructor.__module__}.{constructor.__qualname__}"
    if not reference("keys").first_sentence(constructor):
      yield f"{key}: {name} has no docstring; begin one with a sentence on what it is"
    for field, text in reference("keys").comments(constructor).items():
      if not text:
        where = "in a comment behind it" if isinstance(constructor, type) else "under `Args:`"
        yield f"{key}: {name} does not say what its {field} is; say it {where}"


# -------------------------------------------------------------------------------- tests


def test_readme_is_short():
  assert len(read(README).splitlines()) <= LINES


@pytest.mark.parametrize("path", pages())
def test_links_resolve(path):
  assert list(broken(path, read(path))) == []


@pytest.mark.parametrize("text,sentence", [
    ("[a](docs/nowhere.md)", "docs/nowhere.md: there is no such file"),
    ("[a](docs/data.md#nowhere)", "docs/data.md#nowhere: there is no such heading"),
    ("![a](docs/nowhere.png)", "docs/nowhere.png: there is no such file"),
    ("# A\n[a](#b)", "#b: there is no such heading"),
])
def test_a_broken_link_is_found(text, sentence):
  assert list(broken(README, text)) == [f"README.md: {sentence}"]


def test_links_of_code_and_to_the_web_are_none():
  assert links("```python\nx[0](y)\n```\n[a](https://b.c) [d](#e)") == ["#e"]
  assert list(broken(README, "# A `b`: c\n[a](#a-b-c) [d](docs/data.md#labels)")) == []


def test_every_page_is_in_the_nav_once():
  assert sorted(in_nav()) == sorted(pages())


def test_every_page_is_linked_from_readme_or_questions():
  found = {str(((ROOT / path).parent / link.partition("#")[0]).resolve().relative_to(ROOT))
           for path in (README, QUESTIONS) for link in links(read(path))}
  assert set(pages()) - {README} <= found


def test_ten_questions_are_answered_within_two_links_of_readme():
  assert QUESTIONS in links(read(README))
  asked = questions()
  assert len(asked) == 10
  for question in asked:
    assert question.startswith("**") and "?**" in question and links(question), question


def test_ci_runs_the_pages_with_marked_commands():
  ordered = run_by_ci()
  assert ordered[0] == README
  assert sorted(ordered) == sorted(path for path in pages() if MARK.search(read(path)))
  for path in ordered:  # no mark is in vain
    assert len(MARKED.findall(read(path))) == len(MARK.findall(read(path))), path


def test_commands_of_readme_are_run():
  run = {line for path in run_by_ci() for block in MARKED.findall(read(path))
         for line in block.splitlines()}
  lines = {line for block in BASH.findall(read(README)) for line in block.splitlines()}
  assert lines - SET_UP - run == set()


def test_every_config_is_in_the_table():
  experiments = {f"../configs/{path.name}" for path in (ROOT / "configs").glob("*.py")
                 if path.name != "common.py" and "def get_config" in path.read_text("utf-8")}
  assert experiments <= set(links(read("docs/configs.md")))


@pytest.mark.parametrize("name", ["commands", "api"])
def test_pages_that_are_made_of_code_are_up_to_date(name):
  assert read(f"docs/{name}.md") == reference(name).documents(), f"run docs/{name}.py"


def test_every_key_is_described():
  constructors = [(key, constructor) for _, key, constructor in reference("keys").constructors()]
  assert list(undescribed(constructors)) == []
  assert set(OPS.values()) <= {constructor for _, constructor in constructors}


@dataclasses.dataclass
class Section:
  """A section. It has fields."""
  size: int = 0  # of A | B, <c>
  # in two
  # lines
  rate: float = 0.0


@dataclasses.dataclass
class Told(Section):
  """A constructor that says of every field what it is."""
  size: int = 1
  section: Section = dataclasses.field(default_factory=Section)


@dataclasses.dataclass
class Untold(Section):
  size: int = 1
  kind: str = ""


def told(texts, *, size: int = 0, rate: float = 0.0):
  """A function.

  Args:
    texts: not a key.
    size: of a text,
      which goes on. The rest is of no use here.
    rate: a share.

  Raises:
    ValueError: never.
  """


def untold(texts, *, size: int = 0, rate: float = 0.0):
  """A function.

  Args:
    size: of a text.
  """


def test_descriptions_are_of_comments_bases_sections_and_arguments():
  assert reference("keys").comments(Told) == {
      "size": "of A \\| B, &lt;c>", "rate": "in two lines", "section": "A section"}
  assert reference("keys").comments(told) == {"size": "of a text, which goes on", "rate": "a share"}


def test_a_key_without_a_description_is_found():
  place = Untold.__module__
  assert list(undescribed([("told", Told), ("told", told)])) == []
  assert list(undescribed([("model", Untold), ("optim", untold)])) == [
      f"model: {place}.Untold has no docstring; begin one with a sentence on what it is",
      f"model: {place}.Untold does not say what its kind is; say it in a comment behind it",
      f"optim: {place}.untold does not say what its rate is; say it under `Args:`"]


def test_a_flag_without_help_is_found():
  declared = 'flags.DEFINE_string("{}", "a", "{}")'.format
  flags_of = reference("commands").flags_of
  assert list(flags_of(ast.parse(declared("out", "a file")))) == [("out", "text", "a", "a file")]
  with pytest.raises(ValueError, match="--out has no help; say in its last argument what it is"):
    list(flags_of(ast.parse(declared("out", ""))))
