"""Some rows and columns of another source."""

from typing import Any, Iterator, Mapping

import numpy as np

from jtx.data.sources.fingerprints import listing
from jtx.data.sources.parts import Part
from jtx.data.sources.specs import literal
from jtx.errors import DataError, nearest


class View:
  """A source of some rows of another, and of some of its columns, under new names.

  Args:
    source: the other. Where it has `columns`, the names of its columns, they are checked.
    columns: new name -> the other's, which may be a path into nested objects, "translation.en", or
      a text in quotes, "'mine'", that all examples have. None is all.
    part: of the rows; None is all.

  Raises:
    DataError: the source has no such column.
  """

  def __init__(self, source: Any, columns: Mapping[str, str] | None, part: Part | None):
    self.name, self._source, self._columns = source.name, source, columns
    rows = range(len(source))
    self._rows = rows if part is None else part.of(rows)
    if hasattr(source, "numbered"):
      self.numbered = source.numbered  # see `jtx.data.sources.images.check_classes`
    known = getattr(source, "columns", None)
    for path in (columns or {}).values() if known is not None else ():
      if literal(path) is None and path not in known and path.partition(".")[0] not in known:
        raise DataError(f"{source.name}: has no column {path!r}; {nearest(path, known)}")

  def __len__(self) -> int:
    return len(self._rows)

  def __getitem__(self, i: int) -> dict[str, Any]:
    number = self._rows[i]
    example = self._source[number]
    if self._columns is None:
      return example
    return {new: self._follow(example, old, number) for new, old in self._columns.items()}

  def _follow(self, example: Mapping[str, Any], path: str, number: int) -> Any:
    if (text := literal(path)) is not None:
      return text
    if path in example:
      return example[path]
    value = example
    for part in path.split("."):
      if not isinstance(value, Mapping) or part not in value:
        raise DataError(f"{self.name}: example {number} has no column {path!r}; it has"
                        f" {', '.join(map(str, example))}")
      value = value[part]
    return value

  def listing(self) -> Iterator[str | np.ndarray]:
    """What the other source has, if all of its rows are taken: more may be written behind some."""
    if len(self) == len(self._source):
      yield from listing(self._source)

  def line(self, i: int) -> int | None:
    """The number of an example's line in the file, from 1, where the other source knows it."""
    line = getattr(self._source, "line", None)
    return line(self._rows[i]) if line else None

  def image_size(self, i: int) -> tuple[int, int] | None:
    """Height and width of an image, where the other source knows them without reading it."""
    size = getattr(self._source, "image_size", None)
    return size(self._rows[i]) if size and self._columns is None else None

  def column(self, key: str) -> Iterator[Any]:
    """The values of a column in order; of a source that can, without the others'."""
    path = key if self._columns is None else self._columns.get(key)
    if hasattr(self._source, "column") and path in self._source.columns:
      rows = iter(self._rows)
      wanted = next(rows, None)
      for number, value in enumerate(self._source.column(path)):
        if wanted is None:
          return
        if number == wanted:
          yield value
          wanted = next(rows, None)
      return
    yield from (value_of(self, i, key) for i in range(len(self)))

  @property
  def labels(self) -> list[Any]:
    """Those of images; of a source that can, no image is read."""
    if self._columns is None and hasattr(self._source, "labels"):
      labels = self._source.labels
      return [labels[i] for i in self._rows]
    return list(self.column("label"))

  def names_of(self, key: str) -> tuple[str, ...] | None:
    """The classes of a column, where the other source knows them."""
    names_of = getattr(self._source, "names_of", None)
    if names_of is None or self._columns is not None and key not in self._columns:
      return None
    return names_of((self._columns or {}).get(key, key))

  @property
  def classes(self) -> tuple[str, ...] | None:
    """Those of the labels of images."""
    if self._columns is None:
      return getattr(self._source, "classes", None)
    return self.names_of("label")


def value_of(source: Any, i: int, key: str) -> Any:
  """source[i][key].

  Raises:
    DataError: there is none.
  """
  example = source[i]
  if key not in example:
    raise DataError(f"{source.name}: example {i} has no column {key!r}; it has"
                    f" {', '.join(map(str, example))}")
  return example[key]
