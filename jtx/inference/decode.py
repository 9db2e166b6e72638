"""Greedy search, sampling and beam search: one jitted loop each over a model's cache.

A decoder gives `logits [B, V]` for the first token and a state; `step(tokens [R], state,
index)` gives logits [R, V] after the tokens at place `index`, and the new state. R is B
times the hypotheses of each row, which stand next to each other; `state.reorder(rows [R])`
makes hypothesis i continue the one that stood at rows[i], `state.grow(length)` makes room
for that many tokens, and `state.take(sources [b])` keeps the hypotheses of some rows only.

A step costs as much attention as there is room, so the room starts small and grows as
`cache_lengths` says. And it costs as much as there are rows, done or not: when all but a
quarter are done, the search goes on with that quarter.
"""

import dataclasses
from typing import Annotated, Any, Callable, NamedTuple

import jax
import jax.numpy as jnp

from jtx.errors import ConfigError, nearest
from jtx.ranges import CountOrNone, Positive, Seed, SomeShare, Within

Step = Callable[[jax.Array, Any, jax.Array], tuple[jax.Array, Any]]


FIRST_LENGTH = 16
LEAST_ROWS = 4  # fewer cost as much


def cache_lengths(max_length: int) -> list[int]:
  """The room for tokens as a search goes on: doubled until it holds `max_length`."""
  lengths = [min(FIRST_LENGTH, max_length)]
  while lengths[-1] < max_length:
    lengths.append(min(2 * lengths[-1], max_length))
  return lengths


def _loop(advance: Callable, done: Callable, carry: Any, lengths: list[int]) -> Any:
  """Advances a carry until all of its rows are done, or to the last of `lengths`.

  Args:
    advance: carry -> carry, one token on.
    done: carry -> [B] bool. What is done stays so, and its result does not change any more.
    carry: a named tuple with `index`, `state` and arrays [B, ...].
    lengths: the rooms to go through.
  """
  few = len(done(carry)) // 4
  few = few if few >= LEAST_ROWS else 0
  for length in lengths:
    carry = carry._replace(state=carry.state.grow(length))
    # A step writes the place after its index, so the last place is left to the next length.
    end = length if length == lengths[-1] else length - 1
    carry = jax.lax.while_loop(
        lambda c, end=end: (c.index < end) & ((~done(c)).sum() > few), advance, carry)
  if not few:
    return carry
  rows = jnp.argsort(done(carry))[:few]  # what is not done comes first
  arrays = {k: x for k, x in carry._asdict().items() if k not in ("index", "state")}
  part = carry._replace(state=carry.state.take(rows), **{k: x[rows] for k, x in arrays.items()})
  part = _loop(advance, done, part, lengths[-1:])
  return carry._replace(**{k: x.at[rows].set(getattr(part, k)) for k, x in arrays.items()})


Beams = Annotated[int, Within("[1, 1024]")]

PENALTIES: dict[str, Callable] = {
    "gnmt": lambda length: (5.0 + length) / 6.0,
    "power": lambda length: 1.0 * length,
}


@dataclasses.dataclass(frozen=True)
class Beam:
  """Beam search. With `beam` = 1 it is greedy search, which ends at the first end token.

  A hypothesis that ends is finished if it is among the `beam` best continuations. A finished
  hypothesis Y scores log P(Y) / lp(Y), where |Y| counts the end token and lp(Y) is, by
  `penalty`, "gnmt": ((5 + |Y|) / 6)^alpha (Wu et al. 2016, equation 14), or "power":
  |Y|^alpha, with alpha = 1 the mean log-probability of a token. The search of a row ends
  when no live hypothesis can overtake its `beam` finished ones or, with `early_stop`, when
  there are `beam` finished ones.
  """
  beam: Beams = 4
  alpha: float = 0.6
  penalty: str = "gnmt"
  early_stop: bool = False
  n_best: Beams = 1

  def __post_init__(self):
    if self.n_best > self.beam:
      raise ConfigError(f"decode: n_best={self.n_best} is more than beam={self.beam}")
    if self.penalty not in PENALTIES:
      raise ConfigError(f"decode: penalty={self.penalty!r}; {nearest(self.penalty, PENALTIES)}")

  def length_penalty(self, length: int | jax.Array) -> jax.Array:
    return PENALTIES[self.penalty](length) ** self.alpha

  @property
  def rows(self) -> int:
    return self.beam


