"""CLIP and SigLIP against their classes in `transformers`, through files in both directions."""

import jax
import numpy as np
import pytest
import safetensors.numpy

from jtx.objectives.image_text import ImageText
from jtx.saved.pretrained import load_pretrained, save_pretrained

torch = pytest.importorskip(
    "torch", reason="PyTorch is not installed: make test-parity installs it")
transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: see make test-parity")

from tests.parity.test_encoders import TOLERANCE, error, redraw, saved  # noqa: E402

EOS, T, LENGTHS = 40, 9, (9, 5, 3)
TEXT = dict(vocab_size=41, num_hidden_layers=2, max_position_embeddings=T, bos_token_id=1,
            eos_token_id=EOS, pad_token_id=0)
VISION = dict(num_hidden_layers=3, image_size=12, patch_size=4)
WIDE = dict(hidden_size=24, num_attention_heads=3, intermediate_size=40)
NARROW = dict(hidden_size=16, num_attention_heads=4, intermediate_size=20)
CASES = {
    # As in published files, whose eos_token_id=2 stands for the largest of all ids.
    "CLIPModel": dict(
        text_config=TEXT | NARROW | dict(hidden_act="gelu", eos_token_id=2),
        vision_config=VISION | WIDE | dict(layer_norm_eps=1e-3), projection_dim=10),
    "SiglipModel": dict(text_config=TEXT | NARROW | dict(projection_size=24),
                        vision_config=VISION | WIDE),
}


def make_peer(name):
  """A model of `transformers`, every tensor of it redrawn."""
  config = getattr(transformers, name.replace("Model", "Config"))(**CASES[name])
  peer = redraw(getattr(transformers, name)(config).eval(), 0.3)
  with torch.no_grad():
    peer.logit_scale.fill_(1.5)
  return peer


def make_batch(padded):
  """Three pairs, in one whose rows are `padded` as SigLIP has it, and as jtx does it itself."""
  random = np.random.default_rng(0)
  places = np.arange(T) + np.zeros((len(LENGTHS), 1), int)
  ends = np.array(LENGTHS)[:, None] - 1
  tokens = np.where(places < ends, random.integers(3, EOS, places.shape), 0)
  tokens = np.where(places == ends, EOS, tokens)
  real = (places <= ends) | padded
  return {"image": random.normal(size=(3, 12, 12, 3)).astype(np.float32),
          "text": tokens.astype(np.int32), "text_segment_ids": real.astype(np.int32),
          "text_positions": np.where(real, places, 0).astype(np.int32),
          "real": np.ones((3, 1), np.int32)}


def peer_outputs(peer, batch):
  pixels = torch.from_numpy(np.ascontiguousarray(batch["image"].transpose(0, 3, 1, 2)))
  mask = torch.from_numpy(batch["text_segment_ids"]).long()
  with torch.no_grad():
    out = peer(input_ids=torch.from_numpy(batch["text"]).long(), pixel_values=pixels,
               attention_mask=mask, return_loss=True)
  return {"images": out.image_embeds.numpy(), "texts": out.text_embeds.numpy(),
          "scores": out.logits_per_image.numpy(), "loss": out.loss.numpy()}


def our_outputs(model, params, batch, loss):
  @jax.jit
  def run(params):
    images, texts = model.apply({"params": params}, batch, method="vectors")
    total, number = ImageText(loss=loss)(model, params, batch, train=False)["loss"]
    return {"images": images, "texts": texts, "loss": total / number,
            "scores": model.apply({"params": params}, images, texts, method="scores")}
  return {key: np.asarray(x) for key, x in run(params).items()}


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_files_are_those_of_transformers(name, tmp_path):
  peer, siglip = make_peer(name), name.startswith("Siglip")
  model, params = load_pretrained(saved(peer, tmp_path / "theirs"), dtype="float32")
  assert sum(x.size for x in jax.tree.leaves(params)) == sum(p.numel() for p in peer.parameters())
  padded = make_batch(padded=siglip)
  theirs = peer_outputs(peer, padded)
  batch = make_batch(padded=False)
  ours = our_outputs(model, params, batch, "sigmoid" if siglip else "softmax")
  assert error(ours, theirs) < TOLERANCE

  save_pretrained(str(tmp_path / "ours"), model, params, like=str(tmp_path / "theirs"))
  a, b = (safetensors.numpy.load_file(tmp_path / d / "model.safetensors")
          for d in ("theirs", "ours"))
  assert a.keys() == b.keys()
  for key in a:
    assert a[key].dtype == b[key].dtype and a[key].shape == b[key].shape, key
    assert a[key].tobytes() == b[key].tobytes(), key
  again, info = type(peer).from_pretrained(tmp_path / "ours", output_loading_info=True)
  assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys"))
  assert error(peer_outputs(again.eval(), padded), theirs) < 1e-6
