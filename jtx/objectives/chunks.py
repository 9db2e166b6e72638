"""A loss over some tokens at a time, for vocabularies whose logits do not fit into memory."""

from typing import Callable

import jax
import jax.numpy as jnp


def chunked(sums: Callable, hidden: jax.Array, labels: jax.Array, weights: jax.Array, chunk: int):
  """`sums` over parts of the length T, so that every device keeps its rows of the batch.

  Each part is computed once: its gradient is taken while its logits are at hand.

  Args:
    sums: (hidden, labels, weights) to a loss and other sums; it may close over parameters.
    hidden: [B, T, D].
    labels: [B, T].
    weights: [B, T].
    chunk: about how many tokens are in a part.
  """
  B, T = labels.shape
  parts = min(T, -(-B * T // chunk))

  def split(x):
    x = jnp.pad(x, ((0, 0), (0, -T % parts), *((0, 0),) * (x.ndim - 2)))
    return jnp.moveaxis(x.reshape(B, parts, -1, *x.shape[2:]), 1, 0)

  args = jax.tree.map(split, (hidden, labels, weights))
  first = jax.tree.map(lambda x: x[0], args)
  # The head's parameters become arguments: their gradients are sums over the parts.
  sums, consts = jax.closure_convert(sums, *first)

  def forward(hidden, consts):
    return jax.tree.map(jnp.sum, jax.lax.map(lambda x: sums(*x, *consts), (hidden, *args[1:])))

  def forward_and_gradients(hidden, consts):
    def body(total, x):
      hidden, *rest = x
      loss = lambda hidden, consts: sums(hidden, *rest, *consts)
      out, grads = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(hidden, consts)
      return jax.tree.map(jnp.add, total, (out, grads[1])), grads[0]

    zeros = lambda x: jnp.zeros(x.shape, x.dtype)
    start = jax.tree.map(zeros, (jax.eval_shape(sums, *first, *consts), consts))
    (out, d_consts), d_hidden = jax.lax.scan(body, start, (hidden, *args[1:]))
    return out, (d_hidden, d_consts)

  def backward(gradients, cotangents):
    return jax.tree.map(lambda g: (g * cotangents[0]).astype(g.dtype), gradients)

  total = jax.custom_vjp(forward)
  total.defvjp(forward_and_gradients, backward)
  return total(args[0], consts)
