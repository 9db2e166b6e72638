"""Rules of what a decoder must write, or may not, whatever its model prefers."""

import dataclasses
from typing import Sequence

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class Rules:
  """Rules of a target, as `transformers` has them in a model's generation settings."""
  start: int | None = None  # the token before the first, of which n-grams may be; None is none
  forced_first: int | None = None  # token
  forced_last: int | None = None  # token, where a target is as long as there is room
  min_length: int = 0  # tokens before an end token
  no_repeat: int = 0  # n of the n-grams that a target has once; 0 is none
  bad_words: tuple[tuple[int, ...], ...] = ()  # sequences of tokens that are never written
  suppressed: tuple[int, ...] = ()  # tokens that are never written

  def __bool__(self) -> bool:
    return self != Rules(start=self.start)

  def allowed(self, scores: jax.Array, tokens: jax.Array, index: jax.Array,
              ends: Sequence[int]) -> jax.Array:
    """Scores of the next token, -inf where a rule forbids it and 0 where one demands it.

    Args:
      scores: [..., V], logits or log-probabilities.
      tokens: [..., T], of which `index` are written.
      index: int.
      ends: the tokens that end a target.
    """
    V, T = scores.shape[-1], tokens.shape[-1]
    written, known = tokens, index
    if self.start is not None:
      written = jnp.pad(tokens, [(0, 0)] * (tokens.ndim - 1) + [(1, 0)], constant_values=self.start)
      known = index + 1
    banned = jnp.zeros(scores.shape, bool)
    if self.no_repeat:
      banned |= repeated(written, known, self.no_repeat, V)
    for *before, last in self.bad_words:
      if not before and last in ends:
        continue  # then no target would end
      banned = banned.at[..., last].max(
          follows(written, known, before) & (known > len(before)) if before else True)
    banned = banned.at[..., jnp.array(ends)].max(index < self.min_length)
    scores = jnp.where(banned, -jnp.inf, scores)
    for token, place in ((self.forced_first, 0), (self.forced_last, T - 1)):
      if token is not None:
        only = jnp.where(jnp.arange(V) == token, 0.0, -jnp.inf)
        scores = jnp.where(index == place, only, scores)
    if self.suppressed:
      scores = scores.at[..., jnp.array(self.suppressed)].set(-jnp.inf)
    return scores


def repeated(written: jax.Array, known: jax.Array, n: int, size: int) -> jax.Array:
  """Tokens [..., size] that would make an n-gram of [..., T] a second time (Paulus et al. 2017)."""
  number = written.shape[-1] - n + 1  # of n-grams that there is room for
  if number < 1:
    return jnp.zeros((*written.shape[:-1], size), bool)
  last = jax.lax.dynamic_slice_in_dim(written, known - (n - 1), n - 1, -1)
  # Those whose last token is written, too.
  same = jnp.broadcast_to(jnp.arange(number) + n <= known, (*written.shape[:-1], number))
  for j in range(n - 1):
    same &= written[..., j:j + number] == last[..., j:j + 1]
  return (jax.nn.one_hot(written[..., n - 1:], size, dtype=bool) & same[..., None]).any(-2)


def follows(written: jax.Array, known: jax.Array, before: Sequence[int]) -> jax.Array:
  """Which of [..., T] end, of the tokens that are known, with these."""
  if len(before) > written.shape[-1]:
    return jnp.zeros(written.shape[:-1], bool)
  last = jax.lax.dynamic_slice_in_dim(written, known - len(before), len(before), -1)
  return (last == jnp.array(before)).all(-1)
