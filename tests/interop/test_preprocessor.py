"""Files of images become the same arrays in a run, in the folder exported from it, and back."""

import dataclasses
import json

import numpy as np
from PIL import Image
import pytest

from jtx.data.op import ImageOp
from jtx.data.ops.image import CenterCrop, InceptionCrop, PadCrop, Resize
from jtx.data.recipes import build_ops
from jtx.errors import ConfigError
from jtx.interop import preprocessor
from jtx.models.patches import ImageConfig, PixelConfig
from jtx.nn.block import ResidualConfig
from jtx.nn.grid_positions import LearnedGrid
from jtx.saved import converted
from jtx.saved.folder import open_saved
from jtx.saved.pretrained import save_pretrained
from tests.data.image_files import configs
from tests.helpers import block, vit
from tests.interop.families.test_vits import CLASSES, TIMM, timm_tensors, write_timm
from tests.models.test_vit import BLOCK, drawn

SIZE = 12
CROP = {"size": SIZE, "eval_resize": 14}
RUNS = {
    "inception": configs("decode_image", "inception_crop", "flip", "three_augment", "images",
                         inception_crop=CROP, images={"size": SIZE}),
    "bicubic": configs("decode_image", "inception_crop", "images",
                       inception_crop=CROP | {"interpolation": "bicubic"}, images={"size": SIZE}),
    "pad": configs("decode_image", "pad_crop", "random_erasing", "images",
                   pad_crop={"size": SIZE, "padding": 40}, images={"size": SIZE}),
    "resize": configs("decode_image", "resize", "flip", "images",
                      resize={"size": SIZE, "interpolation": "bicubic"}, images={"size": SIZE}),
    "both": configs("decode_image", "resize", "pad_crop", "images", resize={"size": 15},
                    pad_crop={"size": SIZE}, images={"size": SIZE}),
    "randaugment": configs("decode_image", "inception_crop", "randaugment", "images",
                           inception_crop=CROP, images={"size": SIZE}),
    "twice": configs("decode_image", "resize", "pad_crop", "images", resize={"size": SIZE},
                     pad_crop={"size": SIZE}, images={"size": SIZE}),
}
SHAPES = ((48, 144), (144, 48), (37, 61), (83, 64), (12, 12), (5, 30), (15, 14))
WITHOUT = {key: section for key, section in RUNS.items() if key not in ("twice", "randaugment")}


def pictures(*shapes):
  draw = np.random.default_rng(0)
  return [draw.integers(256, size=(*shape, 3), dtype=np.uint8) for shape in shapes or SHAPES]


def array(ops, picture):
  example = {"image": picture, "label": 0, "path": "picture.png"}
  for op in ops:
    example = op.augment(example, None)
  return np.asarray(example["image"])


def recipe(name, **decode):
  ops = RUNS[name]
  ops[0].names = ("a", "b")
  return build_ops(ops).augment


@pytest.fixture(scope="module")
def params():
  return drawn(CLASSES)


def saved_both(folder, params, ops):
  """The workdir of a model whose images are made by `ops`, and the folder exported from it."""
  workdir, exported = (str(folder / name) for name in ("workdir", "hf"))
  converted.save(workdir, CLASSES, params, {}, tuple("abcde"), ops)
  save_pretrained(exported, CLASSES, params, like=workdir)
  return workdir, exported


@pytest.mark.parametrize("name", RUNS)
def test_a_folder_makes_the_arrays_of_the_run(name, params, tmp_path):
  ops = recipe(name)
  for directory in saved_both(tmp_path, params, ops):
    saved = open_saved(directory)
    assert saved.labels() == tuple("abcde")
    theirs = saved.image_ops(CLASSES)
    for picture in pictures():
      np.testing.assert_array_equal(array(ops, picture), array(theirs, picture), directory)


def test_runs_differ_on_what_is_not_square():
  """Else the test above would show nothing."""
  wide = pictures((48, 144))[0]
  results = [array(recipe(name), wide) for name in WITHOUT]
  for i, a in enumerate(results):
    assert all(np.abs(a.astype(int) - b).max() > 9 for b in results[:i])


