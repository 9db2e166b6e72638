"""The encoder-decoder and its beam search against MarianMTModel of `transformers`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import marian
from jtx.config import build, section
from jtx.inference import decode
from jtx.inference.generate import generate
from jtx.models import MODELS
from jtx.nn.shapes import shapes_of
from jtx.parallel.sharding import unbox

pytest.importorskip("torch", reason="PyTorch is not installed: make test-parity installs it")
pytest.importorskip("transformers", reason="transformers is not installed: see make test-parity")

BOS, EOS, PAD, LENGTH = 1, 2, 0, 12
OPTIONS = marian.block_options()
STACK = dict(width=24, block=dict(attention=dict(num_heads=3, **OPTIONS["attention"]),
                                  ffn=dict(dim=20, **OPTIONS["ffn"]), norm=OPTIONS["norm"]))
MODEL = build(MODELS, section(
    MODELS, "encdec", vocab_size=37, encoder=dict(num_layers=2, **STACK),
    decoder=dict(num_layers=3, **STACK), embedding=dict(output_bias=True)))


def rows(name, tokens):
  segments = (tokens != PAD).astype(np.int32)
  positions = np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape)
  return {name: tokens, f"{name}_segment_ids": segments, f"{name}_positions": positions}


def sources(count):
  random = np.random.default_rng(1)
  tokens = random.integers(3, 37, (count, 9)).astype(np.int32)
  for row, length in zip(tokens, random.integers(2, 10, count)):
    row[length:] = PAD
  return tokens


@pytest.fixture(scope="module")
def params():
  """Every tensor redrawn, norms and biases too; the end token likely enough to end some."""
  batch = {**rows("src", sources(2)), **rows("tgt", sources(2)), "tgt_in": sources(2)}
  boxed = shapes_of(MODEL.init, jax.random.key(0), batch)["params"]
  random = np.random.default_rng(0)
  leaves, tree = jax.tree.flatten(unbox(boxed))
  params = tree.unflatten([jnp.asarray(random.normal(size=x.shape) * 0.4, jnp.float32)
                           for x in leaves])
  return {**params, "output_bias": params["output_bias"].at[EOS].add(6.0)}


@pytest.fixture(scope="module")
def peer(params):
  config = marian.config(MODEL, bos_id=BOS, eos_id=EOS, pad_id=PAD, max_length=LENGTH)
  return marian.make(config, marian.state_dict(params, LENGTH))


SRC, TGT = sources(5), np.random.default_rng(2).integers(3, 37, (5, 7)).astype(np.int32)
TOLERANCE = 5e-6  # of the largest logit


@jax.jit
def logits_of(params):
  hidden = MODEL.apply({"params": params}, {**rows("src", SRC), **rows("tgt", TGT), "tgt_in": TGT})
  return MODEL.apply({"params": params}, hidden, method="logits")


def test_logits(params, peer):
  import torch
  with torch.no_grad():
    theirs = peer(input_ids=torch.from_numpy(SRC).long(),
                  attention_mask=torch.from_numpy(SRC != PAD).long(),
                  decoder_input_ids=torch.from_numpy(TGT).long()).logits.numpy()
  assert abs(logits_of(params) - theirs).max() < TOLERANCE * abs(theirs).max()


def test_every_tensor_matters(params):
  """A tensor that the map forgot or mixed up could not pass `test_logits` unnoticed."""
  logits = logits_of(params)
  for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
    zeroed = jax.tree_util.tree_map_with_path(lambda p, x: x * (p != path), params)
    difference = abs(logits_of(zeroed) - logits).max()
    if jax.tree_util.keystr(path).endswith("['key']['bias']"):
      continue  # adds the same to all scores of a query
    assert difference > 2 * TOLERANCE * abs(logits).max(), path


@pytest.mark.parametrize("alpha", [0.0, 1.0])
@pytest.mark.parametrize("early_stop", [True, False])
def test_beam_search(params, peer, alpha, early_stop):
  import torch
  src, T = sources(40), LENGTH - 1
  method = decode.Beam(beam=4, alpha=alpha, penalty="power", early_stop=early_stop)
  out = generate(MODEL, method, T, decode.Ends((EOS,), PAD), params=params, batch=rows("src", src),
                 prompt=jnp.full((len(src), 1), BOS))
  ours = np.asarray(out.tokens)[:, 0]
  theirs = peer.generate(
      input_ids=torch.from_numpy(src).long(), attention_mask=torch.from_numpy(src != PAD).long(),
      num_beams=4, length_penalty=alpha, early_stopping=True if early_stop else "never",
      do_sample=False, max_new_tokens=T).numpy()[:, 1:]
  theirs = np.pad(theirs, ((0, 0), (0, T - theirs.shape[1])), constant_values=PAD)
  ended = (ours == EOS).any(1) & (theirs == EOS).any(1)
  assert ended.sum() >= 20  # at the end of the room Marian lets unfinished ones compete
  np.testing.assert_array_equal(ours[ended], theirs[ended])
