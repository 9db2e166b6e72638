"""Pairs of a text with noise and the text: the denoising of BART.

Lewis et al. 2020, "BART: Denoising Sequence-to-Sequence Pre-training for Natural Language
Generation, Translation, and Comprehension", arXiv:1910.13461, section 2.2.
"""

import dataclasses
from typing import Any, Mapping

import numpy as np

from jtx.data.op import TOKENIZER, FormOp
from jtx.data.ops.forms import Opened
from jtx.data.ops.pretrain import DocSentences, Specials
from jtx.data.ops.sentences import SENTENCE, WORD
from jtx.data.ops.text_pairs import COLUMNS, FIELDS, FormedPairs, Pair, drawn_seeds, generator
from jtx.errors import ConfigError, DataError, nearest
from jtx.ranges import Positive, Share

NOISES = ("infill", "mask", "delete", "none")


@dataclasses.dataclass(frozen=True)
class Denoise(FormOp):
  """A text with noise as `src`, and itself as `tgt`, both with the tokenizer's special tokens.

  A text is of whole sentences of one document, as many as a row holds. Its noise is, in this order:

  - of its sentences the share `permute` changes places;
  - `noise` hides the share `rate`: "infill" that of the words, in spans of a Poisson-distributed
    number of words, each replaced by one mask, so that one of no words puts a mask between two;
    "mask" replaces single tokens by a mask, and "delete" takes them away;
  - the share `rotate` of all texts begins with a random one of its tokens, and goes on from its
    end with its start.

  All is drawn anew in every epoch. A text is never made longer: where spans of no words would, some
  are left out.
  """
  noise: str = "infill"  # of `NOISES`
  rate: Share = 0.3  # share of words, or of single tokens, that are hidden
  span: Positive = 3.5  # mean words of a span; 3.5 is the authors' command, 3 the paper's
  random: Share = 0.1  # of masks, which are a random token in their place
  permute: Share = 1.0  # share of sentences that change places
  rotate: Share = 0.0  # share of texts that begin with a random one of their tokens

  needs = ("text", "text_marks")
  columns = COLUMNS
  start_role = "eos"

  def __post_init__(self):
    if self.noise not in NOISES:
      raise ConfigError(f"op denoise: noise={self.noise!r}: {nearest(self.noise, NOISES)}")

  def bind(self, tokenizers: Mapping[str, Any]) -> "BoundDenoise":
    tokenizer = tokenizers[TOKENIZER]
    if tokenizer.mask_id is None and self.noise in ("infill", "mask"):
      raise ConfigError("op denoise: the tokenizer has no mask token; one that is trained here gets"
                        " it by tokenizer.kind.mask=True")
    return BoundDenoise(self, Specials.of(tokenizer), tokenizer.mask_id, tokenizer.plain_ids())