def test_the_middle_is_that_of_transformers():
  """Where an odd number of rows is left, the smaller half of them is cut off above."""
  picture = pictures((83, 64))[0]
  for size in (48, 50, 51):
    top, left = (83 - size) // 2, (64 - size) // 2
    expected = picture[top:top + size, left:left + size]
    for op in (InceptionCrop(size=size, eval_resize=64), CenterCrop(size=size), PadCrop(size=size)):
      np.testing.assert_array_equal(np.asarray(op.apply(Image.fromarray(picture), None)), expected)


def write(directory, **content):
  (directory / "preprocessor_config.json").write_text(json.dumps(content))
  return str(directory)


def read(directory, **content):
  return preprocessor.read_ops(write(directory, **content), ImageConfig())[1:-1]


DEIT = dict(feature_extractor_type="DeiTFeatureExtractor", size=256, crop_size=224, do_resize=True,
            do_center_crop=True, resample=3)


@pytest.mark.parametrize("content, expected", [
    (DEIT, (Resize(size=256, interpolation="bicubic"), CenterCrop(size=224))),
    (DEIT | dict(do_center_crop=False, size=224), (Resize(size=224, interpolation="bicubic"),)),
    (dict(image_processor_type="DeiTImageProcessorFast"),
     (Resize(size=256, interpolation="bicubic"), CenterCrop(size=224))),
    (dict(do_resize=True, resample=2, size=224), (Resize(size=224),)),
    (dict(image_processor_type="ViTImageProcessor", size={"height": 240, "width": 230},
          do_center_crop=True, crop_size={"height": 224, "width": 224}),
     (Resize(size=240, width=230), CenterCrop(size=224))),
    (dict(image_processor_type="CLIPImageProcessor"),
     (InceptionCrop(size=224, eval_resize=224, interpolation="bicubic"),)),
    (dict(image_processor_type="BitImageProcessor", size=256, resample=2),
     (InceptionCrop(size=224, eval_resize=256),)),
    (dict(image_processor_type="BeitImageProcessor", size=224),
     (Resize(size=224, interpolation="bicubic"),)),
    (dict(image_processor_type="ViTImageProcessor", do_resize=False), ()),
    (dict(image_processor_type="BitImageProcessor", do_resize=False), (CenterCrop(size=224),)),
])
def test_files_are_read_as_their_classes_do(content, expected, tmp_path):
  assert read(tmp_path, **content) == expected


