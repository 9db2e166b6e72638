"""Order, padding and compiled shapes of prediction."""

import numpy as np
import pytest

from jtx.data.batching import groups, pad
from jtx.errors import ConfigError
from jtx.inference.predictions import prediction
from jtx.inference.texts import Predictor
from jtx.models.text_head import HeadConfig
from jtx.nn.positions import Learned
from jtx.parallel import sharding
from tests.helpers import one_fast
from tests.models.test_encoder import V, batch_of, drawn, small

TEXTS = ["a cat", "the cat sat on the mat", "mat", "a dog sat on a cat and a mat on the dog"]


def examples(*lengths):
  rng = np.random.default_rng(3)
  return [{"text": rng.integers(1, V, n).astype(np.int32),
           "text_types": rng.integers(0, 2, n).astype(np.int32)} for n in lengths]


def alone(model, params, example):
  """The head's outputs for one text, without padding."""
  batch = {**batch_of(example["text"], length=len(example["text"])),
           "text_types": example["text_types"][None]}
  return np.asarray(model.apply({"params": params}, batch, method="predict")[0])


@pytest.mark.parametrize("head", one_fast(
    HeadConfig(task="classes", outputs=3, transform="tanh"),
    HeadConfig(task="tags", outputs=4, pool="none")), ids=lambda h: h.task)
@pytest.mark.parametrize("devices", one_fast(None, 8))
def test_every_text_has_its_own_outputs_in_the_order_given(head, devices):
  model = small(num_layers=2, position=Learned(64), head=head)
  params = drawn(model, batch_of((1, 2)))
  mesh = None
  if devices:
    mesh = sharding.make_mesh({"data": -1, "fsdp": 1, "tensor": 1, "context": 1})
  texts = examples(5, 17, 1, 5)
  found = Predictor(model, params, batch_size=3, mesh=mesh)(texts)
  for example, outputs in zip(texts, found, strict=True):
    expected = alone(model, params, example)
    np.testing.assert_allclose(outputs, expected if head.pool == "none" else expected[0], atol=2e-5)


def test_few_shapes_are_compiled():
  shapes = set()

  def function(model, params, batch):
    shapes.add(batch["text"].shape)  # runs when a shape is traced
    return batch["text"].sum(-1)

  model = small(num_layers=1, position=Learned(60), head=HeadConfig(task="classes", outputs=2))
  predictor = Predictor(model, {}, function, batch_size=2)
  for n in range(1, 61):
    assert [int(x) for x in predictor(examples(n))] == [int(examples(n)[0]["text"].sum())]
  assert shapes == {(2, n) for n in (16, 24, 32, 48, 60)}  # the table has 60 positions


def test_a_text_longer_than_the_position_table():
  model = small(num_layers=1, position=Learned(8), head=HeadConfig(task="classes", outputs=2))
  with pytest.raises(ConfigError, match="position.max_length=8 is too short for texts of 9 tokens"):
    Predictor(model, {})(examples(3, 9))


def test_groups_are_sorted_by_length_and_hold_every_text():
  assert groups([5, 1, 4, 1, 3], 2) == [[1, 3], [4, 2], [0]]
  assert groups([], 2) == []


def test_padding():
  batch = pad("src", [np.array([5, 6]), np.array([7])], 3, 4, {"_types": [[1, 1], [0]]}, pad_id=9)
  assert {k: v.tolist() for k, v in batch.items()} == {
      "src": [[5, 6, 9, 9], [7, 9, 9, 9], [9] * 4],
      "src_segment_ids": [[1, 1, 0, 0], [1, 0, 0, 0], [0] * 4],
      "src_types": [[1, 1, 0, 0], [0, 0, 0, 0], [0] * 4],
      "src_positions": [[0, 1, 2, 3]] * 3}


def test_probabilities_of_classes():
  found = prediction(np.array([0.0, np.log(3), 0.0]), ("a", "b", "c"))
  assert found.label == "b"
  np.testing.assert_allclose(list(found.scores.values()), [0.2, 0.6, 0.2], rtol=1e-6)
