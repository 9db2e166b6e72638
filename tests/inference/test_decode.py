"""Search against brute force on a small Markov chain whose every sequence can be scored."""

import functools
import itertools

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.errors import ConfigError
from jtx.inference.decode import Beam, Ends, Sample, Start, cache_lengths, decode
from jtx.inference.scores import GROUP, largest, likeliest, penalised, truncate
from tests.helpers import one_fast

V, EOS, PAD = 4, 3, 0


@flax.struct.dataclass
class Chain:
  """A decoder state that remembers the last two tokens, so reordering matters."""
  history: jax.Array  # [R, 2]
  sources: int = flax.struct.field(pytree_node=False)

  def reorder(self, rows):
    return Chain(self.history[rows], self.sources)

  def grow(self, length):
    return self

  def take(self, sources):
    return Chain(self.history.reshape(self.sources, -1, 2)[sources].reshape(-1, 2), len(sources))


def tables(seed, B):
  """First logits [B, V], and logits of the next token by the two before it [V, V, V]."""
  r = np.random.default_rng(seed)
  return r.normal(size=(B, V)) * 2, r.normal(size=(V, V, V)) * 2


@functools.partial(jax.jit, static_argnums=(0, 1))
def search(method, max_length, first, table, keys, present):
  def step(tokens, state, index):
    history = jnp.stack([state.history[:, 1], tokens], 1)
    return table[history[:, 0], history[:, 1]], Chain(history, state.sources)

  state = Chain(jnp.zeros((len(first) * method.rows, 2), jnp.int32), len(first))
  absent = jnp.zeros(len(first), bool) if present is None else ~present
  return decode(method, Start(first, state, absent, keys), step, max_length, Ends((EOS,), PAD))


def run(method, first, table, max_length, keys=None, present=None):
  first, table = (jnp.asarray(x, jnp.float32) for x in (first, table))
  return search(method, max_length, first, table, keys, present)


def log_softmax(x):
  return x - np.log(np.exp(x).sum(-1, keepdims=True))


PENALTY = {"gnmt": lambda n, alpha: ((5 + n) / 6)**alpha, "power": lambda n, alpha: n**alpha}


def enumerate_all(first, table, max_length, alpha, penalty):
  """Every finished sequence of up to max_length tokens with its penalised score, best first."""
  results = []
  for length in range(1, max_length + 1):
    for body in itertools.product([t for t in range(V) if t != EOS], repeat=length - 1):
      tokens, before, total = (*body, EOS), [0, 0], log_softmax(first)[body[0] if body else EOS]
      for previous, token in zip(tokens, tokens[1:]):
        before = [before[1], previous]
        total += log_softmax(table)[before[0], before[1], token]
      results.append((total / PENALTY[penalty](length, alpha), tokens))
  return sorted(results, reverse=True)


@pytest.mark.parametrize("penalty, alpha", [("gnmt", 0.0), ("gnmt", 0.6), ("gnmt", 1.5),
                                            ("power", 0.0), ("power", 1.0)])
@pytest.mark.parametrize("seed", one_fast(0, 1, 2))
def test_a_wide_beam_finds_the_best_of_all_sequences(seed, penalty, alpha):
  first, table = tables(seed, 3)
  T = 4
  out = run(Beam(beam=3**T, alpha=alpha, penalty=penalty, n_best=5), first, table, T)
  for b in range(3):
    expected = enumerate_all(first[b], table, T, alpha, penalty)[:5]
    for n, (score, tokens) in enumerate(expected):
      assert tuple(np.asarray(out.tokens[b, n])[:len(tokens)]) == tokens
      np.testing.assert_allclose(out.scores[b, n], score, rtol=1e-5)


def test_a_search_waits_for_what_only_a_greater_length_makes_the_best():
  """After 1 1 the text 2 2 0 0 and its end are all but certain, and its mean is the second best."""
  first, table = np.log([[0.01, 0.05, 0.04, 0.9]]), np.full((V, V, V), -20.0)
  table[0, 1] = np.log([1e-9, 0.1, 1e-9, 0.9])
  for before, token in (((0, 2), EOS), ((1, 1), 2), ((1, 2), 2), ((2, 2), 0), ((2, 0), 0),
                        ((0, 0), EOS)):
    table[(*before, token)] = 20
  out = run(Beam(beam=2, alpha=1.0, penalty="power", n_best=2), first, table, 8)
  assert out.tokens[0].tolist() == [[EOS] + 7 * [PAD], [1, 1, 2, 2, 0, 0, EOS, PAD]]
  np.testing.assert_allclose(out.scores[0], [np.log(0.9), np.log(0.05 * 0.1) / 7], rtol=1e-4)
  # One without hope takes 1 1 for what its two tokens are worth, and ends with 1 and the end.
  out = run(Beam(beam=2, alpha=1.0, penalty="power", n_best=2, hopeful=False), first, table, 8)
  assert out.tokens[0].tolist() == [[EOS] + 7 * [PAD], [1, EOS] + 6 * [PAD]]
  np.testing.assert_allclose(out.scores[0], [np.log(0.9), np.log(0.05 * 0.9) / 2], rtol=1e-4)


