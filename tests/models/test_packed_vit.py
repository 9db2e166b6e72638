"""Images of any shape, several in a row: as alone, and as a Vit sees a square one."""

import dataclasses

import jax
import numpy as np
import pytest

from jtx.data.ops.patch_layout import Patches
from jtx.data.packing import assemble
from jtx.errors import ConfigError
from jtx.models.packed_vit import INPUTS, PACKED_STACK, PackedVit
from jtx.models.patches import PixelConfig
from jtx.models.text_head import HeadConfig
from jtx.models.vit import VIT_STACK, ImageConfig
from jtx.nn.grid_kinds import Rope2d
from jtx.nn.grid_positions import Sincos2d
from tests.data.ops.test_patch_layout import example
from tests.helpers import block, one_fast, vit

SIDE = 4
BLOCK = block(VIT_STACK.block, num_heads=2, ffn_dim=12)
STACK = dataclasses.replace(PACKED_STACK, width=8, num_layers=2, block=BLOCK)
MODEL = PackedVit(max_side=5, patch_size=SIDE, stack=STACK, dtype="float32",
                  head=HeadConfig(task="classes", outputs=3, pool="mean", dropout=0.0))
SHAPES = (8, 8), (4, 20), (16, 12), (12, 4)


def images():
  random = np.random.default_rng(0)
  return [random.integers(256, size=(*shape, 3), dtype=np.uint8) for shape in SHAPES]


def batch_of(rows, length=20, most=3):
  """Rows of images."""
  layout = Patches(size=SIDE, most=length, length=length, max_segments=most)
  columns = layout.columns
  made = [[layout.augment(example(pixels), None) for pixels in row] for row in rows]
  batch = assemble(layout, columns, made, [range(len(row)) for row in rows])
  return batch | {"real": (batch.pop("ids") >= 0).astype(np.int32)}


def drawn(model, batch):
  params = model.init(jax.random.key(1), batch)["params"]
  random = np.random.default_rng(1)
  return jax.tree.map(lambda x: np.float32(random.normal(size=x.shape) / 2), jax.device_get(
      jax.tree.map(lambda x: getattr(x, "value", x), params,
                   is_leaf=lambda x: hasattr(x, "value"))))


@pytest.mark.parametrize("position", one_fast(PACKED_STACK.position, Sincos2d(), Rope2d()),
                         ids=lambda p: type(p).__name__)
@pytest.mark.parametrize("method", ["predict", "features"])
def test_an_image_in_a_row_with_others_is_as_alone(position, method):
  model = MODEL.clone(stack=dataclasses.replace(STACK, position=position))
  a, b, c, d = images()
  together, alone = batch_of([[a, b, c], [d]], 21), batch_of([[x] for x in (a, b, c, d)], 12, 1)
  assert together["patch_segment_ids"].max() == 3 and alone["real"].tolist() == [[1]] * 4
  params = drawn(model, together)
  run = lambda batch: np.asarray(model.apply({"params": params}, batch, method=method))
  found = run({key: together[key] for key in INPUTS})[together["real"] > 0]
  expected = run({key: alone[key] for key in INPUTS})[:, 0]
  np.testing.assert_allclose(found, expected, atol=2e-5)
  assert np.abs(expected[:3] - expected[1:]).max() > 1e-2


def test_a_square_image_is_as_a_vit_sees_it():
  """With the same parameters."""
  pixels = np.random.default_rng(2).integers(256, size=(12, 12, 3), dtype=np.uint8)
  packed = MODEL.clone(stack=dataclasses.replace(STACK, position=Sincos2d()))
  whole = vit(image=ImageConfig(size=12), patch_size=SIDE, width=8, num_layers=2, block=BLOCK,
              position=Sincos2d(), dtype="float32")
  whole = whole.clone(prefix=dataclasses.replace(whole.prefix, cls=False), head=dataclasses.replace(
      whole.head, task="classes", outputs=3, pool="mean"))
  batch = batch_of([[pixels]])
  params = drawn(packed, batch)
  found = packed.apply({"params": params}, batch, method="predict")[0, 0]
  expected = whole.apply({"params": params}, {"image": pixels[None]}, method="predict")[0, 0]
  np.testing.assert_allclose(found, expected, atol=2e-5)


def test_patches_of_other_sizes_are_refused():
  batch = batch_of([[images()[0]]])
  with pytest.raises(ConfigError, match="patches of 48 numbers do not fit patch_size=2 and"):
    MODEL.clone(patch_size=2).init(jax.random.key(0), batch)
  with pytest.raises(ConfigError, match="patches of 48 numbers do not fit patch_size=4 and"):
    MODEL.clone(image=PixelConfig(channels=1, mean=(0.5,), std=(0.5,))).init(
        jax.random.key(0), batch)
