"""The peer of the translation benchmark: Marian of `transformers`, on PyTorch."""

import random
import time
from typing import Any, Sequence

import numpy as np

from benchmarks import harness, marian

LENGTH = 64  # tokens of the longest sentence
TRANSLATE_BATCH = 64  # sentences
BEAM, ALPHA = 4, 1.0
SMOOTHING, LEARNING_RATE, CLIP = 0.1, 5e-4, 1.0

Tokens = list[int]
Pair = tuple[Tokens, Tokens]  # both end in the end token


class Marian(harness.TorchSide):
  """The peer's side.

  Args:
    config: of MarianConfig.
    state: its parameters.
    pairs: to train on.
    batch: sentences of a batch.
    lr: of AdamW.
  """

  def __init__(self, config: dict[str, Any], state: dict[str, np.ndarray], pairs: Sequence[Pair],
               batch: int):
    import torch
    self.torch = torch
    self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    self.model = marian.make(config, state).to(self.device)
    self.config, self.pairs, self.batch = config, pairs, batch
    self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98),
                                       weight_decay=0.01, fused=True)
    order = random.Random(0).sample(range(len(pairs)), len(pairs))
    self.batches = {"random": split(order, batch), "by_length": []}
    # As `group_by_length` does: sorted within stretches of fifty batches.
    for stretch in split(order, 50 * batch):
      self.batches["by_length"] += split(sorted(stretch, key=lambda i: len(pairs[i][0])), batch)
    random.Random(1).shuffle(self.batches["by_length"])
    self.step = 0

  def run(self, side_batch: Sequence[Pair]):
    """Logits [B, T, V] and labels [B, T], -100 where padded."""
    torch = self.torch
    sources, targets = zip(*side_batch)
    pad_id = self.config["pad_token_id"]
    src = torch.tensor(pad(sources, pad_id), device=self.device, dtype=torch.long)
    labels = torch.tensor(pad(targets, -100), device=self.device, dtype=torch.long)
    before = [[self.config["decoder_start_token_id"], *t[:-1]] for t in targets]
    tgt_in = torch.tensor(pad(before, pad_id), device=self.device, dtype=torch.long)
    mask = torch.tensor(pad([[1] * len(s) for s in sources], 0), device=self.device)
    with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
      logits = self.model(input_ids=src, attention_mask=mask, decoder_input_ids=tgt_in).logits
    return logits.float(), labels

  def nll(self, pairs: Sequence[Pair]) -> float:
    self.model.eval()
    with self.torch.no_grad():
      logits, labels = self.run(pairs)
    return float(self.torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()))

  def train(self, steps: int, order: str) -> float:
    """Useful target tokens a second."""
    batches = [[self.pairs[i] for i in self.batches[order][(self.step + n)
                                                            % len(self.batches[order])]]
               for n in range(steps)]
    self.step += steps
    self.model.train()
    start = time.perf_counter()
    for batch in batches:
      logits, labels = self.run(batch)
      loss = self.torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(),
                                                    label_smoothing=SMOOTHING)
      loss.backward()
      self.torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
      self.optimizer.step()
      self.optimizer.zero_grad(set_to_none=True)
    self.synchronize()
    return sum(len(t) for batch in batches for _, t in batch) / (time.perf_counter() - start)

  def end_training(self, state: dict[str, np.ndarray]) -> None:
    self.optimizer = None
    self.model = marian.make(self.config, state).to(self.device)

  def start_translating(self, sources: list[Tokens]) -> None:
    self.sources = sources

  def translate(self, order: str) -> float:
    """Sentences a second, from token ids to token ids."""
    torch, ids = self.torch, list(range(len(self.sources)))
    start = time.perf_counter()
    if order == "by_length":
      ids.sort(key=lambda i: len(self.sources[i]))
    self.results = [[]] * len(ids)
    for batch in split(ids, TRANSLATE_BATCH):
      sources = [self.sources[i] for i in batch]
      src = torch.tensor(pad(sources, self.config["pad_token_id"]), device=self.device,
                         dtype=torch.long)
      mask = torch.tensor(pad([[1] * len(s) for s in sources], 0), device=self.device)
      with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
        out = self.model.generate(input_ids=src, attention_mask=mask, num_beams=BEAM,
                                  length_penalty=ALPHA, early_stopping=True, do_sample=False,
                                  max_new_tokens=LENGTH - 1)
      for i, tokens in zip(batch, out.tolist()):
        end = self.config["eos_token_id"]
        tokens = tokens[1:]
        self.results[i] = tokens[:tokens.index(end)] if end in tokens else tokens
    return len(ids) / (time.perf_counter() - start)

  def translations(self) -> list[Tokens]:
    return self.results

  def matmul_peak(self) -> float:
    n, dtype = (2048, self.torch.float32) if self.device.type == "cpu" else (
        8192, self.torch.bfloat16)
    x = self.torch.ones((n, n), dtype=dtype, device=self.device)

    def product():
      x @ x
      self.synchronize()
    return 2 * n**3 / harness.fastest(product)


def pad(rows: Sequence[Sequence[int]], value: int) -> np.ndarray:
  """[B, longest] int32."""
  out = np.full((len(rows), max(map(len, rows))), value, np.int32)
  for row, tokens in zip(out, rows):
    row[:len(tokens)] = tokens
  return out


def split(items: Sequence[int], size: int) -> list[Sequence[int]]:
  return [items[i:i + size] for i in range(0, len(items), size)]
