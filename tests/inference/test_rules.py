"""What may be written, against loops over tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.inference.decode import Beam, Ends, Sample, Start, decode
from jtx.inference.rules import Rules

V, T = 6, 7
END, START = 1, 5


def banned(rules, tokens, index):
  """The tokens that the rules forbid behind `tokens[:index]`."""
  written = ([] if rules.start is None else [rules.start]) + list(tokens[:index])
  found = set(rules.suppressed)
  n = rules.no_repeat
  if n:
    last = written[len(written) - n + 1:] if n > 1 else []
    found |= {written[i + n - 1] for i in range(len(written) - n + 1)
              if written[i:i + n - 1] == last and len(written) >= n}
  for *before, word in rules.bad_words:
    if not before:
      found |= {word} - {END}
    elif len(written) > len(before) and written[-len(before):] == before:
      found.add(word)
  return found | ({END} if index < rules.min_length else set())


@pytest.mark.parametrize("rules", [
    Rules(no_repeat=1), Rules(no_repeat=2, start=START), Rules(no_repeat=3), Rules(no_repeat=9),
    Rules(bad_words=((2,), (END,), (3, 4), (0, 3, 3)), start=START), Rules(min_length=3),
    Rules(bad_words=((START, 2), (1, 1, 1, 1, 1, 1, 1, 1, 1, 2)), start=START),
    Rules(suppressed=(0, 4), no_repeat=2, min_length=2)])
def test_what_is_forbidden(rules):
  random = np.random.default_rng(0)
  tokens = random.choice([0, 3, 4], (40, T)).astype(np.int32)
  scores = random.normal(size=(40, V)).astype(np.float32)
  run = jax.jit(lambda index: rules.allowed(scores, tokens, index, (END,)))
  for index in range(T):
    found = np.asarray(run(index))
    for row in range(40):
      out = banned(rules, tokens[row].tolist(), index)
      expected = [-np.inf if v in out else scores[row, v] for v in range(V)]
      np.testing.assert_array_equal(found[row], np.float32(expected), err_msg=f"{row} {index}")


def test_forced_tokens_score_nothing():
  rules = Rules(forced_first=2, forced_last=END)
  scores = jnp.log(jnp.arange(1.0, V + 1))[None]
  at = lambda index: np.asarray(rules.allowed(scores, jnp.zeros((1, T), jnp.int32), index, (END,)))
  np.testing.assert_array_equal(at(0)[0], [0 if v == 2 else -np.inf for v in range(V)])
  np.testing.assert_array_equal(at(T - 1)[0], [0 if v == END else -np.inf for v in range(V)])
  np.testing.assert_array_equal(at(1), scores)
  assert not Rules(start=3) and Rules(min_length=1)


class State:
  """Of a decoder that likes the same tokens always."""

  def grow(self, length):
    return self

  def reorder(self, rows):
    return self

  def take(self, rows):
    return self


jax.tree_util.register_pytree_node(State, lambda s: ((), None), lambda *_: State())


@pytest.mark.parametrize("method", [Sample(temperature=0.0), Beam(beam=1), Beam(beam=3)],
                         ids=["greedy", "one", "three"])
def test_searches_keep_the_rules(method):
  """The likeliest of 0 > 2 > 3 > ... that no rule forbids, and the end at last."""
  likes = jnp.log(jnp.array([0.5, 0.01, 0.3, 0.1, 0.05, 0.04]))
  step = lambda tokens, state, index: (jnp.tile(likes, (len(tokens), 1)), state)
  write = lambda rules: np.asarray(decode(
      method, Start(likes[None], State(), jnp.zeros(1, bool)), step, 5,
      Ends((END,), 9, rules)).tokens)[0, 0].tolist()
  assert write(Rules(forced_first=4, no_repeat=1, forced_last=END)) == [4, 0, 2, 3, END]
  assert write(Rules(no_repeat=2, start=0, suppressed=(3, 4, 5), forced_last=END))[:2] != [0, 0]
