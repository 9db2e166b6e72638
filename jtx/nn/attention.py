"""Multi-head attention as a module: projections, position hooks, and `attend` between them.

Letters: B batch, T query, S key, N heads, K kv-heads, H head width, D model width.
"""

import dataclasses
from typing import Callable, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.errors import ConfigError, nearest
from jtx.nn import global_queries
from jtx.nn.aligned import like
from jtx.nn.attend import attend
from jtx.nn.cache import Projections, Slots
from jtx.nn.kept import keep
from jtx.nn.kernels.reference import SCORES
from jtx.nn.layers import Dense, NormConfig, param
from jtx.nn.masks import FULL, Mask, Rows
from jtx.nn.positions import Params, Places, Position, Project, Sizes, make_params
from jtx.parallel.sharding import constrain
from jtx.ranges import Positive, Rate, Size

PROJECTIONS = ("query", "key", "value", "out")
QK_NORMS = ("none", "head", "width")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionConfig:
  """The fields of attention. The defaults are those of Vaswani et al. 2017, base."""
  num_heads: Size = 8  # of queries
  num_kv_heads: Size | None = None  # None is num_heads
  head_dim: Size | None = None  # of queries and keys; None is width / num_heads
  v_head_dim: Size | None = None  # of values; None is head_dim
  biases: tuple[str, ...] = ()  # of `PROJECTIONS`, those that have one
  scale: Positive | None = None  # of the logits; None is (head_dim x position.products)^-0.5
  score: str = "dot"  # of `SCORES`
  soft_cap: Positive | None = None  # c makes logits c tanh(logits / c) (Gemma 2)
  # Queries and keys are normed: "head" in every head (Qwen 3), "width" over all heads (OLMo 2).
  qk_norm: str = "none"
  dropout: Rate = 0.0  # of the weights
  global_projections: bool = False  # of their own for tokens that are "global" (Longformer)
  kernel: str = "auto"  # of nn/kernels/choose.py; "auto" is the first that fits and pays

  def __post_init__(self):
    for name in self.biases:
      if name not in PROJECTIONS:
        raise ConfigError(f"attention.biases={self.biases}: {nearest(name, PROJECTIONS)}")
    if self.qk_norm not in QK_NORMS:
      raise ConfigError(f"attention.qk_norm={self.qk_norm!r}: {nearest(self.qk_norm, QK_NORMS)}")
    scaled = self.scale is not None or self.soft_cap is not None
    if scaled and self.score in SCORES and not SCORES[self.score].scaled:
      raise ConfigError("attention.scale and attention.soft_cap go with attention.score='dot'")

  def sizes(self, width: int) -> Sizes:
    """Raises ConfigError where the heads do not divide the width."""
    if self.head_dim is None and width % self.num_heads:
      raise ConfigError(f"num_heads={self.num_heads} does not divide width={width};"
                        " set head_dim")
    return Sizes(width, self.num_heads, self.head_dim or width // self.num_heads)

  @property
  def kv_heads(self) -> int:
    return self.num_kv_heads or self.num_heads


class LayerKind(NamedTuple):
  """A kind of layer: its mask, and whether it is local."""
  mask: Mask
  local: bool = False  # sees a window only, which some positions (`Rope.local_base`) ask for
  share: float = 1.0  # of the layers that are chosen from, those of this kind


ALL_PLACES = (LayerKind(FULL),)


class Attention(nn.Module):
  """Projects queries, keys and values, attends, and projects back to the model's width."""
  config: AttentionConfig
  norm: NormConfig = NormConfig()  # the kind of qk_norm
  init_std: float | None = None
  out_init_std: float | None = None  # of the output's kernel
  aligned: bool = False  # the kernel of keys begins as that of queries, scaled
  dtype: jnp.dtype = jnp.float32

  def dense(self, name: str, features, axes, num_in=1, std: float | None = None, init=None,
            prefix: str = "") -> Dense:
    std = std or (self.out_init_std if name == "out" else self.init_std)
    return Dense(features, axes, num_in, use_bias=name in self.config.biases, init_std=std,
                 kernel_init=init, dtype=self.dtype, name=prefix + name)

  @nn.compact
  def __call__(self, x: jax.Array, source: jax.Array, *, places: Places,
               source_places: Places | None = None, kinds: tuple[LayerKind, ...] = ALL_PLACES,
               kind: jax.Array | None = None, position: Position = Position(),
               params: Params = {}, rows: Rows = Rows(), projected: Projections | None = None,
               update: Callable[[Projections], Projections] | None = None,
               slots: Slots | None = None, train: bool = False, return_weights: bool = False):
    """Attends from x to source.

    Args:
      x: [B, T, D].
      source: [B, S, D], x itself for self-attention.
      places: of x.
      source_places: of the source; None is those of x.
      kinds: the kinds of layers in the stack.
      kind: scalar index into `kinds`; not needed where there is one.
      position: hooks applied to queries and keys.
      params: the position's, of the stack.
      rows: segments and the like.
      projected: keys and values computed before, instead of from `source`.
      update: puts new keys and values into a cache and returns the whole of it. Keys of fewer
        rows than x has are shared: B / B' consecutive rows of x attend to the same ones.
      slots: of that cache.
      train: dropout on.
      return_weights: also return the weights.

    Returns:
      [B, T, D], the keys and values attended to, and the weights [B, N, T, S] or None.
    """
    c, (B, T, D) = self.config, x.shape
    sizes = c.sizes(D)
    local = kinds[0].local if len(kinds) == 1 else jnp.array([k.local for k in kinds])[kind]
    in_order = T if source_places is None else source_places.in_order
    places = places.replace(local=local, in_order=0 if projected or update else in_order)
    key_places = (source_places or places).replace(local=local, causal=places.causal)
    params = {**params, **make_params(self, position.layer_tables(sizes), "position_")}
    q, projected, project = self.project(
        x, source, places, key_places, position=position, params=params, projected=projected)
    projected, k_index = projected if update is None else update(projected), None
    if slots is not None and slots.index is not None:
      k_index, key_places = slots.index, key_places.replace(positions=slots.index)
    k, v = projected

    hooks = dict(position=position, params=params, train=train, return_weights=return_weights)
    merged = lambda out: out
    if c.global_projections and "global" in rows.q_flags:
      merged, rows = global_queries.attended(self, x, places, rows, hooks)
    # Several hypotheses of one source: they are further queries to the same keys.
    folded = k.shape[0], B // k.shape[0] * T
    q = q.reshape(*folded, *q.shape[2:])
    if folded[0] != B:  # else positions of one row may be those of all
      places = places.replace(positions=places.positions.reshape(folded))
    # The parameters stay outside of the choice, so one scan serves all kinds of layers.
    masks, _, shares = zip(*kinds)
    out = merged(self.attended(
        q, projected, places, key_places, project=project, mask=masks, kind=kind, shares=shares,
        rows=rows, q_index=None if k_index is None else places.positions, k_index=k_index, **hooks))
    out, weights = out if return_weights else (out, None)
    out = self.dense("out", (D,), ("heads", "kv", "embed"), num_in=2)(
        out.reshape(B, T, c.num_heads, v.shape[-1]))
    return out, projected, weights

  def attended(self, q: jax.Array, projected: Projections, places: Places, key_places: Places, *,
               position: Position, params: Params, project: Project | None, train: bool,
               prefix: str = "", **options):
    """`attend` with the config's logits, the position's bias and dropout."""
    c, (k, v) = self.config, projected
    scale = (position.products * q.shape[-1])**-0.5 if c.scale is None else c.scale
    bias = position.bias(q, k, places, key_places, params=params, project=project, scale=scale)
    return attend(q, k, v, bias=bias, scale=scale, soft_cap=c.soft_cap, score=c.score,
                  dropout_rate=c.dropout, score_vector=self.score_vector(q.shape[-1], prefix),
                  kernel=c.kernel, **options,
                  dropout_key=self.make_rng("dropout") if train and c.dropout > 0 else None)

  def project(self, x: jax.Array, source: jax.Array, places: Places, key_places: Places, *,
              position: Position, params: Params, projected: Projections | None,
              prefix: str = ""):  # of the projections' names
    """Queries [B, T, N, H] of x; keys and values of the source, where `projected` has none."""
    c = self.config
    H = c.sizes(x.shape[-1]).head_dim
    # Logits begin as if `scale` were H^-0.5 (T5 has 1 and smaller queries).
    std = None if self.init_std is not None or c.scale is None else (
        (2 / (x.shape[-1] + c.num_heads * H))**0.5 * H**-0.5 / c.scale)
    query = self.dense("query", (c.num_heads, H), ("embed", "heads", "kv"), std=std, prefix=prefix)
    with_position = position.add(x, places, params)
    q = constrain(query(with_position), "batch", "length", "heads", "kv")
    q = keep(position.rotate(self.qk_norm(f"{prefix}query_norm", q), places, params), "projected")
    if projected is not None:
      return q, projected, None
    keys_from = with_position if source is x else position.add(source, key_places, params)
    axes = ("embed", "kv_heads", "kv")
    init = (lambda *args: like(query, self.init_std, *args)) if self.aligned else None
    key = self.dense("key", (c.kv_heads, H), axes, init=init, prefix=prefix)
    k = position.rotate(self.qk_norm(f"{prefix}key_norm", key(keys_from)), key_places, params)
    v = self.dense("value", (c.kv_heads, c.v_head_dim or H), axes, prefix=prefix)(source)
    k, v = (keep(constrain(x, "batch", "length", "kv_heads", "kv"), "projected") for x in (k, v))
    return q, Projections(k, v), Project(query, key)

  def score_vector(self, head_dim: int, prefix: str = "") -> jax.Array | None:
    """The parameter [N, H] of a score that has one."""
    c = self.config
    if c.score not in SCORES or not SCORES[c.score].vector:
      return None
    return param(self, f"{prefix}score", nn.initializers.normal(head_dim**-0.5),
                 (c.num_heads, head_dim), ("heads", "kv"))

  def qk_norm(self, name: str, x: jax.Array) -> jax.Array:
    """Queries or keys [B, T, N, H], normed where the config says so."""
    kind = self.config.qk_norm
    if kind == "none":
      return x
    norm = self.norm.make(name)
    return norm(x) if kind == "head" else norm(x.reshape(*x.shape[:2], -1)).reshape(x.shape)
