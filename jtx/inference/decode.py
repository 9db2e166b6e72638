"""Greedy search, sampling and beam search over a model's cache.

A decoder gives `logits [B, V]` for the first token and a state; `step(tokens [R], state,
index)` gives logits [R, V] after the tokens at place `index`, and the new state. R is B
times the hypotheses of each row, which stand next to each other; `state.reorder(rows [R])`
makes hypothesis i continue the one that stood at rows[i], `state.grow(length)` makes room
for that many tokens, and `state.take(sources [b])` keeps the hypotheses of some rows only.

A method of decoding has `begin`, the carry before the first token; `advance`, one token on; `done`,
which rows have ended; and `result`. `decode` runs them to the end in one program, and
`jtx.inference.generate` a few tokens at a time.

A step costs as much attention as there is room, so the room starts small, but for long prompts, and
grows as `cache_lengths` says. And it costs as much as there are rows, done or not: when all but a
quarter are done, the search goes on with that quarter.
"""

import dataclasses
from typing import Annotated, Any, Callable, NamedTuple

import jax
import jax.numpy as jnp

from jtx.errors import ConfigError, nearest
from jtx.inference.rules import Rules
from jtx.inference.scores import largest, likeliest, penalised, truncate
from jtx.ranges import CountOrNone, NotNegative, Positive, Seed, Share, SomeShare, Within

Step = Callable[[jax.Array, Any, jax.Array], tuple[jax.Array, Any]]


FIRST_LENGTH = 16
LEAST_ROWS = 4  # fewer cost as much


def cache_lengths(max_length: int, prompt: int = 1) -> list[int]:
  """The room for tokens as a search goes on: doubled until it holds `max_length`.

  It is the prompts' own length at first, since less would save little of what attention costs.
  """
  lengths = [min(max(FIRST_LENGTH, prompt), max_length)]
  while lengths[-1] < max_length:
    lengths.append(min(2 * lengths[-1], max_length))
  return lengths


class Ends(NamedTuple):
  """The tokens that end a target, any of them, the one that stands behind, and further rules."""
  ids: tuple[int, ...]
  pad_id: int
  rules: Rules = Rules()  # of what is before

  def among(self, tokens: jax.Array) -> jax.Array:
    """Which of tokens [...] are ends."""
    return jnp.isin(tokens, jnp.array(self.ids, jnp.int32))

  def allowed(self, scores: jax.Array, tokens: jax.Array, index: jax.Array) -> jax.Array:
    """Scores [..., V] of the next token behind `index` of the tokens [..., T], by the rules."""
    return self.rules.allowed(scores, tokens, index, self.ids) if self.rules else scores


class Decoded(NamedTuple):
  """The best `n` targets of each row, best first (as drawn, when sampling)."""
  tokens: jax.Array  # [B, n, T] int32, ending in eos_id where finished, then pad_id
  scores: jax.Array  # [B, n]: log-probability, by beam search divided by the length penalty


class Start(NamedTuple):
  """What a search begins with."""
  logits: jax.Array  # [B, V] of the first token
  state: Any  # of B * rows hypotheses
  absent: jax.Array  # [B] bool: rows that are done from the start
  keys: jax.Array | None = None  # [B] random keys, for sampling
  seen: jax.Array | None = None  # [B, V] bool: tokens of the prompts, for a repetition penalty


def seen_before(start: Start, number: int, penalty: float) -> jax.Array | None:
  """Tokens [B, number, V] of the prompts; None without a penalty."""
  if penalty == 1:
    return None
  seen = jnp.zeros(start.logits.shape, bool) if start.seen is None else start.seen
  return jnp.repeat(seen[:, None], number, 1)


def with_token(seen: jax.Array, token: jax.Array) -> jax.Array:
  """Tokens [..., V] that were seen, and one [...] more."""
  return seen | jax.nn.one_hot(token, seen.shape[-1], dtype=bool)


Beams = Annotated[int, Within("[1, 1024]")]

PENALTIES: dict[str, Callable] = {
    "gnmt": lambda length: (5.0 + length) / 6.0,
    "power": lambda length: 1.0 * length,
}


