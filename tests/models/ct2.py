"""A published trained translator, loaded into `encdec`: Arabic letters to Latin ones.

The weights, vocabularies and expected values are those of CTranslate2's own tests (MIT).
"""

import functools
import json
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx import config
from jtx.models import MODELS
from jtx.nn.attention import PROJECTIONS
from jtx.nn.positions import POSITIONS

WIDTH, HEADS, LAYERS = 32, 8, 6
BOS, EOS = 1, 2


def folder() -> pathlib.Path:
  """The folder of the published files; skips the test where there is none."""
  if "JTX_TEST_DATA" not in os.environ:
    pytest.skip("JTX_TEST_DATA is unset: no published weights to compare with")
  return pathlib.Path(os.environ["JTX_TEST_DATA"]) / "golden" / "ct2_transliteration"


def expected() -> dict:
  """Published log-probabilities ("items") and decodes ("decode")."""
  return json.loads((folder() / "expected.json").read_text(encoding="utf-8"))


def vocabulary(side: str) -> list[str]:
  """Tokens by id, of "source" or "target"; CTranslate2 adds the unknown token to the file's."""
  return (folder() / f"{side}_vocabulary.txt").read_text(encoding="utf-8").split() + ["<unk>"]


def model_config() -> config.ConfigDict:
  position = config.section(POSITIONS, "sinusoidal", layout="concatenated", inclusive=True,
                            first_position=1)
  block = {"attention": {"num_heads": HEADS, "biases": PROJECTIONS}, "ffn": {"dim": 128},
           "norm": {"position": "pre", "eps": 1e-5}}
  stack = {"width": WIDTH, "num_layers": LAYERS, "block": block, "position": position}
  return config.section(
      MODELS, "encdec", vocab_size=len(vocabulary("target")),
      src_vocab_size=len(vocabulary("source")), encoder=stack, decoder=stack,
      embedding={"tie": ("positions",), "output_bias": True})


@functools.cache
def load():
  """The model and its parameters."""
  weights = np.load(folder() / "aren_transliteration_v2.npz")
  model = config.build(MODELS, model_config(), what="model")
  return model, convert({name: weights[name] for name in weights.files})


def convert(weights: dict[str, np.ndarray]) -> dict:
  """CTranslate2's weights, each stored (out, in), as our parameter tree."""
  heads = (HEADS, WIDTH // HEADS)

  def norm(name):
    return {"scale": weights[f"{name}/gamma"], "bias": weights[f"{name}/beta"]}

  def dense(name, part=slice(None), inputs=(-1,), features=(-1,)):
    kernel, bias = weights[f"{name}/weight"][part].T, weights[f"{name}/bias"][part]
    return {"kernel": kernel.reshape(*inputs, *features), "bias": bias.reshape(features)}

  def rows(i):
    return slice(i * WIDTH, (i + 1) * WIDTH)

  def attention(name, query, key, value, out):
    project = {part: dense(f"{name}/{linear}", rows(i), (WIDTH,), heads)
               for part, (linear, i) in {"query": query, "key": key, "value": value}.items()}
    return {**project, "out": dense(f"{name}/{out}", inputs=heads, features=(WIDTH,))}

  def feed_forward(name):
    return {"in": dense(f"{name}/linear_0", inputs=(WIDTH,)),
            "out": dense(f"{name}/linear_1", features=(WIDTH,))}

  def layer(name, cross):
    self_attention, ffn = f"{name}/self_attention", f"{name}/ffn"
    params = {
        "attention": attention(self_attention, *(("linear_0", i) for i in range(3)), "linear_1"),
        "attention_norm": norm(f"{self_attention}/layer_norm"),
        "ffn": feed_forward(ffn),
        "ffn_norm": norm(f"{ffn}/layer_norm"),
    }
    if cross:
      params["cross_attention"] = attention(
          f"{name}/attention", ("linear_0", 0), ("linear_1", 0), ("linear_1", 1), "linear_2")
      params["cross_attention_norm"] = norm(f"{name}/attention/layer_norm")
    return params

  def stack(name):
    layers = [layer(f"{name}/layer_{i}", cross=name == "decoder") for i in range(LAYERS)]
    return {"layers": jax.tree.map(lambda *x: np.stack(x), *layers),
            "final_norm": norm(f"{name}/layer_norm")}

  return jax.tree.map(jnp.asarray, {
      "src_embed": {"embedding": weights["encoder/embeddings/weight"]},
      "tgt_embed": {"embedding": weights["decoder/embeddings/weight"]},
      "encoder": stack("encoder"),
      "decoder": stack("decoder"),
      "output": {"kernel": weights["decoder/projection/weight"].T},
      "output_bias": weights["decoder/projection/bias"],
  })


def source_batch(sources: list[list[str]]) -> dict[str, jax.Array]:
  """Token strings to `src [B, S]` and its segment ids and positions, one row a source."""
  return field("src", [[vocabulary("source").index(token) for token in s] for s in sources])


def field(name: str, ids: list[list[int]]) -> dict[str, jax.Array]:
  """Rows of ids, padded, as the three arrays of a batch field."""
  length = max(map(len, ids))
  padded = jnp.array([row + [0] * (length - len(row)) for row in ids])
  segments = jnp.array([[1] * len(row) + [0] * (length - len(row)) for row in ids])
  return {name: padded, f"{name}_segment_ids": segments,
          f"{name}_positions": jnp.broadcast_to(jnp.arange(length), padded.shape)}
