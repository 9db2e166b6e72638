"""The numbers of a layer that the backward pass keeps, by names; the rest is computed again."""

import contextlib
import contextvars
import functools
from typing import Callable, Iterator

import jax
from jax.ad_checkpoint import checkpoint_name
import jax.numpy as jnp

from jtx.parallel.sharding import platform

NAMES = ("attention", "projected", "hidden", "residual", "statistics")
# Projections of a layer's input take less time again than a scan's copies of them do.
KEPT = tuple(name for name in NAMES if name != "projected")

REMAT: dict[str, Callable | None] = {
    "none": None,  # keep everything: no rematerialisation
    # Keep what a norm, an activation or attention starts from, in the compute type.
    "cheap": jax.checkpoint_policies.save_only_these_names(*KEPT),
    # And what attention is of, which a GPU takes longer to make again than to read.
    "projected": jax.checkpoint_policies.save_only_these_names(*NAMES),
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,  # keep products with weights
    "full": jax.checkpoint_policies.nothing_saveable,  # keep a layer's input only
}
_KEPT_AS = contextvars.ContextVar("kept_as", default=None)


def remat_of(remat: str) -> str:
  """The name in `REMAT` that a stack's field means: "auto" is that of the platform."""
  auto = {"cpu": "none", "gpu": "projected"}.get(platform(), "cheap")
  return auto if remat == "auto" else remat


def keep(x: jax.Array, name: str, in_rule: bool = False) -> jax.Array:
  """x, under a name of `NAMES` by which a rematerialised layer may keep it.

  "attention" is a fused kernel's output and sums, "projected" the queries, keys and values that go
  into one, "hidden" what an activation is of, "residual" a sub-layer's output and its input added
  up, of which the norms are, and "statistics" their means and deviations.

  Args:
    x: of any shape.
    name: of it.
    in_rule: x is of the forward rule of a `custom_vjp`, which nothing differentiates.
  """
  assert name in NAMES
  integer = _KEPT_AS.get()
  if integer is None or x.dtype.itemsize != 2 or name not in KEPT:
    return checkpoint_name(x, name)
  return (_as_bits if in_rule else _through_bits)(x, name, integer)


@contextlib.contextmanager
def kept_as(integer: jnp.dtype | None) -> Iterator[None]:
  """What is kept of 16-bit numbers in here is the same bits as `integer`; None leaves them.

  XLA leaves out the zeros that a loop's arrays begin as, since the loop overwrites all of them, if
  no other loop begins with equal ones. Those of an encoder and of a decoder are equal where shape
  and type are, and would be written for each array. With types of their own they are not.
  Measured on TPUs alone, and so for their policy, "cheap".
  """
  token = _KEPT_AS.set(integer)
  try:
    yield
  finally:
    _KEPT_AS.reset(token)


def _as_bits(x: jax.Array, name: str, integer: jnp.dtype) -> jax.Array:
  bits = jax.lax.bitcast_convert_type(_once(x), integer)
  return jax.lax.bitcast_convert_type(checkpoint_name(bits, name), x.dtype)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _through_bits(x, name, integer):
  return _as_bits(x, name, integer)


@_through_bits.defjvp
def _through_bits_jvp(name, integer, primals, tangents):
  # Not by _through_bits: `checkpoint` does not look for names in a function with rules of its own.
  return _as_bits(*primals, name, integer), *tangents


@jax.custom_jvp
def _once(x):
  """x, whose derivative would get lost in its bits."""
  return x


@_once.defjvp
def _once_jvp(primals, tangents):
  raise NotImplementedError("a second derivative of layers that keep their numbers as bits; give"
                            " their stack remat='none'")
