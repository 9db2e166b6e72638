"""The head of detectors: a class and a box of every query."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.errors import ConfigError, nearest
from jtx.nn import layers
from jtx.ranges import Size

BOX_TASKS = ("none", "boxes")  # of `heads.TASKS`


@dataclasses.dataclass(frozen=True, kw_only=True)
class BoxHeadConfig:
  """The fields of a detector's head."""
  task: str = "boxes"  # or "none": hidden states of the queries alone
  outputs: Size | None = None  # classes C, "no object" not among them
  num_layers: Size = 3  # of the network that makes a box of a hidden state

  def __post_init__(self):
    if self.task not in BOX_TASKS:
      raise ConfigError(f"head.task={self.task!r}: {nearest(self.task, BOX_TASKS)}")
    if self.task == "none" and (self.outputs, self.num_layers) != (None, BoxHeadConfig.num_layers):
      raise ConfigError("head.outputs and head.num_layers go with head.task='boxes', not 'none'")


class BoxHead(nn.Module):
  """Scores of classes by one linear layer, boxes by several with ReLU between (DETR, section 3.2).

  The layers are the same for the hidden states of all of a decoder's layers.
  """
  config: BoxHeadConfig
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, hidden: jax.Array) -> dict[str, jax.Array]:
    """Hidden states [..., D] to `logits` [..., C + 1] and `boxes` [..., 4], float32.

    The last class is "no object". A box is its centre x, centre y, width and height, of 0 to 1.

    Raises:
      ConfigError: the number of classes is not known.
    """
    c = self.config
    if c.outputs is None:
      raise ConfigError("head.outputs must be set: head.task='boxes'")
    dense = lambda name, features, axis: layers.Dense(
        (features,), ("embed", axis), dtype=self.dtype, name=name)
    logits = dense("output", c.outputs + 1, "outputs")(hidden)
    x = hidden
    for i in range(c.num_layers - 1):
      x = jax.nn.relu(dense(f"box_{i}", hidden.shape[-1], "transform")(x))
    x = dense(f"box_{c.num_layers - 1}", 4, "outputs")(x)
    return {"logits": logits.astype(jnp.float32), "boxes": jax.nn.sigmoid(x.astype(jnp.float32))}
