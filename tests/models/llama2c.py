"""The published decoder stories260K, in the file format of llama2.c."""

import json
import os
import struct

import numpy as np

from jtx.nn.rope import Rope
from tests.helpers import block, decoder

FOLDER = os.path.join(os.environ.get("JTX_TEST_DATA", ""), "golden", "stories260K")
BOS = 1


def expected() -> dict:
  with open(os.path.join(FOLDER, "expected.json"), encoding="utf-8") as f:
    return json.load(f)


def load():
  """The model and its parameters.

  The file has seven int32, then float32 matrices [out, in], of all layers one kind after the other.
  """
  with open(os.path.join(FOLDER, "stories260K.bin"), "rb") as f:
    D, F, L, N, K, V, _ = struct.unpack("7i", f.read(28))
    values = np.fromfile(f, np.float32)
  H = D // N
  take, at = {}, 0
  for name, shape in (("embedding", (V, D)), ("attention_norm", (L, D)), ("query", (L, N * H, D)),
                      ("key", (L, K * H, D)), ("value", (L, K * H, D)), ("out", (L, D, N * H)),
                      ("ffn_norm", (L, D)), ("gate", (L, F, D)), ("ffn_out", (L, D, F)),
                      ("in", (L, F, D)), ("final_norm", (D,))):
    take[name] = values[at:at + np.prod(shape)].reshape(shape)
    at += np.prod(shape)
  kernel = lambda name, *shape: {"kernel": np.swapaxes(take[name], 1, 2).reshape(L, *shape)}
  scale = lambda name: {"scale": take[name]}
  layers = {
      "attention_norm": scale("attention_norm"), "ffn_norm": scale("ffn_norm"),
      "attention": {"query": kernel("query", D, N, H), "key": kernel("key", D, K, H),
                    "value": kernel("value", D, K, H), "out": kernel("out", N, H, D)},
      "ffn": {"gate": kernel("gate", D, F), "in": kernel("in", D, F),
              "out": kernel("ffn_out", F, D)}}
  params = {"embed": {"embedding": take["embedding"]},
            "decoder": {"layers": layers, "final_norm": scale("final_norm")}}
  model = decoder(vocab_size=V, width=D, num_layers=L, position=Rope(pairing="interleaved"),
                  block=block(num_heads=N, num_kv_heads=K, ffn_dim=F, norm="rmsnorm",
                              norm_position="pre", norm_eps=1e-5, ffn_bias=False, gated=True,
                              activation="silu", dropout=0.0))
  return model, params
