"""The contract of model families, by which objectives, evaluators and tools serve all of them."""

from typing import Callable, Mapping, Protocol

import jax

from jtx.errors import ConfigError
from jtx.nn.positions import Places
from jtx.nn.stack import StackConfig
from jtx.parallel.sharding import Batch


class Model(Protocol):
  """A Linen module that maps batches to hidden states, and its heads map these to outputs."""

  @property
  def stacks(self) -> Mapping[str, StackConfig]:
    """The stacks of layers by their name in the parameter tree."""

  @property
  def heads(self) -> frozenset[str]:
    """The heads that it has; objectives say which they need. Tasks are of `heads.TASKS`.

    "seq2seq" scores target tokens, "lm" next tokens, "mlm" masked tokens and "plm" tokens in any
    order; "generator" scores masked tokens, which "replaced" is to find; "mae" reconstructs masked
    patches, and "distilled" goes beside "classes" where a distillation token has its own scores.
    "projected" goes beside "embedding" where a linear map makes it.
    "image_text" compares vectors of images with those of texts.
    """

  @property
  def longest(self) -> int | None:
    """The most tokens that a text of its inputs may have; None is any number."""

  def example(self) -> Batch:
    """The smallest batch, as arrays of zeros."""

  def __call__(self, batch: Batch, train: bool = False) -> jax.Array:
    """Hidden states [B, T, D] of the last layer."""

  def attention_weights(self, batch: Batch) -> dict[str, jax.Array]:
    """Weights of all layers by the name of their stack, each [layers, B, N, T, S]."""


# The flags of tokens that masks of layers need, where the batch does not bring them.
FLAGS: dict[str, Callable[[Places], jax.Array]] = {
    "global": lambda places: places.positions == 0,  # the first token of each text, such as [CLS]
    "prefix": lambda places: places.types == 0,  # the first text of a pair
}


def flags_of(batch: Batch, field: str, stack: StackConfig, places: Places) -> dict[str, jax.Array]:
  """The flags of tokens, bool [B, T], that a stack's masks need: those of the batch, or `FLAGS`.

  Args:
    batch: with FIELD_NAME [B, T] for flags of its own.
    field: the name of the tokens.
    stack: whose layers need flags.
    places: of the tokens.

  Raises:
    ConfigError: a flag of token types, and the tokens have none.
  """
  flags = {}
  for name in stack.flags:
    if f"{field}_{name}" in batch:
      flags[name] = batch[f"{field}_{name}"].astype(bool)
    elif name == "prefix" and places.types is None:
      raise ConfigError(f"layers of kind 'prefix' need token types or {field}_prefix [B, T] in the"
                        " batch, and this model has neither")
    elif name in FLAGS:
      flags[name] = FLAGS[name](places)
  return flags
