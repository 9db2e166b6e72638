"""Dense, embedding, norms, activations and the feed-forward sub-layer.

Every parameter is created at its true rank with logical axis names (see `jtx.parallel.sharding`),
held in float32 and cast to the compute dtype where it is used.
"""

from typing import Callable, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.errors import ConfigError, nearest
from jtx.nn.dropout import Dropout
from jtx.parallel.sharding import constrain, platform

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "gelu_sigmoid": lambda x: x * jax.nn.sigmoid(1.702 * x),
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
}


def activate(name: str, x: jax.Array) -> jax.Array:
  if name not in ACTIVATIONS:
    raise ConfigError(f"activation={name!r}: {nearest(name, ACTIVATIONS)}")
  return ACTIVATIONS[name](x)


def param(module: nn.Module, name: str, init: Callable[..., jax.Array], shape: Sequence[int],
          axes: Sequence[str]) -> jax.Array:
  """A float32 parameter of `module` with logical axis names."""
  init = nn.with_logical_partitioning(init, tuple(axes))
  return module.param(name, init, tuple(shape), jnp.float32)


class Dense(nn.Module):
  """Contracts the last `num_in` axes of x with a kernel of the same leading axes.

  The kernel has its input axes first and its output axes last, e.g. [D, N, H] for queries
  and [N, H, D] for the attention output.
  """
  features: tuple[int, ...]
  axes: tuple[str, ...]  # logical names of the kernel, input axes first
  num_in: int = 1
  use_bias: bool = True
  init_std: float | None = None  # None is Glorot uniform
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:  # [..., *inputs] -> [..., *features]
    inputs = x.shape[-self.num_in:]
    kernel = param(self, "kernel", kernel_init(self.init_std, self.num_in, len(self.axes)),
                   (*inputs, *self.features), self.axes).astype(self.dtype)
    contract = tuple(range(x.ndim - self.num_in, x.ndim)), tuple(range(self.num_in))
    y = jax.lax.dot_general(x.astype(self.dtype), kernel, (contract, ((), ())))
    if self.use_bias:
      y += param(self, "bias", nn.initializers.zeros, self.features,
                 self.axes[self.num_in:]).astype(self.dtype)
    return y


def kernel_init(std: float | None, num_in: int, rank: int) -> Callable[..., jax.Array]:
  """Glorot uniform over the true fan-in and fan-out, or a normal of this standard deviation."""
  if std is None:
    return nn.initializers.variance_scaling(1.0, "fan_avg", "uniform", in_axis=tuple(range(num_in)),
                                            out_axis=tuple(range(num_in, rank)))
  return nn.initializers.normal(std)


class Embed(nn.Module):
  """A token embedding [V, D]; `attend` multiplies by its transpose (tied output weights)."""
  num_embeddings: int
  width: int
  init_std: float
  dtype: jnp.dtype = jnp.float32

  def setup(self):
    self.embedding = param(self, "embedding", nn.initializers.normal(self.init_std),
                           (self.num_embeddings, self.width), ("vocab", "embed"))

  def __call__(self, tokens: jax.Array) -> jax.Array:
    """[B, T] -> [B, T, D].

    Devices among which D is split look their part of it up for all their tokens, and then exchange
    parts for rows: less is sent than if each had the whole table, and in the gradient no sum of
    whole tables is.
    """
    tokens = constrain(tokens, "lookups", None)
    x = jnp.take(self.embedding, tokens, axis=0).astype(self.dtype)
    return constrain(constrain(x, "lookups", None, "embed"), "batch", "length", None)

  def attend(self, x: jax.Array) -> jax.Array:  # [..., D] -> [..., V]
    return jnp.einsum("...d,vd->...v", x.astype(self.dtype), self.embedding.astype(self.dtype))


class LayerNorm(nn.Module):
  """gamma (x - mu) / sqrt(var + eps) + beta over the last axis (Ba et al. 2016), in float32."""
  epsilon: float = 1e-6
  use_bias: bool = True

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    y = x.astype(jnp.float32)
    y -= y.mean(-1, keepdims=True)
    y *= jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + self.epsilon)
    y *= param(self, "scale", nn.initializers.ones, x.shape[-1:], ("norm",))
    if self.use_bias:
      y += param(self, "bias", nn.initializers.zeros, x.shape[-1:], ("norm",))
    return y.astype(x.dtype)


class RMSNorm(nn.Module):
  """gamma x / sqrt(mean(x^2) + eps) over the last axis (Zhang and Sennrich 2019), in float32."""
  epsilon: float = 1e-6

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    y = x.astype(jnp.float32)
    y *= jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + self.epsilon)
    y *= param(self, "scale", nn.initializers.ones, x.shape[-1:], ("norm",))
    return y.astype(x.dtype)


def norm(kind: str, epsilon: float, use_bias: bool, name: str) -> nn.Module:
  """The norm called `kind`; RMSNorm has no bias in any paper, so `use_bias` is LayerNorm's."""
  if kind == "layernorm":
    return LayerNorm(epsilon, use_bias, name=name)
  if kind == "rmsnorm":
    return RMSNorm(epsilon, name=name)
  raise ConfigError(f"norm={kind!r}: valid are 'layernorm' and 'rmsnorm'")


class FeedForward(nn.Module):
  """activation(x W1) W2, or gated: (activation(x Wg) * (x W1)) W2 (Shazeer 2020)."""
  hidden: int
  activation: str
  gated: bool = False
  use_bias: bool = True
  dropout: float = 0.0  # on the hidden activations
  init_std: float | None = None
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:  # [B, T, D] -> [B, T, D]
    dense = lambda name: Dense((self.hidden,), ("embed", "mlp"), use_bias=self.use_bias,
                               init_std=self.init_std, dtype=self.dtype, name=name)
    if self.gated:
      h = activate(self.activation, dense("gate")(x)) * dense("in")(x)
    else:
      h = activate(self.activation, dense("in")(x))
    h = Dropout(self.dropout)(h, train)
    return Dense((x.shape[-1],), ("mlp", "embed"), use_bias=self.use_bias, init_std=self.init_std,
                 dtype=self.dtype, name="out")(h)


def compute_dtype(name: str) -> jnp.dtype:
  """The dtype of activations; "auto" is bfloat16 on accelerators and float32 on CPU."""
  if name == "auto":
    return jnp.dtype(jnp.float32 if platform() == "cpu" else jnp.bfloat16)
  if name not in ("float32", "bfloat16"):
    raise ConfigError(f"dtype={name!r}: valid are 'auto', 'float32' and 'bfloat16'")
  return jnp.dtype(name)
