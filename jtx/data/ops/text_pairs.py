"""Pairs of inputs and targets made of documents: T5's span corruption, and what it is compared to.

Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
Transformer", arXiv:1910.10683, section 3.3.
"""

import dataclasses
import functools
from typing import Any, Callable, Mapping, NamedTuple, Sequence

import numpy as np

from jtx.data.op import TOKENIZER, Column, FormOp
from jtx.data.ops import spans
from jtx.data.ops.documents import Running, stretches
from jtx.data.ops.forms import Formed
from jtx.errors import ConfigError, DataError, nearest
from jtx.ranges import Fraction, Positive

Pair = tuple[np.ndarray, np.ndarray]  # inputs, targets; without end tokens
FIELDS = ("src", "tgt")
COLUMNS = dict.fromkeys(FIELDS, Column("tokens"))
# Of a pair as one text, of which the inputs are the prefix.
JOINED = {"text": Column("tokens"), "text_prefix": Column("aligned:text", "uint8")}
RANDOM_SHARE = 0.1  # of the tokens that "bert" hides, are random ones in the inputs


class Ids(NamedTuple):
  """What a pair needs to know of a tokenizer."""
  sentinels: Sequence[int]
  plain: np.ndarray  # ids that are not special
  end: int


class FormedPairs(Formed):
  """Inputs and targets, each pair drawn by a generator of its own.

  Args:
    make: a pair's `src` and `tgt`, from its number and generator.
    seeds: of the generators.
    lengths: [pairs, 2] tokens of both.
    ids: of the pairs.
  """
  made = COLUMNS

  def __init__(self, make: Callable[[int, np.random.Generator], Pair], seeds: np.ndarray,
               lengths: np.ndarray, ids: np.ndarray):
    self._make, self._seeds = make, seeds
    super().__init__(self.made, self.of_fields(lengths), ids)

  def of_fields(self, lengths: np.ndarray) -> dict[str, np.ndarray]:
    """The tokens of each field of an example."""
    return dict(zip(FIELDS, lengths.T))

  def example(self, i: int) -> dict[str, np.ndarray]:
    return dict(zip(FIELDS, self.pair(i)))

  def pair(self, i: int) -> Pair:
    return self._make(i, generator(self._seeds[i]))


class JoinedPairs(FormedPairs):
  """The same pairs, each as one text of the inputs, which are its prefix, and the targets."""
  made = JOINED

  def of_fields(self, lengths: np.ndarray) -> dict[str, np.ndarray]:
    return {"text": lengths.sum(1)}

  def example(self, i: int) -> dict[str, np.ndarray]:
    pair = self.pair(i)
    prefix = np.repeat(np.array([1, 0], np.uint8), [len(x) for x in pair])
    return {"text": np.concatenate(pair), "text_prefix": prefix}


def generator(seed: int) -> np.random.Generator:
  return np.random.Generator(np.random.Philox(int(seed)))


def drawn_seeds(number: int, rng: np.random.Generator) -> np.ndarray:
  """[number] seeds, so that a pair can be drawn again without those before it."""
  return rng.integers(2**63, size=number)


# ------------------------------------------------------------------------- objectives


def span_mask(length: int, op: "TextPairs", rng: np.random.Generator) -> np.ndarray:
  return spans.random_spans(length, op.rate, op.mean_length, rng)


def token_mask(length: int, op: "TextPairs", rng: np.random.Generator) -> np.ndarray:
  return spans.random_tokens(length, op.rate, rng)


def suffix_mask(length: int, op: "TextPairs", rng: np.random.Generator) -> np.ndarray:
  """What stands behind 1 to length - 1 tokens, all numbers equally likely."""
  del op
  return np.arange(length) >= rng.integers(1, length)


def whole_mask(length: int, op: "TextPairs", rng: np.random.Generator) -> np.ndarray:
  del op, rng
  return np.ones(length, bool)


def spans_hidden(tokens: np.ndarray, mask: np.ndarray, ids: Ids, rng: np.random.Generator) -> Pair:
  """Each hidden span is a sentinel; the targets are the spans, each behind its sentinel."""
  del rng
  return (spans.hide_spans(tokens, mask, ids.sentinels),
          spans.hidden_spans(tokens, mask, ids.sentinels))


def tokens_hidden(tokens: np.ndarray, mask: np.ndarray, ids: Ids,
                  rng: np.random.Generator) -> Pair:
  """Each hidden token is the first sentinel; the target is the whole text (MASS)."""
  del rng
  return np.where(mask, ids.sentinels[0], tokens), tokens


