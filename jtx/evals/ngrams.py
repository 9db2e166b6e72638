"""Unigram and bigram predictions of masked tokens: the baseline of masked language models."""

import dataclasses
from typing import Any, Iterator, NamedTuple

import numpy as np

from jtx.evals.task import Task
from jtx.ranges import CountOrNone, Fraction


@dataclasses.dataclass(frozen=True)
class Ngrams:
  """Unigrams, and bigrams with absolute discounting (Ney et al. 1994), of the training data.

  A bigram is given the token before, masked or not; p(w | v) = max(n(v, w) - d, 0) / n(v) +
  d * followers(v) / n(v) * p(w), and p(w) has one added to every count. A token with a special
  token before it is predicted by its unigram.
  """
  source: tuple[str, ...]  # the split: sources, as data.train has them
  discount: Fraction = 0.75  # d, taken from every bigram's count
  every: CountOrNone = 0  # steps; 0 is at the end only

  heads = frozenset()  # of the model
  keys = ("mlm_positions", "mlm_labels")  # of a batch

  def __call__(self, task: Task, params) -> Iterator[tuple[str, float]]:
    del params
    prepared, vocab_size = task.data.prepared_train, task.data.info["vocab_size"]
    counts = count((prepared.example(i)["text"] for i in range(len(prepared))), vocab_size)
    pairs = []
    for batch in task.batches(self.source, range(task.batch_size)):
      pairs.append(hidden_pairs(batch))
    before, hidden = np.concatenate(pairs, 1)
    yield from score(counts, before, hidden, self.discount).items()
    yield "hidden_tokens", len(hidden)


class Counts(NamedTuple):
  """Of a text with a vocabulary of V."""
  tokens: np.ndarray  # [V] int64
  starts: np.ndarray  # [V + 1] int64: where the bigrams of each first token begin
  seconds: np.ndarray  # [bigrams] int64, sorted in each stretch
  numbers: np.ndarray  # [bigrams] int64


def count(documents, vocab_size: int) -> Counts:
  """Counts of tokens, and of pairs of neighbours in one document."""
  tokens = np.zeros(vocab_size, np.int64)
  codes = []
  for text in documents:
    text = np.asarray(text, np.int64)
    tokens += np.bincount(text, minlength=vocab_size)
    codes.append(np.stack(np.unique(text[:-1] * vocab_size + text[1:], return_counts=True)))
  keys, numbers = np.concatenate(codes, 1)
  unique, places = np.unique(keys, return_inverse=True)
  totals = np.bincount(places, numbers).astype(np.int64)
  starts = np.searchsorted(unique, np.arange(vocab_size + 1) * vocab_size)
  return Counts(tokens, starts, unique % vocab_size, totals)


def frequencies(documents: Any, field: str, vocab_size: int) -> np.ndarray:
  """[V] shares of tokens in prepared documents, with one added to every count."""
  counts = np.ones(vocab_size, np.int64)
  for i in range(len(documents)):
    counts += np.bincount(documents.example(i)[field], minlength=vocab_size)
  return counts / counts.sum()


def hidden_pairs(batch) -> np.ndarray:
  """[2, hidden]: the token before each hidden one, and the hidden one."""
  rows, slots = np.nonzero(batch["mlm_labels"] >= 0)
  places, labels = batch["mlm_positions"][rows, slots], batch["mlm_labels"][rows, slots]
  text = batch["text"].copy()
  text[rows, places] = labels
  return np.stack([text[rows, places - 1], labels]).astype(np.int64)


def score(counts: Counts, before: np.ndarray, hidden: np.ndarray,
          discount: float) -> dict[str, float]:
  """Mean negative log-probability in nats, and accuracy, by unigrams and by bigrams."""
  unigram = (counts.tokens + 1) / (counts.tokens.sum() + len(counts.tokens))
  nll, hits = np.zeros(len(hidden)), np.zeros(len(hidden), bool)
  for token in np.unique(before):
    stretch = slice(counts.starts[token], counts.starts[token + 1])
    number = counts.numbers[stretch].sum()
    p = unigram
    if number:
      p = unigram * (discount * len(counts.numbers[stretch]) / number)
      p[counts.seconds[stretch]] += (counts.numbers[stretch] - discount) / number
    chosen = before == token
    nll[chosen], hits[chosen] = -np.log(p[hidden[chosen]]), hidden[chosen] == p.argmax()
  return {"unigram_loss": float(-np.log(unigram[hidden]).mean()),
          "unigram_accuracy": float((hidden == unigram.argmax()).mean()),
          "bigram_loss": float(nll.mean()), "bigram_accuracy": float(hits.mean())}
