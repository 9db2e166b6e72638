"""Dense, embedding, norms, activations and the feed-forward sub-layer.

Every parameter is created at its true rank with logical axis names (see `jtx.parallel.sharding`),
held in float32 and cast to the compute dtype where it is used.
"""

import dataclasses
import functools
from typing import Callable, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.errors import ConfigError
from jtx.nn import shapes
from jtx.nn.activations import activate
from jtx.nn.dropout import Dropout
from jtx.nn.kept import keep
from jtx.nn.mixture import ExpertsConfig
from jtx.nn.numerics import MATRIX, left_product, normalized, product
from jtx.parallel.sharding import constrain, platform, with_whole
from jtx.ranges import Positive, Rate, Size


def param(module: nn.Module, name: str, init: Callable[..., jax.Array], shape: Sequence[int],
          axes: Sequence[str]) -> jax.Array:
  """A float32 parameter of `module` with logical axis names."""
  if shapes.alone() or module.has_variable("params", name):
    init = nn.initializers.zeros  # what Flax compares with the shape of a parameter that is there
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
  kernel_init: Callable[..., jax.Array] | None = None  # None is that of `init_std`

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:  # [..., *inputs] -> [..., *features]
    inputs = x.shape[-self.num_in:]
    init = self.kernel_init or kernel_init(self.init_std, self.num_in, len(self.axes))
    kernel = param(self, "kernel", init, (*inputs, *self.features), self.axes).astype(self.dtype)
    bias = None if not self.use_bias else param(
        self, "bias", nn.initializers.zeros, self.features,
        self.axes[self.num_in:]).astype(self.dtype)
    return product(x.astype(self.dtype), kernel, bias, self.num_in, axes=self.axes,
                   matrix=self.get_variable("params", MATRIX))


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
    x = jnp.take(self.embedding, constrain(tokens, "lookups", None), axis=0).astype(self.dtype)
    # One mesh axis at a time, since of two at once XLA gathers all: the last sends nothing.
    x = constrain(constrain(x, "lookups", None, "embed"), "lookups", "length", "embed")
    return constrain(constrain(x, "batch", "length", None), "batch", "residual", None)

  def attend(self, x: jax.Array) -> jax.Array:  # [..., D] -> [..., V]
    x, embedding = x.astype(self.dtype), self.embedding.astype(self.dtype)
    if self.has_variable("params", MATRIX):
      return left_product(x, embedding)
    return with_whole(functools.partial(jnp.einsum, "...d,vd->...v"), x, embedding,
                      ("vocab", "embed"))


class LayerNorm(nn.Module):
  """gamma (x - mu) / sqrt(var + eps) + beta over the last axis (Ba et al. 2016), in float32."""
  epsilon: float = 1e-6
  use_bias: bool = True

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    scale = param(self, "scale", nn.initializers.ones, x.shape[-1:], ("norm",))
    y = normalized(x, scale, self.epsilon, True)
    if self.use_bias:
      y += param(self, "bias", nn.initializers.zeros, x.shape[-1:], ("norm",))
    return y.astype(x.dtype)


class RMSNorm(nn.Module):
  """gamma x / sqrt(mean(x^2) + eps) over the last axis (Zhang and Sennrich 2019), in float32.

  With `unit_offset` the parameter is gamma - 1 (Gemma), so weight decay pulls gamma to 1.
  """
  epsilon: float = 1e-6
  unit_offset: bool = False

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    init = nn.initializers.zeros if self.unit_offset else nn.initializers.ones
    scale = param(self, "scale", init, x.shape[-1:], ("norm",))
    scale = scale + 1 if self.unit_offset else scale
    return normalized(x, scale, self.epsilon, False).astype(x.dtype)


# Around a sub-layer f: norm(x + f(x)); x + f(norm(x)); x + norm(f(norm(x))) (Gemma 2);
# x + norm(f(x)) (OLMo 2).
NORM_POSITIONS = ("post", "pre", "sandwich", "output")


@dataclasses.dataclass(frozen=True, kw_only=True)
class NormConfig:
  """The fields of a norm, and where a layer has it (Xiong et al. 2020)."""
  kind: str = "layernorm"  # or "rmsnorm", which has no bias in any paper
  position: str = "post"  # of `NORM_POSITIONS`
  eps: Positive = 1e-6  # added to the variance, in RMSNorm to the mean square
  bias: bool = True  # of LayerNorm
  unit_offset: bool = False  # of RMSNorm: its parameter is what is added to 1 (Gemma)
  attention: bool = True  # False: the attention of the first "pre" layer takes x as it is

  def __post_init__(self):
    if self.kind not in ("layernorm", "rmsnorm"):
      raise ConfigError(f"norm.kind={self.kind!r}: valid are 'layernorm' and 'rmsnorm'")
    if self.position not in NORM_POSITIONS:
      raise ConfigError(f"norm.position={self.position!r}: valid are {', '.join(NORM_POSITIONS)}")
    if not self.attention and self.position != "pre":
      raise ConfigError(f"norm.attention=False goes with norm.position='pre', not"
                        f" {self.position!r}")
    if self.kind == "rmsnorm" and not self.bias:
      raise ConfigError("norm.bias=False goes with norm.kind='layernorm'; an rmsnorm has none")
    if self.kind == "layernorm" and self.unit_offset:
      raise ConfigError("norm.unit_offset=True goes with norm.kind='rmsnorm'")

  def make(self, name: str | None) -> nn.Module:
    if self.kind == "layernorm":
      return LayerNorm(self.eps, self.bias, name=name)
    return RMSNorm(self.eps, self.unit_offset, name=name)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FfnConfig:
  """The fields of a feed-forward sub-layer."""
  dim: Size = 2048  # hidden width
  activation: str = "relu"  # of jtx/nn/activations.py
  gated: bool = False  # (activation(x Wg) * (x W1)) W2 (Shazeer 2020)
  bias: bool = True  # of all its products
  dropout: Rate = 0.0  # on the hidden activations
  experts: ExpertsConfig = ExpertsConfig()  # a mixture of them in its place


class FeedForward(nn.Module):
  """activation(x W1) W2, or gated: (activation(x Wg) * (x W1)) W2 (Shazeer 2020)."""
  config: FfnConfig
  init_std: float | None = None
  out_init_std: float | None = None  # of the output's kernel
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array, train: bool = False, _=None) -> jax.Array:  # of x's shape
    c = self.config
    dense = lambda name, features, axes, std: Dense(
        (features,), axes, use_bias=c.bias, init_std=std, dtype=self.dtype, name=name)
    hidden = lambda name: keep(dense(name, c.dim, ("embed", "mlp"), self.init_std)(x), "hidden")
    h = activate(c.activation, hidden("gate")) * hidden("in") if c.gated else (
        activate(c.activation, hidden("in")))
    h = Dropout(c.dropout)(h, train)
    return dense("out", x.shape[-1], ("mlp", "embed"), self.out_init_std)(h)


def compute_dtype(name: str) -> jnp.dtype:
  """The dtype of activations; "auto" is bfloat16 on accelerators and float32 on CPU."""
  if name == "auto":
    return jnp.dtype(jnp.float32 if platform() == "cpu" else jnp.bfloat16)
  if name not in ("float32", "bfloat16"):
    raise ConfigError(f"dtype={name!r}: valid are 'auto', 'float32' and 'bfloat16'")
  return jnp.dtype(name)
