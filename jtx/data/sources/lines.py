"""Lines of text files."""

import functools
import gzip
import mmap
from typing import Any
import zlib

import numpy as np

from jtx.errors import DataError


class Lines:
  """The lines of a UTF-8 file, memory-mapped; a line ends at \\n or \\r\\n only.

  A byte order mark at the start of the file is skipped. Line i is decoded when asked for,
  so a large corpus costs eight bytes a line.
  """

  def __init__(self, file: str):
    self.file = file
    ends = []
    try:
      with open(file, "rb") as f:
        self._skip = 3 if f.read(3) == b"\xef\xbb\xbf" else 0
        f.seek(self._skip)
        for number, line in enumerate(f, 1):
          line.decode("utf-8")
          ends.append(len(line))
    except UnicodeDecodeError as e:
      raise DataError(f"{file}:{number}: not valid UTF-8 ({e.reason})") from e
    except OSError as e:
      raise DataError(f"{file}: {e.strerror}") from e
    self._ends = self._skip + np.cumsum(ends, dtype=np.int64)

  def __len__(self) -> int:
    return len(self._ends)

  def __getitem__(self, i: int) -> str:
    i = range(len(self))[i]
    start = self._ends[i - 1] if i else self._skip
    line = self._bytes[start:self._ends[i]]
    return line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")

  @functools.cached_property
  def _bytes(self) -> mmap.mmap:
    with open(self.file, "rb") as f:
      return mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)

  def __getstate__(self) -> dict[str, Any]:
    return {k: v for k, v in self.__dict__.items() if k != "_bytes"}


def text_lines(file: str) -> list[str]:
  """The lines of a UTF-8 file, which may be a .gz."""
  opener = gzip.open if file.endswith(".gz") else open
  try:
    with opener(file, "rb") as f:
      return f.read().decode("utf-8-sig").replace("\r\n", "\n").split("\n")
  except UnicodeDecodeError as e:
    line = e.object[:e.start].count(b"\n") + 1
    raise DataError(f"{file}:{line}: not valid UTF-8 ({e.reason})") from e
  except (OSError, EOFError, zlib.error) as e:
    raise DataError(f"{file}: {getattr(e, 'strerror', None) or e}") from e
