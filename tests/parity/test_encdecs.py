"""Encoder-decoders against their classes in `transformers`, through files in both directions."""

import json
import os

import jax
import numpy as np
import pytest
import safetensors.numpy

from jtx.interop.trunks import param_shapes
from jtx.saved.pretrained import load_pretrained, save_pretrained
from tests.parity.test_decoders import error, redraw, same_files, saved

torch = pytest.importorskip(
    "torch", reason="PyTorch is not installed: make test-parity installs it")
transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: see make test-parity")

TOLERANCE = 5e-6  # of the largest value
VOCAB, S, T, PAD, EOS = 61, 11, 9, 0, 1
IDS = dict(vocab_size=VOCAB, pad_token_id=PAD, eos_token_id=EOS, decoder_start_token_id=PAD)
T5 = IDS | dict(d_model=24, d_kv=6, d_ff=20, num_layers=2, num_decoder_layers=3, num_heads=4)
GATED = T5 | dict(feed_forward_proj="gated-gelu")
BUCKETS = dict(relative_attention_num_buckets=8, relative_attention_max_distance=10)
BART = IDS | dict(d_model=24, encoder_layers=2, decoder_layers=3, encoder_attention_heads=4,
                  decoder_attention_heads=3, encoder_ffn_dim=20, decoder_ffn_dim=28,
                  max_position_embeddings=16, bos_token_id=2, forced_eos_token_id=None)
ONE = dict(encoder_layers=1, decoder_layers=1, scale_embedding=True, activation_function="relu")
WIDE = dict(d_model=20, encoder_attention_heads=1, decoder_attention_heads=5,
            activation_function="swish", max_position_embeddings=11)
# Three sizes each.
CONFIGS = {
    "T5": [T5, GATED | dict(tie_word_embeddings=False, d_kv=10) | BUCKETS,
           T5 | dict(num_layers=1, num_decoder_layers=None, feed_forward_proj="gated-silu",
                     layer_norm_epsilon=1e-3)],
    "MT5": [T5, GATED | BUCKETS, T5 | dict(num_heads=1, d_kv=5, feed_forward_proj="gelu")],
    "UMT5": [GATED | BUCKETS, T5 | dict(num_layers=3, num_decoder_layers=1), GATED | dict(d_kv=10)],
    "Bart": [BART, BART | ONE, BART | WIDE],
    "MBart": [BART, BART | ONE, BART | WIDE],
    "Marian": [BART, BART | ONE, BART | WIDE | dict(
        share_encoder_decoder_embeddings=False, decoder_vocab_size=VOCAB - 8)],
    "Pegasus": [BART, BART | ONE, BART | WIDE],
}
UNTIED = [("T5", 1), ("MT5", 1), ("UMT5", 0)]  # have an output table of their own
CASES = [(family, case) for family in CONFIGS for case in range(3)]
FIXED = "embed_positions"  # of Marian and Pegasus: sinusoids
SINUSOIDS = ("Marian", "Pegasus")


def make_peer(family, case):
  """A model of `transformers`, every tensor of it redrawn but sinusoids."""
  name = family + ("MTModel" if family == "Marian" else "ForConditionalGeneration")
  config = getattr(transformers, f"{family}Config")(**CONFIGS[family][case])
  peer = getattr(transformers, name)(config).eval()
  if (family, case) in UNTIED:
    peer.lm_head.weight = torch.nn.Parameter(peer.lm_head.weight.clone())
  fixed = {n: p.clone() for n, p in peer.named_parameters() if family in SINUSOIDS and FIXED in n}
  redraw(peer)
  with torch.no_grad():
    for n, p in peer.named_parameters():
      if n in fixed:
        p.copy_(fixed[n])
    if hasattr(peer, "final_logits_bias"):
      peer.final_logits_bias.copy_(torch.linspace(-1, 1, peer.final_logits_bias.shape[1])[None])
  return peer


def drawn(shape, lengths, vocab_size, seed):
  tokens = np.random.default_rng(seed).integers(4, vocab_size, shape).astype(np.int32)
  mask = np.arange(shape[1]) < np.array(lengths)[:, None]
  return np.where(mask, tokens, PAD), mask


def rows(name, tokens, mask, key=None):
  places = np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape)
  return {key or name: tokens, f"{name}_segment_ids": mask.astype(np.int32),
          f"{name}_positions": places}


SRC, SRC_MASK = drawn((4, S), (11, 7, 4, 9), VOCAB - 8, 0)
TGT, TGT_MASK = drawn((4, T), (9, 9, 5, 2), VOCAB - 8, 1)
BATCH = {**rows("src", SRC, SRC_MASK), **rows("tgt", TGT, TGT_MASK, "tgt_in")}


def peer_outputs(peer):
  long = lambda x: torch.from_numpy(np.array(x)).long()
  with torch.no_grad():
    out = peer(input_ids=long(SRC), attention_mask=long(SRC_MASK), decoder_input_ids=long(TGT),
               decoder_attention_mask=long(TGT_MASK))
  return {"memory": out.encoder_last_hidden_state.numpy()[SRC_MASK],
          "logits": out.logits.numpy()[TGT_MASK]}


def jtx_outputs(model, params):
  @jax.jit
  def run(params):
    def everything(m, batch):
      memory, _ = m.encode(batch)
      return {"memory": memory, "logits": m.logits(m(batch))}
    return model.apply({"params": params}, BATCH, method=everything)

  out = {k: np.asarray(v) for k, v in run(params).items()}
  return {"memory": out["memory"][SRC_MASK], "logits": out["logits"][TGT_MASK]}


def without_sinusoids(directory):
  """Takes tensors out of a file that need not be there."""
  path = os.path.join(directory, "model.safetensors")
  tensors = safetensors.numpy.load_file(path)
  kept = {k: v for k, v in tensors.items() if FIXED not in k}
  safetensors.numpy.save_file(kept, path, {"format": "pt"})


@pytest.mark.parametrize("family, case", CASES)
def test_outputs_and_files_are_those_of_transformers(family, case, tmp_path):
  peer = make_peer(family, case)
  directory = saved(peer, tmp_path / "theirs")
  model, params = load_pretrained(directory, dtype="float32")
  theirs = peer_outputs(peer)
  assert error(jtx_outputs(model, params), theirs) < TOLERANCE
  sizes = sum(int(np.prod(s)) for s in param_shapes(model).values())
  own = sum(p.numel() for n, p in peer.named_parameters()
            if not (family in SINUSOIDS and FIXED in n))
  own += peer.final_logits_bias.numel() if hasattr(peer, "final_logits_bias") else 0
  assert sizes == own

  ours = str(tmp_path / "ours")
  save_pretrained(ours, model, params, like=directory)
  if family in SINUSOIDS:
    without_sinusoids(directory)
  same_files(directory, ours)
  again, info = type(peer).from_pretrained(ours, output_loading_info=True)
  assert not any(info[k] for k in ("unexpected_keys", "mismatched_keys"))
  assert all(FIXED in k for k in info["missing_keys"])
  assert error(peer_outputs(again.eval()), theirs) < TOLERANCE / 5
