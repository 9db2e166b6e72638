"""The best spans of given logits, against all spans tried one by one."""

import itertools

import numpy as np

from jtx.evals.answers import by_id
from jtx.inference.answers import best_answers

CONTEXT = "Ann met Bob in Rome , in May ."
WORDS = [(0, 3), (4, 7), (8, 11), (12, 14), (15, 19), (20, 21), (22, 24), (25, 28), (29, 30)]


def window(first, last, specials=2):
  """Tokens of a question and special tokens, then words first to last of the context."""
  offsets = [(-1, -1)] * specials + WORDS[first:last] + [(-1, -1)]
  return {"id": 7, "context": CONTEXT, "text_offsets": np.array(offsets)}


def by_trial(windows, outputs, max_answer):
  """All spans, best first, each text once."""
  spans = []
  for w, logits in zip(windows, outputs):
    offsets = w["text_offsets"]
    for s, e in itertools.product(range(len(offsets)), repeat=2):
      if offsets[s][0] >= 0 and offsets[e][0] >= 0 and s <= e < s + max_answer:
        spans.append((float(logits[s, 0] + logits[e, 1]), CONTEXT[offsets[s][0]:offsets[e][1]]))
  seen = {}
  for score, text in sorted(spans, key=lambda pair: -pair[0]):
    seen.setdefault(text, score)
  return list(seen.items())


def test_best_spans_over_windows_are_those_of_all_spans():
  rng = np.random.default_rng(0)
  for _ in range(20):
    windows = [window(0, 5), window(3, 9, specials=4)]
    outputs = [rng.normal(size=(len(w["text_offsets"]), 2)).astype(np.float32) for w in windows]
    expected = by_trial(windows, outputs, 3)
    found = best_answers(windows, outputs, 100, 3)
    assert [a.text for a in found] == [text for text, _ in expected]
    np.testing.assert_allclose([a.score for a in found], [s for _, s in expected], rtol=1e-6)
    assert all(CONTEXT[a.start:a.end] == a.text for a in found)


def test_n_best_limits_starts_ends_and_answers():
  w = window(0, 9)
  logits = np.zeros((len(w["text_offsets"]), 2), np.float32)
  logits[2:11, 0], logits[2:11, 1] = np.arange(9, 0, -1), np.arange(1, 10)
  # The two best starts are the first two words, the two best ends the last two.
  found = best_answers([w], [logits], 2, 30)
  assert [a.text for a in found] == [CONTEXT, CONTEXT[:28]]
  assert best_answers([w], [logits], 2, 6) == []  # those spans have 7 words and more


def test_special_tokens_and_the_question_are_no_answer():
  w = window(0, 2)
  logits = np.zeros((len(w["text_offsets"]), 2), np.float32)
  logits[0] = logits[1] = logits[-1] = 100
  assert {a.text for a in best_answers([w], [logits], 5, 30)} == {"Ann", "met", "Ann met"}


def test_windows_of_a_question_are_found_together():
  assert by_id([{"id": 3}, {"id": 5}, {"id": 3}]) == {3: [0, 2], 5: [1]}
