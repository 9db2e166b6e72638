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


class Running:
  """The tokens of documents, one document behind the other.

  Args:
    documents: with `text`.
    numbers: of the documents, in order.
  """

  def __init__(self, documents: Any, numbers: np.ndarray):
    self.numbers = np.asarray(numbers)
    self._documents = Opened(documents)
    # Where each begins among the tokens of all, and the end.
    self.starts = np.cumsum([0, *documents.lengths(self.numbers, ("text",))[:, 0]])

  def ids(self, places: np.ndarray) -> np.ndarray:
    """Numbers that tell places apart: in which document each is, and where there."""
    document = np.searchsorted(self.starts, places, side="right") - 1
    return (self._documents.ids[self.numbers[document]] << 32) + places - self.starts[document]

  def tokens(self, start: int, stop: int) -> np.ndarray:
    """Those at places `start` to `stop`."""
    return np.concatenate([*self._parts(start, stop)])

  def _parts(self, start: int, stop: int) -> Iterator[np.ndarray]:
    at = bisect.bisect_right(self.starts, start) - 1
    while start < stop:
      offset = int(self.starts[at])
      tokens = self._documents.example(self.numbers[at])["text"][start - offset:stop - offset]
      yield tokens
      start, at = start + len(tokens), at + 1

  def cut(self, running: bool, least: int,
          cuts: Callable[[int], Iterator[tuple[int, ...]]]) -> np.ndarray:
    """[pieces, n] places, as `cuts` has them of each document, or of all their running text.

    Args:
      running: whether all are one text.
      least: tokens that a text must have.
      cuts: from the number of a text's tokens to pieces of them.
    """
    ends = [0, int(self.starts[-1])] if running else self.starts.tolist()
    return np.array([[start + place for place in piece] for start, stop in zip(ends, ends[1:])
                     if stop - start >= least for piece in cuts(stop - start)], np.int64)


def stretches(total: int, length: int, rng: np.random.Generator) -> Iterator[tuple[int, int]]:
  """`total` places cut into stretches of `length`, the first of a random length if several."""
  first = int(rng.integers(1, length + 1)) if total > length else length
  bounds = [0, *range(first, total, length), total]
  return zip(bounds, bounds[1:])


class Pieces(Formed):
  """Pieces of documents that stand one after the other, as a row or a segment of one each.

  Args:
    running: the documents' tokens.
    pieces: [pieces, 3] first token, the one after the last, and the first that predicts.
  """

  def __init__(self, running: Running, pieces: np.ndarray):
    self._running, self._pieces = running, pieces
    super().__init__(COLUMNS, {"text": pieces[:, 1] - pieces[:, 0]}, running.ids(pieces[:, 0]))

  def example(self, i: int) -> dict[str, np.ndarray]:
    """`text` [T], and `text_next` [T], the token behind each or -1 where none is predicted."""
    start, stop, first = self._pieces[i].tolist()
    tokens = self._running.tokens(start, stop + 1)
    following = tokens[1:].copy()
    following[:first - start] = NONE
    return {"text": tokens[:-1], "text_next": following}


@dataclasses.dataclass(frozen=True)
class Documents(FormOp):
  """Documents as rows: packed ones that do not see each other, or running text across them.

  A document, or with `running` the whole window of documents, one behind the other, is cut into
  consecutive pieces as long as a row, the first of a random length where there are several, so
  that every epoch has other cuts. Each piece is a segment. All tokens but the first of a document,
  or of the running text, are predicted once: a piece's last token predicts the next one's first.
  Begin and end tokens are those that `tokenize` puts.
  """
  running: bool = False  # the documents of a window are one text; else each is cut by itself

  needs = ("text",)
  columns = COLUMNS

  def bind(self, tokenizers: Mapping[str, Any]) -> "Documents":
    del tokenizers
    return self

  def form(self, documents: Any, numbers: np.ndarray, lengths: Mapping[str, int],
           rng: np.random.Generator) -> Pieces:
    return self.pieces(documents, numbers, lambda total: (
        (a, b, a) for a, b in stretches(total, lengths["text"], rng)))

  def pieces(self, documents: Any, numbers: np.ndarray, cuts: Cuts) -> Pieces:
    """The pieces that `cuts` makes of each of some documents, or of all their running text.

    Raises:
      DataError: there is none, since no document has two tokens.
    """
    running = Running(documents, numbers)
    made = running.cut(self.running, 2, lambda total: cuts(total - 1))
    if not len(made):
      raise DataError(f"{len(numbers)} documents have no token that another one follows")
    return Pieces(running, made)


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
