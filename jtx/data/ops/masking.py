"""Ops on batches that choose which tokens to predict: masked ones, the next, those of a suffix."""

import dataclasses
from typing import Any, Mapping, Sequence

import numpy as np

from jtx.data.op import TOKENIZER, BatchOp
from jtx.data.ops.sentences import SPECIAL, WORD
from jtx.errors import ConfigError
from jtx.ranges import Share, SizeOrNone, SomeShare


@dataclasses.dataclass(frozen=True)
class Mask(BatchOp):
  """Masks tokens, to be predicted from the others (Devlin et al. 2019, section 3.1).

  Of the n tokens in a row that are not special, max(1, round(rate * n)) are chosen, but
  no more than a row has slots. Of the chosen, each is replaced by the mask, by a random token
  or by itself, as `split` says. A batch gets `mlm_positions [R, K]` int32, the places of
  the chosen in a row, in order, and `mlm_labels [R, K]` int32, what was there; -1 where a slot
  is empty. `text_marks` is taken out.
  """
  rate: SomeShare = 0.15  # share of the tokens that are not special that is chosen
  split: tuple[Share, Share, Share] = (0.8, 0.1, 0.1)  # mask, random token, the same
  whole_words: bool = False  # chooses words, until one more would be too many tokens
  slots: SizeOrNone = 0  # K, of a row; 0 is as many as a full row has chosen tokens

  needs = ("text", "text_marks")

  def __post_init__(self):
    if len(self.split) != 3 or abs(sum(self.split) - 1) > 1e-6:
      raise ConfigError(f"op mask: split={self.split} must be three shares (mask, random token,"
                        " the same) that add up to 1")

  def bind(self, tokenizers: Mapping[str, Any]) -> "BoundMask":
    tokenizer = tokenizers[TOKENIZER]
    if tokenizer.mask_id is None:
      raise ConfigError("op mask: the tokenizer has no mask token; one that is trained here gets it"
                        " by tokenizer.kind.mask=True")
    return BoundMask(self, tokenizer.mask_id, tokenizer.plain_ids())


@dataclasses.dataclass(frozen=True)
class BoundMask(BatchOp):
  """`Mask` with what it needs to know of a tokenizer."""
  op: Mask
  mask_id: int
  plain_ids: np.ndarray  # that are not special: what a random token is drawn from

  def slots(self, length: int) -> int:
    return self.op.slots or max(1, round(self.op.rate * length))

  def alter(self, batch: dict[str, np.ndarray],
            generators: Sequence[np.random.Generator]) -> dict[str, np.ndarray]:
    """The batch with tokens masked, each row by its own generator."""
    text = batch["text"].copy()
    slots = self.slots(text.shape[1])
    positions = np.zeros((len(text), slots), np.int32)
    labels = np.full((len(text), slots), -1, np.int32)
    for r, rng in enumerate(generators):
      free = (batch["text_segment_ids"][r] > 0) & (batch["text_marks"][r] & SPECIAL == 0)
      places = self.choose(np.flatnonzero(free), batch["text_marks"][r], slots, rng)
      positions[r, :len(places)], labels[r, :len(places)] = places, text[r, places]
      text[r, places] = self.replace(text[r, places], rng)
    kept = {key: value for key, value in batch.items() if key != "text_marks"}
    return kept | {"text": text, "mlm_positions": positions, "mlm_labels": labels}

  def choose(self, free: np.ndarray, marks: np.ndarray, slots: int,
             rng: np.random.Generator) -> np.ndarray:
    """Sorted places of the tokens to mask, of those that may be."""
    if not len(free):
      return free
    number = min(slots, max(1, round(self.op.rate * len(free))))
    if not self.op.whole_words:
      return np.sort(rng.choice(free, number, replace=False))
    # A word goes on where a token does not begin one, unless it is cut off from the one before.
    begins = (marks[free] & WORD > 0) | (np.diff(free, prepend=-2) != 1)
    words = np.split(free, np.flatnonzero(begins)[1:])
    chosen: list[int] = []
    for w in rng.permutation(len(words)):
      if len(chosen) + len(words[w]) <= number:
        chosen.extend(words[w])
      if len(chosen) == number:
        break
    return np.sort(np.array(chosen, np.int64))

  def replace(self, ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    mask, other, _ = self.op.split
    draw = rng.random(len(ids))
    random = rng.choice(self.plain_ids, len(ids))
    return np.where(draw < mask, self.mask_id, np.where(draw < mask + other, random, ids))


@dataclasses.dataclass(frozen=True)
class PredictNext(BatchOp):
  """Masks nothing: every token predicts the next, for an encoder with causal attention.

  A batch gets what `mask` gives it, K being the row's length. A text's last token predicts none.
  """

  needs = ("text",)

  def bind(self, tokenizers: Mapping[str, Any]) -> "PredictNext":
    del tokenizers
    return self

  def alter(self, batch: dict[str, np.ndarray],
            generators: Sequence[np.random.Generator]) -> dict[str, np.ndarray]:
    del generators  # nothing is drawn
    segments = batch["text_segment_ids"]
    follows = np.zeros(segments.shape, bool)
    follows[:, :-1] = (segments[:, :-1] > 0) & (segments[:, :-1] == segments[:, 1:])
    kept = {key: value for key, value in batch.items() if key != "text_marks"}
    places = np.arange(segments.shape[1], dtype=np.int32)
    return kept | {"mlm_positions": np.broadcast_to(places, segments.shape),
                   "mlm_labels": np.where(follows, np.roll(batch["text"], -1, 1), -1)}


@dataclasses.dataclass(frozen=True)
class Prefix(BatchOp):
  """The first tokens of each segment, as many as are drawn, as a prefix that is not predicted.

  A batch gets `text_prefix [R, T]` uint8, 1 for these, of n tokens 1 to n - 1 with equal
  probability (Raffel et al. 2020, section 3.2.1). Layers of kind "prefix" let all tokens of a
  segment see them.
  """

  needs = ("text",)

  def bind(self, tokenizers: Mapping[str, Any]) -> "Prefix":
    del tokenizers
    return self

  def alter(self, batch: dict[str, np.ndarray],
            generators: Sequence[np.random.Generator]) -> dict[str, np.ndarray]:
    segments = batch["text_segment_ids"]
    prefix = np.zeros(segments.shape, np.uint8)
    for r, rng in enumerate(generators):
      for segment in range(1, segments[r].max(initial=0) + 1):
        places = np.flatnonzero(segments[r] == segment)
        prefix[r, places[:rng.integers(1, max(len(places), 2))]] = 1
    return {**batch, "text_prefix": prefix}
