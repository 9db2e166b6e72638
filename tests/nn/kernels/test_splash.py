"""The splash kernel's program against the reference, forward and gradient, on any mesh."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.errors import ConfigError
from jtx.nn.kernels import choose as kernels_of
from jtx.nn import masks
from jtx.nn.attend import attend
from jtx.nn.kernels import splash
from jtx.nn.masks import CAUSAL, FULL, Rows, window
from jtx.parallel import sharding
from tests.helpers import one_fast

B, T, N, H = 4, 300, 4, 16
BOTH = window(40, 40) & masks.Window(right=3) | window(5, 5)
MASKS = {"full": FULL, "causal": CAUSAL, "window": window(20, 10), "joined": BOTH}


def segments(length=T):
  ids = np.sort(np.random.default_rng(1).integers(1, 4, (B, length)), 1)
  ids[0, length - 50:] = 0  # padding
  return jnp.asarray(ids)


def check(mask, ids, kv_heads, mesh, length=T, **options):
  random = np.random.default_rng(0)
  q, g = (random.normal(size=(B, length, N, H)).astype(np.float32) for _ in range(2))
  k, v = (random.normal(size=(B, length, kv_heads, H)).astype(np.float32) for _ in range(2))

  def run(fn):
    attention = lambda *qkv: fn(*qkv, mask=mask, rows=Rows(ids, ids), **options)
    out, way_back = jax.vjp(attention, q, k, v)
    alone = attention(q, k, v) if mesh.size == 1 else out  # without what the way back needs
    return alone, out, *way_back(g)

  ours = lambda *args, **kwargs: splash.attend(*args, **{"scale": None, **kwargs}, interpret=True)
  with jax.set_mesh(mesh):
    found = jax.device_get(jax.jit(lambda: run(ours))())
  for a, b in zip(found, jax.jit(lambda: run(attend))()):
    assert np.abs(a - b).max() < 1e-5 * np.abs(b).max()


# One mask with all numbers of heads, and each with one; the two do not meet in the kernel.
@pytest.mark.parametrize("case", one_fast(
    ("window", True, 2), ("window", False, 4), ("window", False, 2), ("window", False, 1),
    ("full", True, 2), ("causal", True, 1), ("joined", True, 4)))
def test_reference(case):
  name, packed, kv_heads = case
  check(MASKS[name], segments() if packed else None, kv_heads,
        sharding.make_mesh(dict.fromkeys(sharding.AXES, 1), jax.devices()[:1]))


def test_scale_and_soft_cap():
  mesh = sharding.make_mesh(dict.fromkeys(sharding.AXES, 1), jax.devices()[:1])
  check(CAUSAL, segments(), 2, mesh, scale=1.5, soft_cap=2.0)


# Every mask with its rows split, and every other split with a mask.
@pytest.mark.parametrize("case", one_fast(
    ("window", 2, (2, 1, 2, 2)),
    *((name, 2, (2, 1, 2, 2)) for name in ("full", "wide", "causal")),
    ("causal", 4, (1, 1, 2, 4)), ("window", 4, (1, 1, 2, 4)),
    ("full", 1, (1, 2, 4, 1)),  # fewer key heads than devices
    ("causal", 2, (1, 2, 4, 1))))
def test_every_device_on_its_part(case):
  name, kv_heads, sizes = case
  mask = {**MASKS, "wide": window(600, 600)}[name]
  mesh = sharding.make_mesh(dict(zip(sharding.AXES, sizes)))
  check(mask, segments(512), kv_heads, mesh, 512)


def test_what_is_gathered_and_what_a_switch_makes_is_not_kept(monkeypatch):
  """The way back has a device's part of q, k, v and the output, and the sums of the softmax."""
  there = kernels_of.KERNELS["splash"]
  run = functools.partial(splash.attend, interpret=True)
  monkeypatch.setitem(kernels_of.KERNELS, "splash", there._replace(run=run, platform=None))
  mesh = sharding.make_mesh(dict(zip(sharding.AXES, (1, 1, 1, 8))))
  place = jax.NamedSharding(mesh, jax.P(None, "context"))
  q, k, v = (jax.device_put(jnp.ones((1, 1024, 2, 64)), place) for _ in range(3))

  run = functools.partial(attend, mask=(FULL, window(20, 10)), kernel="splash")
  way_back = lambda kind, *qkv: jax.vjp(lambda *qkv: run(*qkv, kind=kind), *qkv)[1]
  with jax.set_mesh(mesh):
    arrays = jax.tree.leaves(jax.jit(way_back)(jnp.int32(1), q, k, v))
  part = q.nbytes / 8
  assert 4 * part < sum(x.addressable_shards[0].data.nbytes for x in arrays) < 4.2 * part


def test_where_it_is_not_for():
  q = jnp.ones((1, 4, 2, 8))
  with pytest.raises(ConfigError, match="kernel='splash' is for tpu, and this is cpu"):
    attend(q, q, q, kernel="splash")