@dataclasses.dataclass(frozen=True)
class Sample:
  """Samples `n_best` targets independently, from logits divided by the temperature.

  `top_k` keeps the k likeliest tokens (0: all); `top_p` then keeps the fewest tokens whose
  probability reaches p (1: all; Holtzman et al. 2019).
  """
  temperature: Positive = 1.0
  top_k: CountOrNone = 0
  top_p: SomeShare = 1.0
  n_best: Beams = 1
  seed: Seed = 0

  @property
  def rows(self) -> int:
    return self.n_best


METHODS = {"beam": Beam, "sample": Sample}


class Decoded(NamedTuple):
  """The best `n` targets of each row, best first (as drawn, when sampling)."""
  tokens: jax.Array  # [B, n, T] int32, ending in eos_id where finished, then pad_id
  scores: jax.Array  # [B, n]: log-probability, by beam search divided by the length penalty


def decode(method: Beam | Sample, logits: jax.Array, state: Any, step: Step, *, max_length: int,
           eos_id: int, pad_id: int, present: jax.Array | None = None,
           keys: jax.Array | None = None) -> Decoded:
  """Decodes up to `max_length` tokens, the end token included.

  Args:
    method: how.
    logits: [B, V] of the first token.
    state: of B * method.rows hypotheses, with room for cache_lengths(max_length)[0] tokens
      or more.
    step: as in the module's docstring.
    max_length: T.
    eos_id: the token that ends a target.
    pad_id: stands after it.
    present: [B] bool; the other rows are done from the start. None is all.
    keys: [B] random keys, one a row so that a draw does not depend on its neighbours; for
      sampling only.
  """
  absent = jnp.zeros(len(logits), bool) if present is None else ~present
  if isinstance(method, Beam):
    return _beam_search(method, logits, state, step, max_length, eos_id, pad_id, absent)
  return _sample(method, logits, state, step, max_length, eos_id, pad_id, absent, keys)


class _Search(NamedTuple):
  index: jax.Array  # tokens decoded so far
  logits: jax.Array  # [B, K, V] of the next token
  state: Any
  tokens: jax.Array  # [B, K, T] of live hypotheses, best first
  scores: jax.Array  # [B, K] their log-probability
  done_tokens: jax.Array  # [B, K, T] of finished hypotheses, best first
  done_scores: jax.Array  # [B, K] their penalised score, -inf where there is none


def _beam_search(method, logits, state, step, max_length, eos_id, pad_id, absent) -> Decoded:
  B, V = logits.shape
  K = method.beam

  def finished(s: _Search):  # [B]
    worst = s.done_scores[:, -1]
    if method.early_stop or K == 1:
      return worst > -jnp.inf
    # Log-probabilities only fall, so the best that a live hypothesis can reach is its present
    # score under the penalty that is kindest to it.
    lengths = jnp.stack([s.index + 1, jnp.array(max_length)]).astype(jnp.float32)
    bound = (s.scores[:, :1] / method.length_penalty(lengths)).max(-1)
    return worst >= bound

  def advance(s: _Search) -> _Search:
    B = len(s.scores)
    rows = jnp.arange(B)[:, None]
    total = s.scores[:, :, None] + jax.nn.log_softmax(s.logits)  # [B, K, V]
    # At most K of the best 2 K end here, so K live ones are always left.
    top, flat = jax.lax.top_k(total.reshape(B, K * V), min(2 * K, K * V))
    parent, token = flat // V, (flat % V).astype(jnp.int32)
    tokens = s.tokens[rows, parent].at[:, :, s.index].set(token)
    ends = token == eos_id

    # A row that has ended waits for its neighbours, and must not depend on how long.
    counts = ends & (jnp.arange(top.shape[1]) < K) & ~finished(s)[:, None]
    penalised = jnp.where(counts, top / method.length_penalty(s.index + 1), -jnp.inf)
    done_scores, best = jax.lax.top_k(jnp.concatenate([s.done_scores, penalised], 1), K)
    done_tokens = jnp.concatenate([s.done_tokens, tokens], 1)[rows, best]

    scores, live = jax.lax.top_k(jnp.where(ends, -jnp.inf, top), K)
    tokens, parent = tokens[rows, live], parent[rows, live]
    state = s.state if K == 1 else s.state.reorder((rows * K + parent).reshape(-1))
    logits, state = step(tokens[:, :, s.index].reshape(-1), state, s.index + 1)
    return _Search(index=s.index + 1, logits=logits.reshape(B, K, V), state=state, tokens=tokens,
                   scores=scores, done_tokens=done_tokens, done_scores=done_scores)

  nothing = jnp.full((B, K, max_length), pad_id, jnp.int32)
  minus_inf = jnp.full((B, K), -jnp.inf)
  s = _Search(index=jnp.array(0), logits=jnp.repeat(logits[:, None], K, 1), state=state,
              tokens=nothing, scores=minus_inf.at[:, 0].set(0.0), done_tokens=nothing,
              done_scores=jnp.where(absent[:, None], 0.0, minus_inf))
  s = _loop(advance, finished, s, cache_lengths(max_length))
  # Rows that ran out of length: live hypotheses come after the finished ones.
  live = s.scores / method.length_penalty(max_length)
  scores = jnp.concatenate([s.done_scores, live], 1)
  is_done = jnp.concatenate([s.done_scores > -jnp.inf, jnp.zeros_like(live, bool)], 1)
  best = jnp.lexsort((-scores, ~is_done), axis=-1)[:, :method.n_best]
  rows = jnp.arange(B)[:, None]
  return Decoded(jnp.concatenate([s.done_tokens, s.tokens], 1)[rows, best], scores[rows, best])


