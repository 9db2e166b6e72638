"""Ops that make pretraining examples of documents.

`split_sentences` and `encode_sentences` run once over every document. What `full_sentences`,
`doc_sentences`, `segment_pair` or `sentence_pair` forms of documents (Liu et al. 2019, RoBERTa,
section 4.2) is drawn anew in every epoch, and so is what the ops of ops_masking.py hide.
"""

import bisect
import dataclasses
import functools
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Sequence

import numpy as np

from jtx.data.example import Example, check_text
from jtx.data.packing import Column
from jtx.errors import ConfigError, DataError

TOKENIZER = "text"  # the field whose tokenizer these ops take

# Bits of `text_marks`.
SENTENCE, WORD, SPECIAL = 1, 2, 4  # begins a sentence; begins a word; is a special token

Piece = tuple[int, int, int]  # document, first token, the one after the last


@dataclasses.dataclass(frozen=True)
class SplitSentences:
  """Splits `text` into `sentences` by the rules of Moses (Koehn et al. 2007) for a language.

  A line is at least a sentence; white space at its ends is dropped. Documents without any text
  are dropped.
  """
  language: str = "en"

  def __post_init__(self):
    _splitter(self.language)

  def __call__(self, examples: list[Example], tokenizers) -> list[Example]:
    check_text("split_sentences", ("text",), examples)
    split = _splitter(self.language)
    for e in examples:
      lines = filter(None, map(str.strip, e.pop("text").splitlines()))
      e["sentences"] = [s for line in lines for s in split(line)]
    return [e for e in examples if e["sentences"]]


@functools.cache
def _splitter(language: str) -> Callable[[str], list[str]]:
  import sentence_splitter
  try:
    return sentence_splitter.SentenceSplitter(language=language).split
  except sentence_splitter.SentenceSplitterException as e:
    raise ConfigError(f"op split_sentences: language={language!r} is not one that the library has"
                      " rules for; try 'en'") from e


@dataclasses.dataclass(frozen=True)
class EncodeSentences:
  """The tokens of all `sentences` of a document as `text`, and `text_marks` of where they begin."""

  columns = {"text": Column("tokens"), "text_marks": Column("aligned:text", "uint8")}
  tokenizer_fields = (TOKENIZER,)

  def texts_of(self, example: Example, field: str) -> list[str]:
    """What a tokenizer of `field` is trained on."""
    del field
    return _sentences(example)

  def __call__(self, examples: list[Example], tokenizers) -> list[Example]:
    for e in examples:
      encodings = tokenizers[TOKENIZER].encode_words(_sentences(e))
      encodings = [(ids, first) for ids, first in encodings if len(ids)]
      ids, marks = [np.zeros(0, np.int32)], [np.zeros(0, np.uint8)]
      for tokens, begins_word in encodings:
        mark = np.where(begins_word, WORD, 0).astype(np.uint8)
        mark[0] |= SENTENCE
        ids.append(tokens)
        marks.append(mark)
      e["text"], e["text_marks"] = np.concatenate(ids), np.concatenate(marks)
    return [e for e in examples if len(e["text"])]


def _sentences(example: Example) -> list[str]:
  if "sentences" not in example:
    raise DataError(f"op encode_sentences: example {example['id']} has no sentences, which"
                    f" 'split_sentences' makes; it has {', '.join(map(repr, example))}")
  return example["sentences"]


# ---------------------------------------------------------------------- forming examples


class Specials(NamedTuple):
  """The special tokens around one text and around two, as a tokenizer puts them."""
  single: tuple[np.ndarray, np.ndarray]  # before, after
  pair: tuple[np.ndarray, np.ndarray, np.ndarray]  # before, between, after
  second_type: int  # the token type of a pair's second text

  @classmethod
  def of(cls, tokenizer) -> "Specials":
    one, = tokenizer.encode_texts(["a"], max_length=64)
    two, = tokenizer.encode_texts(["a"], ["a"], max_length=64)
    a, = (np.flatnonzero(one.text == 0),)
    b, c = (np.flatnonzero(two.text == t) for t in (0, 1))
    return cls((one.ids[:a[0]], one.ids[a[-1] + 1:]),
               (two.ids[:b[0]], two.ids[b[-1] + 1:c[0]], two.ids[c[-1] + 1:]),
               int(two.types[c[0]]))


class Formed:
  """Examples that were formed of documents; what `jtx.data.recipes.Prepared` is to a Stream.

  Args:
    documents: Prepared, with `text` and `text_marks`.
    specials: of the tokenizer.
    first: the pieces of each example's first text, each of another document.
    second: the pieces of its second text; None where there is none.
    labels: of each example; None is none.
  """

  def __init__(self, documents: Any, specials: Specials, first: list[list[Piece]],
               second: list[Piece | None] | None = None, labels: list[int] | None = None):
    self._documents, self._specials = documents, specials
    self._first, self._second, self._labels = first, second, labels
    self.columns = PAIR_COLUMNS if second is not None else COLUMNS
    length = lambda piece: piece[2] - piece[1]
    around = sum(map(len, specials.single if second is None else specials.pair))
    joints = len(specials.single[1])
    totals = [around + sum(map(length, pieces)) + joints * (len(pieces) - 1) for pieces in first]
    if second is not None:
      totals = [total + length(piece) for total, piece in zip(totals, second)]
    self._lengths = np.array(totals, np.int64)
    # Of an example, where in which document it begins.
    self.ids = np.array([(int(documents.ids[p[0][0]]) << 32) + p[0][1] for p in first], np.int64)

  def __len__(self) -> int:
    return len(self._first)

  def lengths(self, numbers: np.ndarray, fields: Sequence[str]) -> np.ndarray:
    """[examples, 1] token counts."""
    del fields  # there is one
    return self._lengths[numbers][:, None]

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
    return result

  def _tokens(self, part: Any) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(part, np.ndarray):
      return part, np.full(len(part), SPECIAL, np.uint8)
    document, start, stop = part
    example = self._documents.example(document)
    return example["text"][start:stop], example["text_marks"][start:stop]


