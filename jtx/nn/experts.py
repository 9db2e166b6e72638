"""Mixture of experts: feed-forward sub-layers of which each token takes a few."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.nn.activations import activate
from jtx.nn.grouped import grouped_product
from jtx.nn.layers import Dense, FeedForward, FfnConfig, kernel_init, param
from jtx.nn.mixture import ExpertsConfig
from jtx.parallel.sharding import spec, whole

SUMS = "sums"  # the collection of what layers tell of themselves in training
AXES = ("experts", "embed", "mlp")


class Experts(nn.Module):
  """The sum of a token's experts, by the weights that a router gives them."""
  config: FfnConfig  # of each expert, and of the mixture
  init_std: float | None = None
  out_init_std: float | None = None
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array, train: bool = False,
               segments: jax.Array | None = None) -> jax.Array:
    """[B, T, D] to [B, T, D].

    Args:
      x: the input.
      train: there is no dropout.
      segments: [B, T] int, 0 is padding, which losses do not count; None is none.
    """
    c, ffn = self.config.experts, self.config
    c.check(ffn)
    # In float32: rounding decides which experts a token takes.
    router = Dense((c.number,), ("embed", "routes"), use_bias=False, init_std=self.init_std,
                   name="router")
    scores = router(x.astype(jnp.float32))  # [B, T, E]
    best, chosen = jax.lax.top_k(scores, c.active)
    self.tell(scores, chosen, jnp.ones(x.shape[:2]) if segments is None else segments > 0)
    kernels = {name: self.kernel(name, x.shape[-1])
               for name in ("in", "out", *(("gate",) if ffn.gated else ()))}
    weights = jnp.exp(best - jax.nn.logsumexp(best if c.normalize else scores, -1, keepdims=True))
    y = on_mesh(ffn, x, weights, chosen, kernels)
    if c.shared:
      ffn = dataclasses.replace(ffn, dim=ffn.dim * c.shared, experts=ExpertsConfig())
      y += FeedForward(ffn, self.init_std, self.out_init_std, dtype=self.dtype,
                       name="shared")(x)
    return y

  def kernel(self, name: str, width: int) -> jax.Array:
    """[E, D, F], of the output [E, F, D]."""
    shape, axes = (self.config.experts.number, width, self.config.dim), AXES
    std = self.init_std
    if name == "out":
      shape, axes, std = (shape[0], *shape[:0:-1]), (axes[0], *axes[:0:-1]), self.out_init_std
    init = lambda key, shape, dtype: jax.vmap(lambda k: kernel_init(std, 1, 2)(
        k, shape[1:], dtype))(jax.random.split(key, shape[0]))
    return param(self, f"{name}_kernel", init, shape, axes).astype(self.dtype)

  def tell(self, scores: jax.Array, chosen: jax.Array, real: jax.Array) -> None:
    """Sows the losses of this layer and the load of each expert, 1 where all have the same."""
    c = self.config.experts
    weights = real.astype(jnp.float32)[..., None]
    mean = lambda values: (values * weights).sum((0, 1)) / jnp.maximum(weights.sum(), 1)
    load = mean(jax.nn.one_hot(chosen, c.number).sum(2)) * c.number / c.active  # [E]
    balance = (jax.lax.stop_gradient(load) * mean(jax.nn.softmax(scores))).sum()
    z = mean(jax.nn.logsumexp(scores, -1, keepdims=True) ** 2).sum()
    for name, value in dict(loss=c.balance * balance + c.z_loss * z, balance=balance, z=z,
                            load=load).items():
      self.sow(SUMS, name, jax.lax.stop_gradient(value) if name != "loss" else value)


