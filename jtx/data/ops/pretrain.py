"""Pretraining examples formed of the sentences of documents, alone and in pairs.

`full_sentences`, `doc_sentences`, `segment_pair` and `sentence_pair` (Liu et al. 2019, RoBERTa,
section 4.2) form other examples in every epoch.
"""

import bisect
import dataclasses
from typing import Any, Iterator, Mapping, NamedTuple

import numpy as np

from jtx.data.op import TOKENIZER, Column, FormOp
from jtx.data.ops.forms import Formed, Opened
from jtx.data.ops.sentences import SPECIAL, boundaries
from jtx.errors import ConfigError, DataError
from jtx.ranges import Share

Piece = tuple[int, int, int]  # document, first token, the one after the last

COLUMNS = {"text": Column("tokens"), "text_types": Column("aligned:text"),
           "text_marks": Column("aligned:text", "uint8")}
PAIR_COLUMNS = COLUMNS | {"label": Column("example")}


class Specials(NamedTuple):
  """The special tokens around one text and around two, as a tokenizer puts them."""
  single: tuple[np.ndarray, np.ndarray]  # before, after
  pair: tuple[np.ndarray, np.ndarray, np.ndarray]  # before, between, after
  second_type: int  # the token type of a pair's second text
  last_types: tuple[np.ndarray, np.ndarray]  # of what is behind one text, and behind two

  @classmethod
  def of(cls, tokenizer) -> "Specials":
    one, = tokenizer.encode_texts(["a"], max_length=64)
    two, = tokenizer.encode_texts(["a"], ["a"], max_length=64)
    a, = (np.flatnonzero(one.text == 0),)
    b, c = (np.flatnonzero(two.text == t) for t in (0, 1))
    return cls((one.ids[:a[0]], one.ids[a[-1] + 1:]),
               (two.ids[:b[0]], two.ids[b[-1] + 1:c[0]], two.ids[c[-1] + 1:]),
               int(two.types[c[0]]), (one.types[a[-1] + 1:], two.types[c[-1] + 1:]))


class FormedTexts(Formed):
  """Texts and pairs of texts with their special tokens.

  Args:
    documents: with `text` and `text_marks`.
    specials: of the tokenizer.
    first: the pieces of each example's first text, each of another document.
    second: the pieces of its second text; None where there is none.
    labels: of each example; None is none.
  """

  def __init__(self, documents: Any, specials: Specials, first: list[list[Piece]],
               second: list[Piece] | None = None, labels: list[int] | None = None):
    self._documents, self._specials = documents, specials
    self._first, self._second, self._labels = first, second, labels
    length = lambda piece: piece[2] - piece[1]
    around = sum(map(len, specials.single if second is None else specials.pair))
    joints = len(specials.single[1])
    totals = [around + sum(map(length, pieces)) + joints * (len(pieces) - 1) for pieces in first]
    if second is not None:
      totals = [total + length(piece) for total, piece in zip(totals, second)]
    # Of an example, where in which document it begins.
    ids = np.array([(int(documents.ids[p[0][0]]) << 32) + p[0][1] for p in first], np.int64)
    columns = COLUMNS if second is None else PAIR_COLUMNS
    super().__init__(columns, {"text": np.array(totals, np.int64)}, ids)

  def example(self, i: int) -> dict[str, np.ndarray]:
    pair = self._second is not None
    before, *between, after = self._specials.pair if pair else self._specials.single
    parts = [before]
    for n, piece in enumerate(self._first[i]):
      if n:  # each piece is of another document
        parts.append(self._specials.single[1])
      parts.append(piece)
    first_length = None
    if pair:
      parts.append(between[0])
      first_length = sum(len(p) if isinstance(p, np.ndarray) else p[2] - p[1] for p in parts)
      parts.append(self._second[i])
    parts.append(after)
    text, marks = zip(*map(self._tokens, parts))
    result = {"text": np.concatenate(text), "text_marks": np.concatenate(marks)}
    result["text_types"] = np.zeros(len(result["text"]), np.int32)
    if pair:
      result["text_types"][first_length:] = self._specials.second_type
      result["label"] = np.int32(self._labels[i])
    # XLNet's last token is of a third type.
    result["text_types"][len(result["text"]) - len(after):] = self._specials.last_types[pair]
    return result

  def _tokens(self, part: Any) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(part, np.ndarray):
      return part, np.full(len(part), SPECIAL, np.uint8)
    document, start, stop = part
    example = self._documents.example(document)
    return example["text"][start:stop], example["text_marks"][start:stop]