COLUMNS = {"text": Column("tokens"), "text_types": Column("aligned:text"),
           "text_marks": Column("aligned:text", "uint8")}
PAIR_COLUMNS = COLUMNS | {"label": Column("example")}


def boundaries(marks: np.ndarray, longest: int) -> list[int]:
  """Where the sentences of a document begin, and its end; longer ones are cut into pieces."""
  starts = [*np.flatnonzero(marks & SENTENCE).tolist(), len(marks)]
  cut = []
  for start, stop in zip(starts, starts[1:]):
    cut.extend(range(start, stop, longest))
  return [*cut, len(marks)]


@dataclasses.dataclass(frozen=True)
class _Form:
  """What forming ops share; one has `_form`."""

  needs = ("text", "text_marks")
  columns = COLUMNS

  def bind(self, tokenizers: Mapping[str, Any]) -> "_Bound":
    return _Bound(self, Specials.of(tokenizers[TOKENIZER]))

  def form(self, documents: Any, numbers: np.ndarray, length: int,
           rng: np.random.Generator) -> Formed:
    raise NotImplementedError("bind it to the tokenizers first")


class Opened:
  """Documents that are read once, however many examples are formed of them."""

  def __init__(self, documents: Any):
    self.ids = documents.ids
    self._documents, self._read = documents, {}

  def example(self, number: int) -> dict[str, np.ndarray]:
    if number not in self._read:
      self._read[number] = self._documents.example(number)
    return self._read[number]


@dataclasses.dataclass(frozen=True)
class _Bound:
  """A forming op with the special tokens of a tokenizer."""
  op: Any
  specials: Specials

  @property
  def columns(self) -> dict[str, Column]:
    return self.op.columns

  def form(self, documents: Any, numbers: np.ndarray, length: int,
           rng: np.random.Generator) -> Formed:
    """Examples of at most `length` tokens of the documents with these numbers.

    Raises:
      ConfigError: the special tokens fill `length`.
      DataError: there is none.
    """
    pair = "label" in self.columns
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
class FullSentences(_Form):
  """Whole sentences up to a row's length, on into the next document behind a separator."""

  crosses = True

  def examples(self, documents, numbers, room, rng, specials) -> Formed:
    del rng  # the order of the documents is all that is drawn
    joint = len(specials.single[1])
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
    return Formed(documents, specials, first)


@dataclasses.dataclass(frozen=True)
class DocSentences(FullSentences):
  """Whole sentences of one document up to a row's length; a document's last example is shorter."""

  crosses = False


@dataclasses.dataclass(frozen=True)
class _Pairs(_Form):
  """Two texts, and as `label` whether the second is not what it should be.

  Half of the time the second follows the first (label 0). Else (label 1) it is from
  another document, or with `order` the two are swapped (Lan et al. 2020, ALBERT, section 3.1).
  Which of the two is drawn whatever the texts are, and lengths do not tell it: what takes a
  text's place is the second text of another pair, of nearly the same length. That takes windows
  of some tens of documents; where none fits into the row, the pair is left out.
  """
  order: bool = False

  columns = PAIR_COLUMNS

  def examples(self, documents, numbers, room, rng, specials) -> Formed:
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
    return Formed(documents, specials, [[first[i]] for i in kept], [second[i] for i in kept],
                  [labels[i] for i in kept])

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
  short: float = 0.1  # how often a pair is of a random shorter length

  def __post_init__(self):
    if not 0 <= self.short <= 1:
      raise ConfigError(f"op segment_pair: short={self.short} must be a fraction, 0 to 1")

  def _split(self, ends, room, rng):
    i = 0
    while len(ends) - 1 - i >= 2:
      target = room if rng.random() >= self.short else int(rng.integers(2, room + 1))
      wrong = rng.random() < 0.5
      j = max(bisect.bisect_right(ends, ends[i] + target) - 1, i + 2)
      middle = int(rng.integers(i + 1, j))
      yield (ends[i], ends[middle], ends[j]), wrong
      # What was replaced by another document's is still to be used.
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


OPS: dict[str, Callable[..., Any]] = {
    "split_sentences": SplitSentences,
    "encode_sentences": EncodeSentences,
    "full_sentences": FullSentences,
    "doc_sentences": DocSentences,
    "segment_pair": SegmentPair,
    "sentence_pair": SentencePair,
}
