"""Sources of sentences whose words have tags."""

import re
from typing import Sequence

from jtx.data.sources.lines import Lines, text_lines
from jtx.errors import DataError

COMMENT = re.compile(r"#( |\s*$)")  # how a line begins that may be a comment
VALUE = re.compile(r"# *\S+ = \S")  # how comments of CoNLL-U are written


class ConllSource:
  """Sentences of words with a tag each: a word a line, sentences parted by blank lines.

  Columns are separated by one tab, or in lines without a tab by spaces; every line has as many
  as the first. A line of white space is blank, and lines of "-DOCSTART-" are left out. So are
  comments before a sentence: lines "# key = value", and others after "# " that have another number
  of columns.

  Args:
    name: the spec.
    file: column 0 has the words.
    column: of the tags, counted from 0; None is the last.
  """

  def __init__(self, name: str, file: str, column: int | None):
    self.name = name
    self._lines = Lines(file)
    self._column = column
    self._starts, self._stops = [], []  # lines of a sentence
    before = False  # the line before is of a sentence
    self._width = self._columns_of_words()
    for number in range(len(self._lines)):
      line = self._lines[number]
      columns = _columns(line)
      inside = _is_word(columns) and (before or not self._is_comment(line, columns))
      if inside != before:
        (self._starts if inside else self._stops).append(number)
      before = inside
    if before:
      self._stops.append(len(self._lines))
    if self._starts and (column or 1) >= self._width:
      raise DataError(f"{file}:{self._starts[0] + 1}: has {self._width} columns, but the tags are"
                      f" in column {column or 1}, counted from 0")

  def _columns_of_words(self) -> int:
    """How many columns the first line has that is no comment; 0 without words."""
    width = 0
    for number in range(len(self._lines)):
      line = self._lines[number]
      if _is_word(columns := _columns(line)):
        width = width or len(columns)
        if not line.startswith("#"):
          return len(columns)
    return width  # of lines of which any may be a comment

  def _is_comment(self, line: str, columns: Sequence[str]) -> bool:
    """Whether the first line of a sentence can only be a comment: a word may be "#", too."""
    return bool(COMMENT.match(line)) and (len(columns) != self._width or bool(VALUE.match(line)))

  def __len__(self) -> int:
    return len(self._starts)

  def __getitem__(self, i: int) -> dict[str, list[str]]:
    words, tags = [], []
    for number in range(self._starts[i], self._stops[i]):
      columns = _columns(self._lines[number])
      where = f"{self._lines.file}:{number + 1}"
      if len(columns) != self._width:
        raise DataError(f"{where}: has {len(columns)} columns, but the file's first line of a word"
                        f" has {self._width}")
      word, tag = columns[0], columns[-1 if self._column is None else self._column]
      if not word or not tag:
        raise DataError(f"{where}: the {'tag' if word else 'word'} is empty")
      words.append(word)
      tags.append(tag)
    return {"words": words, "tags": tags}

  def line(self, i: int) -> int:
    """The number of a sentence's first line in the file, from 1."""
    return self._starts[i] + 1


def _columns(line: str) -> list[str]:
  """The columns of a line of words; none of a blank line."""
  if not line.strip():
    return []
  return line.split("\t") if "\t" in line else [c for c in line.split(" ") if c]


def _is_word(columns: Sequence[str]) -> bool:
  return bool(columns) and columns[0] != "-DOCSTART-"


class ConlluSource:
  """Sentences of a CoNLL-U treebank (Universal Dependencies, format v2), plain or .gz.

  Words are FORM and tags UPOS of the lines with a whole id: ranges of words that are written
  as one ("3-4") and empty nodes ("5.1") are left out.
  """

  def __init__(self, name: str, file: str):
    self.name = name
    self._sentences: list[tuple[str, str]] = []  # words, and tags, joined by tabs
    words, tags = [], []
    for number, line in enumerate(text_lines(file), 1):
      if not line.strip() and words:
        self._sentences.append(("\t".join(words), "\t".join(tags)))
        words, tags = [], []
      if not line.strip() or line.startswith("#"):
        continue
      columns = line.split("\t")
      if len(columns) != 10:
        raise DataError(f"{file}:{number}: has {len(columns)} columns; a line of CoNLL-U has 10,"
                        " separated by tabs")
      if columns[0].isdigit():
        words.append(columns[1])
        tags.append(columns[3])
      elif not columns[0].replace("-", ".", 1).replace(".", "", 1).isdigit():
        raise DataError(f"{file}:{number}: the id {columns[0]!r} is not of the form 1, 1-2 or 1.1")
    if words:
      self._sentences.append(("\t".join(words), "\t".join(tags)))

  def __len__(self) -> int:
    return len(self._sentences)

  def __getitem__(self, i: int) -> dict[str, list[str]]:
    words, tags = self._sentences[i]
    return {"words": words.split("\t"), "tags": tags.split("\t")}
