"""The op on batches that draws an order in which some tokens of a row are predicted (XLNet)."""

import dataclasses
from typing import Any, Mapping, Sequence

import numpy as np

from jtx.data.op import BatchOp
from jtx.data.ops.sentences import SPECIAL
from jtx.ranges import SizeOrNone, SomeShare


@dataclasses.dataclass(frozen=True)
class Permute(BatchOp):
  """Chooses tokens to predict, and their order (Yang et al. 2019, sections 2.3 and 3.1).

  Of the n tokens in a row that are not special, max(1, round(rate * n)) are chosen, but no more
  than a row has slots: spans of 1 to `max_span` tokens, each at random in a stretch of which it is
  the share `rate`. A batch gets `mlm_positions [R, K]` int32, the places of the chosen in a row in
  a random order, and `mlm_labels [R, K]` int32, what is there; -1 where a slot is empty. The text
  stays as it is. `text_marks` is taken out.
  """
  rate: SomeShare = 1 / 6  # share of the tokens that are not special that is chosen; 1 / K
  max_span: SizeOrNone = 5  # tokens in a row; 0: tokens are chosen one by one, anywhere
  slots: SizeOrNone = 0  # of a row; 0 is as many as a full row has chosen tokens

  needs = ("text", "text_marks")

  def bind(self, tokenizers: Mapping[str, Any]) -> "Permute":
    del tokenizers
    return self

  def alter(self, batch: dict[str, np.ndarray],
            generators: Sequence[np.random.Generator]) -> dict[str, np.ndarray]:
    """The batch with an order of prediction, each row's by its own generator."""
    text = batch["text"]
    slots = self.slots or max(1, round(self.rate * text.shape[1]))
    positions = np.zeros((len(text), slots), np.int32)
    labels = np.full((len(text), slots), -1, np.int32)
    for r, rng in enumerate(generators):
      free = np.flatnonzero((batch["text_segment_ids"][r] > 0)
                            & (batch["text_marks"][r] & SPECIAL == 0))
      places = rng.permutation(free[self.choose(len(free), slots, rng)])
      positions[r, :len(places)], labels[r, :len(places)] = places, text[r, places]
    kept = {key: value for key, value in batch.items() if key != "text_marks"}
    return kept | {"mlm_positions": positions, "mlm_labels": labels}

  def choose(self, n: int, slots: int, rng: np.random.Generator) -> np.ndarray:
    """Which of n tokens are predicted, as indices."""
    number = min(slots, max(1, round(self.rate * n)), n)
    if not self.max_span:
      return rng.choice(n, number, replace=False)
    chosen: list[int] = []
    while len(chosen) < number:
      span = min(int(rng.integers(1, self.max_span + 1)), number - len(chosen))
      begin, end = (count * n // number for count in (len(chosen), len(chosen) + span))
      start = int(rng.integers(begin, end - span + 1))
      chosen.extend(range(start, start + span))
    return np.array(chosen, np.int64)
