"""`peft` opens the adapters that are written, and computes with them what the merged model does."""

import json

from flax.traverse_util import flatten_dict, unflatten_dict
import numpy as np
import pytest

import jtx
from jtx.interop import peft as ours
from jtx.interop.families import FAMILIES
from jtx.interop.family import type_of
from jtx.nn import lora
from tests.interop.test_peft import BERT, GPT2, of

torch = pytest.importorskip("torch", reason="see make test-parity")
transformers = pytest.importorskip("transformers", reason="see make test-parity")
peft = pytest.importorskip("peft", reason="see make test-parity")

from tests.parity import (  # noqa: E402
    test_decoders, test_detr, test_encdecs, test_encoders, test_image_kinds, test_towers,
    test_towers_alone, test_vit_classes, test_xlnet)

IMAGES = test_vit_classes.CONFIG
ALONE = test_towers_alone.CASES
# The sizes of each kind of config, by its name.
SIZES = {
    **test_encoders.CONFIGS, **test_encoders.KIN,
    **{name: sizes[0] for name, sizes in (test_decoders.CONFIGS | test_encdecs.CONFIGS).items()},
    "Longformer": test_encoders.BERT | dict(attention_window=4), "XLNet": test_xlnet.SIZES,
    "ViT": IMAGES, "DeiT": IMAGES, "ViTMAE": test_vit_classes.MAE,
    "Dinov2": test_image_kinds.SIZE | dict(use_swiglu_ffn=True),
    "Dinov2WithRegisters": test_image_kinds.SIZE, "Beit": test_image_kinds.BEIT,
    "CLIP": test_towers.CASES["CLIPModel"], "Siglip": test_towers.CASES["SiglipModel"],
    "CLIPVision": ALONE["CLIPVisionModel"], "CLIPText": ALONE["CLIPTextModel"],
    "SiglipText": ALONE["SiglipTextModel"], "SiglipVision": ALONE["SiglipVisionModel"],
}
# Where not all linear layers of attention and feed-forward are such in `transformers`.
LAYERS = {"mixtral": "attention/", "xlnet": "ffn/", "siglip": "(encoder|text_tower).*attention/"}
CASES = [(family, name) for family, own in FAMILIES.items()
         for name, heads in own.architectures.items()
         if name == next(iter(own.architectures)) or heads in (
             {"classes"}, {"lm"}, {"mae"}, {"boxes"})]


@pytest.mark.parametrize("model, names, opened", [
    (BERT, ("attention/(query|value)$", "ffn/out"), "AutoModelForSequenceClassification"),
    (GPT2, ("attention/(query|value)$", "ffn/in"), "AutoModelForCausalLM")])
def test_adapters_are_opened(model, names, opened, tmp_path):
  adapted, params = of(model.clone(dtype="float32"), *names)
  bare, merged = lora.merged(adapted, params)
  flat = flatten_dict(params, sep="/")
  plain = unflatten_dict({path: x for path, x in flat.items() if "/lora_" not in path}, sep="/")
  base, files, merged_to = (str(tmp_path / name) for name in ("base", "adapters", "merged"))
  jtx.save_pretrained(base, bare, plain)
  jtx.save_pretrained(merged_to, bare, merged)
  ours.save(files, adapted, params, base)
  assert json.loads((tmp_path / "adapters" / "adapter_config.json").read_text())["r"] == 2
  loader = getattr(transformers, opened)
  there = peft.PeftModel.from_pretrained(loader.from_pretrained(base), files).eval()
  tokens = torch.tensor(np.random.default_rng(0).integers(1, 11, (3, 6)))
  with torch.no_grad():
    found, wanted, before = (m.eval()(tokens).logits.numpy() for m in (
        there, loader.from_pretrained(merged_to), loader.from_pretrained(base)))
  np.testing.assert_allclose(found, wanted, rtol=5e-6, atol=5e-6 * np.abs(wanted).max())
  assert np.abs(wanted - before).max() > 1e-2 * np.abs(wanted).max()


def make_config(family):
  kind = transformers.CONFIG_MAPPING[type_of(family)]
  if family == "detr":
    return kind(backbone_config=transformers.ResNetConfig(**test_detr.RESNET), **test_detr.DETR)
  return kind(**SIZES[kind.__name__.removesuffix("Config")])


@pytest.mark.slow
@pytest.mark.parametrize("family, name", CASES)
def test_every_family_has_the_names_of_modules(family, name, tmp_path):
  """Adapters of all layers, and norms that are trained whole, make the merged model's tensors."""
  kind = getattr(transformers, name)
  base, files, merged_to = (str(tmp_path / name) for name in ("base", "adapters", "merged"))
  kind(make_config(family)).save_pretrained(base)
  model, params = jtx.load_pretrained(base, architecture=name)
  layers = LAYERS.get(family, "(attention|ffn)/")
  adapted, drawn = of(model, layers, trained=("(ffn|attention)_norm/",))
  flat = flatten_dict(params, sep="/") | {
      path: x for path, x in flatten_dict(drawn, sep="/").items() if adapted.lora.trains(path)}
  bare, merged = lora.merged(adapted, unflatten_dict(flat, sep="/"))
  ours.save(files, adapted, unflatten_dict(flat, sep="/"), base, type_of(family))
  jtx.save_pretrained(merged_to, bare, merged, like=base)
  there = peft.PeftModel.from_pretrained(kind.from_pretrained(base), files)
  found = there.merge_and_unload().state_dict()
  wanted, before = (kind.from_pretrained(x).state_dict() for x in (merged_to, base))
  assert found.keys() == wanted.keys()
  for key, x in wanted.items():
    np.testing.assert_allclose(found[key], x, atol=2e-5, err_msg=key)
  assert sum(not np.allclose(x, before[key]) for key, x in wanted.items()) > 5
