"""The encoders of CLIP and SigLIP alone against `transformers`, through files there and back."""

import jax
import numpy as np
import pytest
import safetensors.numpy

from jtx.saved.pretrained import load_pretrained, save_pretrained

torch = pytest.importorskip(
    "torch", reason="PyTorch is not installed: make test-parity installs it")
transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: see make test-parity")

from tests.parity.test_encoders import TOLERANCE, error, redraw, saved  # noqa: E402
from tests.parity.test_towers import NARROW, TEXT, VISION, WIDE, make_batch  # noqa: E402

CASES = {
    "CLIPVisionModel": VISION | WIDE,
    "CLIPVisionModelWithProjection": VISION | WIDE | dict(projection_dim=10),
    "SiglipVisionModel": VISION | WIDE,
    "CLIPTextModel": TEXT | NARROW,
    "SiglipTextModel": TEXT | NARROW | dict(projection_size=10),
    "CLIPTextModelWithProjection": TEXT | NARROW | dict(projection_dim=10),
}


def vector(peer, batch):
  with torch.no_grad():
    if "pixel" in peer.main_input_name:
      out = peer(torch.from_numpy(np.ascontiguousarray(batch["image"].transpose(0, 3, 1, 2))))
    else:
      out = peer(torch.from_numpy(batch["text"]).long(),
                 attention_mask=torch.from_numpy(batch["text_segment_ids"]).long())
  known = ("image_embeds", "text_embeds", "pooler_output")
  return next(out[key].numpy() for key in known if out.get(key) is not None)


@pytest.mark.parametrize("name", CASES)
def test_vectors_and_files_are_those_of_transformers(name, tmp_path):
  kind = name.removesuffix("WithProjection").replace("Model", "Config")
  config = getattr(transformers, kind)(**CASES[name])
  peer = redraw(getattr(transformers, name)(config).eval(), 0.3)
  model, params = load_pretrained(saved(peer, tmp_path / "theirs"), dtype="float32")
  assert sum(x.size for x in jax.tree.leaves(params)) == sum(p.numel() for p in peer.parameters())
  batch = make_batch(padded=False)
  ours = jax.jit(lambda params: model.apply({"params": params}, batch, method="predict"))(params)
  whole = make_batch(padded="SiglipText" in name)
  theirs = vector(peer, whole)
  assert error({"x": np.asarray(ours)[:, 0]}, {"x": theirs}) < TOLERANCE

  save_pretrained(str(tmp_path / "ours"), model, params, like=str(tmp_path / "theirs"))
  a, b = (safetensors.numpy.load_file(tmp_path / d / "model.safetensors")
          for d in ("theirs", "ours"))
  assert a.keys() == b.keys()
  for key in a:
    assert a[key].tobytes() == b[key].tobytes() and a[key].shape == b[key].shape, key
  again, info = type(peer).from_pretrained(tmp_path / "ours", output_loading_info=True)
  assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys"))
  assert error({"x": vector(again.eval(), whole)}, {"x": theirs}) < 1e-6
