"""All ops on images: their fields, generators and errors."""

import dataclasses
import pickle

import numpy as np
import pytest

from jtx import config
from jtx.data.op import Column
from jtx.data.ops.augment import ColorJitter, RandAugment, RandomErasing, ThreeAugment
from jtx.data.ops.captions import Caption
from jtx.data.ops.decode import DecodeImage
from jtx.data.ops.image import CenterCrop, Flip, InceptionCrop, MoveOp, PadCrop, Resize
from jtx.data.ops.image_layout import Images
from jtx.data.ops.patch_layout import Patches
from jtx.data.ops.registry import OPS
from jtx.data.ops.scale import RandomSizeCrop, ResizeShortest, ScaleJitter
from jtx.data.tokenizers.kinds import characters
from jtx.errors import ConfigError
from tests.data.ops.pictures import TEN, bytes_of, noise, same, smooth


def test_images_become_arrays_of_the_layout():
  layout = Images(size=5, channels=3)
  assert layout.columns == {"image": Column("array", "uint8", (5, 5, 3))}
  example = {"image": noise(5, 5), "path": "p.x", "label": 3}
  result = layout.augment(example, None)
  assert result["image"].shape == (5, 5, 3) and result["image"].dtype == np.uint8
  np.testing.assert_array_equal(result["image"], np.asarray(noise(5, 5)))
  grey = Images(size=5, channels=1).augment({**example, "image": noise(5, 5, 1)}, None)["image"]
  np.testing.assert_array_equal(grey, np.asarray(noise(5, 5, 1))[..., None])
  with pytest.raises(ConfigError) as e:
    layout.augment({**example, "image": noise(6, 5)}, None)
  assert str(e.value) == (
      "data.ops: p.x is of 6 x 5 pixels after all ops and 'images' has size=5; one of"
      " 'inception_crop', 'pad_crop' and 'resize', with the same size, makes it of that size")


PIXELS = {"mean": (0.5,), "std": (0.5,)}
# op -> field -> other fields by which it comes to matter, and another value
CHANGES = {
    DecodeImage: {"channels": ({}, 1), "names": ({}, TEN[::-1]), "min_side": ({}, 4),
                  "multi_label": ({}, True), "labelled": ({"names": ()}, False),
                  "boxes": ({"names": TEN[::-1]}, True)},
    Caption: {"length": ({}, 5)},
    InceptionCrop: {"size": ({}, 9), "area": ({}, (0.1, 0.2)), "ratio": ({}, (1.0, 1.0)),
                    "eval_resize": ({}, 20), "interpolation": ({}, "bicubic")},
    PadCrop: {"size": ({}, 15), "padding": ({}, 2)},
    CenterCrop: {"size": ({}, 15)},
    Resize: {"size": ({}, 9), "interpolation": ({}, "bicubic"), "width": ({}, 9)},
    Flip: {},
    RandAugment: {"num_ops": ({}, 3), "magnitude": ({}, 3.0)},
    ColorJitter: {"brightness": ({}, 0.1), "contrast": ({}, 0.1), "saturation": ({}, 0.1)},
    ThreeAugment: {"jitter": ({}, 0.1)},
    RandomErasing: {"probability": ({}, 1.0), "area": ({}, (0.02, 0.03)),
                    "ratio": ({}, (1.0, 1.0))},
    Images: {"size": ({}, 15), "channels": ({}, 3), "width": ({}, 15), "pad": ({}, True),
             "max_boxes": ({}, 16), "mean": (PIXELS, (0.4,)), "std": (PIXELS, (0.4,)),
             "max_segments": ({}, 2), "shapes": ({"pad": True}, ((12, 16), (16, 12)))},
    Patches: {"size": ({}, 3), "most": ({}, 9), "length": ({}, 20), "max_segments": ({}, 2),
              "max_side": ({}, 3), "grow": ({}, True), "channels": ({}, 1),
              "interpolation": ({}, "bicubic")},
    ResizeShortest: {"shortest": ({}, (9,)), "longest": ({}, 9), "interpolation": ({}, "bicubic")},
    RandomSizeCrop: {"probability": ({}, 0.0), "shortest": ({}, (9,)), "least": ({}, 4),
                     "most": ({}, 12), "keep": ({}, "part"), "interpolation": ({}, "bicubic")},
    ScaleJitter: {"size": ({}, 9), "width": ({}, 9), "factor": ({}, (0.5, 0.6)),
                  "keep": ({}, "part"), "interpolation": ({}, "bicubic")},
}
REQUIRED = {DecodeImage: {"names": TEN}, InceptionCrop: {"size": 8, "eval_resize": 12},
            PadCrop: {"size": 16}, CenterCrop: {"size": 16}, Resize: {"size": 8},
            RandomErasing: {"probability": 0.5},
            ResizeShortest: {"shortest": (6, 8), "longest": 10},
            RandomSizeCrop: {"shortest": (12, 16), "least": 8, "most": 10},
            ScaleJitter: {"size": 16}, Patches: {"size": 4, "most": 16, "length": 40},
            Images: {"size": 16, "channels": 1}}