def test_tokens_after_the_end_are_padding():
  first, table = tables(0, 2)
  sampled = run(Sample(n_best=4), first, table, 8, jax.random.split(jax.random.key(0), 2))
  tokens = [*run(Beam(beam=3), first, table, 8).tokens[:, 0], *sampled.tokens.reshape(8, 8)]
  ends = [row.tolist().index(EOS) for row in tokens if EOS in row]
  assert len(ends) > 5 and min(ends) < 3
  for row, end in zip([row for row in tokens if EOS in row], ends):
    assert (row[end + 1:] == PAD).all()
  # Nor does what is behind the end count in a score.
  for i, (row, score) in enumerate(zip(tokens[2:], sampled.scores.reshape(-1))):
    row = row.tolist()
    row = row[:row.index(EOS) + 1] if EOS in row else row
    log_p = [log_softmax(table[(0, 0, *row[:n])[-2:]] if n else first[i // 4])[token]
             for n, token in enumerate(row)]
    np.testing.assert_allclose(score, sum(log_p), rtol=1e-5)


def by_definition(method, first, table, max_length):
  """Beam search of one row, hypothesis by hypothesis: scores and tokens, best first."""
  penalty = lambda length: PENALTY[method.penalty](length, method.alpha)
  best = lambda pairs: sorted(pairs, key=lambda pair: -pair[0])
  again = method.repetition_penalty
  live, done = [(0.0, ())], []
  for length in range(1, max_length + 1):
    after = [(score + log_p * (again if token in tokens else 1), (*tokens, token))
             for score, tokens in live for token, log_p in enumerate(
                 log_softmax(table[(0, 0, *tokens)[-2:]] if tokens else first))]
    after = best(after)[:2 * method.beam]
    done += [(score / penalty(length), tokens) for score, tokens in after[:method.beam]
             if tokens[-1] == EOS]
    live = [pair for pair in after if pair[1][-1] != EOS][:method.beam]
  done = best(done)[:method.beam]
  rest = [(score / penalty(max_length), tokens) for score, tokens in live]
  ended = len(done) == method.beam and all(score <= done[-1][0] for score, _ in rest)
  return (best(done + rest) if method.cut_off and not ended else done + rest)[:method.beam]


@pytest.mark.parametrize("more", [{}, {"cut_off": True}, {"repetition_penalty": 1.6}])
@pytest.mark.parametrize("beam, max_length", [(2, 7), (3, 4)])
def test_a_beam_is_its_definition(beam, max_length, more):
  first, table = tables(5, 24)
  method = Beam(beam=beam, n_best=beam, **more)
  out, lengths = run(method, first, table, max_length), set()
  for b in range(24):
    expected = by_definition(method, first[b], table, max_length)
    lengths.update(len(tokens) for _, tokens in expected)
    for n, (score, tokens) in enumerate(expected):
      assert tuple(out.tokens[b, n].tolist()[:len(tokens)]) == tokens
      np.testing.assert_allclose(out.scores[b, n], score, rtol=1e-5)
  assert {1, 2, 3, max_length} <= lengths  # some finish, some run out of it


@flax.struct.dataclass
class Tape:
  """A decoder state with room for some tokens, which are written and read by their place."""
  tokens: jax.Array  # [R, room]

  def reorder(self, rows):
    return Tape(self.tokens[rows])

  def grow(self, length):
    return Tape(jnp.pad(self.tokens, ((0, 0), (0, length - self.tokens.shape[1]))))


def test_room_grows_before_it_is_needed(monkeypatch):
  monkeypatch.setattr("jtx.inference.decode.FIRST_LENGTH", 2)
  first, table = tables(0, 1)
  table = jnp.asarray(table).at[..., EOS].set(-50.0)
  first[0, EOS] = -50

  def step(tokens, state, index):
    state = Tape(state.tokens.at[:, index].set(tokens))  # beyond the room it is lost
    return table[0, state.tokens[:, index]], state

  start = lambda: Start(jnp.asarray(first), Tape(jnp.zeros((1, 2), jnp.int32)), jnp.zeros(1, bool))
  out = jax.jit(lambda: decode(Beam(beam=1), start(), step, 7, Ends((EOS,), PAD)))()
  expected = [int(np.argmax(first[0]))]
  while len(expected) < 7:
    expected.append(int(np.argmax(table[0, expected[-1]])))
  assert out.tokens[0, 0].tolist() == expected and len(set(expected)) > 1


@pytest.mark.parametrize("seed", range(4))
def test_beam_1_takes_the_likeliest_token_every_time(seed):
  first, table = tables(seed, 2)
  out = np.asarray(run(Beam(beam=1), first, table, 10).tokens)[:, 0]
  for b in range(2):
    history, logits, expected = [0, 0], first[b], []
    while len(expected) < 10:
      expected.append(int(np.argmax(logits)))
      if expected[-1] == EOS:
        break
      history = [history[1], expected[-1]]
      logits = table[history[0], history[1]]
    assert list(out[b][:len(expected)]) == expected


@pytest.mark.parametrize("method", [
    Beam(beam=2, alpha=5.0, early_stop=True), *one_fast(
        Beam(beam=3, n_best=2), Beam(beam=1, alpha=2.0),
        Beam(beam=2, penalty="power", early_stop=True))])
def test_a_row_does_not_depend_on_its_neighbours(method):
  first, table = tables(5, 16)
  together = run(method, first, table, 10)
  for b in range(16):
    alone = run(method, first[b:b + 1], table, 10)
    np.testing.assert_array_equal(together.tokens[b], alone.tokens[0])


def test_early_stop_ends_with_the_first_finished_ones():
  # Ending at once is likely enough to fill the beam, but a longer sequence scores better.
  first = np.log(np.array([[0.01, 0.54, 0.0001, 0.4499]]))
  table = np.log(np.full((V, V, V), 1e-4))
  table[:, :, EOS] = np.log(0.999)
  patient = run(Beam(beam=1, alpha=0.0), first, table, 5)
  assert np.asarray(patient.tokens)[0, 0, 0] == 1
  full = run(Beam(beam=2, alpha=5.0), first, table, 5)
  early = run(Beam(beam=2, alpha=5.0, early_stop=True), first, table, 5)
  assert full.scores[0, 0] >= early.scores[0, 0]


def test_rows_that_run_out_of_length_give_their_live_hypotheses():
  first = np.log(np.array([[0.2, 0.5, 0.3 - 1e-9, 1e-9]]))
  table = np.broadcast_to(first[0], (V, V, V))
  out = run(Beam(beam=1, alpha=1.0, penalty="power"), first, table, 3)
  np.testing.assert_array_equal(out.tokens[0, 0], [1, 1, 1])
  np.testing.assert_allclose(out.scores[0, 0], np.log(0.5), rtol=1e-4)


def test_samples_follow_the_distribution():
  n = 4000
  p = np.array([0.1, 0.2, 0.4, 0.3])
  table = np.broadcast_to(np.log(p), (V, V, V))
  out = run(Sample(n_best=n), np.log(p)[None], table, 1, jax.random.split(jax.random.key(0), 1))
  counts = np.bincount(np.asarray(out.tokens)[0, :, 0], minlength=V) / n
  assert (np.abs(counts - p) < 4 * np.sqrt(p * (1 - p) / n)).all()
  tokens = np.asarray(out.tokens)[0, :, 0]
  np.testing.assert_allclose(out.scores[0], np.log(p)[tokens], rtol=1e-5)
  # Every token is drawn anew: without ends, a third of the second are those before them.
  out = run(Sample(n_best=n), np.array([[0, 0, 0, -50]]), np.zeros((V, V, V)) + [0, 0, 0, -50], 2,
            jax.random.split(jax.random.key(0), 1))
  assert (out.tokens[0, :, 0] == out.tokens[0, :, 1]).mean() == pytest.approx(1 / 3, abs=0.03)


def test_a_draw_depends_on_its_key_alone():
  first, table = tables(3, 4)
  keys = jax.random.split(jax.random.key(1), 4)
  together = run(Sample(n_best=2), first, table, 6, keys)
  alone = run(Sample(n_best=2), first[2:3], table, 6, keys[2:3])
  np.testing.assert_array_equal(together.tokens[2], alone.tokens[0])


def test_low_temperature_and_top_k_1_are_greedy():
  first, table = tables(3, 2)
  keys = jax.random.split(jax.random.key(1), 2)
  greedy = run(Beam(beam=1), first, table, 6).tokens[:, 0]
  for method in (Sample(temperature=1e-4), Sample(top_k=1), Sample(top_p=1e-6)):
    np.testing.assert_array_equal(run(method, first, table, 6, keys).tokens[:, 0], greedy)


def test_truncation():
  logits = jnp.log(jnp.array([0.5, 0.25, 0.15, 0.1]))
  kept = lambda k, p, m=0.0: list(np.isfinite(np.asarray(truncate(logits, k, p, m))))
  assert kept(0, 1.0) == [True] * 4
  assert kept(2, 1.0) == [True, True, False, False]
  assert kept(0, 0.6) == [True, True, False, False]
  assert kept(0, 0.5) == [True, False, False, False]
  assert kept(0, 0.95) == [True] * 4
  assert kept(9, 1.0) == [True] * 4
  assert kept(0, 1.0, 0.49) == [True, True, False, False]
  assert kept(0, 1.0, 0.51) == [True, False, False, False]
  assert kept(1, 1.0, 0.1) == [True, False, False, False]


def test_at_temperature_0_the_likeliest_token_is_taken():
  first, table = tables(3, 3)
  greedy = run(Beam(beam=1, alpha=0.0), first, table, 6)
  ours = run(Sample(temperature=0.0), first, table, 6)
  np.testing.assert_array_equal(ours.tokens, greedy.tokens)
  np.testing.assert_allclose(ours.scores, greedy.scores, rtol=1e-5)


@pytest.mark.parametrize("penalty", [1.0, 3.0])
def test_tokens_seen_before_are_less_likely(penalty):
  """Against a loop over tokens: those of the prompt, and those that were decoded."""
  logits, some = jnp.array([2.0, -2.0, 2.0, -2.0]), jnp.array([True, True, False, False])
  np.testing.assert_allclose(penalised(logits, some, penalty), [2 / penalty, -2 * penalty, 2, -2])
  first, table = tables(5, 2)
  seen = np.zeros((2, V), bool)
  seen[0, 1] = seen[1, 2] = True
  table = jnp.asarray(table, jnp.float32)

  def step(tokens, state, index):
    history = jnp.stack([state.history[:, 1], tokens], 1)
    return table[history[:, 0], history[:, 1]], Chain(history, state.sources)

  start = Start(jnp.asarray(first, jnp.float32), Chain(jnp.zeros((2, 2), jnp.int32), 2),
                jnp.zeros(2, bool), seen=jnp.asarray(seen))
  out = decode(Sample(temperature=0.0, repetition_penalty=penalty), start, step, 6,
               Ends((EOS,), PAD))
  for b in range(2):
    known, logits, history, text = set(np.flatnonzero(seen[b])), first[b], [0, 0], []
    while len(text) < 6 and EOS not in text:
      x = [(v / penalty if v > 0 else v * penalty) if i in known else v
           for i, v in enumerate(np.asarray(logits))]
      text.append(int(np.argmax(x)))
      known.add(text[-1])
      history = [history[1], text[-1]]
      logits = table[history[0], history[1]]
    assert out.tokens[b, 0].tolist() == text + [PAD] * (6 - len(text))
  searched = decode(Beam(beam=1, repetition_penalty=penalty), start, step, 6, Ends((EOS,), PAD))
  np.testing.assert_array_equal(searched.tokens, out.tokens)


@pytest.mark.parametrize("method", [Beam(beam=2, alpha=0.0, n_best=2), Sample(temperature=0.0)])
def test_any_of_several_tokens_ends_a_target(method):
  first, table = (jnp.asarray(x, jnp.float32) for x in tables(9, 12))

  def step(tokens, state, index):
    history = jnp.stack([state.history[:, 1], tokens], 1)
    return table[history[:, 0], history[:, 1]], Chain(history, state.sources)

  state = Chain(jnp.zeros((12 * method.rows, 2), jnp.int32), 12)
  out = decode(method, Start(first, state, jnp.zeros(12, bool)), step, 6, Ends((EOS, 2), PAD))
  for row in np.asarray(out.tokens).reshape(-1, 6):
    ended = np.flatnonzero(np.isin(row, (EOS, 2)))
    assert not len(ended) or not row[ended[0] + 1:].any()
  assert {2, EOS} <= set(np.asarray(out.tokens).ravel())


@pytest.mark.parametrize("make", [
    lambda: Beam(beam=2, n_best=3), lambda: Beam(penalty="gnm"),
    lambda: Sample(temperature=0.0, top_k=3), lambda: Sample(temperature=0.0, n_best=2)])
def test_options_that_do_not_fit(make):
  with pytest.raises(ConfigError, match="decode"):
    make()


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [Beam(beam=1), Beam(beam=2, alpha=0.0), Beam(beam=4), Sample(top_k=1)])
def test_a_published_translator_decodes_as_published(method):
  from tests.models import ct2
  expected = ct2.expected()
  model, params = ct2.load()
  variables = {"params": params}
  cases = [(d["source"], d["expected"]) for d in expected["decode"]]
  cases += [(i["source"], i["target"]) for i in expected["items"]]  # these are its decodes too
  vocabulary = ct2.vocabulary("target")
  batch = ct2.source_batch([source for source, _ in cases])
  prompt = jnp.full((len(cases), 1), ct2.BOS)
  logits, state = model.apply(variables, batch, method.rows, 20, prompt, method="start")
  step = lambda *args: model.apply(variables, *args, method="step")
  keys = jax.random.split(jax.random.key(0), len(cases))
  start = Start(logits, state, jnp.zeros(len(cases), bool), keys)
  out = decode(method, start, step, 20, Ends((ct2.EOS,), 0))
  for row, (_, target) in zip(np.asarray(out.tokens)[:, 0], cases):
    assert [vocabulary[t] for t in row[:list(row).index(ct2.EOS)]] == target


@pytest.mark.parametrize("method", one_fast(
    Beam(beam=3, n_best=3), Beam(beam=2, early_stop=True), Beam(beam=1),
    Sample(n_best=2, temperature=1.5)), ids=str)
def test_rows_that_go_on_alone_give_what_they_would_in_the_batch(method):
  """Of 40 rows with many lengths a quarter goes on, and of that a quarter again."""
  first, table = tables(7, 40)
  table[..., EOS] -= 1.5  # some sequences are long
  rows = np.arange(40) % 3 != 1
  keys = jax.random.split(jax.random.key(3), 40)
  together = run(method, first, table, 12, keys, rows)
  lengths = np.asarray((together.tokens != PAD).sum(-1).max(-1))[rows]
  assert lengths.min() <= 2 and lengths.max() >= 10
  for b in range(40):
    if rows[b]:
      alone = run(method, first[b:b + 1], table, 12, keys[b:b + 1])
      np.testing.assert_array_equal(together.tokens[b], alone.tokens[0])
      np.testing.assert_allclose(together.scores[b], alone.scores[0], rtol=1e-5)


def test_absent_rows_cost_no_step():
  """The table ends no sequence: of 16 rows the quarter with the present one runs to the end."""
  steps = []
  table = np.zeros((V, V, V))
  table[..., EOS] = -50

  def count(history):
    steps.append(len(history))
    return history

  def step(tokens, state, index):
    history = jnp.stack([state.history[:, 1], tokens], 1)
    history = jax.pure_callback(count, jax.ShapeDtypeStruct(history.shape, jnp.int32), history)
    logits = jnp.asarray(table, jnp.float32)[history[:, 0], history[:, 1]]
    return logits, Chain(history, state.sources)

  start = Start(jnp.asarray(table[0, :1].repeat(16, 0), jnp.float32),
                Chain(jnp.zeros((16, 2), jnp.int32), 16), jnp.arange(16) != 5)
  decode(Beam(beam=1), start, step, 8, Ends((EOS,), PAD))
  assert steps == [4] * 8


def test_the_likeliest_is_argmax():
  logits = np.random.default_rng(0).integers(0, 4, (50, 7)).astype(np.float32)  # many ties
  logits[0] = -np.inf
  np.testing.assert_array_equal(likeliest(logits), logits.argmax(-1))
  assert likeliest(np.full(7, np.nan)) == 6  # some token, and none beyond the vocabulary


@pytest.mark.parametrize("size", [20, 12 * GROUP, 13 * GROUP - 1, 40 * GROUP + 1])
@pytest.mark.parametrize("number", [1, 3])
def test_the_largest_are_those_of_top_k(size, number):
  """Of equals the first, within groups of neighbours and between them, infinities as well."""
  program = jax.jit(largest, static_argnums=1)
  for p in (0.9, 0.5, 0.1, 1e-6):  # from a few large ones to no two alike
    x = np.random.default_rng(size).geometric(p, (6, 2, size)).astype(np.float32)
    x[1] = -np.inf
    x[2, 0, 3:] = -np.inf
    x[3, :, ::2] = -np.inf
    for ours, expected in zip(program(x, number), jax.lax.top_k(x, number), strict=True):
      np.testing.assert_array_equal(ours, expected)
      assert ours.dtype == expected.dtype


def test_long_prompts_have_their_own_length_of_room():
  assert cache_lengths(64) == [16, 32, 64] and cache_lengths(100, prompt=40) == [40, 80, 100]
  assert cache_lengths(64, prompt=200) == [64]
