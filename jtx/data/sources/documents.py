"""Sources of documents: files of a folder or archive, texts between blank lines, and pydocs."""

import ast
import functools
import os
import sysconfig
from typing import Any, Iterator
import zipfile
import zlib

from jtx import config
from jtx.data.sources import files
from jtx.data.sources.lines import Lines
from jtx.data.sources.parts import Part
from jtx.errors import DataError
from jtx.storage import join

ENDINGS = (".txt", ".md")


class FilesSource:
  """A file a document: all .txt and .md files of a folder or a zip archive, by name, or one file.

  Args:
    name: the spec.
    path: of the folder, archive or file.
    folders: the part of the folders in it, sorted by name; None is all of them. Held-out folders
      are held-out authors, sites or dates, where files are sorted so.
    characters: the part of each file; None is all of it.
  """

  def __init__(self, name: str, path: str, folders: Part | None = None,
               characters: Part | None = None):
    self.name, self._path, self._characters = name, path, characters
    self._is_folder = files.is_folder(path)
    if not self._is_folder and path.endswith(ENDINGS):
      self._is_folder, self._path, found = True, os.path.dirname(path), [os.path.basename(path)]
    else:
      listed = files.walked(path, None) if self._is_folder else self._archive.namelist()
      found = (file for file in listed if not files.is_hidden(file))
    self._files = sorted(file for file in found if file.endswith(ENDINGS))
    if not self._files:
      raise DataError(f"{path}: has no file that ends in {' or '.join(ENDINGS)}")
    if folders is not None:
      names = sorted({os.path.dirname(file) for file in self._files})
      if not (kept := set(folders.of(names))):
        have = f"{len(names)} folders have" if len(names) > 1 else "one folder has"
        raise DataError(f"{name}: this part of the folders is empty, since {have} all of the files"
                        f" of {path}; put them into more folders, such as one for each author, or"
                        " name other documents to evaluate on, as configs do by val=SOURCE")
      self._files = [file for file in self._files if os.path.dirname(file) in kept]

  @functools.cached_property
  def _archive(self) -> zipfile.ZipFile:
    try:
      return zipfile.ZipFile(files.File(self._path).stream())
    except zipfile.BadZipFile as e:
      raise DataError(f"{self._path}: neither a folder nor a zip archive ({e})") from e

  def __getstate__(self) -> dict[str, Any]:
    return {k: v for k, v in self.__dict__.items() if k != "_archive"}

  def __len__(self) -> int:
    return len(self._files)

  def __getitem__(self, i: int) -> dict[str, Any]:
    file = self._files[i]
    try:
      text = self._bytes(file).decode("utf-8-sig")
    except UnicodeDecodeError as e:
      raise DataError(f"{self._path}: {file} is not valid UTF-8 ({e.reason} at byte {e.start})"
                      ) from e
    # DataError is of a file that `files` can't read, RuntimeError of an encrypted one.
    except (DataError, OSError, zipfile.BadZipFile, zlib.error, RuntimeError) as e:
      if isinstance(e, DataError) and e.__cause__ is None:
        raise
      cause = e.__cause__ if isinstance(e, DataError) else e
      raise DataError(f"{self._path}: {file} can't be read"
                      f" ({getattr(cause, 'strerror', None) or cause})") from e
    text = text.replace("\r\n", "\n")
    return {"text": self._characters.of(text) if self._characters else text, "file": file}

  def _bytes(self, file: str) -> bytes:
    if self._is_folder:
      return files.read(join(self._path, file))
    member = self._archive.getinfo(file)
    files.check_unpacked(os.path.join(self._path, file), member.compress_size, member.file_size)
    return self._archive.read(file)


class BlankLinesSource:
  """One file; blank lines part its documents."""

  def __init__(self, name: str, file: str):
    self.name = name
    lines = Lines(file)
    self._lines = lines
    starts, inside = [], False
    for i in range(len(lines)):
      blank = not lines[i].strip()
      if not blank and not inside:
        starts.append(i)
      inside = not blank
    self._starts = [*starts, len(lines)]

  def __len__(self) -> int:
    return len(self._starts) - 1

  def __getitem__(self, i: int) -> dict[str, Any]:
    i = range(len(self))[i]
    lines = [self._lines[n] for n in range(self._starts[i], self._starts[i + 1])]
    return {"text": "\n".join(lines).strip()}


class PyDocs:
  """The documentation in Python's own standard library, a module or topic a document.

  A tenth of the documents, by a fixed hash of their name, is "val".
  """

  def __init__(self, split: str):
    self.name = f"embedded:pydocs:{split}"
    if split not in ("train", "val"):
      raise config.ConfigError(f"{self.name}: valid splits are train and val")
    self._documents = pydocs(split)

  def __len__(self) -> int:
    return len(self._documents)

  def __getitem__(self, i: int) -> dict[str, Any]:
    name, text = self._documents[i]
    return {"text": text, "file": name}


@functools.cache
def pydocs(split: str) -> tuple[tuple[str, str], ...]:
  """(name, text): docstrings of the library's modules, and the topics of `help()`.

  Files of the other split are not opened: to read all of them takes seconds.
  """
  from pydoc_data import topics
  chosen = lambda name: (zlib.crc32(name.encode()) % 10 == 0) == (split == "val")
  named = {f"topics/{name}": text for name, text in topics.topics.items()}
  documents = [(name, text) for name, text in named.items() if chosen(name)]
  root = sysconfig.get_path("stdlib")
  for folder, subfolders, names in os.walk(root):
    subfolders[:] = sorted(d for d in subfolders
                           if d not in ("site-packages", "dist-packages", "test", "tests",
                                        "idle_test", "__pycache__", "lib2to3"))
    for file in sorted(names):
      if file.endswith(".py"):
        path = os.path.join(folder, file)
        name = os.path.relpath(path, root)
        text = "\n\n".join(docstrings(path)) if chosen(name) else ""
        if len(text) > 200:
          documents.append((name, text))
  return tuple(sorted(documents))


def docstrings(path: str) -> Iterator[str]:
  """The docstrings of a Python file, in order; nothing is imported."""
  try:
    with open(path, encoding="utf-8") as f:
      tree = ast.parse(f.read())
  except (OSError, SyntaxError, ValueError):  # a file of another Python, or of test data
    return
  documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
  nodes = [node for node in statements(tree) if isinstance(node, documented)]
  for node in sorted(nodes, key=lambda node: getattr(node, "lineno", 0)):
    if text := ast.get_docstring(node):
      yield text


def statements(tree: ast.Module) -> Iterator[ast.AST]:
  """A module and all statements in it, outer ones first: `ast.walk` without expressions."""
  nodes = [tree]
  for node in nodes:
    yield node
    for field in ("body", "handlers", "cases", "orelse", "finalbody"):
      nodes.extend(getattr(node, field, ()))


def pydocs_source(subset: str, split: str) -> PyDocs:
  """Opens `embedded:pydocs:SPLIT`; there are no subsets."""
  if subset:
    raise config.ConfigError(f"embedded:pydocs/{subset}: it has no subsets, so leave /{subset}"
                             " away")
  return PyDocs(split)