EXEMPT = {(DecodeImage, "max_bad"): "what makes the examples reads it: see test_lazy.py"}


def boxes_of(seed):
  """Keys of an example with sixteen boxes of 3 x 3 pixels."""
  corners = np.random.default_rng(seed).integers(15, size=(16, 2)).astype(np.float32)
  return {"boxes": np.concatenate([corners, corners + 3], 1), "crowd": np.zeros(16, bool),
          "box_labels": np.arange(16) % 10, "box_areas": np.full(16, 9, np.float32)}


def outcome(op):
  """What an op makes of some images, in training and in evaluation; or what it has for a batch."""
  if isinstance(op, Images):
    height, width = op.output_size
    example = {"image": noise(width, height, op.channels), "path": "", **boxes_of(0)}
    fitted = op.fit(np.array([[10, 16], [11, 13]])) if op.pad else op
    return str(op.columns), op.augment(example, None)["image"].tobytes(), fitted.output_size
  if isinstance(op, Patches):
    made = [op.augment({"image": noise(*size, op.channels), "original_size": np.array(size[::-1])},
                       None) for size in ((10, 12), (7, 30))]
    rows = op.plan(np.array([[len(x["patch"])] for x in 2 * made]))
    return str(op.columns), rows, str(made), [x["patch"].tobytes() for x in made]
  if not getattr(op, "names", True):  # no labels, or none that it knows
    return str(op.columns)
  if isinstance(op, Caption):
    return op.bind({"text": characters(iter(["a cat"]))}).encode("a cat").tolist()
  results = []
  for seed in range(6):
    for generator in (np.random.default_rng(seed), None):
      image = smooth(24, 18) if seed % 2 else noise(18, 20, seed=seed)
      if isinstance(op, DecodeImage):
        image = bytes_of(image, "JPEG")
      example = {"image": image, "label": "4", "path": "", "id": 0}
      moves = isinstance(op, (DecodeImage, MoveOp))
      example = op.augment(example | (boxes_of(seed) if moves else {}), generator)
      results.append((example["image"].mode, example["image"].size, example["image"].tobytes(),
                      str(example["label"]), str(example.get("box_labels"))))
  return results


@pytest.mark.parametrize("op, field", [(op, f) for op in CHANGES for f in config.fields(op)
                                       if (op, f) not in EXEMPT],
                         ids=lambda x: getattr(x, "__name__", x))
def test_a_field_changes_what_an_op_makes(op, field):
  assert field in CHANGES[op], f"add {op.__name__}.{field} to CHANGES"
  context, value = CHANGES[op][field]
  fields = {**REQUIRED.get(op, {}), **context}
  assert outcome(op(**fields)) == outcome(op(**fields))
  assert outcome(op(**{**fields, field: value})) != outcome(op(**fields))


def test_every_op_is_covered():
  assert {op for op in OPS.values() if op.of_images} == set(CHANGES)
  for op, changes in CHANGES.items():
    assert set(changes) <= set(config.fields(op))
  assert all(field in config.fields(op) for op, field in EXEMPT)


@pytest.mark.parametrize("op", [InceptionCrop(size=8, eval_resize=8), PadCrop(size=16), Flip(),
                                RandAugment(), ColorJitter(), ThreeAugment(), RandomErasing(0.9),
                                RandomSizeCrop(1.0, (16,), 8, 12), ScaleJitter(16)],
                         ids=lambda op: type(op).__name__)
