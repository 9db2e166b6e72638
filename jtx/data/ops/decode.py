"""Decoding images: the first op of a list for images."""

import dataclasses
import functools
import io
from typing import Any, Literal, Sequence

from absl import logging
import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from jtx.data.example import Example
from jtx.data.op import Column, ImageOp
from jtx.data.ops import boxes
from jtx.data.ops.labels import are_numbers, check_names, collected_names, name_of
from jtx.data.ops.multi_label import items_of, multi_hot
from jtx.data.sources.images import TABLE, class_names
from jtx.errors import BadExample, ConfigError, DataError, listed
from jtx.ranges import CountOrNone, Share

FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
MODES = {1: "L", 3: "RGB"}  # channels -> what Pillow calls them


@dataclasses.dataclass(frozen=True)
class DecodeImage(ImageOp):
  """The first op: an "image" of bytes or of an array becomes a Pillow image, a "label" a number.

  An example may have "boxes" [N, 4] and "box_labels" [N]; see `jtx.data.sources.boxes`. With
  `boxes` the classes are those of the boxes, and without, `box_labels` are numbers already.

  Files are converted to RGB or to grey (16 bits to their upper 8), and are turned as their EXIF
  says, as programs show them: boxes are of what is shown. Of several frames the first is taken.
  Arrays must have `channels`: [H, W, 3], or for one channel [H, W] or [H, W, 1], uint8.
  """
  channels: Literal[1, 3] = 3  # 3 is RGB, 1 is grey
  names: tuple[str, ...] = ()  # of the classes, in order; () is those of the training source
  # The share of images that can't be decoded, of those read so far, with which a run goes on.
  # Their rows are padding. It is judged from 100 images on, and at the end of an evaluation.
  max_bad: Share = 0.01
  # JPEGs are decoded at 1/2, 1/4 or 1/8 where both sides stay this long or longer; 0 is never.
  min_side: CountOrNone = 0
  multi_label: bool = False  # an image may have any number of labels; see the op of this name
  labelled: bool = True  # False: images have no labels, or none that are asked for
  boxes: bool = False  # names are the classes of boxes in the images, which have no labels else

  opens = True

  def __post_init__(self):
    check_names("decode_image", self.names)
    if self.min_side < 0:
      raise ConfigError(f"op decode_image: min_side={self.min_side} must not be negative")
    if not self.labelled and (self.names or self.multi_label):
      raise ConfigError("op decode_image: names and multi_label are of labels, and labelled=False")
    if self.boxes and (self.multi_label or not self.labelled):
      raise ConfigError("op decode_image: boxes=True has a label for each box, so multi_label and"
                        " labelled stay as they are")

  @property
  def named(self) -> bool:
    return self.labelled

  @property
  def columns(self) -> dict[str, Column]:
    real = {"real": Column("example")}
    if not self.labelled or self.boxes:
      return real
    several = Column("example", "int8", (len(self.names),))
    return {"label": several if self.multi_label else Column("example"), **real}

  @property
  def evaluated(self) -> tuple[ImageOp, ...]:
    # Without its classes: what is predicted has none.
    if self.boxes:
      return (dataclasses.replace(self, names=(), boxes=False, labelled=False),)
    return (dataclasses.replace(self, names=("image",), multi_label=False, labelled=True),)

  def collect_names(self, sources: Sequence[Any], ops: Sequence[Any]) -> tuple[str, ...]:
    del ops  # it is the first
    tables = [source for source in sources if hasattr(source, "column")]
    if any(source.classes is None for source in tables):
      return collected_names("decode_image", "box_labels" if self.boxes else "label", sources)
    names = class_names(sources)
    if self.boxes:  # whose sources may each lack some
      names = tuple(dict.fromkeys(name for source in sources for name in source.classes))
    logging.info("%d classes: %s", len(names), listed(names))
    return names

  def augment(self, example: Example, generator: np.random.Generator | None) -> Example:
    """The example with a Pillow image, with `label` as int32, or [C] int8, and `real`, which is 1.

    Without `labelled`, and with `boxes`, there is no `label`. `original_size` [2] int32 is the
    height and width of the file.

    Raises:
      BadExample: the image can't be decoded.
      DataError: there is no image or label, or one or boxes that do not fit.
    """
    del generator  # nothing is drawn
    labels = ("boxes", "box_labels") if self.boxes else ("label",) if self.labelled else ()
    for key in ("image", *labels):
      if key not in example:
        keys = ", ".join(k for k in example if k not in ("id", "path"))
        raise DataError(f"op decode_image: {example['path']} has no {key!r}; it has {keys}")
    image = example["image"]
    if isinstance(image, bytes):
      image, size = self._decoded(image, example["path"])
    else:
      image = self._of_array(image, example["path"])
      size = image.size
    example = {**example, "image": image, "real": np.int32(1),
               "original_size": np.array(size[::-1], np.int32)}
    if self.boxes:
      example["box_labels"] = np.array([self._number(label, example["path"])
                                        for label in example["box_labels"]], np.int32)
    elif self.labelled:
      example["label"] = self.label_of(example["label"], example["path"])
    if "boxes" not in example:
      return example
    # Boxes are in pixels of the file, of which a JPEG may be decoded at a fraction.
    return boxes.move_example(boxes.checked(example, size), boxes.Move((0, 0, *size), image.size))

  def size_of(self, example: Example) -> tuple[int, int]:
    """Height and width of the file of an example's image, which is not decoded.

    Of what is no image it is a pixel: `augment` says so when it is to be decoded.
    """
    image = example.get("image")
    if isinstance(image, np.ndarray):
      return image.shape[:2]
    try:
      width, height = shown_size(Image.open(io.BytesIO(image), formats=FORMATS))
    except Exception:  # as below
      return 1, 1
    return height, width

  def _decoded(self, data: bytes, path: str) -> tuple[Image.Image, tuple[int, int]]:
    """An image, and the width and height of its file."""
    try:
      image = Image.open(io.BytesIO(data), formats=FORMATS)
      size = shown_size(image)
      if self.min_side:
        image.draft(None, (self.min_side, self.min_side))
      if orientation(image) > 1:
        ImageOps.exif_transpose(image, in_place=True)
      if image.mode.startswith("I"):  # which Pillow would not scale, but cut off at 255
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
      image.load()
      mode = MODES[self.channels]
      return image if image.mode == mode else image.convert(mode), size
    except UnidentifiedImageError as e:
      raise BadExample(path, f"is no image of the formats {', '.join(FORMATS)}") from e
    except Exception as e:  # a decoder raises all kinds of errors on broken bytes
      raise BadExample(path, f"can't be decoded ({str(e) or type(e).__name__})") from e

  def _of_array(self, image: Any, path: str) -> Image.Image:
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8:
      told = f", but a text; {TABLE}" if isinstance(image, str) else ""
      raise DataError(f"op decode_image: the image of {path} is neither bytes nor a uint8 array"
                      f"{told}")
    if self.channels == 1 and image.ndim == 3 and image.shape[2] == 1:
      image = image[..., 0]
    if not (image.ndim == 2 if self.channels == 1 else image.shape[2:] == (3,)):
      expected = "[H, W] or [H, W, 1]" if self.channels == 1 else "[H, W, 3]"
      raise DataError(f"op decode_image: the image of {path} is an array {list(image.shape)}, and"
                      f" channels={self.channels} needs {expected}")
    return Image.fromarray(image)

  @functools.cached_property
  def _numbers(self) -> dict[str, int]:
    return {name: number for number, name in enumerate(self.names)}

  @functools.cached_property
  def _by_name(self) -> bool:
    """Whether ints are names, too."""
    return are_numbers(self.names)

  def label_of(self, label: Any, path: str) -> np.ndarray:
    """The number of a class, int32; or of labels [C] int8, 1 for those that the image has.

    Raises:
      DataError: it is none of the names.
    """
    if self.multi_label:
      return multi_hot(items_of(label, self.names), self.names,
                       lambda reason: DataError(f"op decode_image: {path} {reason}"))
    return np.int32(self._number(label, path))

  def _number(self, label: Any, path: str) -> int:
    if not self.names:
      raise ConfigError("op decode_image: names is empty; it must name the classes in order")
    number = label
    if isinstance(label, str) or self._by_name and name_of(label) is not None:
      number = self._numbers.get(name_of(label), -1)
    elif not isinstance(label, (int, np.integer)) or isinstance(label, bool):
      number = -1
    if not 0 <= number < len(self.names):
      raise DataError(f"op decode_image: {path} has the label {label!r}; valid are"
                      f" {listed(self.names)}, or their numbers 0 to {len(self.names) - 1}")
    return int(number)


def shown_size(image: Image.Image) -> tuple[int, int]:
  """Width and height of an image that is turned as its EXIF says."""
  # Pillow turns a TIFF by itself, and gives the size that it then has.
  sideways = image.format != "TIFF" and orientation(image) in (5, 6, 7, 8)
  return image.size[::-1] if sideways else image.size


def orientation(image: Image.Image) -> int:
  """That of its EXIF, from 1, upright, to 8."""
  try:
    value = image.getexif().get(ExifTags.Base.Orientation)
  except Exception:  # broken EXIF raises all kinds of errors, and the pixels may be whole
    return 1
  return value if value in range(1, 9) else 1
