"""`peft` opens the adapters that are written, and computes with them what the merged model does."""

import json

from flax.traverse_util import flatten_dict, unflatten_dict
import numpy as np
import pytest

import jtx
from jtx.interop import peft as ours
from jtx.nn import lora
from tests.interop.test_peft import BERT, GPT2, of

torch = pytest.importorskip("torch", reason="see make test-parity")
transformers = pytest.importorskip("transformers", reason="see make test-parity")
peft = pytest.importorskip("peft", reason="see make test-parity")


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
