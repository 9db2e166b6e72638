"""The scores of a task as soft targets compare them: where they are, and by which divergence."""

import functools
from typing import Any, Callable

import jax
import jax.numpy as jnp

from jtx.errors import ConfigError
from jtx.objectives.classify import Classify, example_weights
from jtx.objectives.distances import label_divergence, pairs_divergence, soft_divergence
from jtx.objectives.lm import Lm, next_tokens
from jtx.objectives.mlm import Mlm
from jtx.objectives.multi_label import MultiLabel
from jtx.objectives.multiple_choice import MultipleChoice
from jtx.objectives.seq2seq import Seq2Seq
from jtx.objectives.span import Span
from jtx.objectives.sums import Batch, text_weights
from jtx.objectives.tag import Tag, tagged

# Scores of the teacher and of the student, and a temperature -> distances of the weights' shape.
Divergence = Callable[[jax.Array, jax.Array, float], jax.Array]


@functools.singledispatch
def scored(task: Any, batch: Batch) -> tuple[jax.Array, Divergence]:
  """Weights [B, ...], 1 where a task has scores and 0 elsewhere, and the divergence of scores.

  Raises:
    ConfigError: scores of this task are not compared.
  """
  raise ConfigError(f"distill.terms: 'soft' compares scores of classes, tags, spans, choices and"
                    f" tokens, and the objective {type(task).__name__} has none of them; leave it"
                    " out")


@scored.register
def _(task: Classify, batch: Batch):
  of_loss = {"cross_entropy": soft_divergence, "sigmoid": label_divergence,
             "squared_error": _squared}
  return example_weights(batch), of_loss[task.loss]


@scored.register
def _(task: MultiLabel, batch: Batch):
  return example_weights(batch), label_divergence


@scored.register
def _(task: Mlm, batch: Batch):
  return (batch["mlm_labels"] >= 0).astype(jnp.float32), soft_divergence


@scored.register
def _(task: Lm, batch: Batch):
  return (next_tokens(batch) >= 0).astype(jnp.float32), soft_divergence


@scored.register
def _(task: Seq2Seq, batch: Batch):
  return (batch["tgt_segment_ids"] > 0).astype(jnp.float32), soft_divergence


@scored.register
def _(task: Tag, batch: Batch):
  return tagged(batch), soft_divergence


@scored.register
def _(task: MultipleChoice, batch: Batch):
  def of_questions(taught, ours, temperature):
    split = lambda x: jnp.moveaxis(x.reshape(-1, *batch["label"].shape), 0, -1)  # [B, S, C]
    return soft_divergence(split(taught), split(ours), temperature)

  return text_weights(batch["choice_0_segment_ids"], batch["label"].shape[1]), of_questions


@scored.register
def _(task: Span, batch: Batch):
  num_texts = batch["start"].shape[1]
  own = batch["text_segment_ids"][:, None] == jnp.arange(1, num_texts + 1)[:, None]  # [B, S, T]

  def of_texts(taught, ours, temperature):
    sides = [pairs_divergence(taught[:, None, :, i] / temperature,
                              ours[:, None, :, i] / temperature, own) for i in range(2)]
    return temperature**2 * sum(sides) / 2

  return text_weights(batch["text_segment_ids"], num_texts), of_texts


def _squared(taught: jax.Array, ours: jax.Array, temperature: float) -> jax.Array:
  """Of numbers [..., 1]; they have no temperature."""
  del temperature
  return jnp.square(ours - taught)[..., 0]