@dataclasses.dataclass(frozen=True)
class SentencesForm(FormOp):
  """The base of ops that form texts of sentences; one has `examples`."""

  needs = ("text", "text_marks")
  columns = COLUMNS
  pair = False  # forms pairs of texts

  def bind(self, tokenizers: Mapping[str, Any]) -> "BoundForm":
    return BoundForm(self, Specials.of(tokenizers[TOKENIZER]))

  def examples(self, documents: Opened, numbers: list[int], room: int, rng: np.random.Generator,
               specials: Specials) -> FormedTexts:
    """Examples of at most `room` tokens beside the special ones."""
    raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class BoundForm(FormOp):
  """A `SentencesForm` with the special tokens of a tokenizer."""
  op: SentencesForm
  specials: Specials

  needs = SentencesForm.needs

  @property
  def columns(self) -> dict[str, Column]:
    return self.op.columns

  def form(self, documents: Any, numbers: np.ndarray, lengths: Mapping[str, int],
           rng: np.random.Generator) -> FormedTexts:
    """Examples of at most `lengths["text"]` tokens of the documents with these numbers.

    Raises:
      ConfigError: the special tokens fill a row.
      DataError: there is none.
    """
    length, pair = lengths["text"], self.op.pair
    specials = sum(map(len, self.specials.pair if pair else self.specials.single))
    room = length - specials
    if room < 1 + pair:
      raise ConfigError(f"data.ops: rows of {length} tokens have no room for"
                        f" {'two texts' if pair else 'text'} beside {specials} special tokens")
    formed = self.op.examples(Opened(documents), [int(n) for n in numbers], room, rng,
                              self.specials)
    if not len(formed):
      raise DataError(f"no example of {length} tokens can be formed of {len(numbers)} documents")
    return formed


@dataclasses.dataclass(frozen=True)
class FullSentences(SentencesForm):
  """Whole sentences up to a row's length, on into the next document behind a separator."""

  crosses = True

  def examples(self, documents, numbers, room, rng, specials) -> FormedTexts:
    del rng  # the order of the documents is all that is drawn
    return FormedTexts(documents, specials,
                       self.pieces(documents, numbers, room, len(specials.single[1])))

  def pieces(self, documents: Opened, numbers: list[int], room: int,
             joint: int = 0) -> list[list[Piece]]:
    """The pieces of each example, each of another document; between two are `joint` tokens."""
    first: list[list[Piece]] = []
    pieces: list[Piece] = []
    used = 0
    for number in numbers:
      if pieces and not self.crosses:
        first.append(pieces)
        pieces, used = [], 0
      ends = boundaries(documents.example(number)["text_marks"], room)
      i = 0
      while i < len(ends) - 1:
        left = room - used - (joint if pieces else 0)
        j = bisect.bisect_right(ends, ends[i] + left) - 1
        if j > i:
          pieces.append((number, ends[i], ends[j]))
          used = room - left + ends[j] - ends[i]
          i = j
        if i < len(ends) - 1:  # the next sentence does not fit
          first.append(pieces)
          pieces, used = [], 0
    if pieces:
      first.append(pieces)
    return first


@dataclasses.dataclass(frozen=True)
class DocSentences(FullSentences):
  """Whole sentences of one document up to a row's length; a document's last example is shorter."""

  crosses = False