class Hypotheses(NamedTuple):
  """The carry of beam search."""
  index: jax.Array  # tokens decoded so far
  logits: jax.Array  # [B, K, V] of the next token
  state: Any
  tokens: jax.Array  # [B, K, T] of live hypotheses, best first
  scores: jax.Array  # [B, K] their log-probability
  done_tokens: jax.Array  # [B, K, T] of finished hypotheses, best first
  done_scores: jax.Array  # [B, K] their penalised score, -inf where there is none
  seen: jax.Array | None  # [B, K, V] bool: tokens of the prompt and of live hypotheses


@dataclasses.dataclass(frozen=True)
class Beam:
  """Beam search. With `beam` = 1 it is greedy search, which ends at the first end token.

  A hypothesis that ends is finished if it is among the `beam` best continuations. A finished
  hypothesis Y scores log P(Y) / lp(Y), where |Y| counts the end token and lp(Y) is, by
  `penalty`, "gnmt": ((5 + |Y|) / 6)^alpha (Wu et al. 2016, equation 14), or "power":
  |Y|^alpha, with alpha = 1 the mean log-probability of a token. The search of a row ends
  when no live hypothesis can overtake its `beam` finished ones or, with `early_stop`, when
  there are `beam` finished ones. With `hopeful` off a live hypothesis is taken to be worth no
  more than now, as `transformers` does unless it is told never to stop early. Live hypotheses of a
  row that runs out of length come after its finished ones, or with `cut_off`, as of `transformers`,
  where their scores say. A repetition penalty is of log-probabilities, and so part of the scores,
  or of logits where the search is greedy: `transformers` does so, too.
  """
  beam: Beams = 4  # hypotheses of a row that go on; 1 is greedy search
  alpha: float = 0.6  # exponent of the length penalty; 0 is none
  penalty: str = "gnmt"  # of `PENALTIES`: (5 + length) / 6 or, "power", the length itself
  early_stop: bool = False  # a row ends when `beam` hypotheses are finished
  hopeful: bool = True  # live hypotheses count by the best that they can reach; else as they are
  cut_off: bool = False  # a hypothesis that runs out of length counts as finished
  repetition_penalty: Positive = 1.0  # of tokens of the prompt and of the target; see `penalised`
  n_best: Beams = 1  # targets of a row that are returned, `beam` at most

  def __post_init__(self):
    if self.n_best > self.beam:
      raise ConfigError(f"decode: n_best={self.n_best} is more than beam={self.beam}")
    if self.penalty not in PENALTIES:
      raise ConfigError(f"decode: penalty={self.penalty!r}; {nearest(self.penalty, PENALTIES)}")
    if self.early_stop and not self.hopeful:
      raise ConfigError("decode: hopeful=False does nothing with early_stop=True")

  def length_penalty(self, length: int | jax.Array) -> jax.Array:
    return PENALTIES[self.penalty](length) ** self.alpha

  def log_probability(self, score: float, length: int) -> float:
    """That of a target of so many tokens, its end included, which scores so much."""
    return score * self.length_penalty(length)

  @property
  def rows(self) -> int:
    return self.beam

  def begin(self, start: Start, max_length: int, ends: Ends) -> Hypotheses:
    """Before the first token, with room for `max_length`."""
    B, K = len(start.logits), self.beam
    nothing = jnp.full((B, K, max_length), ends.pad_id, jnp.int32)
    minus_inf = jnp.full((B, K), -jnp.inf)
    return Hypotheses(
        index=jnp.array(0), logits=jnp.repeat(start.logits[:, None], K, 1), state=start.state,
        tokens=nothing, scores=minus_inf.at[:, 0].set(0.0), done_tokens=nothing,
        done_scores=jnp.where(start.absent[:, None], 0.0, minus_inf),
        seen=seen_before(start, K, self.repetition_penalty))

  def done(self, s: Hypotheses) -> jax.Array:  # [B] bool
    worst = s.done_scores[:, -1]
    if self.early_stop or self.beam == 1:
      return worst > -jnp.inf
    # Log-probabilities only fall, so the best that a live hypothesis can reach is its present
    # score under the penalty that is kindest to it.
    lengths = jnp.stack([s.index + 1, jnp.array(s.tokens.shape[-1])])
    if not self.hopeful:
      lengths = jnp.maximum(s.index, 1)[None]
    bound = (s.scores[:, :1] / self.length_penalty(lengths.astype(jnp.float32))).max(-1)
    return worst >= bound

  def advance(self, s: Hypotheses, step: Step, ends: Ends) -> Hypotheses:
    """One token on."""
    B, K, V = s.logits.shape
    rows = jnp.arange(B)[:, None]
    penalise = lambda scores: penalised(scores, s.seen, self.repetition_penalty)
    log_softmax = jax.nn.log_softmax
    log_p = log_softmax(penalise(s.logits)) if K == 1 else penalise(log_softmax(s.logits))
    log_p = ends.allowed(log_p, s.tokens, s.index)
    total = s.scores[:, :, None] + log_p  # [B, K, V]
    # At most K of every end token are among these, so K live ones are always left.
    number = min((1 + len(ends.ids)) * K, K * V)
    top, flat = largest(total.reshape(B, K * V), number)
    parent, token = flat // V, (flat % V).astype(jnp.int32)
    tokens = s.tokens[rows, parent].at[:, :, s.index].set(token)
    end = ends.among(token)

    # A row that has ended waits for its neighbours, and must not depend on how long.
    counts = end & (jnp.arange(number) < K) & ~self.done(s)[:, None]
    scored = jnp.where(counts, top / self.length_penalty(s.index + 1), -jnp.inf)
    done_scores, best = jax.lax.top_k(jnp.concatenate([s.done_scores, scored], 1), K)
    done_tokens = jnp.concatenate([s.done_tokens, tokens], 1)[rows, best]

    scores, live = jax.lax.top_k(jnp.where(end, -jnp.inf, top), K)
    tokens, parent = tokens[rows, live], parent[rows, live]
    seen = None if s.seen is None else with_token(s.seen[rows, parent], tokens[:, :, s.index])
    state = s.state if K == 1 else s.state.reorder((rows * K + parent).reshape(-1))
    logits, state = step(tokens[:, :, s.index].reshape(-1), state, s.index + 1)
    return Hypotheses(index=s.index + 1, logits=logits.reshape(B, K, V), state=state,
                      tokens=tokens, scores=scores, done_tokens=done_tokens,
                      done_scores=done_scores, seen=seen)

  def result(self, s: Hypotheses) -> Decoded:
    live = s.scores / self.length_penalty(s.tokens.shape[-1])
    scores = jnp.concatenate([s.done_scores, live], 1)
    # Of a row that ran out of length; one that did not has its finished hypotheses alone.
    ended = jnp.full_like(live, self.cut_off, bool) & ~jnp.expand_dims(self.done(s), 1)
    is_done = jnp.concatenate([s.done_scores > -jnp.inf, ended], 1)
    best = jnp.lexsort((-scores, ~is_done), axis=-1)[:, :self.n_best]
    rows = jnp.arange(len(scores))[:, None]
    tokens = jnp.concatenate([s.done_tokens, s.tokens], 1)[rows, best]
    return Decoded(tokens, scores[rows, best])