def test_a_processor_of_images_and_texts_tells_of_its_images(tmp_path, caplog):
  """In transformers it goes first, and is the only file that a CLIPProcessor saves."""
  content = dict(image_processor_type="CLIPImageProcessor", crop_size=200, image_mean=[0.1] * 3,
                 size={"shortest_edge": 210})
  (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": content}))
  expected = (InceptionCrop(size=200, eval_resize=210, interpolation="bicubic"),)
  for more in ({}, {"crop_size": 224, "image_mean": [0.5] * 3}):
    if more:
      write(tmp_path, **content | more)
    assert preprocessor.read_ops(str(tmp_path), ImageConfig(size=200))[1:-1] == expected
    assert preprocessor.read_pixels(str(tmp_path)) == {
        "image_mean": [0.1] * 3, "image_std": [0.26862954, 0.26130258, 0.27577711]}  # its class's
    assert preprocessor.read_side(str(tmp_path), "CLIP") == 200
  (tmp_path / "processor_config.json").write_text("{}")  # of a processor of something else
  assert preprocessor.read_pixels(str(tmp_path))["image_mean"] == [0.5] * 3
  assert not caplog.records


def test_images_of_a_folder_that_tells_nothing_of_them_are_warned_of(tmp_path, caplog):
  assert preprocessor.read_ops(str(tmp_path), ImageConfig())[1:-1] == (Resize(size=224),)
  assert f"{tmp_path} has neither preprocessor_config.json nor processor" in caplog.text


@pytest.mark.parametrize("size, side", [
    ({"height": 96, "width": 128}, (96, 128)), ({"height": 100, "width": 60}, (128, 64)),
    ({"max_height": 64, "max_width": 160}, (64, 160)),
    ({"shortest_edge": 96, "longest_edge": 130}, (160, 160)),
    ({"shortest_edge": 130, "longest_edge": 140}, (160, 160))])
def test_a_detector_s_images_have_no_more_room_than_they_need(size, side, tmp_path):
  write(tmp_path, image_processor_type="DetrImageProcessor", size=size, do_pad=False)
  layout = preprocessor.read_ops(str(tmp_path), PixelConfig(), kind="Detr")[-1]
  assert (layout.size, layout.width) == side
  lies = size == {"shortest_edge": 96, "longest_edge": 130}
  assert layout.shapes == (((96, 160), (160, 96)) if lies else ())


@pytest.mark.parametrize("content, said", [
    (dict(resample=1), "resample=1 is not what jtx computes, which is 2 .bilinear. or 3"),
    (dict(size=384), "makes images of 384 x 384 pixels, and the model takes 224 x 224"),
    (dict(size={"shortest_edge": 224}), "without do_center_crop makes images of several shapes"),
    (dict(size={"longest_edge": 224}), "is neither a height and width nor a shortest_edge"),
    (dict(do_center_crop=True), "do_center_crop=True needs a crop_size, such as"),
    (DEIT | dict(crop_size=[224, 224]), "crop_size=.224, 224. is neither"),
    (DEIT | dict(crop_size={"height": 224, "width": 200}), "is not square"),
    (dict(image_processor_type="ConvNextImageProcessor"), "'ConvNextImageProcessor' is not known"),
    (DEIT | dict(size={"shortest_edge": 200}), "eval_resize=200 must not be less than size=224"),
])
def test_what_can_not_be_computed_is_refused(content, said, tmp_path):
  with pytest.raises(ConfigError, match="preprocessor_config.json: .*" + said):
    read(tmp_path, **content)


def test_a_deit_folder_crops_in_its_workdir_too(params, tmp_path):
  exported = saved_both(tmp_path, params, recipe("both"))[1]
  content = json.loads((tmp_path / "hf" / "preprocessor_config.json").read_text())
  assert content["image_processor_type"] == "DeiTImageProcessor" and content["do_center_crop"]
  again = str(tmp_path / "again")
  save_pretrained(again, CLASSES, params, format="jtx", like=exported)
  assert open_saved(again).image_ops(CLASSES) == open_saved(exported).image_ops(CLASSES)


@pytest.mark.parametrize("cfg, size", [({}, 13), ({"crop_pct": 0.6}, 20), ({"crop_pct": 1.0}, 12)])
def test_timm_says_how_much_is_cropped(cfg, size, tmp_path):
  model = vit(CLASSES, block=block(BLOCK, ffn_dim=64, residual=ResidualConfig(layer_scale=1e-6)),
              position=LearnedGrid(of_prefix=False))
  config = TIMM | {"pretrained_cfg": TIMM["pretrained_cfg"] | cfg}
  saved = open_saved(write_timm(tmp_path / "timm", config, timm_tensors(model, drawn(model))))
  assert saved.image_ops(model)[1:-1] == (
      InceptionCrop(size=12, eval_resize=size, interpolation="bicubic"),)


@dataclasses.dataclass(frozen=True)
class Invert(ImageOp):
  """Changes pixels in evaluation too."""

  def augment(self, example, generator):
    return {**example, "image": example["image"].point(lambda x: 255 - x)}


def test_an_op_that_changes_pixels_must_say_so(params, tmp_path):
  ops = recipe("resize")
  ops = (*ops[:1], Invert(), *ops[1:])
  with pytest.raises(ConfigError, match="of .*Invert.* one changes pixels there and does not"):
    saved_both(tmp_path, params, ops)


def test_steps_that_a_folder_has_no_place_for():
  ops = preprocessor.placed(ImageConfig(size=SIZE), CenterCrop(size=40), Resize(size=SIZE))
  with pytest.raises(ConfigError, match="one resize and then one crop .* CenterCrop, Resize"):
    preprocessor.content(preprocessor.evaluated(ops, ImageConfig(size=SIZE)), {})
