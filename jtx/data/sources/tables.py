"""Sources of tables in text files: TSV, and CSV with quotes."""

import re
from typing import Iterable, Iterator, Sequence

from absl import logging
import numpy as np

from jtx.data.sources.files import BLOCK
from jtx.data.sources.lines import Lines, Rows
from jtx.data.sources.specs import Options
from jtx.errors import DataError

FIRST = 20  # lines in which quotes are looked for, and to which a header is compared
WORD = re.compile(r"[^\W\d][\w.-]{0,30}")  # as a name of a column is


class TsvSource:
  """Tab-separated columns; every line has as many as the first, but for empty ones at the end.

  Args:
    name: the spec.
    file: a quote in it is a character.
    header: the first line names the columns; else they are called "0", "1", ...
  """

  def __init__(self, name: str, file: str, header: bool = False):
    self.name = name
    self._lines = Rows(file)
    self._header = int(header)
    first = self._lines[0].split("\t") if len(self._lines) else []
    self.columns = named(file, first, header)
    _check_tabs(name, self._lines)
    if not header:
      _hint_header(name, self._lines)

  def __len__(self) -> int:
    return max(len(self._lines) - self._header, 0)

  def listing(self) -> Iterator[np.ndarray]:
    """Where lines end."""
    yield from self._lines.listing()

  def __getitem__(self, i: int) -> dict[str, str]:
    line = range(len(self))[i] + self._header
    columns = self._lines[line].split("\t")
    if len(columns) != len(self.columns):
      self._lines.check(line)
      raise DataError(f"{self._lines.file}:{line + 1}: {len(columns)} columns, "
                      f"but line 1 has {len(self.columns)}")
    return dict(zip(self.columns, columns))

  def line(self, i: int) -> int:
    """The number of an example's line in the file, from 1."""
    return range(len(self))[i] + self._header + 1


def named(file: str, first: Sequence[str], header: bool) -> tuple[str, ...]:
  """The names of columns: those of the first line, or their numbers.

  Raises:
    DataError: a name is missing, or stands twice.
  """
  if not header:
    return tuple(str(c) for c in range(len(first)))
  for column in first:
    if not column or first.count(column) > 1:
      what = f"names {column!r} more than once" if column else "leaves a column without a name"
      raise DataError(f"{file}:1: the header {what}")
  return tuple(first)


def _check_tabs(name: str, lines: Lines) -> None:
  """Notices a CSV that is read as a TSV.

  Raises:
    DataError: it ends in .csv and its first line has no tab.
  """
  file = lines.file
  if len(lines) and "\t" not in lines[0] and file.lower().endswith(".csv"):
    raise DataError(f"{file}:1: has no tab, and {name.partition(':')[0]}: reads tab-separated"
                    " columns; csv: reads commas, quotes and a header")
  for number in range(min(len(lines), FIRST)):
    for field in lines[number].split("\t"):
      if len(field) > 2 and field[0] == field[-1] == '"':
        logging.warning("%s:%d: a column stands in quotes, which %s: keeps as characters of the"
                        " text; csv:FILE:delimiter[tab] takes them away", file, number + 1,
                        name.partition(":")[0])
        return


def _hint_header(name: str, lines: Lines) -> None:
  """Warns of a first line of different single words, where each of the next has something else."""
  rows = [lines[i].split("\t") for i in range(min(len(lines), FIRST))]
  words = [all(map(WORD.fullmatch, row)) for row in rows]
  if len(rows) > 1 and words[0] and not any(words[1:]) and len(set(rows[0])) == len(rows[0]) > 1:
    logging.warning("%s:1: %s look like names of columns, and %s: takes the line for an example;"
                    " if they are names, table:FILE takes them as such", lines.file,
                    " and ".join(map(repr, rows[0])), name.partition(":")[0])


# -------------------------------------------------------------------------------- CSV

QUOTED = re.compile(r'"([^"]*(?:""[^"]*)*)"?')  # a field in quotes, from its first on
INSIDE = re.compile(rb'[^"]*(?:""[^"]*)*')  # a stretch inside of quotes


