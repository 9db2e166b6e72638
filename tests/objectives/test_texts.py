"""The objectives of text encoders against float64 NumPy, and packed against alone."""

import jax
import numpy as np
import pytest

from jtx.errors import ConfigError
from jtx.objectives.classify import Classify
from jtx.objectives.multiple_choice import MultipleChoice
from jtx.objectives.span import Span
from jtx.objectives.tag import Tag

RNG = np.random.default_rng(0)
SEGMENTS = np.array([[1, 1, 1, 2, 2, 0], [1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]])
POSITIONS = np.array([[0, 1, 2, 0, 1, 0], [0, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]])
TEXTS = [(0, 0), (0, 1), (1, 0)]  # (row, text) that there are
BASE = {"text_segment_ids": SEGMENTS, "text_positions": POSITIONS}


class Fixed:
  """A model whose head's outputs are given."""

  def __init__(self, outputs):
    self.outputs = outputs

  def apply(self, variables, batch, num_texts, train, rngs=None, method=None):
    assert method == "predict"
    return self.outputs(batch) if callable(self.outputs) else self.outputs


def log_softmax(x):
  x = np.asarray(x, np.float64)
  return x - np.log(np.exp(x).sum(-1, keepdims=True))


def sums(objective, outputs, batch):
  out = objective(Fixed(outputs), {}, {**BASE, **batch}, train=False)
  return jax.tree.map(float, out)


def check(pair, values):
  total, weight = pair
  assert weight == len(values)
  np.testing.assert_allclose(total, sum(values), rtol=1e-5)


def test_classes():
  outputs = RNG.normal(size=(3, 2, 4)).astype(np.float32)
  labels = np.array([[2, 0], [3, -5], [7, 7]])  # what is not there may be anything
  out = sums(Classify(), outputs, {"label": labels})
  check(out["loss"], [-log_softmax(outputs[t])[labels[t]] for t in TEXTS])
  check(out["accuracy"], [outputs[t].argmax() == labels[t] for t in TEXTS])
  assert float(Classify().weights({**BASE, "label": labels})["loss"]) == 3


def test_numbers():
  outputs = RNG.normal(size=(3, 2, 1)).astype(np.float32)
  labels = np.array([[2.5, 0.1], [3, 9], [7, 7]], np.float32)
  out = sums(Classify("squared_error"), outputs, {"label": labels})
  check(out["loss"], [(outputs[t][0] - labels[t]) ** 2 for t in TEXTS])
  assert set(out) == {"loss"}


def test_numbers_need_one_output():
  with pytest.raises(ConfigError, match="needs model.head.outputs=1, not 4"):
    sums(Classify("squared_error"), np.zeros((3, 2, 4)), {"label": np.zeros((3, 2))})


def test_an_unknown_loss():
  with pytest.raises(ConfigError, match="objective.loss='mse': valid are cross_entropy, sigmoid,"):
    Classify("mse")


def test_tags():
  outputs = RNG.normal(size=(3, 6, 3)).astype(np.float32)
  tags = np.array([[-1, 2, -1, 0, 1, 1], [0, -1, 2, 2, 2, 2], [0, 0, 0, 0, 0, 0]])
  places = [(0, 1), (0, 3), (0, 4), (1, 0)]
  out = sums(Tag(), outputs, {"tags": tags})
  check(out["loss"], [-log_softmax(outputs[p])[tags[p]] for p in places])
  check(out["accuracy"], [outputs[p].argmax() == tags[p] for p in places])
  assert float(Tag().weights({**BASE, "tags": tags})["loss"]) == 4


def test_spans():
  outputs = RNG.normal(size=(3, 6, 2)).astype(np.float32)
  start, end = np.array([[1, 0], [0, 0], [0, 0]]), np.array([[2, 1], [0, 0], [0, 0]])
  places = {(0, 0): slice(0, 3), (0, 1): slice(3, 5), (1, 0): slice(0, 2)}
  nll, right = [], []
  for t in TEXTS:
    text = outputs[t[0], places[t]]
    nll.append(-(log_softmax(text[:, 0])[start[t]] + log_softmax(text[:, 1])[end[t]]) / 2)
    right.append(text[:, 0].argmax() == start[t] and text[:, 1].argmax() == end[t])
  out = sums(Span(), outputs, {"start": start, "end": end})
  check(out["loss"], nll)
  check(out["accuracy"], right)
  assert float(Span().weights({**BASE, "start": start})["loss"]) == 3


def choices(number=3):
  batch = {}
  for i in range(number):
    tokens = RNG.integers(1, 9, SEGMENTS.shape) * (SEGMENTS > 0)
    batch |= {f"choice_{i}": tokens, f"choice_{i}_segment_ids": SEGMENTS,
              f"choice_{i}_positions": POSITIONS, f"choice_{i}_types": tokens % 2}
  return batch


def test_choices():
  batch, labels = choices(), np.array([[2, 0], [1, 0], [0, 0]])
  score = lambda b: b["text"].astype(np.float32)[:, :2, None] / 3  # [C * B, S, 1]
  out = sums(MultipleChoice(), score, {**batch, "label": labels})
  logits = np.stack([batch[f"choice_{i}"][:, :2] / 3 for i in range(3)], -1)
  check(out["loss"], [-log_softmax(logits[t])[labels[t]] for t in TEXTS])
  check(out["accuracy"], [logits[t].argmax() == labels[t] for t in TEXTS])
  assert float(MultipleChoice().weights({**batch, "label": labels})["loss"]) == 3


def test_choices_become_rows_of_one_batch():
  batch = choices(2)
  inputs = MultipleChoice().model_inputs({**batch, "label": np.zeros((3, 2))})
  assert set(inputs) == {"text", "text_segment_ids", "text_positions", "text_types"}
  for key in inputs:
    suffix = key.removeprefix("text")
    np.testing.assert_array_equal(inputs[key], np.concatenate(
        [batch[f"choice_0{suffix}"], batch[f"choice_1{suffix}"]]))


def test_choices_need_one_length():
  batch = choices(2)
  batch["choice_1"] = np.zeros((3, 7), int)
  with pytest.raises(ConfigError, match=r"need rows of one length, not 6 and 7"):
    MultipleChoice().model_inputs(batch)