def on_mesh(ffn: FfnConfig, x: jax.Array, weights: jax.Array, chosen: jax.Array,
            kernels: dict[str, jax.Array]) -> jax.Array:
  """`mixed`, with the experts and their tokens where the mesh has them.

  The axis `expert` splits experts, and rows of the batch for what is not of experts. Its devices
  show each other their tokens, and each adds up what its own experts make of them.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty or mesh.size == 1:
    return mixed(ffn, x, weights, chosen, kernels, 0)
  sizes = dict(mesh.shape)
  of_tokens = spec(("batch", "length", None), x.shape, sizes)
  names = {name: whole(AXES if name != "out" else (AXES[0], *AXES[:0:-1])) for name in kernels}
  specs = {name: spec(names[name], k.shape, sizes) for name, k in kernels.items()}
  split = specs["in"][0] is not None
  partial = tuple(a for a in ("tensor",) if specs["in"][2] is not None)
  exchange = split and of_tokens[0] is not None and "expert" in of_tokens[0]

  def local(x, weights, chosen, kernels):
    first = 0
    if split:
      first = jax.lax.axis_index("expert") * len(kernels["in"])
    if exchange:
      gather = lambda a: jax.lax.all_gather(a, "expert", tiled=True)
      x, weights, chosen = gather(x), gather(weights), gather(chosen)
    y = mixed(ffn, x, weights, chosen, kernels, first)
    if partial:
      y = jax.lax.psum(y, partial)
    if exchange:
      return jax.lax.psum_scatter(y, "expert", tiled=True)
    return jax.lax.psum(y, "expert") if split else y

  return jax.shard_map(local, in_specs=(of_tokens, of_tokens, of_tokens, specs),
                       out_specs=of_tokens, check_vma=False)(x, weights, chosen, kernels)


def mixed(ffn: FfnConfig, x: jax.Array, weights: jax.Array, chosen: jax.Array,
          kernels: dict[str, jax.Array], first: int | jax.Array) -> jax.Array:
  """The weighted sum of what experts make of their tokens.

  Args:
    ffn: the kind of each.
    x: [B, T, D].
    weights: [B, T, A] of a token's experts.
    chosen: [B, T, A] int, their numbers.
    kernels: "in", "out" and, if gated, "gate", each [E, ...], of some experts.
    first: the number of the first of these; others' share is left out.

  Returns:
    [B, T, D].
  """
  number, active = len(kernels["in"]), chosen.shape[-1]
  tokens = x.reshape(-1, x.shape[-1])
  expert = chosen.reshape(-1) - first
  expert = jnp.where((expert >= 0) & (expert < number), expert, number)  # the last is of others
  order = jnp.argsort(expert, stable=True)
  sizes = jnp.bincount(expert, length=number + 1)[:number].astype(jnp.int32)
  # Where each token's experts are in that order, and whose each row is.
  places, owners = jnp.argsort(order).reshape(-1, active), order // active
  rows = _rows_of(tokens, owners, places).astype(kernels["in"].dtype)
  hidden = grouped_product(rows, kernels["in"], sizes)
  if ffn.gated:
    hidden *= activate(ffn.activation, grouped_product(rows, kernels["gate"], sizes))
  else:
    hidden = activate(ffn.activation, hidden)
  # Before the product, whose result the gradient of the weights would need again.
  hidden *= weights.reshape(-1)[order][:, None].astype(hidden.dtype)
  made = grouped_product(hidden, kernels["out"], sizes)
  return _sums_of(made, owners, places).reshape(x.shape).astype(x.dtype)


@jax.custom_vjp
def _rows_of(tokens: jax.Array, owners: jax.Array, places: jax.Array) -> jax.Array:
  """Tokens [B T, D] to [M, D], each once for every one of its experts.

  The gradient is that of `_sums_of` and the other way around: neither puts rows into zeros.
  """
  return tokens[owners]


@jax.custom_vjp
def _sums_of(rows: jax.Array, owners: jax.Array, places: jax.Array) -> jax.Array:
  """Rows [M, D] to [B T, D], the sum of each token's, in float32."""
  return sum(rows[of_token].astype(jnp.float32) for of_token in places.T).astype(rows.dtype)


_rows_of.defvjp(lambda tokens, owners, places: (tokens[owners], (owners, places)),
                lambda kept, gradient: (_sums_of(gradient, *kept), None, None))
_sums_of.defvjp(lambda rows, owners, places: (_sums_of(rows, owners, places), (owners, places)),
                lambda kept, gradient: (_rows_of(gradient, *kept), None, None))
