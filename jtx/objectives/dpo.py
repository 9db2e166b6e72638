"""Preferences learnt without a reward model: DPO and its kin (Rafailov et al. 2023)."""

import dataclasses
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.errors import ConfigError, nearest
from jtx.objectives.lm import following
from jtx.objectives.rows import stacked
from jtx.objectives.sums import Batch, Sums, text_weights, weighted_sums
from jtx.ranges import Positive, Rate

LOSSES = ("sigmoid", "ipo")


class Answers(NamedTuple):
  """Log-probabilities of the answers of each pair."""
  chosen: jax.Array  # [B, S]
  rejected: jax.Array


def preference_loss(margin: jax.Array, loss: str, beta: float,
                    label_smoothing: float = 0.0) -> jax.Array:
  """The loss of pairs.

  Args:
    margin: [...], how much more the policy prefers the chosen answer than the reference does:
      (log p - log p_ref)(chosen) - (log p - log p_ref)(rejected).
    loss: "sigmoid" is -ln sigmoid(beta margin) (Rafailov et al. 2023, equation 7), with
      `label_smoothing` e the mean of it and of the swapped pair's, weighted 1 - e and e (cDPO;
      Mitchell 2023); "ipo" is (margin - 1 / (2 beta))^2 (Azar et al. 2023, equation 17).
    beta: how close the policy stays to the reference.
    label_smoothing: the share of preferences that are the wrong way round.

  Returns:
    [...], in nats but for "ipo".
  """
  if loss == "ipo":
    return (margin - 1 / (2 * beta)) ** 2
  return (-(1 - label_smoothing) * jax.nn.log_sigmoid(beta * margin)
          - label_smoothing * jax.nn.log_sigmoid(-beta * margin))


