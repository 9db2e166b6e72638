"""Our encoder-decoder as `transformers`' MarianMTModel, with equal weights.

Only `make` needs PyTorch and transformers.
"""

from typing import Any, Mapping

import jax
import numpy as np

from jtx.models.encdec import EncDec
from jtx.nn.attention import PROJECTIONS
from jtx.nn.encodings import sinusoidal


def block_options() -> dict[str, Any]:
  """Keys of a layer's section that make ours compute what Marian's layers compute."""
  return dict(attention=dict(biases=PROJECTIONS), ffn=dict(bias=True, activation="relu"),
              norm=dict(kind="layernorm", position="post", eps=1e-5, bias=True))


def config(model: EncDec, *, bos_id: int, eos_id: int, pad_id: int,
           max_length: int) -> dict[str, Any]:
  """Arguments of MarianConfig for `model`, which has one shared embedding and sinusoids.

  Args:
    model: with `block_options`.
    bos_id: decoding starts from it.
    eos_id: ends a target.
    pad_id: padding.
    max_length: tokens of the longest source or target.
  """
  encoder, decoder = model.encoder.block, model.decoder.block
  return dict(
      vocab_size=model.vocab_size, d_model=model.decoder.width,
      encoder_layers=model.encoder.num_layers, decoder_layers=model.decoder.num_layers,
      encoder_attention_heads=encoder.attention.num_heads,
      decoder_attention_heads=decoder.attention.num_heads,
      encoder_ffn_dim=encoder.ffn.dim, decoder_ffn_dim=decoder.ffn.dim,
      activation_function=decoder.ffn.activation, dropout=decoder.dropout,
      attention_dropout=decoder.attention.dropout, activation_dropout=decoder.ffn.dropout,
      scale_embedding=model.embedding.scale, max_position_embeddings=max_length,
      decoder_start_token_id=bos_id, bos_token_id=bos_id, eos_token_id=eos_id, pad_token_id=pad_id,
      forced_eos_token_id=None)


def make(config: Mapping[str, Any], state: Mapping[str, np.ndarray]):
  """A MarianMTModel in evaluation mode from `config` and `state_dict`."""
  import torch
  import transformers

  peer = transformers.MarianMTModel(transformers.MarianConfig(**config)).eval()
  peer.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})
  return peer


def state_dict(params: Mapping[str, Any], max_length: int) -> dict[str, np.ndarray]:
  """The parameters by Marian's names."""
  params = jax.tree.map(lambda x: np.array(x, np.float32), params)
  embedding = params["tgt_embed"]["embedding"]
  vocab_size, width = embedding.shape
  bias = params.get("output_bias", np.zeros(vocab_size, np.float32))
  state = {"model.shared.weight": embedding, "lm_head.weight": embedding,
           "final_logits_bias": bias[None]}
  for stack in ("encoder", "decoder"):
    state[f"model.{stack}.embed_tokens.weight"] = embedding
    state[f"model.{stack}.embed_positions.weight"] = np.array(
        sinusoidal(np.arange(max_length), width), np.float32)
    layers = params[stack]["layers"]
    for i in range(len(layers["ffn_norm"]["scale"])):
      layer = layer_state(jax.tree.map(lambda x: x[i], layers))
      state |= {f"model.{stack}.layers.{i}.{name}": value for name, value in layer.items()}
  return state


def layer_state(layer: Mapping[str, Any]) -> dict[str, np.ndarray]:
  state = {}
  for ours, theirs in (("attention", "self_attn"), ("cross_attention", "encoder_attn")):
    if ours in layer:
      for part in ("query", "key", "value", "out"):
        name = "out_proj" if part == "out" else f"{part[0]}_proj"
        state |= dense(f"{theirs}.{name}", layer[ours][part])
      state |= norm(f"{theirs}_layer_norm", layer[f"{ours}_norm"])
  return (state | dense("fc1", layer["ffn"]["in"]) | dense("fc2", layer["ffn"]["out"])
          | norm("final_layer_norm", layer["ffn_norm"]))


def dense(name: str, p: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """A kernel [*inputs, *outputs] as the matrix [out, in] of a torch Linear."""
  bias = p["bias"].reshape(-1)
  kernel = np.ascontiguousarray(p["kernel"].reshape(-1, len(bias)).T)
  return {f"{name}.weight": kernel, f"{name}.bias": bias}


def norm(name: str, p: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  return {f"{name}.weight": p["scale"], f"{name}.bias": p["bias"]}
