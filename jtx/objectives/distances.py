"""How far a student is from its teacher: of scores, hidden states, attention and relations.

Arrays of both are compared along the last axis; all are computed in float32. Of the teacher no
gradient is wanted, and its parameters are not trained.
"""

import jax
import jax.numpy as jnp

from jtx.errors import ConfigError


def soft_divergence(taught: jax.Array, ours: jax.Array, temperature: float) -> jax.Array:
  """KL(teacher || student) of the softmax of scores / T, times T^2 (Hinton et al. 2015, section 2).

  The factor keeps the size of the gradient.

  Args:
    taught: scores [..., C] of the teacher.
    ours: of the student.
    temperature: T.

  Returns:
    [...], in nats.
  """
  log_p, log_q = (jax.nn.log_softmax(x / temperature) for x in (taught, ours))
  return temperature**2 * jnp.sum(jnp.exp(log_p) * (log_p - log_q), -1)


def label_divergence(taught: jax.Array, ours: jax.Array, temperature: float) -> jax.Array:
  """The same of labels that do not exclude one another, by their sigmoids: the mean over labels."""
  total = 0.0
  for sign in (1, -1):  # the label is there, and it is not
    log_p, log_q = (jax.nn.log_sigmoid(sign * x / temperature) for x in (taught, ours))
    total += jnp.exp(log_p) * (log_p - log_q)
  return temperature**2 * total.mean(-1)


def cosine_distance(a: jax.Array, b: jax.Array) -> jax.Array:
  """1 - the cosine of vectors [..., D] (Sanh et al. 2019, section 3): [...]."""
  a, b = (x.astype(jnp.float32) for x in (a, b))
  norms = jnp.linalg.norm(a, axis=-1) * jnp.linalg.norm(b, axis=-1)
  return 1 - jnp.sum(a * b, -1) / jnp.maximum(norms, 1e-8)


def squared_distance(a: jax.Array, b: jax.Array) -> jax.Array:
  """The mean square of the difference of vectors [..., D] (TinyBERT, equation 8): [...]."""
  return jnp.square(a.astype(jnp.float32) - b.astype(jnp.float32)).mean(-1)


def pairs_squared(taught: jax.Array, ours: jax.Array, allowed: jax.Array) -> jax.Array:
  """The mean square of the difference over the pairs that are allowed; 0 where none is.

  Args:
    taught: logits [..., T, S].
    ours: likewise.
    allowed: bool that broadcasts to them.

  Returns:
    [..., T].
  """
  allowed = jnp.broadcast_to(allowed, ours.shape)
  square = jnp.where(allowed, jnp.square(ours - taught), 0.0)
  return square.sum(-1) / jnp.maximum(allowed.sum(-1), 1)


def pairs_divergence(taught: jax.Array, ours: jax.Array, allowed: jax.Array) -> jax.Array:
  """KL(teacher || student) of the softmax over the pairs that are allowed; 0 where none is.

  Arguments and result are those of `pairs_squared` (MiniLM; Wang et al. 2020, equation 6).
  """
  # A large number in place of infinity: its gradient is then zero, never 0 * inf.
  log_p, log_q = (jax.nn.log_softmax(jnp.where(allowed, x, -1e30)) for x in (taught, ours))
  return jnp.sum(jnp.where(allowed, jnp.exp(log_p) * (log_p - log_q), 0.0), -1)


def relation_logits(a: jax.Array, b: jax.Array, heads: int, what: str) -> jax.Array:
  """Scaled products of all tokens' vectors, of any number of heads (MiniLMv2, section 3.1).

  The vectors of all heads are joined and split again into relation heads.

  Args:
    a: queries, keys or values [B, T, N, H].
    b: likewise [B, S, K, H'].
    heads: R, the relation heads.
    what: the term, for errors.

  Returns:
    a . b / sqrt(width of a relation head), float32 [B, R, T, S].

  Raises:
    ConfigError: the widths differ, or R does not divide them.
  """
  most = max(a.shape[2], b.shape[2])  # fewer heads of keys and values are those of several queries
  a, b = (jnp.repeat(x, most // x.shape[2], 2) for x in (a, b))
  widths = [x.shape[2] * x.shape[3] for x in (a, b)]
  if widths[0] != widths[1] or widths[0] % heads:
    raise ConfigError(f"{what}.heads={heads} relation heads need vectors of one width that they"
                      f" divide, not {' and '.join(map(str, dict.fromkeys(widths)))}")
  a, b = (x.reshape(*x.shape[:2], heads, -1).astype(jnp.float32) for x in (a, b))
  return jnp.einsum("btrh,bsrh->brts", a, b) * a.shape[-1]**-0.5