@dataclasses.dataclass(frozen=True)
class _Pairs(SentencesForm):
  """Two texts, and as `label` whether the second is not what it should be.

  Half of the time the second follows the first (label 0). Else (label 1) it is from
  another document, or with `order` the two are swapped (Lan et al. 2020, ALBERT, section 3.1).
  Which of the two is drawn whatever the texts are, and lengths do not tell it: what takes a
  text's place is the second text of another pair, of nearly the same length. That takes windows
  of some tens of documents; where none fits into the row, the pair is left out.
  """
  order: bool = False  # wrong pairs are swapped; else their second text is another document's

  columns = PAIR_COLUMNS
  pair = True

  def examples(self, documents, numbers, room, rng, specials) -> FormedTexts:
    first: list[Piece] = []
    second: list[Piece | None] = []
    labels: list[int] = []
    for number in numbers:
      ends = boundaries(documents.example(number)["text_marks"], room // 2)
      # A sentence that does not fit begins the next pair, so what comes first is longer. Half of
      # the documents are gone through from their end, where it is the other way round.
      back = self.order and rng.random() < 0.5
      for (a, b, c), wrong in self._split([-e for e in ends[::-1]] if back else ends, room, rng):
        if back:
          a, b, c = -c, -b, -a
        texts = (number, a, b), (number, b, c)
        first.append(texts[wrong and self.order])
        second.append(texts[not (wrong and self.order)])
        labels.append(int(wrong))
    if not self.order:
      if len({piece[0] for piece in first}) < 2:
        raise DataError("a second text from another document needs two documents or more that have"
                        " two sentences; put more into data.window")
      second = replaced(first, second, np.array(labels, bool), room, rng)
    kept = [i for i, piece in enumerate(second) if piece is not None]
    return FormedTexts(documents, specials, first=[[first[i]] for i in kept],
                       second=[second[i] for i in kept], labels=[labels[i] for i in kept])

  def _split(self, ends, room, rng) -> Iterator[tuple[tuple[int, int, int], bool]]:
    """Start, middle and end of each example's tokens, and whether its second text is wrong."""
    raise NotImplementedError


def replaced(first: list[Piece], second: list[Piece], wrong: np.ndarray, room: int,
             rng: np.random.Generator) -> list[Piece | None]:
  """The second texts of pairs; where one is to be wrong, that of a pair of another document.

  It is the nearest in length that fits into `room` tokens beside the first, or None.
  """
  length = lambda piece: piece[2] - piece[1]
  order = rng.permutation(len(second))
  order = order[np.argsort([length(second[i]) for i in order], kind="stable")].tolist()
  result: list[Piece | None] = list(second)
  for rank in np.flatnonzero(wrong[order]).tolist():
    one = first[order[rank]]
    up = 1 if rng.random() < 0.5 else -1
    result[order[rank]] = next(
        (second[order[at]] for n in range(1, len(order)) for at in (rank + up * n, rank - up * n)
         if 0 <= at < len(order) and second[order[at]][0] != one[0]
         and length(one) + length(second[order[at]]) <= room), None)
  return result


@dataclasses.dataclass(frozen=True)
class SegmentPair(_Pairs):
  """Two stretches of sentences that fill a row together (Devlin et al. 2019, appendix A.2)."""
  short: Share = 0.1  # how often a pair is of a random shorter length

  def _split(self, ends, room, rng):
    i = 0
    while len(ends) - 1 - i >= 2:
      target = room if rng.random() >= self.short else int(rng.integers(2, room + 1))
      wrong = rng.random() < 0.5
      j = max(bisect.bisect_right(ends, ends[i] + target) - 1, i + 2)
      middle = int(rng.integers(i + 1, j))
      yield (ends[i], ends[middle], ends[j]), wrong
      # A text that was replaced by another document's is still to be used.
      i = middle if wrong and not self.order else j


@dataclasses.dataclass(frozen=True)
class SentencePair(_Pairs):
  """Two single sentences."""

  def _split(self, ends, room, rng):
    i = 0
    while len(ends) - 1 - i >= 2:
      wrong = rng.random() < 0.5
      yield (ends[i], ends[i + 1], ends[i + 2]), wrong
      i += 1 if wrong and not self.order else 2
