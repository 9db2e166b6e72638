"""Knowledge distillation of masked language models (Hinton et al. 2015; Sanh et al. 2019)."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from jtx.errors import ConfigError
from jtx.objectives.distances import cosine_distance, soft_divergence
from jtx.objectives.mlm import Mlm, hidden_and_scores
from jtx.objectives.sums import Batch, Sums, even_slots, weighted_sums
from jtx.ranges import NotNegative, Positive


@dataclasses.dataclass(frozen=True)
class Distill(Mlm):
  """`mlm` with two more terms, for which batches are as for `mlm`; all three are added, weighted.

  - At masked tokens, KL(teacher || student) of the softmax of scores / temperature, times
    temperature^2, by which its gradient keeps its size.
  - At all tokens, 1 - the cosine of the two last hidden states, which must be of one width.

  Without a teacher, as in an evaluation, it is `mlm`.
  """
  teacher: str = ""  # a Hugging Face folder or a workdir, of a model with the same tokenizer
  temperature: Positive = 2.0  # that the scores of teacher and student are divided by
  soft_weight: NotNegative = 5.0  # of the divergence from the teacher's softmax
  mlm_weight: NotNegative = 2.0  # of the loss of `mlm`
  cosine_weight: NotNegative = 1.0  # of 1 - the cosine of hidden states

  def __post_init__(self):
    if not any((self.soft_weight, self.mlm_weight, self.cosine_weight)):
      raise ConfigError("objective.soft_weight, mlm_weight and cosine_weight must not all be 0")

  def taught_by(self, model: nn.Module) -> "Taught":
    """The objective with the teacher's module; its parameters come with every call."""
    if not getattr(model, "mlm", False):
      raise ConfigError(f"objective.teacher={self.teacher} has no head for masked tokens; it"
                        " needs a model such as BertForMaskedLM")
    return Taught(**vars(self), model=model)


@dataclasses.dataclass(frozen=True)
class Taught(Distill):
  """`Distill` with a teacher."""
  model: nn.Module | None = None

  def weights(self, batch: Batch):
    """The divisor of each loss term's sum: a number, over the weight of the term."""
    weights = super().weights(batch)
    hidden, tokens = weights.pop("loss"), (batch["text_segment_ids"] > 0).sum()
    terms = (("loss", hidden, self.mlm_weight), ("soft_loss", hidden, self.soft_weight),
             ("cosine_loss", tokens, self.cosine_weight))
    return weights | {name: number / weight for name, number, weight in terms if weight}

  def __call__(self, model: nn.Module, params, batch: Batch, *, train: bool, rngs=None,
               teacher: Any = None) -> Sums:
    """Sums of `mlm`, and over masked tokens of `soft_loss`, over all of `cosine_loss`.

    Args:
      model, params, batch, train, rngs: as of any objective.
      teacher: the teacher's parameters; None leaves its terms out.
    """
    batch = even_slots(batch)
    hidden, logits, sums = self.sums(model, params, batch, train, rngs)
    if teacher is None:
      return sums
    taught_hidden, taught_logits = self.model.apply({"params": teacher}, batch, False,
                                                    method=hidden_and_scores)
    kl = soft_divergence(taught_logits, logits, self.temperature)
    sums |= weighted_sums((batch["mlm_labels"] >= 0).astype(jnp.float32), soft_loss=kl)
    if self.cosine_weight:
      if hidden.shape != taught_hidden.shape:
        raise ConfigError(f"objective.cosine_weight={self.cosine_weight}: the teacher is"
                          f" {taught_hidden.shape[-1]} wide and the model {hidden.shape[-1]}; give"
                          " them one width, or the term the weight 0")
      real = (batch["text_segment_ids"] > 0).astype(jnp.float32)
      sums |= weighted_sums(real, cosine_loss=cosine_distance(hidden, taught_hidden))
    return sums