@dataclasses.dataclass(frozen=True)
class Dpo:
  """The mean over pairs of `preference_loss`, against a frozen reference.

  Batches have `chosen` and `rejected`, each a prompt and its answer, with their `_segment_ids`,
  `_positions` and `_answers`, the tokens of the answer, all [B, T]; texts of a pair have the same
  number in the same row. `preferred [B, S]` says by its shape how many pairs a row can have.
  """
  reference: str = ""  # a Hugging Face folder or a workdir, of a model with the same tokenizer
  loss: str = "sigmoid"  # of `LOSSES`
  beta: Positive = 0.1  # factor of the margin (equation 7); large ones stay near the reference
  label_smoothing: Rate = 0.0  # share of preferences that are wrong (cDPO; Mitchell 2023)

  unit = "pairs"  # what the loss is a mean of
  heads = frozenset({"lm"})  # of the model
  keys = ("chosen", "rejected", "preferred")  # of a batch
  teacher_key = "reference"
  evaluated_with_teacher = True

  def __post_init__(self):
    if self.loss not in LOSSES:
      raise ConfigError(f"objective.loss={self.loss!r}: {nearest(self.loss, LOSSES)}")
    if self.loss == "ipo" and self.label_smoothing:
      raise ConfigError("objective.label_smoothing goes with objective.loss='sigmoid'")

  def taught_by(self, model: nn.Module) -> "Referred":
    """The objective with the reference's module; its parameters come with every call."""
    if "lm" not in model.heads:
      raise ConfigError(f"objective.reference={self.reference} is no language model")
    return Referred(**vars(self), model=model)

  def weights(self, batch: Batch):
    """The divisor of each loss term's sum: here, pairs."""
    return {"loss": self._pairs(batch).sum()}

  def _pairs(self, batch: Batch) -> jax.Array:
    return text_weights(batch["chosen_segment_ids"], batch["preferred"].shape[1])

  def model_inputs(self, batch: Batch) -> Batch:
    """Texts of a larger batch [2 B, T], all chosen ones before all rejected ones."""
    return stacked(batch, ("chosen", "rejected"))

  def __call__(self, model: nn.Module, params, batch: Batch, *, train: bool, rngs=None,
               teacher: Any = None) -> Sums:
    """Sums over pairs of `loss`, `accuracy`, `margin`, rewards and log-probabilities.

    `margin` is the difference of the rewards, which are beta (log p - log p_ref).

    Args:
      model, params, batch, train, rngs: as of any objective.
      teacher: the reference's parameters; see `Referred`. None: all answers are as likely to it.
    """
    texts = self.model_inputs(batch)
    log_p = _log_probs(model, params, texts, train, rngs)
    total = self._totals(texts, batch)
    log_q, more = self._reference(model, teacher, texts, log_p, total)
    policy, reference = (Answers(*jnp.split(total(x), 2)) for x in (_of_next(log_p, texts), log_q))
    rewards = Answers(*(self.beta * (a - b) for a, b in zip(policy, reference)))
    margin = rewards.chosen - rewards.rejected
    loss = preference_loss(margin / self.beta, self.loss, self.beta, self.label_smoothing)
    told = jax.lax.stop_gradient(dict(
        accuracy=(margin > 0).astype(jnp.float32), margin=margin, chosen_reward=rewards.chosen,
        rejected_reward=rewards.rejected, chosen_log_prob=policy.chosen,
        rejected_log_prob=policy.rejected, **more))
    return weighted_sums(self._pairs(batch), loss=loss, **told)

  def _reference(self, model, teacher, texts, log_p, total) -> tuple[jax.Array, dict]:
    """Log-probabilities [2 B, T] of next tokens by the reference, and other values of pairs."""
    return jnp.zeros(log_p.shape[:2]), {}

  def _totals(self, texts: Batch, batch: Batch):
    """[2 B, T] values of next tokens to their sums [2 B, S] over the answer of each text."""
    segments, number = texts["text_segment_ids"], batch["preferred"].shape[1]
    answers = jnp.concatenate([batch["chosen_answers"], batch["rejected_answers"]])
    predicted = following(answers != 0, segments, False)
    of_text = (segments[:, None] == jnp.arange(1, number + 1)[:, None]) & predicted[:, None]
    return lambda values: jnp.einsum("bst,bt->bs", of_text.astype(values.dtype), values)


@dataclasses.dataclass(frozen=True)
class Referred(Dpo):
  """`Dpo` with a reference; a call tells `kl` as well.

  It is the mean of KL(policy || reference) over the tokens of both answers, in nats.
  """
  model: nn.Module | None = None

  def _reference(self, model, teacher, texts, log_p, total):
    if teacher is None:  # only the policy's share is looked at, as where its operations are counted
      return super()._reference(model, teacher, texts, log_p, total)
    if model.vocab_size != self.model.vocab_size:
      raise ConfigError(f"objective.reference={self.reference} has a vocabulary of"
                        f" {self.model.vocab_size} tokens, and the model of {model.vocab_size}")
    log_q = _log_probs(self.model, teacher, texts, False, None)
    kl = total(jnp.sum(jnp.exp(log_p) * (log_p - log_q), -1))
    kl /= jnp.maximum(total(jnp.ones(log_p.shape[:2])), 1)
    return jax.lax.stop_gradient(_of_next(log_q, texts)), {"kl": sum(jnp.split(kl, 2)) / 2}


def _log_probs(model: nn.Module, params: Any, texts: Batch, train: bool, rngs: Any) -> jax.Array:
  """Of each next token [B, T, V]."""
  scores = lambda module, batch: module.logits(module(batch, train))
  return jax.nn.log_softmax(model.apply({"params": params}, texts, rngs=rngs, method=scores))


def _of_next(log_p: jax.Array, texts: Batch) -> jax.Array:
  """[B, T, V] at the next token of each: [B, T]; anything where there is none."""
  tokens = following(texts["text"], texts["text_segment_ids"], 0)
  return jnp.take_along_axis(log_p, tokens[..., None], -1)[..., 0]
