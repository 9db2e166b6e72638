"""Rows of files with typed columns, read in pieces of which a few are kept in memory."""

import contextlib
import functools
import threading
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Protocol, Sequence

import numpy as np

from jtx.data.sources import files
from jtx.errors import DataError, nearest

KEPT = 4  # pieces
OPEN_FILES = 64  # that are kept open


class Piece(NamedTuple):
  """Rows that are decoded together."""
  file: int
  group: int  # a row group of Parquet, or a record batch of Arrow
  number: int  # among the pieces of the group
  rows: int
  size: int  # rows of the group's pieces, but for the last


class Reader(Protocol):
  """An open file."""

  columns: tuple[str, ...]
  features: Mapping[str, Any]  # as `datasets` describes columns; {} without it

  def pieces(self) -> Iterator[tuple[int, int, int, int]]:
    """Group, number, rows and size of each piece."""

  def read(self, piece: Piece) -> Any:
    """The pyarrow.Table of a piece."""


class ColumnsSource:
  """Rows of files with typed columns; a subclass says how a file is opened.

  A value is what Python has for its type; of an image, which `datasets` keeps as an object of
  "bytes" and "path", it is the bytes.

  Args:
    name: the spec.
    path: a file, a folder of files, or a pattern of them.
    paths: of the columns that are read, which may be in objects, "translation.en"; None is all.

  Raises:
    DataError: a file can't be read, or has other columns than the others.
  """

  endings: Sequence[str]
  reader: Callable[[str, Sequence[str] | None], Reader]

  def __init__(self, name: str, path: str, paths: Sequence[str] | None = None):
    self.name, self._path, self._paths = name, path, paths
    self._files, self._features = self.found(path)
    self.columns: tuple[str, ...] = ()
    pieces = []
    for number, file in enumerate(self._files):
      with told(file):
        reader = type(self).reader(file, None)
        pieces += [Piece(number, *piece) for piece in reader.pieces()]
      if number and reader.columns != self.columns:
        raise DataError(f"{file}: has the columns {', '.join(reader.columns)}, but"
                        f" {self._files[0]} has {', '.join(self.columns)}")
      self.columns = reader.columns
      self._features = self._features or reader.features
    for column in paths or ():
      self._check(column, column.partition(".")[0])
    self._pieces = np.array([piece for piece in pieces if piece.rows], np.int64).reshape(-1, 5)
    self._stops = np.cumsum(self._pieces[:, Piece._fields.index("rows")])

  def found(self, path: str) -> tuple[list[str], Mapping[str, Any]]:
    """The files of a path, and the features that are written beside them."""
    return files.matching(path, self.endings), {}

  def _check(self, *names: str) -> None:
    """Raises DataError unless a column has one of these names."""
    if not set(names) & set(self.columns):
      raise DataError(f"{self.name}: has no column {names[0]!r}; {nearest(names[0], self.columns)}")

  def __getstate__(self) -> dict[str, Any]:
    return {k: v for k, v in self.__dict__.items() if k != "_kept"}

  def listing(self) -> Iterator[str | np.ndarray]:
    """Sizes of the files, and their pieces."""
    yield " ".join(str(files.File(file).size) for file in self._files)
    yield self._pieces

  @functools.cached_property
  def _kept(self) -> "Kept":
    return Kept(lambda number: type(self).reader(self._files[number], self._paths), self._files)

  def __len__(self) -> int:
    return int(self._stops[-1]) if len(self._stops) else 0

  def __getitem__(self, i: int) -> dict[str, Any]:
    i = range(len(self))[i]
    number = int(np.searchsorted(self._stops, i, "right"))
    piece = Piece(*self._pieces[number].tolist())
    row = self._kept.table(piece).slice(i - int(self._stops[number]) + piece.rows, 1)
    return {column: _plain(value) for column, value in row.to_pylist()[0].items()}

  def column(self, key: str) -> Iterator[Any]:
    """The values of a column in order; the other columns are not read."""
    self._check(key)
    alone = type(self)(self.name, self._path, (key,))
    for piece in alone._pieces.tolist():
      yield from map(_plain, alone._kept.table(Piece(*piece)).column(key).to_pylist())

  @property
  def labels(self) -> list[Any]:
    """Those of images, of which none is read."""
    return list(self.column("label"))

  def names_of(self, key: str) -> tuple[str, ...] | None:
    """The classes of a column in order, if it is a ClassLabel of `datasets` or a list of such."""
    feature = self._features.get(key)
    while isinstance(feature, Mapping) and "feature" in feature:
      feature = feature["feature"]
    if isinstance(feature, list) and len(feature) == 1:  # how older versions write a list
      feature = feature[0]
    names = feature.get("names") if isinstance(feature, Mapping) else None
    return tuple(names) if names else None

  @property
  def classes(self) -> tuple[str, ...] | None:
    """Those of the column "label"."""
    return self.names_of("label")


class Kept:
  """The pieces that were read last. Threads may share it.

  Args:
    opened: a file's number -> its reader.
    names: of the files, for errors.
  """

  def __init__(self, opened: Callable[[int], Reader], names: Sequence[str]):
    self._lock, self._names = threading.Lock(), names
    self._reader = functools.lru_cache(OPEN_FILES)(opened)
    self._read = functools.lru_cache(KEPT)(lambda piece: self._reader(piece.file).read(piece))

  def table(self, piece: Piece) -> Any:
    with self._lock, told(self._names[piece.file]):
      return self._read(piece)


def _plain(value: Any) -> Any:
  """The bytes of an image of `datasets`; other values as they are."""
  if isinstance(value, dict) and value.keys() == {"bytes", "path"} and value["bytes"] is not None:
    return value["bytes"]
  return value


@contextlib.contextmanager
def told(file: str) -> Iterator[None]:
  """Makes a DataError that names the file of what pyarrow raises."""
  try:
    yield
  except DataError:
    raise
  except (ValueError, OSError, KeyError, NotImplementedError) as e:
    if isinstance(e, OSError) and e.strerror:
      raise DataError(f"{file}: {e.strerror}") from e
    reason = str(e).strip().splitlines() or [type(e).__name__]
    raise DataError(f"{file}: can't be read, since it is of another format or damaged"
                    f" ({reason[0]})") from e


def with_pyarrow() -> Any:
  """pyarrow with its modules for files, which take a third of a second to import.

  Raises:
    DataError: it can't be imported.
  """
  try:
    import pyarrow.ipc
    import pyarrow.parquet
    return pyarrow
  except ImportError as e:
    raise DataError("sources parquet: and arrow: need pyarrow, which can't be imported"
                    f" ({e}); install it by: pip install pyarrow") from e
