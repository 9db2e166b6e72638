"""preprocessor_config.json of Hugging Face: how a file of an image becomes a model's array.

Here that is a list of image ops without draws: decoding, a resize, a crop of the middle, and the
layout. A folder that jtx writes has those of the run's evaluation. A detector's images keep their
shape: they are scaled by a side, or to fit, and padded.
"""

import contextlib
import os
import re
from typing import Any, Mapping, Sequence

from absl import logging
import numpy as np

from jtx.config_files import read_json
from jtx.data.op import ImageOp
from jtx.data.ops.decode import DecodeImage
from jtx.data.ops.image import CenterCrop, InceptionCrop, Resize
from jtx.data.ops.image_layout import Images
from jtx.data.ops.scale import ResizeShortest, ScaleJitter
from jtx.errors import ConfigError
from jtx.interop.attributes import need
from jtx.models.patches import ImageConfig, PixelConfig

PREPROCESSOR = "preprocessor_config.json"
PROCESSOR = "processor_config.json"  # of images and texts together
PIXELS = ("image_mean", "image_std")
RESAMPLE = {2: "bilinear", 3: "bicubic"}  # Pillow's numbers
# What is not in the file, by the processor's class.
SQUARE = {"do_resize": True, "size": 224, "resample": 2, "do_center_crop": False,
          "image_mean": [0.5], "image_std": [0.5]}
CROPPED = {"do_resize": True, "size": {"shortest_edge": 224}, "resample": 3,
           "do_center_crop": True, "crop_size": 224,
           "image_mean": [0.48145466, 0.4578275, 0.40821073],
           "image_std": [0.26862954, 0.26130258, 0.27577711]}
DETR = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225],
        "do_resize": True, "size": {"shortest_edge": 800, "longest_edge": 1333}, "resample": 2,
        "do_pad": True}
DEFAULTS = {"ViT": SQUARE, "DeiT": SQUARE | {"size": 256, "resample": 3, "do_center_crop": True,
                                            "crop_size": 224},
            "Bit": CROPPED, "CLIP": CROPPED,
            "Siglip": SQUARE | {"resample": 3}, "Beit": SQUARE | {"resample": 3}, "Detr": DETR}
# Where a size of one number is the height and the width.
BOTH_SIDES = ("ViT", "DeiT", "Siglip", "Beit")


STRIDE = 32  # pixels of which a padded side is a multiple, as a backbone's last stage divides them


def resized(image: PixelConfig) -> Sequence[ImageOp]:
  """Decoding, and a resize to the model's size: what is taken where nothing says more.

  Of a model of images of any shape, it is the resize of DETR, by the shorter side.
  """
  if isinstance(image, ImageConfig):
    return placed(image, Resize(size=image.size))
  return padded(image, ResizeShortest())


