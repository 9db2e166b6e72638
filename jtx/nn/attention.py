"""Attention for every head count, mask, scorer and kernel.

Letters: B batch, T query, S key, N heads, K kv-heads, G = N / K heads that share a
kv-head, H head width, D model width. K = N is multi-head attention (Vaswani et al. 2017),
K = 1 multi-query (Shazeer 2019), between them grouped-query (Ainslie et al. 2023).
"""

import functools
from typing import Callable, NamedTuple

from absl import logging
import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from jtx.errors import ConfigError, nearest
from jtx.nn import masks
from jtx.nn.dropout import dropout
from jtx.nn.layers import Dense, param
from jtx.nn.masks import Mask, Rows
from jtx.nn.positions import Position
from jtx.parallel.sharding import constrain, platform

KEPT = "attention"  # the name of what a kernel's way back needs beside queries, keys and values


class Request(NamedTuple):
  """The static part of a call to `attend`, by which kernels say what they support."""
  mask: Mask
  rows: bool  # prefix lengths, global tokens or pairs are given
  segments: bool
  bias: bool
  score: str
  dropout: bool
  weights: bool
  indexed: bool  # queries or keys are not the places of a row in order
  self_attention: bool  # queries and keys are the same places of the same rows
  length: int  # T


def attend(q: jax.Array, k: jax.Array, v: jax.Array, *,
           mask: Mask | tuple[Mask, ...] = masks.FULL, kind: jax.Array | None = None,
           rows: Rows = Rows(), bias: jax.Array | None = None,
           q_index: jax.Array | None = None, k_index: jax.Array | None = None,
           scale: float | None = None, score: str = "dot", score_vector: jax.Array | None = None,
           dropout_rate: float = 0.0, dropout_key: jax.Array | None = None, kernel: str = "auto",
           return_weights: bool = False):
  """softmax(score(Q, K) + bias) V over the pairs that the mask and the segments allow.

  A query with nothing to attend to returns zeros.

  Args:
    q: [B, T, N, H].
    k: [B, S, K, H], K dividing N.
    v: [B, S, K, Hv].
    mask: which row indices may attend to which; or several, of which `kind` says one.
    kind: scalar index into several masks; not needed where there is one.
    rows: segment ids, prefix lengths and global tokens.
    bias: added to the logits, [B or 1, N, T, S].
    q_index: [T], row indices of the queries; None is 0 to T - 1.
    k_index: [S], row indices of the keys; None is 0 to S - 1.
    scale: of dot-product logits; None is H^-0.5.
    score: "dot", or "additive": v^T tanh(q + k) with v = `score_vector` (Bahdanau et al. 2014).
    score_vector: [N, H], for additive scores.
    dropout_rate: of the weights, applied where `dropout_key` is given.
    dropout_key: a random key.
    kernel: a name in `KERNELS`, or "auto": the first that supports what is asked.
    return_weights: also return the weights (after dropout).

  Returns:
    [B, T, N, Hv], and [B, N, T, S] float32 where weights are asked for.

  Raises:
    ConfigError: a kernel was asked for by name that does not support the request, or the
      heads, `score` and `score_vector` do not fit together.
  """
  if q.shape[2] % k.shape[2]:
    raise ConfigError(f"num_kv_heads={k.shape[2]} does not divide num_heads={q.shape[2]}")
  if score not in ("dot", "additive"):
    raise ConfigError(f"score={score!r}: valid are 'dot' and 'additive'")
  if (score == "additive") != (score_vector is not None):
    raise ConfigError(
        f"score={score!r}: a score_vector goes with 'additive' scores, and only with them")
  several = mask if isinstance(mask, tuple) else (mask,)
  request = lambda mask: Request(
      mask=mask, rows=any(x is not None for x in rows[2:]), segments=rows.k_segments is not None,
      bias=bias is not None, score=score, dropout=dropout_key is not None and dropout_rate > 0,
      weights=return_weights, indexed=q_index is not None or k_index is not None,
      self_attention=q.shape[1] == k.shape[1] and rows.q_segments is rows.k_segments,
      length=q.shape[1])
  kernels = [choose(kernel, request(mask)) for mask in several]
  runs = [functools.partial(
      chosen.run, mask=mask, rows=rows, bias=bias, q_index=q_index, k_index=k_index, scale=scale,
      score_vector=score_vector, dropout_rate=dropout_rate, dropout_key=dropout_key,
      return_weights=return_weights) for chosen, mask in zip(kernels, several)]
  run = runs[0] if len(runs) == 1 else lambda q, k, v: jax.lax.switch(kind, runs, q, k, v)
  if all(chosen.names_kept for chosen in kernels):
    # A switch would keep what each of its branches makes of q, k and v.
    run = jax.checkpoint(run, policy=jax.checkpoint_policies.save_only_these_names(KEPT))
  return run(q, k, v)


