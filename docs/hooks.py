"""Hooks of the site: pages for files outside docs/, and links to them.

Markdown of the repository links to files where they are, so that it can be read in a clone.
The site has the Markdown of the root (README.md as its first page), and a page for every other
file that one of its pages links to.
"""

import os
import pathlib
import posixpath
import re
from typing import Callable

from mkdocs.structure.files import File, Files

from notebooks import pages

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = {"README.md": "index.md", "RESULTS.md": "RESULTS.md", "CONTRIBUTING.md": "CONTRIBUTING.md",
         "CHANGELOG.md": "CHANGELOG.md"}
LINK = re.compile(r"(?<=\]\()([^)\s#]+)(#[^)\s]*)?(?=\))")
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\|.*$", re.MULTILINE)  # of a table
LANGUAGES = {".py": "python", ".diff": "diff", ".yml": "yaml", ".cff": "yaml"}


def on_files(files: Files, config) -> Files:
  """Adds what the pages link to."""
  waiting = list(PAGES) + [f"docs/{file.src_uri}" for file in files.documentation_pages()]
  done = set()
  while waiting:
    path = waiting.pop()
    if path in done:
      continue
    done.add(path)
    if path.endswith(".md"):
      waiting += linked(path)
    if not path.startswith("docs/") or path.endswith(".py"):
      files.append(file_of(path, config))
  return files


def on_page_markdown(markdown: str, page, config, files) -> str:
  """Turns links to files of the repository into links to their pages."""
  path = repository_path(page.file.src_uri)
  if not path.endswith(".md"):
    return markdown
  # In a table GitHub wants a bar in code behind a backslash, which Python-Markdown would show.
  return outside_code(with_links(markdown, path), lambda text: ROW.sub(
      lambda row: re.sub(r"`[^`]*`", lambda code: code[0].replace("\\|", "|"), row[0]), text))


def linked(path: str) -> list[str]:
  """The files of the repository that a Markdown file links to."""
  found = []
  with_links((ROOT / path).read_text(encoding="utf-8"), path, found.append)
  return [target for target in found if (ROOT / target).exists()]


def with_links(markdown: str, path: str, found: Callable[[str], None] = lambda target: None) -> str:
  """Markdown of `path` with links for the site; `found` gets the target of each."""
  here = site_path(path)

  def replaced(match: re.Match) -> str:
    link, anchor = match[1], match[2] or ""
    if re.match(r"[a-z]+:", link):
      return match[0]
    target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
    found(target)
    return posixpath.relpath(site_path(target), posixpath.dirname(here) or ".") + anchor

  return outside_code(markdown, lambda text: LINK.sub(replaced, text))


def outside_code(markdown: str, edit: Callable[[str], str]) -> str:
  """Markdown of which all but the fenced blocks is edited."""
  parts, last = [], 0
  for block in CODE.finditer(markdown):
    parts += [edit(markdown[last:block.start()]), block[0]]
    last = block.end()
  return "".join([*parts, edit(markdown[last:])])


def site_path(path: str) -> str:
  """The source of a file's page in the site, such as code/jtx/build.py.md."""
  if path in PAGES:
    return PAGES[path]
  if path.startswith("docs/") and not path.endswith(".py"):
    return path.removeprefix("docs/")
  return f"code/{path}" if path.endswith(".md") else f"code/{path}.md"


def repository_path(source: str) -> str:
  """The file of a page, from the repository's root."""
  for path in PAGES:
    if PAGES[path] == source:
      return path
  if source.startswith("code/"):
    path = source.removeprefix("code/")
    return path if (ROOT / path).exists() else path.removesuffix(".md")
  return f"docs/{source}"


def file_of(path: str, config) -> File:
  """A file of the site for a file or folder of the repository."""
  return File.generated(config, site_path(path), content=content_of(path, ROOT / path))


def content_of(path: str, place: pathlib.Path) -> str:
  head = f"---\nsearch:\n  exclude: true\n---\n\n# {path}\n\n"
  if place.is_dir():
    names = sorted(name + "/" * (place / name).is_dir() for name in os.listdir(place)
                   if not name.startswith(("_", ".")))
    return head + "".join(f"- {name}\n" for name in names)
  if path.endswith(".ipynb"):
    return pages.page(place)
  text = place.read_text(encoding="utf-8")
  if path.endswith(".md"):
    return text
  return f"{head}````{LANGUAGES.get(place.suffix, 'text')}\n{text}````\n"
