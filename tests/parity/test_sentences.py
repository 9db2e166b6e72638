"""Vectors of a folder that jtx wrote, by `transformers` and by `sentence-transformers`."""

import json

import numpy as np
import pytest

import jtx
from jtx.data.tokenizers.kinds import wordpiece
from jtx.models.text_head import HeadConfig
from jtx.saved.pretrained import save_pretrained
from tests.interop.samples import BERT, random_params

torch = pytest.importorskip(
    "torch", reason="PyTorch is not installed: make test-parity installs it")
transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: see make test-parity")

TEXTS = ["the cat sat", "on the mat", "the mat, the cat and the mat on the mat sat on a cat", "a"]


@pytest.fixture(scope="module", params=[("mean", True), ("first", False)])
def folder(request, tmp_path_factory):
  pool, normalize = request.param
  tokenizer = wordpiece(iter(TEXTS), vocab_size=60, min_frequency=1)
  model = BERT.clone(vocab_size=tokenizer.vocab_size, dtype="float32", head=HeadConfig(
      task="embedding", pool=pool, normalize=normalize))
  path = str(tmp_path_factory.mktemp("sentences") / "model")
  save_pretrained(path, model, random_params(model), tokenizer)
  return path


def test_hidden_states_are_pooled_as_the_files_say(folder):
  model = transformers.AutoModel.from_pretrained(folder).eval()
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  with open(f"{folder}/sentence_bert_config.json", encoding="utf-8") as f:
    most = json.load(f)["max_seq_length"]
  batch = tokenizer(TEXTS, padding=True, truncation=True, max_length=most, return_tensors="pt")
  with torch.no_grad():
    hidden = model(**batch).last_hidden_state.numpy()
  with open(f"{folder}/1_Pooling/config.json", encoding="utf-8") as f:
    by_mean = json.load(f)["pooling_mode_mean_tokens"]
  mask = batch["attention_mask"].numpy()[..., None]
  x = (hidden * mask).sum(1) / mask.sum(1) if by_mean else hidden[:, 0]
  with open(f"{folder}/modules.json", encoding="utf-8") as f:
    if len(json.load(f)) == 3:
      x /= np.linalg.norm(x, axis=-1, keepdims=True)
  np.testing.assert_allclose(jtx.Embedder(folder)(TEXTS), x, rtol=0, atol=1e-5)


def test_sentence_transformers_gives_the_same_vectors(folder):
  library = pytest.importorskip("sentence_transformers")
  x = library.SentenceTransformer(folder, device="cpu").encode(TEXTS)
  np.testing.assert_allclose(jtx.Embedder(folder)(TEXTS), x, rtol=0, atol=1e-5)
