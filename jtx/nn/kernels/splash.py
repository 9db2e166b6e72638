"""Attention by JAX's splash kernel for TPU, which never holds the logits of all pairs in memory.

It skips blocks that a mask leaves out, so a window costs what it sees. Each device works on its own
rows, heads and queries.
"""

import math

import jax
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as structures
import jax.numpy as jnp

from jtx.nn import masks
from jtx.parallel.sharding import spec

LANES = 128  # blocks are multiples of it
BLOCK = 512  # the largest side of a block
KEPT = "attention"  # the name of what the way back needs beside queries, keys and values


def attend(q, k, v, *, mask, rows, scale, soft_cap=None, interpret=False):
  """Self-attention as `jtx.nn.attend` has it, of a mask that `masks.only_windows` allows.

  Args:
    q: [B, T, N, H].
    k: [B, T, K, H].
    v: [B, T, K, Hv].
    mask: of windows.
    rows: segments, or nothing.
    scale: of the logits; None is H^-0.5.
    soft_cap: c makes logits c tanh(logits / c); None is none.
    interpret: run the kernel's program as JAX operations, on any platform.

  Returns:
    [B, T, N, Hv].
  """
  B, T, N, H = q.shape
  length = -(-T // LANES) * LANES
  segments = rows.q_segments
  if segments is None and length > T:  # padding is told apart by them
    segments = jnp.ones((B, T), jnp.int32)
  pad = lambda x: jnp.pad(x, ((0, 0), (0, length - T), *((0, 0),) * (x.ndim - 2)))
  q = q * jnp.asarray(H**-0.5 if scale is None else scale, q.dtype)
  ids = None if segments is None else pad(segments)
  out = _on_mesh(pad(q), pad(k), pad(v), ids, structure(mask, length), soft_cap, interpret)[:, :T]
  # The kernel lets padding attend to padding.
  return out if segments is None else jnp.where((segments != 0)[:, :, None, None], out, 0)


def structure(mask: masks.Mask, length: int) -> structures.Mask:
  """A mask as the kernel has it, [length, length]."""
  shape = (length, length)
  everything = lambda side: side is None or side >= length - 1
  match mask:
    case masks.Window(left, right) if everything(left) and everything(right):
      return structures.FullMask(shape)
    case masks.Window(left, right):
      return structures.LocalMask(shape, (left, right), 0)
    case masks.And(a, b):
      return structures.LogicalAnd(structure(a, length), structure(b, length))
    case masks.Or(a, b):
      return structures.LogicalOr(structure(a, length), structure(b, length))
  raise TypeError(f"{mask} is not made of windows")


def _on_mesh(q, k, v, segments, mask, soft_cap, interpret):
  """[B, T, N, H] for queries [B, T, N, H], every device on its part of it."""
  B, T, N, _ = q.shape
  mesh = jax.sharding.get_abstract_mesh()
  sizes = {} if mesh.empty else dict(mesh.shape)
  parts = lambda x, *names: spec(names, x.shape, sizes) if sizes else jax.P()
  q_spec = parts(q, "batch", "length", "heads", None)
  kv_spec = parts(k, "batch", None, "kv_heads", None)
  ways = lambda part: math.prod(
      sizes[a] for a in ((part,) if isinstance(part, str) else part or ()))
  heads, queries = (ways(q_spec[2]), ways(q_spec[1])) if sizes else (1, 1)
  if sizes and q_spec[2] != kv_spec[2]:  # fewer key heads than devices: each gets those it needs
    k, v = (jnp.repeat(x, N // k.shape[2], 2) for x in (k, v))
    kv_spec = parts(k, "batch", None, "heads", None)
  if T // queries % LANES:
    queries, q_spec = 1, jax.P(q_spec[0], None, q_spec[2], None)
  shards, mask_spec = queries, q_spec[1]
  if isinstance(mask, structures.FullMask):  # the kernel can't split it, nor need it
    mask, shards, mask_spec = structures.FullMask((T // queries, T)), 1, None
  kernel = make_kernel(mask, heads=N, queries=T // queries, head_shards=heads, q_seq_shards=shards,
                       soft_cap=soft_cap, interpret=interpret)
  if mesh.empty or mesh.size == 1:
    return _attend(kernel, q, k, v, segments, segments)
  place = jax.NamedSharding(mesh, jax.P(q_spec[2], mask_spec))
  ids = (segments, segments)
  ids_spec = (jax.P(q_spec[0], q_spec[1]), jax.P(q_spec[0], None))
  if segments is None:
    ids_spec = (None, None)
  return jax.shard_map(
      _attend, in_specs=(kernel.manual_sharding_spec(place), q_spec, kv_spec, kv_spec, *ids_spec),
      out_specs=q_spec, check_vma=False)(kernel, q, k, v, *ids)


def make_kernel(mask, *, heads: int, queries: int, head_shards: int, q_seq_shards: int,
                soft_cap: float | None, interpret: bool) -> kernels.SplashAttentionKernel:
  """The kernel for a mask, with blocks that divide `queries` and the keys."""
  block = next(b for b in (BLOCK, BLOCK // 2, LANES) if queries % b == 0 and mask.shape[1] % b == 0)
  sizes = dict.fromkeys(("block_q", "block_kv", "block_kv_compute", "block_q_dkv", "block_kv_dkv",
                         "block_kv_dkv_compute", "block_q_dq", "block_kv_dq"), block)
  return kernels.make_splash_mha(
      structures.MultiHeadMask([mask] * heads), block_sizes=kernels.BlockSizes(**sizes),
      head_shards=head_shards, q_seq_shards=q_seq_shards, interpret=interpret,
      attn_logits_soft_cap=soft_cap, residual_checkpoint_name=KEPT)


def _attend(kernel, q, k, v, q_segments, k_segments):
  """One device's share: [B, T, N, H] and keys [B, S, K, H] to [B, T, N, H]."""
  heads_first = lambda x: x.swapaxes(1, 2)
  ids, axes = None, None
  if q_segments is not None:
    ids = kernels.SegmentIds(q_segments, k_segments)
    axes = kernels.SegmentIds(0, 0)
  run = jax.vmap(kernel, in_axes=(0, 0, 0, axes))
  return heads_first(run(heads_first(q), heads_first(k), heads_first(v), ids))
