"""Sources of images with boxes: what they have, and COCO's JSON, JSON lines and TFDS's objects.

An example has an "image", which is the bytes of an image file or a uint8 array, and of each of its
N boxes, in four lists or arrays,

    boxes       [N, 4]  left, top, right and bottom in pixels of the file
    box_labels  [N]     the name of its class
    box_areas   [N]     pixels of the object, where its mask is known; NaN is those of its box
    crowd       [N]     whether it is around many objects, which an evaluation neither asks for nor
                        minds; see `jtx.evals.coco`

Boxes without a width or a height are left out, and named in the log.
"""

import functools
import io
import math
import os
from typing import Any, Iterator, Mapping, NamedTuple, Protocol, Sequence

from absl import logging
import numpy as np
from PIL import Image

from jtx import storage
from jtx.data.sources import files
from jtx.data.sources.text import JsonlSource
from jtx.errors import BadExample, DataError

Box = tuple[float, float, float, float]  # left, top, right, bottom


class Object(NamedTuple):
  """A box of an image, and what it has."""
  box: Box
  label: str
  area: float = math.nan  # pixels of its mask, where that is known
  crowd: bool = False


class Annotated(NamedTuple):
  """An image's file, below the folder of a source, and what is in it."""
  file: str
  objects: Sequence[Object]
  size: tuple[int, int] | None = None  # height and width in pixels, where the annotation has them


class Place(Protocol):
  """Where files are: a `Folder`, or an `Archive` of `jtx.data.sources.images`."""
  path: str

  def read(self, name: str) -> bytes: ...


class Folder(NamedTuple):
  """Files of a folder, here or in a bucket, read by their names."""
  path: str

  def read(self, name: str) -> bytes:
    return files.read(storage.join(self.path, name))


class BoxesSource:
  """Images of a place with what their annotations say.

  Args:
    name: the spec.
    place: of the images.
    images: with their objects, in order.
    classes: names in order; None is those that the objects have, sorted.

  Attributes:
    most_boxes: of an image, without crowds.
  """
  numbered = False  # classes are names: see `jtx.data.sources.images.check_classes`

  def __init__(self, name: str, place: Place, images: Sequence[Annotated],
               classes: Sequence[str] | None = None):
    self.name, self._place = name, place
    objects = [o for image in images for o in image.objects]
    self.classes = tuple(sorted({o.label for o in objects}) if classes is None else classes)
    numbers = {label: number for number, label in enumerate(self.classes)}
    # Arrays of all, since a million objects would be slow to hand to other processes.
    self._files = [image.file for image in images]
    self._sizes = np.array([image.size or (0, 0) for image in images], np.int64).reshape(-1, 2)
    self._starts = np.cumsum([0, *(len(image.objects) for image in images)])
    self._boxes = np.array([o.box for o in objects], np.float64).reshape(-1, 4)
    self._labels = np.array([numbers[o.label] for o in objects], np.int32)
    self._areas = np.array([o.area for o in objects], np.float64)
    self._crowd = np.array([o.crowd for o in objects], bool)
    self.most_boxes = max((sum(not o.crowd for o in image.objects) for image in images), default=0)
    logging.info("%s: %d images with %d boxes", name, len(images), len(objects))

  def __len__(self) -> int:
    return len(self._files)

  def path(self, i: int) -> str:
    """The file of an example."""
    return os.path.join(self._place.path, self._files[i])

  def image_size(self, i: int) -> tuple[int, int] | None:
    """Height and width of an image by its annotation, where that has them."""
    height, width = self._sizes[i].tolist()
    return (height, width) if height > 0 and width > 0 else None

  def listing(self) -> Iterator[str | np.ndarray]:
    """Names of files, and the annotations."""
    yield from self._files
    yield from (self._starts, self._boxes, self._labels, self._areas, self._crowd, self._sizes)

  def __getitem__(self, i: int) -> dict[str, Any]:
    i = range(len(self))[i]
    own = slice(self._starts[i], self._starts[i + 1])
    return {"image": self._place.read(self._files[i]), "path": self.path(i),
            "boxes": self._boxes[own],
            "box_labels": [self.classes[number] for number in self._labels[own]],
            "box_areas": self._areas[own], "crowd": self._crowd[own]}


# ----------------------------------------------------------------------------- checking


@functools.cache
def warn(message: str) -> None:
  """Logs a warning, once in a process."""
  logging.warning("%s", message)


def kept(box: Box, where: str, label: str) -> bool:
  """Whether a box has a width and a height; of one that has none the log names where it is."""
  left, top, right, bottom = box
  if left < right and top < bottom:
    return True
  warn(f"{where}: the box {list(box)} of {label!r} has no width or no height; it is left out")
  return False


def four_numbers(value: Any, where: str, form: str) -> Box:
  """Raises DataError unless a box is four finite numbers, which are `form`."""
  numbers = isinstance(value, Sequence) and not isinstance(value, str) and all(
      isinstance(x, (int, float)) and not isinstance(x, bool) and math.isfinite(x) for x in value)
  if not numbers or len(value) != 4:
    raise DataError(f"{where} has the box {value!r}; a box is four numbers, {form}")
  return tuple(map(float, value))


def of_corner_and_size(value: Any, where: str) -> Box:
  """The corners of [left, top, width, height]."""
  left, top, width, height = four_numbers(value, where, "[left, top, width, height] in pixels")
  return left, top, left + width, top + height


# -------------------------------------------------------------------------------- COCO