def tokens_replaced(tokens: np.ndarray, mask: np.ndarray, ids: Ids,
                    rng: np.random.Generator) -> Pair:
  """As `tokens_hidden`, where some of the hidden tokens are random ones (BERT)."""
  draw, random = rng.random(len(tokens)), rng.choice(ids.plain, len(tokens))
  other = np.where(draw < RANDOM_SHARE, random, ids.sentinels[0])
  return np.where(mask, other, tokens), tokens


def dropped(tokens: np.ndarray, mask: np.ndarray, ids: Ids, rng: np.random.Generator) -> Pair:
  """The inputs lack the hidden tokens, which are the targets."""
  del ids, rng
  return tokens[~mask], tokens[mask]


def shuffled(tokens: np.ndarray, mask: np.ndarray, ids: Ids, rng: np.random.Generator) -> Pair:
  """The tokens in a random order; the target is the text."""
  del mask, ids
  return rng.permutation(tokens), tokens


class Objective(NamedTuple):
  """An objective: what is hidden, and the pair that is made of it."""
  mask: Callable[[int, "TextPairs", np.random.Generator], np.ndarray]
  pair: Callable[[np.ndarray, np.ndarray, Ids, np.random.Generator], Pair]
  # The most tokens of inputs and targets, from a text's tokens, hidden tokens and sentinels.
  most: Callable[[int, int, int], tuple[int, int]]
  sentinels: str = ""  # that it needs: one for each "span", or "one"
  drawn: bool = False  # lengths of the pair depend on what is drawn


OBJECTIVES: dict[str, Objective] = {
    "spans": Objective(span_mask, spans_hidden, lambda n, h, s: (n - h + s, h + s), "span"),
    "replace_spans": Objective(token_mask, spans_hidden, lambda n, h, s: (n, 2 * h), "span",
                               drawn=True),
    "mass": Objective(token_mask, tokens_hidden, lambda n, h, s: (n, n), "one"),
    "bert": Objective(token_mask, tokens_replaced, lambda n, h, s: (n, n), "one"),
    "drop": Objective(token_mask, dropped, lambda n, h, s: (n - h, h)),
    "deshuffle": Objective(whole_mask, shuffled, lambda n, h, s: (n, n)),
    "prefix_lm": Objective(suffix_mask, dropped, lambda n, h, s: (n - 1, n - 1), drawn=True),
    "lm": Objective(whole_mask, dropped, lambda n, h, s: (0, n)),
}


# --------------------------------------------------------------------------- the form


@dataclasses.dataclass(frozen=True)
class TextPairs(FormOp):
  """Inputs `src` and targets `tgt` of documents, each with an end token, by an `objective`.

  "spans" hides random spans: the inputs have a sentinel for each, the targets the spans behind
  their sentinels (T5). Single tokens are hidden by "replace_spans", with pairs as before, by
  "mass" and "bert", whose target is the whole text, and by "drop". "deshuffle" puts the tokens in
  a random order, "prefix_lm" splits the text, and "lm" has no inputs.

  Documents, or with `running` the documents of a window as one text, are cut into consecutive
  texts, as long as inputs and targets have room in a row, the first of a random length. Of those
  of a single token nothing is made. The numbers of hidden tokens and spans follow from a text's
  length; the places are drawn anew in every epoch.

  With `joined` the same pair is one `text`, for a decoder without an encoder: the inputs, which
  `text_prefix` marks and which are not predicted, and the targets (section 3.2.1). Layers of kind
  "prefix" let all tokens see the inputs.
  """
  objective: str = "spans"  # of `OBJECTIVES`
  rate: Fraction = 0.15  # of tokens that are hidden
  mean_length: Positive = 3.0  # of hidden spans
  running: bool = False  # the documents of a window are one text; else each is cut by itself
  joined: bool = False  # a pair is one text, for a decoder without an encoder

  needs = ("text",)

  @property
  def columns(self) -> Mapping[str, Column]:
    return JOINED if self.joined else COLUMNS

  @property
  def fields(self) -> tuple[str, ...]:
    """Of tokens."""
    return ("text",) if self.joined else FIELDS

  def __post_init__(self):
    if self.objective not in OBJECTIVES:
      raise ConfigError(f"op text_pairs: objective={self.objective!r}:"
                        f" {nearest(self.objective, OBJECTIVES)}")

  def bind(self, tokenizers: Mapping[str, Any]) -> "BoundPairs":
    tokenizer = tokenizers[TOKENIZER]
    return BoundPairs(self, Ids(tokenizer.sentinel_ids, tokenizer.plain_ids(), tokenizer.eos_id))

  def most(self, length: int) -> tuple[int, int]:
    """The most tokens of inputs and targets of a text, with their end tokens."""
    hidden, number = spans.counts(length, self.rate, self.mean_length)
    inputs, targets = OBJECTIVES[self.objective].most(length, hidden, number)
    return inputs + 1, targets + 1

  def sentinels(self, length: int) -> int:
    """The most sentinels that texts of up to `length` tokens need."""
    hidden, number = spans.counts(length, self.rate, self.mean_length)
    return {"": 0, "one": 1, "span": number if self.objective == "spans" else hidden}[
        OBJECTIVES[self.objective].sentinels]


