"""Sources of texts in files: lines, parallel lines and JSON lines."""

from typing import Any, Iterator

import numpy as np

from jtx import storage
from jtx.data.sources.lines import Lines, Rows
from jtx.errors import ConfigError, DataError


class TextSource:
  """One text file, or two parallel ones; a line is an example."""

  def __init__(self, name: str, files: list[str]):
    if len(files) > 2:
      raise ConfigError(f"{name}: one file or two parallel files, not {len(files)}")
    self.name = name
    self._keys = ("text",) if len(files) == 1 else ("src", "tgt")
    self._lines = [Lines(f) for f in files]
    if len(set(map(len, self._lines))) > 1:
      counts = " and ".join(f"{lines.file} has {len(lines)}" for lines in self._lines)
      raise DataError(f"parallel files need as many lines each, but {counts}")

  def __len__(self) -> int:
    return len(self._lines[0])

  def listing(self) -> Iterator[np.ndarray]:
    """Where lines end."""
    for lines in self._lines:
      yield from lines.listing()

  def __getitem__(self, i: int) -> dict[str, str]:
    return {key: lines[i] for key, lines in zip(self._keys, self._lines)}


class JsonlSource:
  """A JSON object a line; empty lines at the end of the file are left out."""

  def __init__(self, name: str, file: str):
    self.name = name
    self._lines = Rows(file)

  def __len__(self) -> int:
    return len(self._lines)

  def listing(self) -> Iterator[np.ndarray]:
    """Where lines end."""
    yield from self._lines.listing()

  def __getitem__(self, i: int) -> dict[str, Any]:
    try:
      example = storage.parse_json(self._lines[i])
    except ValueError as e:
      self._lines.check(i)
      raise DataError(f"{self._lines.file}:{i + 1}: not valid JSON ({e})") from e
    if not isinstance(example, dict):
      raise DataError(f"{self._lines.file}:{i + 1}: a line must be a JSON object")
    return example

  def line(self, i: int) -> int:
    """The number of an example's line in the file, from 1."""
    return range(len(self))[i] + 1