def coco(name: str, file: str, folder: str) -> BoxesSource:
  """The images and boxes of a JSON file in COCO's format; classes are all categories, by id.

  Args:
    name: the spec.
    file: with the lists `images`, `annotations` and `categories`.
    folder: of the images.

  Raises:
    DataError: the file is of another form.
  """
  content = json_of(file)
  for key in ("images", "annotations", "categories"):
    if not isinstance(content, Mapping) or not isinstance(content.get(key), list):
      raise DataError(f"{file}: has no list {key!r}; a file of COCO's format has the lists images,"
                      " annotations and categories")
  names = {_value(c, "id", int, file, "categories", i): _value(c, "name", str, file, "categories",
                                                              i)
           for i, c in enumerate(content["categories"])}
  names = dict(sorted(names.items()))
  images = {_value(image, "id", int, file, "images", i):
            Annotated(_value(image, "file_name", str, file, "images", i), [], _size_of(image))
            for i, image in enumerate(content["images"])}
  for i, annotation in enumerate(content["annotations"]):
    where = f"{file}: annotations[{i}]"
    image, category = (_value(annotation, key, int, file, "annotations", i)
                       for key in ("image_id", "category_id"))
    if image not in images or category not in names:
      key, known = ("image_id", "images") if image not in images else ("category_id", "categories")
      raise DataError(f"{where} has the {key} {annotation[key]}, which is none of {known}")
    box = of_corner_and_size(annotation.get("bbox"), where)
    if kept(box, f"{where} (id {annotation.get('id')})", names[category]):
      pixels = annotation.get("area")
      images[image].objects.append(Object(
          box, names[category], float(pixels) if isinstance(pixels, (int, float)) else math.nan,
          bool(annotation.get("iscrowd", 0))))
  return BoxesSource(name, Folder(folder), list(images.values()), list(names.values()))


def json_of(file: str) -> Any:
  """The value of a JSON file.

  Raises:
    DataError: it is not valid.
  """
  try:
    return storage.parse_json(files.read(file).decode("utf-8"))
  except ValueError as e:
    raise DataError(f"{file}: not valid JSON ({e})") from e


def _size_of(image: Mapping[str, Any]) -> tuple[int, int] | None:
  size = image.get("height"), image.get("width")
  return size if all(type(side) is int for side in size) else None


def _value(item: Any, key: str, kind: type, file: str, of: str, i: int) -> Any:
  value = item.get(key) if isinstance(item, Mapping) else None
  if not isinstance(value, kind) or isinstance(value, bool):
    what = "a text" if kind is str else "a whole number"
    raise DataError(f"{file}: {of}[{i}] has {key}={value!r}; it must be {what}")
  return value


# -------------------------------------------------------------------------- JSON lines


def json_lines(name: str, file: str) -> BoxesSource:
  """Images with boxes, `{"image": "a.jpg", "boxes": [[x, y, width, height]], "classes": ["cat"]}`.

  x and y are of the left top corner. A line may have `crowd`, a list of true and false, too.

  Args:
    name: the spec.
    file: in the folder that the names of images are relative to.

  Raises:
    DataError: a line is of another form.
  """
  rows, images = JsonlSource(name, file), []
  for i in range(len(rows)):
    row, where = rows[i], f"{file}:{i + 1}"
    if not isinstance(row.get("image"), str):
      raise DataError(f"{where}: has no text 'image', the file; it has"
                      f" {', '.join(row) or 'nothing'}")
    boxes, labels = row.get("boxes", []), row.get("classes", [])
    crowd = row.get("crowd", [False] * len(boxes) if isinstance(boxes, list) else None)
    lists = all(isinstance(x, list) for x in (boxes, labels, crowd))
    if not lists or not len(boxes) == len(labels) == len(crowd):
      raise DataError(f"{where}: needs lists 'boxes' and 'classes' (and 'crowd') of the same"
                      " length, a box [left, top, width, height] and a name each")
    if wrong := [x for x in labels if not isinstance(x, str) or not x]:
      raise DataError(f"{where}: has the class {wrong[0]!r}; classes are names")
    objects = []
    for number, (box, label, many) in enumerate(zip(boxes, labels, crowd)):
      box = of_corner_and_size(box, f"{where}: box {number}")
      if kept(box, f"{where}: box {number}", label):
        objects.append(Object(box, label, crowd=bool(many)))
    images.append(Annotated(row["image"], objects))
  return BoxesSource(name, Folder(os.path.dirname(file)), images)


# -------------------------------------------------------------------------------- TFDS


def of_objects(image: bytes, objects: Mapping[str, Any], classes: Sequence[str],
               where: str) -> dict[str, Any]:
  """The boxes of an image of TFDS, whose `objects` have `bbox` and `label`, as COCO's and VOC's.

  Args:
    image: its file, which tells the height and width that boxes are relative to.
    objects: `bbox` [N, 4] (top, left, bottom, right), `label` [N], and maybe `area`, `is_crowd`.
    classes: names in the order of the labels.
    where: names the example.

  Raises:
    BadExample: the image can't be opened.
  """
  try:
    width, height = Image.open(io.BytesIO(image)).size
  except Exception as e:  # a decoder raises all kinds of errors on broken bytes
    raise BadExample(where, f"can't be decoded ({str(e) or type(e).__name__})") from e
  boxes = np.asarray(objects["bbox"], np.float64).reshape(-1, 4)[:, [1, 0, 3, 2]] * (
      [width, height] * 2)
  labels = [classes[number] for number in np.asarray(objects["label"], int).reshape(-1)]
  own = [kept(tuple(box), f"{where}, object {i}", label)
         for i, (box, label) in enumerate(zip(boxes.tolist(), labels))]
  areas = objects.get("area", np.full(len(boxes), math.nan))
  crowd = objects.get("is_crowd", np.zeros(len(boxes), bool))
  return {"boxes": boxes[own], "box_labels": [label for label, keep in zip(labels, own) if keep],
          "box_areas": np.asarray(areas, np.float64)[own], "crowd": np.asarray(crowd, bool)[own]}
