"""The loss of targets' own tokens, and what their frequencies alone would have: span corruption."""

import dataclasses
from typing import Any, Iterator, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from jtx.data.op import TOKENIZER
from jtx.errors import ConfigError
from jtx.evals.loss import total_sums
from jtx.evals.ngrams import frequencies
from jtx.evals.task import Task
from jtx.objectives.seq2seq import Seq2Seq
from jtx.ranges import CountOrNone


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlainTargets(Seq2Seq):
  """As `Seq2Seq`, of the target tokens that are not special."""
  plain: tuple[int, ...]  # ids that count

  def counted(self, batch: Mapping[str, jax.Array]) -> jax.Array:
    return super().counted(batch) & jnp.isin(batch["tgt"], jnp.array(self.plain))


@dataclasses.dataclass(frozen=True)
class Targets:
  """`nll` in nats and `accuracy` of the target tokens that are not special, each once.

  Sentinels and end tokens, most of which are certain, do not count. `unigram_nll` is that of the
  tokens' frequencies in the training documents, one added to every count; `tokens` is how many
  were predicted.
  """
  source: tuple[str, ...]  # the split: sources, as data.train has them
  every: CountOrNone = 0  # steps; 0 is at the end only

  heads = frozenset({"seq2seq"})  # of the model
  keys = ("src", "tgt")  # of a batch

  def __call__(self, task: Task, params: Any) -> Iterator[tuple[str, float]]:
    data = task.data
    if (tokenizer := data.tokenizers.get(TOKENIZER)) is None:
      raise ConfigError("evals: targets is of pairs that are made of documents, which have one"
                        " tokenizer, such as those of the op text_pairs")
    plain = tuple(int(i) for i in tokenizer.plain_ids())
    objective = PlainTargets(bos_id=task.objective.bos_id, plain=plain)
    totals = total_sums(task, params, objective, task.batches(self.source))
    (nats, tokens), hits = totals["nll"], totals["accuracy"][0]
    yield "nll", nats / tokens
    yield "accuracy", hits / tokens
    of_each = np.zeros(tokenizer.vocab_size, np.int64)
    for batch in task.batches(self.source, range(task.batch_size)):
      of_each += np.bincount(batch["tgt"][batch["tgt_segment_ids"] > 0], minlength=len(of_each))
    of_each = of_each[list(plain)]
    shares = frequencies(data.prepared_train, "text", tokenizer.vocab_size)
    yield "unigram_nll", -(of_each * np.log(shares[list(plain)])).sum() / of_each.sum()
    yield "tokens", int(tokens)
