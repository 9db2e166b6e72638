"""The peer of the translation benchmark: Marian of `transformers`, on PyTorch."""

import random
import time
from typing import Any, Sequence

import numpy as np

from benchmarks import marian, sides

LENGTH = 64  # tokens of the longest sentence
BEAM, ALPHA = 4, 1.0
SMOOTHING, LEARNING_RATE, CLIP = 0.1, 5e-4, 1.0

Tokens = list[int]
Pair = tuple[Tokens, Tokens]  # both end in the end token


class Marian(sides.TorchSide):
  """The peer's side.

  Args:
    config: of MarianConfig.
    state: its parameters.
    pairs: to train on.
    batch: sentences of a batch.
    dtype: of products.
  """

  def __init__(self, config: dict[str, Any], state: dict[str, np.ndarray], pairs: Sequence[Pair],
               batch: int, dtype: str):
    self.open(dtype)
    self.model = marian.make(config, state).to(self.device)
    self.compiled_model = self.torch.compile(self.model, dynamic=True)  # at its first call
    self.config, self.pairs, self.batch = config, pairs, batch
    self.optimizer = self.torch.optim.AdamW(
        self.model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    order = random.Random(0).sample(range(len(pairs)), len(pairs))
    self.batches = {"random": split(order, batch), "by_length": []}
    # As `group_by_length` does: sorted within stretches of fifty batches.
    for stretch in split(order, 50 * batch):
      self.batches["by_length"] += split(sorted(stretch, key=lambda i: len(pairs[i][0])), batch)
    random.Random(1).shuffle(self.batches["by_length"])
    self.step = 0

  def placed(self, pairs: Sequence[Pair]):
    """A model's arguments, and labels [B, T], -100 where padded."""
    sources, targets = zip(*pairs)
    pad_id = self.config["pad_token_id"]
    before = [[self.config["decoder_start_token_id"], *t[:-1]] for t in targets]
    return {"input_ids": self.tensor(sources, pad_id),
            "attention_mask": self.tensor([[1] * len(s) for s in sources], 0),
            "decoder_input_ids": self.tensor(before, pad_id)}, self.tensor(targets, -100)

  def tensor(self, rows: Sequence[Sequence[int]], value: int):
    return self.torch.tensor(pad(rows, value), device=self.device, dtype=self.torch.long)

  def nll(self, pairs: Sequence[Pair]) -> float:
    self.model.eval()
    inputs, labels = self.placed(pairs)
    with self.torch.no_grad(), self.autocast():
      logits = self.model(**inputs).logits.float()
    return float(self.torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()))

  def train(self, steps: int, order: str, compiled: bool) -> float:
    """Useful target tokens a second, after an update that is not timed."""
    batches = [[self.pairs[i] for i in self.batches[order][(self.step + n)
                                                            % len(self.batches[order])]]
               for n in range(steps + 1)]
    self.step += steps + 1
    placed = [self.placed(batch) for batch in batches]
    run = self.compiled_model if compiled else self.model
    self.model.train()
    for i, (inputs, labels) in enumerate(placed):
      with self.autocast():
        logits = run(**inputs).logits
      loss = self.torch.nn.functional.cross_entropy(
          logits.float().flatten(0, 1), labels.flatten(), label_smoothing=SMOOTHING)
      self.update(loss, CLIP)
      if not i:
        self.synchronize()
        start = time.perf_counter()
    self.synchronize()
    return sum(len(t) for batch in batches[1:] for _, t in batch) / (time.perf_counter() - start)

  def end_training(self, state: dict[str, np.ndarray]) -> None:
    self.optimizer = self.compiled_model = None
    self.model = marian.make(self.config, state).to(self.device)
    if self.low:
      self.model.bfloat16()  # autocast would convert the weights again at every step

  def start_translating(self, sources: list[Tokens], batch: int) -> None:
    self.sources, self.translate_batch = sources, batch

  def translate(self, order: str) -> float:
    """Sentences a second, from token ids to token ids."""
    ids = list(range(len(self.sources)))
    start = time.perf_counter()
    if order == "by_length":
      ids.sort(key=lambda i: len(self.sources[i]))
    self.results = [[]] * len(ids)
    for batch in split(ids, self.translate_batch):
      sources = [self.sources[i] for i in batch]
      out = self.model.generate(
          input_ids=self.tensor(sources, self.config["pad_token_id"]),
          attention_mask=self.tensor([[1] * len(s) for s in sources], 0), num_beams=BEAM,
          length_penalty=ALPHA, early_stopping=True, do_sample=False, max_new_tokens=LENGTH - 1)
      for i, tokens in zip(batch, out.tolist()):
        end = self.config["eos_token_id"]
        tokens = tokens[1:]
        self.results[i] = tokens[:tokens.index(end)] if end in tokens else tokens
    return len(ids) / (time.perf_counter() - start)

  def translations(self) -> list[Tokens]:
    return self.results


def pad(rows: Sequence[Sequence[int]], value: int) -> np.ndarray:
  """[B, longest] int32."""
  out = np.full((len(rows), max(map(len, rows))), value, np.int32)
  for row, tokens in zip(out, rows):
    row[:len(tokens)] = tokens
  return out


def split(items: Sequence[int], size: int) -> list[Sequence[int]]:
  return [items[i:i + size] for i in range(0, len(items), size)]