@pytest.mark.parametrize("channels", [1, 3])
def test_ops_are_a_function_of_the_generator_and_draw_nothing_without(op, channels):
  image = noise(16, 16, channels)
  before = image.tobytes()
  draws = [op.apply(image, np.random.default_rng(seed)) for seed in (0, 0, *range(1, 12))]
  assert same(draws[0], draws[1]) and len({d.tobytes() for d in draws}) > 1
  assert {d.mode for d in draws} == {image.mode}
  assert same(op.apply(image, None), op.apply(image, None))
  if not isinstance(op, InceptionCrop):
    assert same(op.apply(image, None), image)
  assert image.tobytes() == before
  assert same(dataclasses.replace(op).apply(image, np.random.default_rng(0)), draws[0])
  assert pickle.loads(pickle.dumps(op)) == op


@pytest.mark.parametrize("op", [
    InceptionCrop(size=8, eval_resize=8), PadCrop(size=16), CenterCrop(size=9), Resize(size=9),
    Flip(), ThreeAugment(), RandomErasing(0.9), RandomSizeCrop(0.6, (16,), 8, 12),
    ResizeShortest((6, 9), 14), ScaleJitter(16)], ids=lambda op: type(op).__name__)
def test_the_size_of_an_image_is_known_before_it_is_read(op):
  seen = set()
  for seed in range(20):
    for size in ((16, 18), (24, 16)):
      image = op.apply(noise(*size), np.random.default_rng(seed))
      assert op.sized(size, np.random.default_rng(seed)) == image.size
      assert op.sized(size, None) == op.apply(noise(*size), None).size
      seen.add(image.size)
  assert len(seen) > 2 or not isinstance(op, (RandomSizeCrop, ResizeShortest, ScaleJitter))


@pytest.mark.parametrize("op, fields, message", [
    (DecodeImage, {"names": ("a", "b", "a")}, "op decode_image: names has a more than once"),
    (InceptionCrop, {"area": (0.0, 1.0)}, "op inception_crop: area=(0.0, 1.0) must be two numbers,"
     " the lower first, above 0 and at most 1"),
    (InceptionCrop, {"area": (0.5, 1.1)}, "op inception_crop: area=(0.5, 1.1) must be two numbers,"
     " the lower first, above 0 and at most 1"),
    (InceptionCrop, {"ratio": (2.0, 1.0)}, "op inception_crop: ratio=(2.0, 1.0) must be two"
     " numbers, the lower first, above 0"),
    (InceptionCrop, {"eval_resize": 200}, "op inception_crop: eval_resize=200 must not be less than"
     " size=224"),
    (InceptionCrop, {"interpolation": "bicubc"}, "op inception_crop: interpolation='bicubc' is"
     " none; did you mean 'bicubic'?"),
    (DecodeImage, {"boxes": True, "labelled": False}, "op decode_image: boxes=True has a label for"
     " each box, so multi_label and labelled stay as they are"),
    (ResizeShortest, {"shortest": (800, 1400)}, "op resize_shortest: shortest=(800, 1400) must be"
     " numbers of pixels, up to longest=1333"),
    (RandomSizeCrop, {"least": 700}, "op random_size_crop: shortest=(400, 500, 600) must be numbers"
     " of pixels, and least=700 not more than most=600"),
    (Images, {"mean": (0.5,)}, "op images: mean=(0.5,) and std=() must have a number for each of"
     " the 3 channels, or none"),
    (Images, {"max_segments": 2, "pad": True}, "op images: rows of max_segments=2 images have"
     " neither pad nor max_boxes"),
    (Images, {"shapes": ((200, 224),)}, "op images: shapes=((200, 224),) are for images that are"
     " padded; set pad=True"),
    (Images, {"shapes": ((200, 225),), "pad": True}, "op images: shapes=((200, 225),) has"
     " 200 x 225, which is more than size=224"),
    (Resize, {"interpolation": "none"}, "op resize: interpolation='none' is none; valid are:"
     " bilinear, bicubic"),
    (RandomErasing, {"area": (0.1, 2.0)}, "op random_erasing: area=(0.1, 2.0) must be two numbers,"
     " the lower first, above 0 and at most 1"),
])
def test_fields_that_make_no_sense_are_refused(op, fields, message):
  with pytest.raises(ConfigError) as e:
    op(**fields)
  assert str(e.value) == message