def attend_xla(q, k, v, *, mask, rows, bias, q_index, k_index, scale, score_vector,
               dropout_rate, dropout_key, return_weights):
  """The reference, on every platform: logits and softmax in float32, mask materialised."""
  B, T, N, H = q.shape
  S, K = k.shape[1:3]
  q = q.reshape(B, T, K, N // K, H)
  if score_vector is None:
    logits = jnp.einsum("btkgh,bskh->bkgts", q, k, preferred_element_type=jnp.float32)
    logits *= H**-0.5 if scale is None else scale
  else:
    hidden = jnp.tanh(q[:, :, None] + k[:, None, :, :, None])  # [B, T, S, K, G, H]
    logits = jnp.einsum("btskgh,kgh->bkgts", hidden, score_vector.reshape(K, N // K, H),
                        preferred_element_type=jnp.float32)
  logits = logits.reshape(B, N, T, S)
  if bias is not None:
    logits += bias
  allowed = masks.materialize(mask, T, S, rows, q_index, k_index)
  weights = masked_softmax(logits, allowed)
  weights = dropout(weights, dropout_rate, dropout_key)
  # Heads first, then moved: asked for "btkgh", XLA on CPU takes ten times as long over few queries.
  out = jnp.einsum("bkgts,bskh->bkgth", weights.reshape(B, K, N // K, T, S).astype(v.dtype), v)
  out = jnp.moveaxis(out.reshape(B, N, T, v.shape[-1]), 1, 2)
  return (out, weights) if return_weights else out


def masked_softmax(logits: jax.Array, allowed: jax.Array | None) -> jax.Array:
  """Softmax over the last axis; zeros, with zero gradient, where nothing is allowed."""
  if allowed is None:
    return jax.nn.softmax(logits, -1)
  # A large number in place of infinity: its gradient is then zero, never 0 * inf.
  weights = jax.nn.softmax(jnp.where(allowed, logits, -1e30), -1)
  return jnp.where(allowed.any(-1, keepdims=True), weights, 0)


def attend_splash(*args, **kwargs):
  from jtx.nn import splash  # which imports Pallas
  return splash.attend_splash(*args, **kwargs)


class Kernel(NamedTuple):
  run: Callable
  platform: str | None  # None is every platform
  supports: Callable[[Request], bool]
  shortest: int = 0  # rows of fewer tokens are for another, unless it is asked for by name
  names_kept: bool = False  # names KEPT what it computes in blocks; all else is cheap to make again


# In order of preference.
KERNELS: dict[str, Kernel] = {
    "splash": Kernel(
        attend_splash, "tpu", lambda r: r.self_attention and masks.only_windows(r.mask) and not (
            r.rows or r.bias or r.dropout or r.weights or r.indexed or r.score != "dot"),
        shortest=512, names_kept=True),
    "xla": Kernel(attend_xla, None, lambda r: True),
}


def choose(name: str, request: Request) -> Kernel:
  """The kernel to run; the log says which, once for every mask."""
  here = platform()
  if name != "auto":
    if name not in KERNELS:
      raise ConfigError(f"kernel={name!r}: {nearest(name, ['auto', *KERNELS])}")
    kernel = KERNELS[name]
    if kernel.platform not in (None, here):
      raise ConfigError(f"kernel={name!r} is for {kernel.platform}, and this is {here}; use"
                        " kernel='auto'")
    if not kernel.supports(request):
      raise ConfigError(f"kernel={name!r} does not support {request}; use kernel='auto'")
  else:
    name = next(n for n, kernel in KERNELS.items()
                if kernel.platform in (None, here) and kernel.supports(request)
                and request.length >= kernel.shortest)
  announce(name, request.mask, request.segments)
  return KERNELS[name]


@functools.cache
def announce(kernel: str, mask: Mask, segments: bool) -> None:
  logging.info("attention kernel %s for mask %s%s", kernel, mask, ", segments" if segments else "")


# ------------------------------------------------------------------------------ module


@flax.struct.dataclass
class Context:
  """What every layer of a stack sees beside its input. All arrays are optional."""
  positions: jax.Array  # [B, T] int
  segments: jax.Array | None = None  # [B, T] int, 0 is padding
  prefix_length: jax.Array | None = None  # [B] int
  global_tokens: jax.Array | None = None  # [B, T] bool
  memory: jax.Array | None = None  # [B, S, D], the source of cross-attention
  memory_segments: jax.Array | None = None  # [B, S] int
  bias_table: jax.Array | None = None  # the parameter of `Position.bias`
  position_table: jax.Array | None = None  # that of `Position.embed`, where all layers add it
  index: jax.Array | None = None  # row index of x[:, 0] when decoding with a cache
  cache_index: jax.Array | None = None  # [S], row index of each place of the cache
  cache_pairs: jax.Array | None = None  # [B', T', S] bool, which places are a query's own past
  train: bool = flax.struct.field(pytree_node=False, default=False)  # dropout on
  return_weights: bool = flax.struct.field(pytree_node=False, default=False)
  keep_memory: bool = flax.struct.field(pytree_node=False, default=False)  # return memory's k, v
  return_hidden: bool = flax.struct.field(pytree_node=False, default=False)  # of every layer


class LayerKind(NamedTuple):
  """What the kinds of layers in a stack differ in."""
  mask: Mask
  local: bool = False  # sees a window only, which some positions (`Rope.local_base`) ask for


class Projections(NamedTuple):
  """Keys and values of all places of a row, or the cache that holds them."""
  key: jax.Array  # [B, S, K, H]
  value: jax.Array  # [B, S, K, Hv]


class Attention(nn.Module):
  """Projects queries, keys and values, attends, and projects back to the model's width."""
  num_heads: int
  num_kv_heads: int | None = None  # None is num_heads
  head_dim: int | None = None  # of queries and keys; None is width / num_heads
  v_head_dim: int | None = None  # of values; None is head_dim
  use_bias: bool = False
  dropout: float = 0.0  # of the weights
  score: str = "dot"
  kernel: str = "auto"
  init_std: float | None = None
  dtype: jnp.dtype = jnp.float32

  def dense(self, name: str, features, axes, num_in=1) -> Dense:
    return Dense(features, axes, num_in, self.use_bias, self.init_std, self.dtype, name=name)

  def widths(self, model_width: int) -> tuple[int, int]:
    """(H, Hv)."""
    head_dim = self.head_dim or model_width // self.num_heads
    if self.head_dim is None and model_width % self.num_heads:
      raise ConfigError(f"num_heads={self.num_heads} does not divide width={model_width};"
                        " set head_dim")
    return head_dim, self.v_head_dim or head_dim

  @nn.compact
  def __call__(self, x: jax.Array, source: jax.Array, ctx: Context, *,
               kinds: tuple[LayerKind, ...], kind: jax.Array | None, position: Position,
               causal: bool, rows: Rows,
               projected: Projections | None = None,
               update: Callable[[Projections], Projections] | None = None):
    """Attends from x to source.

    Args:
      x: [B, T, D].
      source: [B, S, D], x itself for self-attention.
      ctx: of the stack.
      kinds: the kinds of layers in the stack.
      kind: scalar index into `kinds`; not needed where there is one.
      position: hooks applied to queries and keys.
      causal: whether keys after the query are never seen, which T5's buckets depend on.
      rows: segments and the like.
      projected: keys and values computed before, instead of from `source`.
      update: puts new keys and values into a cache and returns the whole of it. Keys of fewer
        rows than x has are shared: B / B' consecutive rows of x attend to the same ones.

    Returns:
      [B, T, D], the keys and values attended to, and the weights [B, N, T, S] or None.
    """
    B, T, D = x.shape
    head_dim, v_head_dim = self.widths(D)
    kv_heads = self.num_kv_heads or self.num_heads
    q_positions = ctx.positions
    local = kinds[0].local if len(kinds) == 1 else jnp.array([k.local for k in kinds])[kind]
    with_position = position.add(x, q_positions)
    q = self.dense("query", (self.num_heads, head_dim), ("embed", "heads", "kv"))(with_position)
    q = constrain(q, "batch", "length", "heads", "kv")
    if projected is None:
      keys_from = with_position if source is x else source
      axes = ("embed", "kv_heads", "kv")
      k = self.dense("key", (kv_heads, head_dim), axes)(keys_from)
      v = self.dense("value", (kv_heads, v_head_dim), axes)(source)
      projected = Projections(position.rotate(k, q_positions, local), v)
    k_positions, q_index, k_index = q_positions, None, None
    q = position.rotate(q, q_positions, local)
    if update is not None:
      projected = update(projected)
      q_index = jnp.tile(ctx.index + jnp.arange(T), B // projected.key.shape[0])
      k_index, k_positions = ctx.cache_index, ctx.cache_index[None]
    k, v = projected

    # Several hypotheses of one source: they are further queries to the same keys.
    folded = k.shape[0], B // k.shape[0] * T
    q, q_positions = q.reshape(*folded, *q.shape[2:]), q_positions.reshape(folded)
    bias = position.bias(q, k, q_positions, k_positions, ctx.bias_table, causal)
    dropout_key = self.make_rng("dropout") if ctx.train and self.dropout > 0 else None
    vector = None
    if self.score == "additive":
      vector = param(self, "score", nn.initializers.normal(head_dim**-0.5),
                     (self.num_heads, head_dim), ("heads", "kv"))
    # The parameters stay outside of the choice, so one scan serves all kinds of layers.
    out = attend(q, k, v, mask=tuple(layer.mask for layer in kinds), kind=kind, rows=rows,
                 bias=bias, q_index=q_index, k_index=k_index, score=self.score,
                 score_vector=vector, dropout_rate=self.dropout, dropout_key=dropout_key,
                 kernel=self.kernel, return_weights=ctx.return_weights)
    out, weights = out if ctx.return_weights else (out, None)
    out = out.reshape(B, T, self.num_heads, v_head_dim)
    out = self.dense("out", (D,), ("heads", "kv", "embed"), num_in=2)(out)
    return out, projected, weights
