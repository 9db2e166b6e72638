"""Sources of texts in files: lines, parallel lines, JSON lines, and tables."""

import json
from typing import Any

from jtx.data.sources.lines import Lines
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

  def __getitem__(self, i: int) -> dict[str, str]:
    return {key: lines[i] for key, lines in zip(self._keys, self._lines)}


class JsonlSource:
  """A JSON object a line."""

  def __init__(self, name: str, file: str):
    self.name = name
    self._lines = Lines(file)

  def __len__(self) -> int:
    return len(self._lines)

  def __getitem__(self, i: int) -> dict[str, Any]:
    try:
      example = json.loads(self._lines[i])
    except json.JSONDecodeError as e:
      raise DataError(f"{self._lines.file}:{i + 1}: not valid JSON ({e})") from e
    if not isinstance(example, dict):
      raise DataError(f"{self._lines.file}:{i + 1}: a line must be a JSON object")
    return example


class TsvSource:
  """Tab-separated columns; every line has as many as the first.

  Args:
    name: the spec.
    file: a quote in it is a character.
    header: the first line names the columns; else they are called "0", "1", ...
  """

  def __init__(self, name: str, file: str, header: bool = False):
    self.name = name
    self._lines = Lines(file)
    self._header = int(header)
    first = self._lines[0].split("\t") if len(self._lines) else []
    self._names = first if header else [str(c) for c in range(len(first))]
    for column in self._names:
      if not column or self._names.count(column) > 1:
        what = f"names {column!r} more than once" if column else "leaves a column without a name"
        raise DataError(f"{file}:1: the header {what}")

  def __len__(self) -> int:
    return max(len(self._lines) - self._header, 0)

  def __getitem__(self, i: int) -> dict[str, str]:
    line = range(len(self))[i] + self._header
    columns = self._lines[line].split("\t")
    if len(columns) != len(self._names):
      raise DataError(f"{self._lines.file}:{line + 1}: {len(columns)} columns, "
                      f"but line 1 has {len(self._names)}")
    return dict(zip(self._names, columns))