class Records(Lines):
  """The records of a CSV file (RFC 4180): lines, of which quotes may hold several together.

  A quote that does not open a field is a character of it. Blank lines are left out.
  """

  def __init__(self, file: str, delimiter: str):
    self._delimiter = delimiter
    super().__init__(file)

  def sizes(self, lines: Iterable[bytes]) -> Iterator[int]:
    delimiter, size, opened = self._delimiter.encode(), 0, 0
    for number, line in enumerate(lines, 1):
      size += len(line)
      if not opened and not line.strip(b"\r\n"):
        continue  # goes with the record that follows, without which it is nothing
      inside = ends_inside(line, delimiter, bool(opened))
      opened = (opened or number) if inside else 0
      if not inside:
        yield size
        size = 0
    if opened:
      raise DataError(f"{self.file}:{opened}: a quote opens a column in this line and is never"
                      " closed")

  def __getitem__(self, i: int) -> str:
    return super().__getitem__(i).lstrip("\r\n")

  def line(self, i: int) -> int:
    """The number of a record's first line, from 1; it is counted."""
    text, stop = super().__getitem__(i), self.start(i)
    count = text[:len(text) - len(text.lstrip("\r\n"))].count("\n")
    for place in range(0, stop, BLOCK):
      count += self.data.near(place, min(place + BLOCK, stop)).count(b"\n")
    return count + 1


def ends_inside(line: bytes, delimiter: bytes, inside: bool) -> bool:
  """Whether a line ends inside of quotes.

  Args:
    line: with its line feed.
    delimiter: of columns, a byte.
    inside: whether it begins inside of quotes.
  """
  if b'"' not in line:
    return inside
  at = 0
  while True:
    if not inside and line.startswith(b'"', at):
      inside, at = True, at + 1
    if inside:
      at = INSIDE.match(line, at).end()
      if at == len(line):
        return True
      inside, at = False, at + 1
    at = line.find(delimiter, at) + 1
    if not at:
      return False


def fields(record: str, delimiter: str) -> list[str]:
  """The columns of a record, without quotes."""
  if '"' not in record:
    return record.split(delimiter)
  result, at = [], 0
  while True:
    value = ""
    if record.startswith('"', at):
      found = QUOTED.match(record, at)
      value, at = found.group(1).replace('""', '"'), found.end()
    end = record.find(delimiter, at)
    result.append(value + record[at:end if end >= 0 else len(record)])
    if end < 0:
      return result
    at = end + 1


class CsvSource:
  """Columns of text, in quotes where they hold a delimiter, a quote or a line feed.

  Columns have the names of the header, and one without a name, such as the index that pandas
  writes, has its number; without a header all have.

  Args:
    name: the spec.
    file: a UTF-8 file.
    options: its delimiter, and whether it has a header.
  """

  def __init__(self, name: str, file: str, options: Options = Options()):
    self.name, self._delimiter = name, options.delimiter
    self._records = Records(file, options.delimiter)
    self._header = int(options.header)
    first = fields(self._records[0], self._delimiter) if len(self._records) else []
    if len(first) == 1 and self._delimiter == ",":
      for other, told in ((";", ";"), ("\t", "tab"), ("|", "|")):
        if other in first[0]:
          raise DataError(f"{file}:1: is one column by commas, {first[0]!r}; where another"
                          f" character parts the columns, write {name.partition(':')[0]}:FILE"
                          f":delimiter[{told}]")
    if options.header:
      first = [column or str(number) for number, column in enumerate(first)]
    self.columns = named(file, first, options.header)

  def __len__(self) -> int:
    return max(len(self._records) - self._header, 0)

  def listing(self) -> Iterator[np.ndarray]:
    """Where records end."""
    yield from self._records.listing()

  def __getitem__(self, i: int) -> dict[str, str]:
    number = range(len(self))[i] + self._header
    columns = fields(self._records[number], self._delimiter)
    if len(columns) != len(self.columns):
      raise DataError(f"{self._records.file}:{self._records.line(number)}: {len(columns)} columns,"
                      f" but line 1 has {len(self.columns)}; a column that holds the delimiter"
                      f" {self._delimiter!r} stands in quotes")
    return dict(zip(self.columns, columns))

  def line(self, i: int) -> int:
    """The number of an example's first line in the file, from 1."""
    return self._records.line(range(len(self))[i] + self._header)
