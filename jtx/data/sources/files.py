"""Files of sources, here or in a bucket: whole, at an offset, as a stream, and listed."""

import contextlib
import fnmatch
import functools
import glob
import mmap
import os
import re
from typing import Any, BinaryIO, Iterator, Sequence

from jtx import storage
from jtx.errors import ConfigError, DataError

BLOCK = 1 << 20  # bytes of a bucket's file that are fetched at a time, for `File.near`
UNPACKED = 64 << 20  # bytes that anything may unpack to,
TIMES = 100  # and how many times as many bytes as it has itself, beyond these
LEVELS = 3  # of folders that are listed


class File:
  """A file that threads and processes read at any place; pickled it is not open.

  Args:
    path: of it, here or in a bucket.

  Raises:
    DataError: it can't be read.
  """

  def __init__(self, path: str):
    self.path = path
    with told(path), storage.opened(path) as p:
      storage.check_regular(path)
      self.size = p.stat().length if storage.is_remote(path) else p.stat().st_size
      if not storage.is_remote(path):
        open(path, "rb").close()  # a folder, or a file that others may read, fails here

  def __getstate__(self) -> dict[str, Any]:
    return {k: v for k, v in self.__dict__.items() if not k.startswith("_")}

  def stream(self) -> BinaryIO:
    """The file from its start, to be read by one at a time."""
    with told(self.path), storage.opened(self.path) as p:
      return p.open("rb")

  def read(self, offset: int, size: int) -> bytes:
    """`size` bytes from `offset` on, or those up to the file's end, by one request."""
    with told(self.path):
      if storage.is_remote(self.path):
        # A file that fsspec opened knows its store, which reads for many threads at once.
        return self._open.fs.cat_file(self._open.path, offset, min(offset + size, self.size))
      return os.pread(self._open.fileno(), size, offset)

  def near(self, start: int, stop: int) -> bytes:
    """Bytes from `start` to `stop`, kept in mind or mapped since the next are asked for soon."""
    if not storage.is_remote(self.path):
      return self._mapped[start:stop]
    first = start // BLOCK
    blocks = b"".join(self._block(i) for i in range(first, max(-(-stop // BLOCK), first + 1)))
    return blocks[start - first * BLOCK:stop - first * BLOCK]

  @functools.cached_property
  def _open(self) -> Any:
    if storage.is_remote(self.path):
      return self.stream()
    with told(self.path):
      return open(self.path, "rb", buffering=0)

  @functools.cached_property
  def _mapped(self) -> mmap.mmap:
    with told(self.path):
      return mmap.mmap(self._open.fileno(), 0, access=mmap.ACCESS_READ)

  @functools.cached_property
  def _block(self) -> Any:
    return functools.lru_cache(16)(lambda i: self.read(i * BLOCK, BLOCK))


@contextlib.contextmanager
def told(path: str) -> Iterator[None]:
  """Makes a DataError that names the path of what a file system or a store raises."""
  try:
    yield
  except (ConfigError, DataError):
    raise
  except FileNotFoundError as e:
    raise DataError(f"{path}: No such file or directory") from e
  except OSError as e:
    raise DataError(f"{path}: {e.strerror or e}") from e
  except Exception as e:  # a client of a store raises all kinds of errors
    if not storage.is_remote(path):
      raise
    raise DataError(f"{path}: {str(e) or type(e).__name__}") from e


def read(path: str) -> bytes:
  """A file's bytes.

  Raises:
    DataError: it can't be read.
  """
  with told(path):
    return storage.read_bytes(path)


def check_unpacked(what: str, packed: int, size: int) -> None:
  """Refuses a few bytes that unpack to very many, as no data does.

  Args:
    what: names them, for the error.
    packed: bytes.
    size: bytes that they unpack to.

  Raises:
    DataError: they are too many.
  """
  if size > max(UNPACKED, packed * TIMES):
    raise DataError(f"{what}: its {packed / 1e6:,.1f} MB unpack to {size / 1e6:,.1f} MB or more,"
                    f" over {TIMES} times as many, which is no data; if it is, pack it without"
                    " compression")


def is_folder(path: str) -> bool:
  with told(path):
    return storage.is_folder(path)


def is_hidden(name: str) -> bool:
  """Whether a file "folder/name" is none of the user's own, as systems and archives leave them."""
  return any(part.startswith(".") or part == "__MACOSX" for part in name.split("/"))


def walked(folder: str, levels: int | None = LEVELS) -> Iterator[str]:
  """Files and folders below a folder, "class/file" and "class/"; links are followed.

  Args:
    folder: here or in a bucket.
    levels: of folders that are listed, since a link may lead back up; None is all.
  """
  with told(folder):
    top = None
    for place, folders, files in _walk(folder, links=levels is not None):
      top = top or place  # of a bucket without its scheme
      relative = os.path.relpath(place, top)
      parts = [] if relative == os.curdir else relative.split(os.sep)
      names = (*filter(None, files), *(name + "/" for name in folders))
      yield from ("/".join([*parts, name]) for name in names)
      if levels is not None and len(parts) == levels - 1:
        folders.clear()


def _walk(folder: str, links: bool) -> Iterator[tuple[str, list[str], list[str]]]:
  """`os.walk` of a folder here or in a bucket."""
  if not storage.is_remote(folder):
    yield from os.walk(folder, followlinks=links)
    return
  with storage.opened(folder) as p:
    yield from ((os.fspath(place), folders, files) for place, folders, files in p.walk())


def matching(path: str, endings: Sequence[str]) -> list[str]:
  """The files that a path stands for, sorted: itself, those of a folder, or those of a pattern.

  A pattern has *, ? or {000..123}; a folder stands for its files of the given endings.

  Raises:
    DataError: there are none.
  """
  if found := re.search(r"\{(\d+)\.\.(\d+)\}", path):
    first, last = found.groups()
    names = (f"{i:0{len(first)}d}" for i in range(int(first), int(last) + 1))
    paths = [path[:found.start()] + name + path[found.end():] for name in names]
  elif re.search(r"[*?]", path):
    folder, _, name = path.rpartition("/")
    if storage.is_remote(path):
      paths = [f"{folder}/{file}" for file in walked(folder, 1)
             if fnmatch.fnmatch(file, name) and not file.endswith("/")]
    else:
      paths = glob.glob(path)
  elif is_folder(path):
    paths = [storage.join(path, file) for file in walked(path, 1) if file.endswith(tuple(endings))]
  else:
    return [path]
  if not paths:
    raise DataError(f"{path}: has no file" + ("" if re.search(r"[*?{]", path) else
                                              f" that ends in {' or '.join(endings)}"))
  return sorted(paths)
