"""Rows of documents for language models: each token predicts the next, whatever row that is in."""

import bisect
import dataclasses
from typing import Any, Callable, Iterator, Mapping

import numpy as np

from jtx.data.op import Column, FormOp
from jtx.data.ops.forms import Formed, Opened
from jtx.errors import DataError
from jtx.ranges import Size

COLUMNS = {"text": Column("tokens"), "text_next": Column("aligned:text")}
NONE = -1  # in `text_next`: no token is to be predicted here

# From how many tokens predict a next one to the pieces of them: of each the first token, the one
# after the last, and the first of those that predict in this piece.
Cuts = Callable[[int], Iterator[tuple[int, int, int]]]


class Pieces(Formed):
  """Pieces of documents that stand one after the other, as a row or a segment of one each.

  Args:
    documents: with `text`.
    numbers: of the documents, in order.
    starts: [documents + 1] where each begins among the tokens of all, and the end.
    pieces: [pieces, 3] first token, the one after the last, and the first that predicts.
  """

  def __init__(self, documents: Any, numbers: np.ndarray, starts: np.ndarray, pieces: np.ndarray):
    self._documents, self._numbers, self._starts = Opened(documents), numbers, starts
    self._pieces = pieces.reshape(-1, 3)
    first = np.searchsorted(starts, self._pieces[:, 0], side="right") - 1
    # Where in which document a piece begins.
    ids = (documents.ids[numbers[first]] << 32) + self._pieces[:, 0] - starts[first]
    super().__init__(COLUMNS, {"text": self._pieces[:, 1] - self._pieces[:, 0]}, ids)

  def example(self, i: int) -> dict[str, np.ndarray]:
    """`text` [T], and `text_next` [T], the token behind each or -1 where none is predicted."""
    start, stop, first = self._pieces[i].tolist()
    tokens = np.concatenate([*self._tokens(start, stop + 1)])
    following = tokens[1:].copy()
    following[:first - start] = NONE
    return {"text": tokens[:-1], "text_next": following}

  def _tokens(self, start: int, stop: int) -> Iterator[np.ndarray]:
    """Tokens `start` to `stop` of all documents."""
    at = bisect.bisect_right(self._starts, start) - 1
    while start < stop:
      offset = int(self._starts[at])
      tokens = self._documents.example(self._numbers[at])["text"][start - offset:stop - offset]
      yield tokens
      start, at = start + len(tokens), at + 1


@dataclasses.dataclass(frozen=True)
class Documents(FormOp):
  """Documents as rows: packed ones that do not see each other, or running text across them.

  A document, or with `running` the whole window of documents, one behind the other, is cut into
  consecutive pieces as long as a row, the first of a random length where there are several, so
  that every epoch has other cuts. Each piece is a segment. All tokens but the first of a document,
  or of the running text, are predicted once: a piece's last token predicts the next one's first.
  Begin and end tokens are those that `tokenize` puts.
  """
  running: bool = False

  needs = ("text",)
  columns = COLUMNS

  def bind(self, tokenizers: Mapping[str, Any]) -> "Documents":
    del tokenizers
    return self

  def form(self, documents: Any, numbers: np.ndarray, lengths: Mapping[str, int],
           rng: np.random.Generator) -> Pieces:
    length = lengths["text"]

    def cuts(total: int) -> Iterator[tuple[int, int, int]]:
      first = int(rng.integers(1, length + 1)) if total > length else length
      bounds = [0, *range(first, total, length), total]
      yield from ((a, b, a) for a, b in zip(bounds, bounds[1:]))

    return self.pieces(documents, numbers, cuts)

  def pieces(self, documents: Any, numbers: np.ndarray, cuts: Cuts) -> Pieces:
    """The pieces that `cuts` makes of each of some documents, or of all their running text.

    Raises:
      DataError: there is none, since no document has two tokens.
    """
    starts = np.cumsum([0, *documents.lengths(numbers, self.needs)[:, 0]])
    ends = [0, int(starts[-1])] if self.running else starts.tolist()
    made = [(start + a, start + b, start + c) for start, stop in zip(ends, ends[1:])
            if stop - start > 1 for a, b, c in cuts(stop - start - 1)]
    if not made:
      raise DataError(f"{len(numbers)} documents have no token that another one follows")
    return Pieces(documents, np.asarray(numbers), starts, np.array(made, np.int64))


@dataclasses.dataclass(frozen=True)
class Windows(FormOp):
  """`Documents` in overlapping windows, in which every token but the first is predicted once.

  A window has up to `context` tokens before those that it predicts and among them, and predicts
  the `stride` last of them, the first window all of its own (Transformers' documentation,
  "Perplexity of fixed-length models").
  """
  documents: Documents
  context: Size
  stride: Size

  needs = Documents.needs
  columns = COLUMNS

  def bind(self, tokenizers: Mapping[str, Any]) -> "Windows":
    del tokenizers
    return self

  def form(self, documents: Any, numbers: np.ndarray, lengths: Mapping[str, int],
           rng: np.random.Generator) -> Pieces:
    del lengths, rng  # a row is a window, and nothing is drawn
    return self.documents.pieces(documents, numbers, self.cuts)

  def cuts(self, total: int) -> Iterator[tuple[int, int, int]]:
    """First token, the one after the last, and the first that predicts, of each window."""
    done = 0
    while done < total:
      stop = min(done + self.stride if done else self.context, total)
      yield max(stop - self.context, 0), stop, done
      done = stop