def padded(image: PixelConfig, op: ImageOp | None, size: tuple[int, int] | None = None,
           ) -> Sequence[ImageOp]:
  """Decoding, an op on pixels if any, and an array of a size; None is as large as images become.

  Of a resize by the shorter side, batches of images that lie, or stand, have arrays that do.
  """
  up = lambda *sides: tuple(-(-side // STRIDE) * STRIDE for side in sides)
  shapes = ()
  if size is None and isinstance(op, ResizeShortest):
    size = up(op.longest, op.longest)
    lying = up(max(op.shortest), op.longest)
    shapes = (lying, lying[::-1]) if lying != size else ()
  elif size is None:
    size = up(op.size, op.width or op.size)
  layout = Images(size=size[0], width=size[1], channels=image.channels, pad=True, shapes=shapes)
  return (DecodeImage(channels=image.channels, labelled=False), *([op] if op else []), layout)


def placed(image: ImageConfig, *ops: ImageOp) -> Sequence[ImageOp]:
  """Ops on pixels between decoding and the layout."""
  return (DecodeImage(channels=image.channels, names=("image",)), *ops,
          Images(size=image.size, channels=image.channels))


# ----------------------------------------------------------------------------------------- read


def _content(directory: str) -> tuple[str | None, dict[str, Any]]:
  """The file that tells how images become arrays, and what it tells; None where there is none.

  As in transformers, what the file of a processor of images and texts says goes first.
  """
  path = os.path.join(directory, PROCESSOR)
  if os.path.exists(path) and "image_processor" in (content := read_json(path, missing="")):
    return path, content["image_processor"]
  path = os.path.join(directory, PREPROCESSOR)
  return (path, read_json(path, missing="")) if os.path.exists(path) else (None, {})


def read_pixels(directory: str) -> dict[str, Any]:
  """The mean and standard deviation of pixels, or the processor's, where a directory tells them.

  Raises:
    ConfigError: it asks for pixels that are not scaled to 0 .. 1 and normalised.
  """
  path, content = _content(directory)
  if path is None:
    return {}
  for key in ("do_rescale", "do_normalize"):
    need(content[key] is True if key in content else True,
         f"{path}: {key}={content[key] if key in content else None!r} is not what jtx computes,"
         " which scales pixels to 0 .. 1 and normalises them")
  factor = content["rescale_factor"] if "rescale_factor" in content else 1 / 255
  need(isinstance(factor, float) and abs(factor * 255 - 1) < 1e-6,
       f"{path}: rescale_factor={factor!r} is not 1/255")
  kind = _told_kind(content)[1]
  content = (DEFAULTS[kind] if kind in DEFAULTS else {}) | content
  return {key: content[key] for key in PIXELS if key in content}


def read_ops(directory: str, image: ImageConfig, kind: str = "ViT") -> Sequence[ImageOp]:
  """The ops that a directory's files tell; `resized` where none does.

  Args:
    directory: of the model.
    image: that the model takes.
    kind: of the processor, of DEFAULTS, where the file does not say it.

  Raises:
    ConfigError: what jtx can't compute, or what makes images of another size.
  """
  path, content = _content(directory)
  if path is None:
    logging.warning("%s has neither %s nor %s: images are resized to what the model takes, and"
                    " their pixels normalised as its family's usually are", directory,
                    PREPROCESSOR, PROCESSOR)
    return resized(image)
  kind, content = _known(path, content, kind)
  need(isinstance(image, ImageConfig) == (kind != "Detr"), f"{path}: a {kind}ImageProcessor is not"
       " that of the model's images")
  if kind == "Detr":
    with _in_file(path):
      return _padded(image, content)
  ops = _ops_of(path, kind, content)
  if ops:
    height, width = ops[-1].output_size
    need(height == width == image.size, f"{path}: makes images of {height} x {width} pixels, and"
         f" the model takes {image.size} x {image.size}")
  return placed(image, *ops)


def read_side(directory: str, kind: str) -> int | None:
  """Pixels on a side of the images that `read_ops` makes; None where no file says it."""
  path, content = _content(directory)
  ops = [] if path is None else _ops_of(path, *_known(path, content, kind))
  return ops[-1].output_size[0] if ops else None


def _known(path: str, content: Mapping[str, Any], kind: str) -> tuple[str, dict[str, Any]]:
  """The kind of a processor, `kind` where it does not say its own, and all of its content."""
  key, told = _told_kind(content)
  if told is not None:
    kind = told
    need(kind in DEFAULTS, f"{path}: {key}={content[key]!r} is not known to jtx; valid are "
         + ", ".join(f"{name}ImageProcessor" for name in DEFAULTS))
  return kind, DEFAULTS[kind] | {key: x for key, x in content.items() if x is not None}


def _told_kind(content: Mapping[str, Any]) -> tuple[str, str | None]:
  """The key that names the processor's class, and the class's kind; None where none does."""
  for key in ("image_processor_type", "feature_extractor_type"):
    if content.get(key):
      return key, re.sub("(ImageProcessor(Fast|Pil)?|FeatureExtractor)$", "", content[key])
  return "", None


def _ops_of(path: str, kind: str, content: Mapping[str, Any]) -> list[ImageOp]:
  """The ops on pixels that a file tells, of images of one size."""
  with _in_file(path):
    return _ops(content, both=kind in BOTH_SIDES)


@contextlib.contextmanager
def _in_file(path: str):
  """Errors name the file."""
  try:
    yield
  except ConfigError as e:
    raise ConfigError(f"{path}: {e}") from None


def _ops(content: Mapping[str, Any], both: bool) -> list[ImageOp]:
  need(not content["do_center_crop"] or "crop_size" in content, "do_center_crop=True needs a"
       " crop_size, such as {\"height\": 224, \"width\": 224}")
  crop = _sides("crop_size", content["crop_size"], True) if content["do_center_crop"] else None
  need(crop is None or crop[0] == crop[1], f"crop_size={content.get('crop_size')!r} is not square")
  cuts = [] if crop is None else [CenterCrop(size=crop[0])]
  if not content["do_resize"]:
    return cuts
  resample = content["resample"]
  need(resample in RESAMPLE, f"resample={resample!r} is not what jtx computes, which is"
       f" {' or '.join(f'{n} ({name})' for n, name in RESAMPLE.items())}")
  size, filter = _sides("size", content["size"], both), RESAMPLE[resample]
  if len(size) == 2:
    height, width = size
    width = None if width == height else width
    return [Resize(size=height, width=width, interpolation=filter), *cuts]
  need(crop is not None, f"size={content['size']!r} without do_center_crop makes images of"
       " several shapes")
  return [InceptionCrop(size=crop[0], eval_resize=size[0], interpolation=filter)]


def _padded(image: PixelConfig, content: Mapping[str, Any]) -> Sequence[ImageOp]:
  """The ops of a detector's images: a resize, if any, and padding."""
  pad_size = content.get("pad_size")
  room = None if pad_size is None else _sides("pad_size", pad_size, True)
  need(content["do_resize"] or room is not None, "do_resize=false makes images of any size, and"
       " there is no pad_size that they are padded to")
  return padded(image, _scale(content) if content["do_resize"] else None, room)


def _scale(content: Mapping[str, Any]) -> ImageOp:
  resample, size = content["resample"], content["size"]
  need(resample in RESAMPLE, f"resample={resample!r} is not what jtx computes, which is"
       f" {' or '.join(f'{n} ({name})' for n, name in RESAMPLE.items())}")
  if isinstance(size, int):  # as in older files
    size = {"shortest_edge": size, "longest_edge": content.get("max_size", 1333)}
  whole = isinstance(size, Mapping) and all(isinstance(x, int) and x > 0 for x in size.values())
  keys = set(size) if whole else set()
  filter = dict(interpolation=RESAMPLE[resample])
  if keys == {"shortest_edge", "longest_edge"}:
    return ResizeShortest((size["shortest_edge"],), size["longest_edge"], **filter)
  if keys == {"max_height", "max_width"}:
    return ScaleJitter(size["max_height"], size["max_width"], (1.0, 1.0), **filter)
  if keys == {"height", "width"}:
    return Resize(size=size["height"], width=size["width"], **filter)
  raise ConfigError(f"size={size!r} is neither a shortest_edge and longest_edge, nor a max_height"
                    " and max_width, nor a height and width")


def _sides(key: str, value: Any, both: bool) -> tuple[int, ...]:
  """A height and width, or the shorter side alone."""
  is_size = lambda x: isinstance(x, int) and not isinstance(x, bool) and x > 0
  if is_size(value):
    return (value, value) if both else (value,)
  if isinstance(value, Mapping) and all(map(is_size, value.values())):
    if value.keys() == {"height", "width"}:
      return value["height"], value["width"]
    if value.keys() == {"shortest_edge"} and key == "size":
      return (value["shortest_edge"],)
  raise ConfigError(f"{key}={value!r} is neither a height and width nor a shortest_edge")


# ---------------------------------------------------------------------------------------- write


def evaluated(ops: Sequence[ImageOp], image: PixelConfig) -> Sequence[ImageOp]:
  """What ops do in evaluation, as ops that draw nothing.

  Raises:
    ConfigError: an op changes images there and does not declare it.
  """
  result = tuple(step for op in ops for step in op.evaluated)
  height, width = ops[-1].output_size or (50, 30)
  sides = (height // 2 + 1, width // 3 + 1) if ops[-1].pad else (height + 3, 3 * width)
  shape = sides + (3,) * (image.channels == 3)
  picture = np.random.default_rng(0).integers(256, size=shape, dtype=np.uint8)
  if not np.array_equal(_run(ops, picture), _run(result, picture)):
    names = ", ".join(type(op).__name__ for op in ops if not op.evaluated)
    raise ConfigError("data.ops: a folder of Hugging Face can't have what they do to images in"
                      f" evaluation; of {names}, one changes pixels there and does not declare it"
                      " (ImageOp.evaluated)")
  return result


def _run(ops: Sequence[ImageOp], picture: np.ndarray) -> np.ndarray:
  example = {"image": picture, "label": 0, "path": "a picture", "boxes": [], "box_labels": []}
  for op in ops:
    example = op.augment(example, None)
  return np.asarray(example[next(iter(ops[-1].columns))])


def content(ops: Sequence[ImageOp], values: Mapping[str, Any]) -> dict[str, Any]:
  """The content of preprocessor_config.json.

  Args:
    ops: as `evaluated` gives them.
    values: the attributes of config.json, with the mean and standard deviation of pixels.

  Raises:
    ConfigError: they can't be expressed.
  """
  if ops[0].min_side:
    logging.warning("preprocessor_config.json has no place for decode_image.min_side=%d: there"
                    " JPEGs are decoded at their full size", ops[0].min_side)
  steps: list[ImageOp] = []
  for op in ops[1:-1]:
    if not steps or isinstance(op, Resize) or op.output_size != steps[-1].output_size:
      steps.append(op)
  shown = _detector_steps(steps, ops[-1]) if ops[-1].pad else _steps(steps)
  result = {**shown, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True,
            **{key: values[key] for key in PIXELS}}
  return result | ({"do_convert_rgb": True} if values["num_channels"] == 3 else {})


def _detector_steps(steps: Sequence[ImageOp], layout: Images) -> dict[str, Any]:
  """A resize, if any, and padding to the largest of a batch, or without a resize to one size."""
  result = {"image_processor_type": "DetrImageProcessor", "format": "coco_detection",
            "do_resize": bool(steps), "do_pad": True}
  sides = lambda size, *names: dict(zip(names, size))
  match steps:
    case []:
      return result | {"pad_size": sides(layout.output_size, "height", "width")}
    case [ResizeShortest() as op]:
      size = sides((op.shortest[-1], op.longest), "shortest_edge", "longest_edge")
    case [ScaleJitter() as op]:
      size = sides((op.size, op.width or op.size), "max_height", "max_width")
    case [Resize() as op]:
      size = sides(op.output_size, "height", "width")
    case _:
      raise _several(steps, "one resize of a detector's images")
  codes = {name: number for number, name in RESAMPLE.items()}
  return result | {"size": size, "resample": codes[op.interpolation]}


def _several(steps: Sequence[ImageOp], valid: str) -> ConfigError:
  names = ", ".join(type(op).__name__ for op in steps)
  return ConfigError(f"data.ops: a folder of Hugging Face has {valid}, and evaluation does {names}")


def _steps(steps: Sequence[ImageOp]) -> dict[str, Any]:
  """A resize and a crop, by the class that has both in all versions of `transformers`."""
  square = lambda op: dict(zip(("height", "width"), op.output_size))
  code = {name: number for number, name in RESAMPLE.items()}
  cut = {}
  if steps and isinstance(steps[-1], (InceptionCrop, CenterCrop)):
    cut = {"do_center_crop": True, "crop_size": square(steps[-1])}
  match steps:
    case []:
      return {"image_processor_type": "ViTImageProcessor", "do_resize": False}
    case [InceptionCrop() as op]:
      return {"image_processor_type": "BitImageProcessor", "do_resize": True,
              "size": {"shortest_edge": op.eval_resize}, "resample": code[op.interpolation], **cut}
    case [CenterCrop()]:
      return {"image_processor_type": "BitImageProcessor", "do_resize": False, **cut}
    case [Resize() as op] | [Resize() as op, CenterCrop()]:
      return {"image_processor_type": "DeiTImageProcessor" if cut else "ViTImageProcessor",
              "do_resize": True, "size": square(op), "resample": code[op.interpolation], **cut}
  raise _several(steps, "one resize and then one crop of the middle")