class _Draws(NamedTuple):
  index: jax.Array  # tokens decoded so far
  logits: jax.Array  # [B, n, V] of the next token
  state: Any
  keys: jax.Array  # [B, n]
  tokens: jax.Array  # [B, n, T]
  scores: jax.Array  # [B, n]
  ended: jax.Array  # [B, n] bool


def _sample(method, logits, state, step, max_length, eos_id, pad_id, absent, keys) -> Decoded:
  B, n = logits.shape[0], method.n_best

  def draw(key, index, logits):
    kept = truncate(logits / method.temperature, method.top_k, method.top_p)
    token = jax.random.categorical(jax.random.fold_in(key, index), kept).astype(jnp.int32)
    return token, jax.nn.log_softmax(logits)[token]

  def advance(s: _Draws) -> _Draws:
    token, log_p = jax.vmap(jax.vmap(draw, (0, None, 0)), (0, None, 0))(s.keys, s.index, s.logits)
    token = jnp.where(s.ended, pad_id, token)
    scores = s.scores + jnp.where(s.ended, 0.0, log_p)
    logits, state = step(token.reshape(-1), s.state, s.index + 1)
    return s._replace(index=s.index + 1, logits=logits.reshape(s.logits.shape), state=state,
                      tokens=s.tokens.at[:, :, s.index].set(token), scores=scores,
                      ended=s.ended | (token == eos_id))

  s = _Draws(index=jnp.array(0), logits=jnp.repeat(logits[:, None], n, 1), state=state,
             keys=jax.vmap(lambda k: jax.random.split(k, n))(keys),
             tokens=jnp.full((B, n, max_length), pad_id, jnp.int32), scores=jnp.zeros((B, n)),
             ended=jnp.repeat(absent[:, None], n, 1))
  s = _loop(advance, lambda s: s.ended.all(1), s, cache_lengths(max_length))
  return Decoded(s.tokens, s.scores)


def truncate(logits: jax.Array, top_k: int, top_p: float) -> jax.Array:
  """Logits [..., V] with -inf for tokens outside the top k and outside the nucleus."""
  if top_k:
    least = jax.lax.top_k(logits, min(top_k, logits.shape[-1]))[0][..., -1:]
    logits = jnp.where(logits < least, -jnp.inf, logits)
  if top_p < 1:
    ordered = jnp.sort(logits, -1, descending=True)
    p = jax.nn.softmax(ordered)
    inside = jnp.cumsum(p, -1) - p < top_p  # the token that crosses p is kept
    least = jnp.where(inside, ordered, jnp.inf).min(-1, keepdims=True)
    logits = jnp.where(logits < least, -jnp.inf, logits)
  return logits