@dataclasses.dataclass(frozen=True)
class BoundDenoise(FormOp):
  """`Denoise` with what it needs to know of a tokenizer."""
  op: Denoise
  specials: Specials
  mask_id: int | None
  plain_ids: np.ndarray  # that are not special: what a random token is drawn from

  needs = Denoise.needs
  columns = COLUMNS
  start_role = Denoise.start_role

  @property
  def begin(self) -> bool:
    """Whether a begin token stands before a text."""
    return len(self.specials.single[0]) > 0

  def form(self, documents: Any, numbers: np.ndarray, lengths: Mapping[str, int],
           rng: np.random.Generator) -> FormedPairs:
    """Pairs of at most `lengths` tokens.

    Raises:
      ConfigError: the special tokens fill a row.
    """
    around = sum(map(len, self.specials.single))
    room = min(lengths[field] for field in FIELDS) - around
    if room < 1:
      raise ConfigError(f"data.ops: rows of {room + around} tokens have no room for text beside"
                        f" {around} special tokens")
    opened = Opened(documents)
    pieces = [piece for piece, in DocSentences().pieces(opened, numbers.tolist(), room)]
    if not pieces:
      raise DataError(f"op denoise: {len(numbers)} documents have no token")

    def make(i: int, rng: np.random.Generator) -> Pair:
      number, start, stop = pieces[i]
      example = opened.example(number)
      tokens, marks = (example[key][start:stop] for key in self.needs)
      return self.whole(self.noised(tokens, marks, rng)), self.whole(tokens)

    seeds = drawn_seeds(len(pieces), rng)
    sizes = np.array([[len(x) for x in make(i, generator(seed))] for i, seed in enumerate(seeds)])
    ids = np.array([(int(opened.ids[number]) << 32) + start for number, start, _ in pieces])
    return FormedPairs(make, seeds, sizes, ids)

  def whole(self, tokens: np.ndarray) -> np.ndarray:
    before, after = self.specials.single
    return np.concatenate([before, tokens, after]).astype(np.int32)

  def noised(self, tokens: np.ndarray, marks: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The tokens [T] with noise, given their `text_marks` [T]."""
    marks = marks.copy()
    marks[:1] |= SENTENCE | WORD  # also where a long sentence was cut
    order = permuted(np.flatnonzero(marks & SENTENCE), len(tokens), self.op.permute, rng)
    tokens, marks = tokens[order], marks[order]
    if self.op.noise == "infill":
      tokens = self.infilled(tokens, np.flatnonzero(marks & WORD), rng)
    elif self.op.noise != "none":
      chosen = rng.choice(len(tokens), self.hidden(len(tokens)), replace=False)
      if self.op.noise == "delete":
        tokens = np.delete(tokens, chosen)
      else:
        tokens[chosen] = self.masks(len(chosen), rng)
    if rng.random() < self.op.rotate and len(tokens):
      tokens = np.roll(tokens, -int(rng.integers(len(tokens))))
    return tokens

  def hidden(self, number: int) -> int:
    """How many of some words or tokens are hidden."""
    return max(round(self.op.rate * number), 1) if self.op.rate else 0

  def infilled(self, tokens: np.ndarray, words: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The tokens with spans of words replaced; `words` are the places where these begin."""
    lengths = span_words(self.hidden(len(words)), self.op.span, rng)
    # Spans and the words that are kept, in an order of which all are equally likely.
    units = np.ones(len(words) - lengths.sum() + len(lengths), np.int64)
    is_span = np.zeros(len(units), bool)
    is_span[rng.choice(len(units), len(lengths), replace=False)] = True
    units[is_span] = lengths
    ends = np.append(words, len(tokens))[np.cumsum(units)]
    sizes = np.diff(ends, prepend=0)
    empty = np.flatnonzero(is_span & (sizes == 0))
    room = int(np.maximum(sizes - 1, 0)[is_span].sum())  # masks that make the text no longer
    masked = is_span.copy()
    masked[rng.permutation(empty)[room:]] = False
    kept = np.repeat(~is_span, sizes)
    # A mask goes before the token at which its span begins.
    places = np.append(0, np.cumsum(kept))[(ends - sizes)[masked]]
    return np.insert(tokens[kept], places, self.masks(len(places), rng))

  def masks(self, number: int, rng: np.random.Generator) -> np.ndarray:
    random = rng.random(number) < self.op.random
    return np.where(random, rng.choice(self.plain_ids, number), self.mask_id)


def permuted(starts: np.ndarray, length: int, share: float,
             rng: np.random.Generator) -> np.ndarray:
  """[length] places in an order in which a share of the sentences has changed places.

  Args:
    starts: of the sentences.
    length: tokens of the text.
    share: of sentences, rounded up, that are put in each other's places at random.
    rng: draws which.
  """
  order = np.arange(len(starts))
  chosen = rng.permutation(len(starts))[:int(np.ceil(share * len(starts)))]
  order[chosen] = rng.permutation(chosen)
  sentences = np.split(np.arange(length), starts[1:])
  return np.concatenate([sentences[i] for i in order])


def span_words(total: int, mean: float, rng: np.random.Generator) -> np.ndarray:
  """Words of spans, Poisson-distributed until `total` are hidden; the last is cut to this."""
  lengths = np.zeros(0, np.int64)
  while lengths.sum() < total:
    lengths = np.append(lengths, rng.poisson(mean, max(total, 1)))
  ends = np.cumsum(lengths)
  number = int(np.searchsorted(ends, total)) + 1 if total else 0
  lengths = lengths[:number]
  if number:
    lengths[-1] -= ends[number - 1] - total
  return rng.permutation(lengths)
