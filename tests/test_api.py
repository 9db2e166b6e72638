"""The classes and functions that `import jtx` gives."""

import numpy as np
import pytest

import jtx
from jtx import api
from jtx.api import Classifier, Embedder
from jtx.data.tokenizers import kinds
from jtx.data.tokenizers.files import save_tokenizers
from jtx.errors import ConfigError
from jtx.models.text_head import HeadConfig
from jtx.nn.positions import Learned
from jtx.saved import pretrained
from tests.helpers import encoder
from tests.inference.test_texts import TEXTS, alone
from tests.models.test_encoder import BLOCK, D, batch_of, drawn


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
  """A folder with a classifier of jtx, its tokenizer, and what it was made of."""
  tokenizer = kinds.wordpiece(iter(TEXTS), vocab_size=60, min_frequency=1)
  model = encoder(vocab_size=tokenizer.vocab_size, width=D, num_layers=2, block=BLOCK,
                  position=Learned(32),
                  head=HeadConfig(task="classes", outputs=2, transform="tanh"))
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
  assert embed.max_length == model.stack.position.limit == 32
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
  assert jtx.Embedder is api.Embedder and jtx.Classifier is api.Classifier
  assert all(getattr(jtx, name) is getattr(pretrained, name)
             for name in ("load_pretrained", "load_tokenizer", "save_pretrained"))
  with pytest.raises(AttributeError, match="module 'jtx' has no attribute 'load_pretraned'"):
    jtx.load_pretraned
