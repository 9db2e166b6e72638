"""Lines of text files."""

import gzip
import io
from typing import Iterable, Iterator
import zlib

import numpy as np

from jtx.data.sources import files
from jtx.errors import DataError

SHORT = 4  # bytes of an empty line at most, its end and a space or two counted


class Lines:
  """The lines of a UTF-8 file, memory-mapped; a line ends at \\n or \\r\\n only.

  A byte order mark at the start of the file is skipped. Line i is decoded when asked for,
  so a large corpus costs eight bytes a line. A file in a bucket is fetched by the megabyte.
  """

  def __init__(self, file: str):
    self.file = file
    self._skip = 0
    ends = []
    self.data = files.File(file)
    with self.data.stream() as f, files.told(file):
      head = f.read(3)
      if head.startswith(b"\x1f\x8b"):
        raise DataError(f"{file}: is compressed by gzip, but its lines are read in any order;"
                        " unpack it first (gunzip)")
      self._skip = 3 if head == b"\xef\xbb\xbf" else 0
      f.seek(self._skip)
      ends.extend(self.sizes(self._checked(f)))
    self._ends = self._skip + np.cumsum(ends, dtype=np.int64)

  def _checked(self, lines: Iterable[bytes]) -> Iterator[bytes]:
    for number, line in enumerate(lines, 1):
      try:
        line.decode("utf-8")
      except UnicodeDecodeError as e:
        raise DataError(f"{self.file}:{number}: not valid UTF-8 ({e.reason})") from e
      yield line

  def sizes(self, lines: Iterable[bytes]) -> Iterator[int]:
    """How many bytes each item has, which is a line here."""
    yield from map(len, lines)

  def __len__(self) -> int:
    return len(self._ends)

  def __getitem__(self, i: int) -> str:
    i = range(len(self))[i]
    line = self.data.near(self.start(i), int(self._ends[i]))
    return line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")

  def listing(self) -> Iterator[np.ndarray]:
    """Where each ends."""
    yield self._ends

  def start(self, i: int) -> int:
    """The place of an item's first byte."""
    return int(self._ends[i - 1]) if i else self._skip


class Rows(Lines):
  """The lines of a file, of which a row is none that is empty: those at its end are left out."""

  def __init__(self, file: str):
    super().__init__(file)
    number = len(self._ends)
    # Longer lines are not looked at: of a file in a bucket they would have to be fetched.
    while number and self._ends[number - 1] - self.start(number - 1) <= SHORT and (
        not self[number - 1].strip(" ")):
      number -= 1
    self._ends = self._ends[:number]

  def check(self, i: int) -> None:
    """Raises DataError where a line is empty."""
    if not self[i].strip():
      raise DataError(f"{self.file}:{i + 1}: is empty; only lines at the end of the file may be")


def text_lines(file: str) -> Iterator[str]:
  """The lines of a UTF-8 file, which may be a .gz, one after the other.

  Raises:
    DataError: it can't be read, or is a .gz that unpacks to too much.
  """
  data = files.read(file)
  opened = lambda: gzip.GzipFile(fileobj=io.BytesIO(data))
  try:
    if file.endswith(".gz"):
      with opened() as f:
        for number, _ in enumerate(iter(lambda: f.read(files.BLOCK), b""), 1):
          files.check_unpacked(file, len(data), (number - 1) * files.BLOCK)
    with opened() if file.endswith(".gz") else io.BytesIO(data) as f:
      for number, line in enumerate(f, 1):
        try:
          text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as e:
          raise DataError(f"{file}:{number}: not valid UTF-8 ({e.reason})") from e
        yield text.removesuffix("\n").removesuffix("\r")
  except (OSError, EOFError, zlib.error) as e:
    raise DataError(f"{file}: {getattr(e, 'strerror', None) or e}") from e
