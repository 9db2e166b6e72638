"""Order, padding and compiled shapes of prediction, and the classes that users call."""

import numpy as np
import pytest

import jtx
from jtx.data.batching import groups, pad
from jtx.data.tokenizers import kinds
from jtx.data.tokenizers.files import save_tokenizers
from jtx.errors import ConfigError
from jtx.inference import texts
from jtx.inference.texts import Classifier, Embedder, Predictor, prediction
from jtx.models.encoder import Encoder, HeadConfig
from jtx.nn.positions import Learned
from jtx.parallel import sharding
from jtx.saved import pretrained
from tests.helpers import one_fast
from tests.models.test_encoder import BLOCK, D, V, batch_of, drawn

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
    HeadConfig("classes", 3, transform="tanh"), HeadConfig("tags", 4, "none")), ids=lambda h: h.task)
@pytest.mark.parametrize("devices", one_fast(None, 8))
def test_every_text_has_its_own_outputs_in_the_order_given(head, devices):
  model = Encoder(V, D, 2, BLOCK, Learned(64), head=head)
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

  model = Encoder(V, D, 1, BLOCK, Learned(60), head=HeadConfig("classes", 2))
  predictor = Predictor(model, {}, function, batch_size=2)
  for n in range(1, 61):
    assert [int(x) for x in predictor(examples(n))] == [int(examples(n)[0]["text"].sum())]
  assert shapes == {(2, n) for n in (16, 24, 32, 48, 60)}  # the table has 60 positions


def test_a_text_longer_than_the_position_table():
  model = Encoder(V, D, 1, BLOCK, Learned(8), head=HeadConfig("classes", 2))
  with pytest.raises(ConfigError, match="position.max_length=8 is too short for rows of 9 tokens"):
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


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
  """A folder with a classifier of jtx, its tokenizer, and what it was made of."""
  tokenizer = kinds.wordpiece(iter(TEXTS), vocab_size=60, min_frequency=1)
  model = Encoder(tokenizer.vocab_size, D, 2, BLOCK, Learned(32),
                  head=HeadConfig("classes", 2, transform="tanh"))
  params = drawn(model, batch_of((1, 2)))
  folder = str(tmp_path_factory.mktemp("saved") / "model")
  pretrained.save_pretrained(folder, model, params, tokenizer, labels=("no", "yes"))
  return folder, model, params, tokenizer


def test_the_classifier_of_a_folder(saved):
  folder, model, params, tokenizer = saved
  classify = Classifier(folder, max_length=32, batch_size=2)
  for texts, second in ((TEXTS[:2], None), (TEXTS[:2], TEXTS[1::-1])):
    encodings = tokenizer.encode_texts(texts, second, max_length=32)
    for found, e in zip(classify(texts, second), encodings, strict=True):
      logits = alone(model, params, {"text": e.ids, "text_types": e.types})[0]
      p = np.exp(logits) / np.exp(logits).sum()
      assert found.label == ("no", "yes")[logits.argmax()]
      np.testing.assert_allclose([found.scores["no"], found.scores["yes"]], p, atol=1e-5)
  assert classify([]) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mean", "first"])
def test_the_embedder_of_a_folder(saved, kind):
  folder, model, params, tokenizer = saved
  vectors = Embedder(folder, pool=kind, max_length=32, batch_size=2)(TEXTS)
  assert vectors.shape == (len(TEXTS), D)
  for vector, e in zip(vectors, tokenizer.encode_texts(TEXTS, max_length=32)):
    batch = {**batch_of(e.ids, length=len(e.ids)), "text_types": e.types[None]}
    hidden = np.asarray(model.apply({"params": params}, batch)[0])
    x = hidden[0] if kind == "first" else hidden.mean(0)
    np.testing.assert_allclose(vector, x / np.linalg.norm(x), atol=1e-5)
  raw = Embedder(folder, pool=kind, normalize=False, max_length=32)(TEXTS[:1])
  assert abs(np.linalg.norm(raw[0]) - 1) > 1e-2
  assert Embedder(folder)([]).shape == (0, D)


def test_texts_are_cut_to_the_models_positions(saved):
  folder, model, *_ = saved
  long = " ".join(TEXTS * 10)
  embed = Embedder(folder)  # asks for 256 tokens, and the model has 32 positions
  assert embed.max_length == model.position.limit == 32
  np.testing.assert_allclose(embed([long])[0], Embedder(folder, max_length=32)([long])[0])


def test_what_is_no_classifier_says_so(saved, tmp_path):
  _, model, params, tokenizer = saved
  params = {k: v for k, v in params.items() if k != "task_head"}
  folder = str(tmp_path / "trunk")
  bare = model.clone(head=HeadConfig())
  pretrained.save_pretrained(folder, bare, params, tokenizer, format="jtx")
  with pytest.raises(ConfigError, match="its head is for 'none', not for classes"):
    Classifier(folder)
  with pytest.raises(ConfigError, match="pool='max': valid are 'first' and 'mean'"):
    Embedder(folder, pool="max")


def test_a_tokenizer_of_another_size(saved, tmp_path):
  _, model, params, _ = saved
  other = kinds.wordpiece(iter(["xyz " * 3]), vocab_size=30, min_frequency=1)
  assert other.vocab_size != model.vocab_size
  folder = str(tmp_path / "other")
  pretrained.save_pretrained(folder, model, params, format="jtx")
  save_tokenizers({"text": other.to_json()}, folder)
  with pytest.raises(ConfigError, match=f"{other.vocab_size} tokens.*{model.vocab_size}"):
    Embedder(folder)


def test_what_is_for_use_from_python_is_found_in_the_package():
  assert jtx.Embedder is texts.Embedder and jtx.Classifier is texts.Classifier
  assert all(getattr(jtx, name) is getattr(pretrained, name)
             for name in ("load_pretrained", "load_tokenizer", "save_pretrained"))
  with pytest.raises(AttributeError, match="module 'jtx' has no attribute 'load_pretraned'"):
    jtx.load_pretraned