class Draws(NamedTuple):
  """The carry of sampling."""
  index: jax.Array  # tokens decoded so far
  logits: jax.Array  # [B, n, V] of the next token
  state: Any
  keys: jax.Array | None  # [B, n]
  tokens: jax.Array  # [B, n, T]
  log_probs: jax.Array  # [B, n, T] of the tokens
  ended: jax.Array  # [B, n] bool
  seen: jax.Array | None  # [B, n, V] bool


@dataclasses.dataclass(frozen=True)
class Sample:
  """Samples `n_best` targets independently, from logits divided by the temperature.

  `top_k` keeps the k likeliest tokens (0: all); `top_p` then keeps the fewest tokens whose
  probability reaches p (1: all; Holtzman et al. 2019); and `min_p` those whose probability is at
  least this share of the likeliest one's (0: all; Nguyen et al. 2024). Of temperature 0 is the
  likeliest token, always.
  """
  temperature: NotNegative = 1.0  # that logits are divided by; 0 is the likeliest token
  top_k: CountOrNone = 0  # so many of the likeliest tokens are kept; 0 is all
  top_p: SomeShare = 1.0  # the likeliest tokens that reach it together are kept; 1 is all
  min_p: Share = 0.0  # tokens of this share of the likeliest one's probability are kept; 0 is all
  repetition_penalty: Positive = 1.0  # of tokens of the prompt and of the target; see `penalised`
  n_best: Beams = 1  # targets of a row, drawn independently
  seed: Seed = 0  # of what is drawn

  def __post_init__(self):
    if self.temperature == 0:
      for name in ("top_k", "top_p", "min_p", "n_best"):
        if (value := getattr(self, name)) != getattr(Sample, name):
          raise ConfigError(f"decode: {name}={value} does nothing at temperature=0")

  @property
  def rows(self) -> int:
    return self.n_best

  def begin(self, start: Start, max_length: int, ends: Ends) -> Draws:
    """Before the first token, with room for `max_length`."""
    B, n, keys = len(start.logits), self.n_best, start.keys
    if self.temperature:
      keys = jax.vmap(lambda k: jax.random.split(k, n))(keys)
    return Draws(index=jnp.array(0), logits=jnp.repeat(start.logits[:, None], n, 1),
                 state=start.state, keys=keys,
                 seen=seen_before(start, n, self.repetition_penalty),
                 tokens=jnp.full((B, n, max_length), ends.pad_id, jnp.int32),
                 log_probs=jnp.zeros((B, n, max_length)),
                 ended=jnp.repeat(start.absent[:, None], n, 1))

  def done(self, s: Draws) -> jax.Array:  # [B] bool
    return s.ended.all(1)

  def advance(self, s: Draws, step: Step, ends: Ends) -> Draws:
    """One token on."""
    logits = penalised(s.logits, s.seen, self.repetition_penalty)
    logits = ends.allowed(logits, s.tokens, s.index)
    if self.temperature:
      kept = truncate(logits / self.temperature, self.top_k, self.top_p, self.min_p)
      draw = lambda key, x: jax.random.categorical(jax.random.fold_in(key, s.index), x)
      token = jax.vmap(jax.vmap(draw))(s.keys, kept).astype(jnp.int32)
    else:
      token = likeliest(logits)
    log_p = jnp.take_along_axis(jax.nn.log_softmax(s.logits), token[..., None], -1)[..., 0]
    token = jnp.where(s.ended, ends.pad_id, token)
    seen = None if s.seen is None else with_token(s.seen, token)
    logits, state = step(token.reshape(-1), s.state, s.index + 1)
    return s._replace(index=s.index + 1, logits=logits.reshape(s.logits.shape), state=state,
                      tokens=s.tokens.at[:, :, s.index].set(token),
                      log_probs=s.log_probs.at[:, :, s.index].set(jnp.where(s.ended, 0.0, log_p)),
                      seen=seen, ended=s.ended | ends.among(token))

  def result(self, s: Draws) -> Decoded:
    return Decoded(s.tokens, s.log_probs.sum(-1))

  def log_probability(self, score: float, length: int) -> float:
    """That of a target of so many tokens, which is its score."""
    return score


METHODS = {"beam": Beam, "sample": Sample}


def decode(method: Beam | Sample, start: Start, step: Step, max_length: int, ends: Ends,
           prompt: int = 1) -> Decoded:
  """Decodes up to `max_length` tokens, the end token included.

  Args:
    method: how.
    start: with room for cache_lengths(max_length, prompt)[0] tokens or more in its state.
    step: as in the module's docstring.
    max_length: T.
    ends: of targets.
    prompt: tokens of the longest prompt.
  """
  carry = _loop(lambda s: method.advance(s, step, ends), method.done,
                method.begin(start, max_length, ends), cache_lengths(max_length, prompt))
  return method.result(carry)


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
  whole = carry._replace(index=None, state=None)  # arrays [B, ...]
  part = jax.tree.map(lambda x: x[rows], whole)._replace(
      index=carry.index, state=carry.state.take(rows))
  part = _loop(advance, done, part, lengths[-1:])._replace(index=None, state=None)
  return jax.tree.map(lambda x, y: x.at[rows].set(y), whole, part)._replace(
      index=carry.index, state=carry.state)
