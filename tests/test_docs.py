"""README and docs/: links that resolve, pages of the site, and commands that .ci/run runs."""

from collections.abc import Iterator
import importlib.util
import pathlib
import re

import pytest
import yaml

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
  spec = importlib.util.spec_from_file_location(f"{name}_reference", ROOT / "docs" / f"{name}.py")
  reference = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(reference)
  assert read(f"docs/{name}.md") == reference.documents(), f"run docs/{name}.py"