@dataclasses.dataclass(frozen=True)
class BoundPairs(FormOp):
  """`TextPairs` with what it needs to know of a tokenizer."""
  op: TextPairs
  ids: Ids

  needs = TextPairs.needs
  begin = False  # no begin token stands before a text

  @property
  def columns(self) -> Mapping[str, Column]:
    return self.op.columns

  def form(self, documents: Any, numbers: np.ndarray, lengths: Mapping[str, int],
           rng: np.random.Generator) -> FormedPairs:
    """Pairs of at most `lengths` tokens.

    Raises:
      ConfigError: no text fits into a row, or the tokenizer has too few sentinels.
      DataError: the documents have no two tokens.
    """
    longest, running = self.longest(lengths), Running(documents, numbers)
    pieces = running.cut(self.op.running, 2, lambda total: (
        piece for piece in stretches(total, longest, rng) if piece[1] - piece[0] > 1))
    if not len(pieces):
      raise DataError(f"op text_pairs: {len(numbers)} documents have no two tokens to make a pair"
                      " of")
    make = lambda i, rng: self.pair(running.tokens(*pieces[i]), rng)
    seeds, sizes = drawn_seeds(len(pieces), rng), np.diff(pieces)[:, 0]
    kind = JoinedPairs if self.op.joined else FormedPairs
    return kind(make, seeds, self.lengths(sizes, seeds), running.ids(pieces[:, 0]))

  def longest(self, lengths: Mapping[str, int]) -> int:
    """The most tokens of a text whose inputs and targets fit into a row."""
    room = tuple(lengths[field] for field in self.op.fields)
    most = lambda n: (sum(self.op.most(n)),) if self.op.joined else self.op.most(n)
    fits = lambda n: all(a <= b for a, b in zip(most(n), room))
    # Each of its tokens is in the inputs or in the targets.
    longest = next((n for n in range(sum(room), 1, -1) if fits(n)), 0)
    if not longest:
      raise ConfigError(f"data.ops: rows of lengths={room} have no room for a pair of"
                        f" 'text_pairs' with objective={self.op.objective!r}")
    number = self.op.sentinels(longest)
    if number > len(self.ids.sentinels):
      raise ConfigError(f"op text_pairs: texts of {longest} tokens need {number} sentinels, and the"
                        f" tokenizer has {len(self.ids.sentinels)}; one that is trained here gets"
                        f" them by tokenizer.kind.sentinels={number}")
    return longest

  def lengths(self, sizes: np.ndarray, seeds: np.ndarray) -> np.ndarray:
    """[pairs, 2] tokens of the pairs of texts of these sizes."""
    measured = lambda n, rng: [len(x) for x in self.pair(np.zeros(n, np.int32), rng)]
    if OBJECTIVES[self.op.objective].drawn:
      return np.array([measured(int(n), generator(seed)) for n, seed in zip(sizes, seeds)])
    of_size = functools.cache(lambda n: measured(n, generator(0)))
    return np.array([of_size(int(n)) for n in sizes])

  def pair(self, tokens: np.ndarray, rng: np.random.Generator) -> Pair:
    """Inputs and targets of a text, with end tokens."""
    objective = OBJECTIVES[self.op.objective]
    mask = objective.mask(len(tokens), self.op, rng)
    pair = objective.pair(tokens, mask, self.ids, rng)
    return tuple(np.append(x, self.ids.end).astype(np.int32) for x in pair)
