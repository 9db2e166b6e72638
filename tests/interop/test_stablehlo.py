"""Programs of StableHLO give the model's own outputs, in a process that has no jtx."""

import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from jtx.errors import ConfigError
from jtx.inference.texts import head_outputs
from jtx.interop import preprocessor, stablehlo
from tests.interop.families.test_vits import CLASSES as VIT
from tests.interop.samples import BERT, TOKENIZER, random_params
from tests.models.test_vit import drawn

ALONE = """
import sys
for name in ("jtx", "flax", "optax", "safetensors"):
  sys.modules[name] = None  # importing one of them is an error
import numpy as np
from run import run
inputs = dict(np.load("inputs.npz"))
np.save("outputs.npy", run(**inputs))
one = run(**{key: x[:1] for key, x in inputs.items()})
assert one.shape[0] == 1 and np.abs(one[0] - np.load("outputs.npy")[0]).max() < 1e-5
"""


def alone(folder, **inputs):
  """The outputs of a program, in a process of its own."""
  np.savez(f"{folder}/inputs.npz", **inputs)
  environment = {key: value for key, value in os.environ.items()
                 if key not in ("PYTHONPATH", "XLA_FLAGS")}
  done = subprocess.run([sys.executable, "-c", ALONE], cwd=folder, capture_output=True, text=True,
                        env={**environment, "JAX_PLATFORMS": "cpu"}, check=False)
  assert done.returncode == 0, done.stderr
  return np.load(f"{folder}/outputs.npy")


@pytest.mark.slow
def test_texts(tmp_path):
  folder, params = str(tmp_path / "program"), random_params(BERT)
  stablehlo.save(folder, BERT, params, length=9, labels=tuple("abcd"), tokenizer=TOKENIZER)
  signature = json.loads((tmp_path / "program" / "signature.json").read_text())
  assert signature["platforms"] == ["cpu", "cuda", "tpu"] and signature["labels"] == list("abcd")
  assert signature["outputs"]["shape"] == ["batch", 4]
  assert signature["inputs"]["ids"]["shape"] == ["batch", 9]
  draw = np.random.default_rng(0)
  ids = draw.integers(BERT.vocab_size, size=(3, 9), dtype=np.int32)
  mask = (np.arange(9) < np.array([[9], [4], [1]])).astype(np.int32)
  outputs = alone(folder, ids=ids * mask, types=np.zeros_like(ids), mask=mask)
  model = BERT.clone(dtype="float32")
  for row, length in enumerate((9, 4, 1)):  # each alone, without padding
    batch = {"text": ids[row:row + 1, :length], "text_types": np.zeros((1, length), np.int32),
             "text_segment_ids": np.ones((1, length), np.int32),
             "text_positions": np.arange(length, dtype=np.int32)[None]}
    np.testing.assert_allclose(outputs[row], head_outputs(model, params, batch)[0], atol=1e-5)


@pytest.mark.slow
def test_images(tmp_path):
  folder, params = str(tmp_path / "program"), drawn(VIT)
  stablehlo.save(folder, VIT, params, image_ops=preprocessor.resized(VIT.image))
  images = np.random.default_rng(0).integers(256, size=(2, 12, 12, 3), dtype=np.uint8)
  expected = jax.jit(lambda params, x: VIT.clone(dtype="float32").apply(
      {"params": params}, {"image": x}, method="predict"))(params, images)[:, 0]
  np.testing.assert_allclose(alone(folder, image=images), expected, rtol=1e-4, atol=1e-4)
  content = json.loads((tmp_path / "program" / "preprocessor_config.json").read_text())
  assert content["image_mean"] == [0.4, 0.5, 0.6] and content["size"]["height"] == 12


def test_what_has_no_program(tmp_path):
  from tests.saved.test_folder import MODEL
  with pytest.raises(ConfigError, match="there is no program of EncDec; models of texts"):
    stablehlo.save(str(tmp_path / "new"), MODEL, {})
  with pytest.raises(ConfigError, match="a program computes in float32 or bfloat16"):
    stablehlo.save(str(tmp_path / "new"), BERT, {}, dtype="float16")
  assert not os.listdir(tmp_path)
