"""Sources of images: folders and zip archives with a folder a class, arrays, handwritten digits.

An example has an "image", which is the bytes of an image file, or a uint8 array [H, W] or
[H, W, C], and a "label", the name or the number of its class. The `classes` of a source are their
names in the order of the numbers.
"""

import functools
import os
import struct
from typing import Any, Iterable, Iterator, Sequence
import zipfile
import zlib

from absl import logging
import numpy as np

from jtx import config
from jtx.data.sources import files
from jtx.data.sources.parts import Part
from jtx.errors import BadExample, DataError, listed

MOST_CLASSES = 1_000_000  # of numbers, whose largest says how many there are
# What an error says to those who have named files of images in a table.
TABLE = ("a table that names files of images and their labels is read by"
         " captions:FILE:columns[image=NAME+label=NAME], with the names of its columns")
HEAD = 512  # bytes in front of a file in an archive, usually far fewer: read with it in one go
ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm")


# ------------------------------------------------------------------------------- files


class ImagesSource:
  """A folder a class, in a folder or a zip archive; classes and files by name.

  An archive may have all of it in one folder more. Labels are names.

  Args:
    name: the spec.
    path: of the folder or archive.
    part: of the images of each class; None is all.
  """

  def __init__(self, name: str, path: str, part: Part | None = None):
    self.name, self._path = name, path
    self._archive = None if files.is_folder(path) else Archive(path)
    by_class = images_by_class(path, self._archive.files if self._archive else files.walked(path),
                               leading=self._archive is not None)
    self.classes = tuple(by_class)
    kept = [images if part is None else part.of(images) for images in by_class.values()]
    if empty := [c for c, images in zip(self.classes, kept) if not images]:
      logging.warning("%s: has no image of %s, too few for every part", name, listed(empty))
    self._files = [file for images in kept for file in images]
    self._labels = np.repeat(np.arange(len(kept)), [len(images) for images in kept])

  @property
  def labels(self) -> list[str]:
    return [self.classes[number] for number in self._labels]

  def __len__(self) -> int:
    return len(self._files)

  def path(self, i: int) -> str:
    """The file of an example."""
    return os.path.join(self._path, self._files[i])

  def listing(self) -> Iterator[str]:
    """Names of files, and in an archive their checksums."""
    for file in self._files:
      yield f"{file} {self._archive.files[file].CRC}" if self._archive else file

  def __getitem__(self, i: int) -> dict[str, Any]:
    path = self.path(i)
    image = self._archive.read(self._files[i]) if self._archive else files.read(path)
    return {"image": image, "label": self.classes[self._labels[i]], "path": path}


def images_by_class(path: str, names: Iterable[str], leading: bool) -> dict[str, list[str]]:
  """Class -> names of its images, both sorted.

  Args:
    path: of the folder or archive, for errors.
    names: of what is in it, "class/file" and "class/".
    leading: whether all may lie in one folder more.

  Raises:
    DataError: there are no images, images out of place, or a class without any.
  """
  places = [name.split("/") for name in names if not files.is_hidden(name)]
  images = [parts for parts in places if parts[-1].lower().endswith(ENDINGS)]
  if not images:
    raise DataError(f"{path}: has no image, which is a file that ends in {', '.join(ENDINGS)}")
  depth = 2
  if leading and all(len(parts) == 3 and parts[0] == images[0][0] for parts in images):
    depth = 3
  if wrong := sorted("/".join(parts) for parts in images if len(parts) != depth):
    raise DataError(f"{path}: {wrong[0]} lies in the wrong place; an image lies in the"
                    " folder of its class, CLASS/FILE")
  result: dict[str, list[str]] = {}
  for parts in sorted(images, key=lambda parts: parts[-2:]):
    result.setdefault(parts[-2], []).append("/".join(parts))
  folders = {parts[depth - 2] for parts in places if len(parts) >= depth}
  if empty := sorted(folders - result.keys()):
    raise DataError(f"{path}: the folder {empty[0]} has no image, but every folder here is a class;"
                    f" an image ends in {', '.join(ENDINGS)}")
  return result


class Archive:
  """Files of a zip archive, for threads and processes.

  A read names its place, so there is no position in the file that readers could take from each
  other.
  """

  def __init__(self, path: str):
    self.path, self._data = path, files.File(path)
    try:
      with self._data.stream() as file, zipfile.ZipFile(file) as archive:
        members = archive.infolist()
    except zipfile.BadZipFile as e:
      raise DataError(f"{path}: neither a folder nor a zip archive ({e})") from e
    for m in members:
      if m.flag_bits & 1 or m.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise DataError(f"{path}: {m.filename} is encrypted, or packed by another method than"
                        " deflate; pack the archive again without")
    self.files = {m.filename: m for m in members}

  def read(self, name: str) -> bytes:
    """A file's bytes.

    Raises:
      BadExample: they are damaged.
      DataError: they unpack to too many.
    """
    member, path = self.files[name], os.path.join(self.path, name)
    offset, size = member.header_offset, member.compress_size
    try:
      files.check_unpacked(path, size, member.file_size)
      head = self._data.read(offset, HEAD + size)
      # A name and an extra field stand in front of the data. The latter may be another here than
      # in the archive's directory, so only this tells how long they are.
      start = 30 + sum(struct.unpack_from("<HH", head, 26))
      data = head[start:start + size]
      if len(data) < size:
        data = self._data.read(offset + start, size)
      if member.compress_type == zipfile.ZIP_DEFLATED:  # up to the size that the archive tells
        data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, member.file_size + 1)
    except (struct.error, zlib.error) as e:
      raise BadExample(path, f"is damaged ({e})") from e
    if zlib.crc32(data) != member.CRC:
      raise BadExample(path, "is damaged (its checksum differs)")
    return data


# ------------------------------------------------------------------------------ arrays


class NpzSource:
  """Arrays of one file: `images` [N, H, W] or [N, H, W, C] uint8, and `labels` [N], ints from 0.

  Where arrays have other names, the one of rank 3 or 4 and the one of rank 1 are taken. The
  classes are numbers, up to the largest label of the whole file. Labels [N, C] of 0 and 1 are of
  images with any number of C labels each.

  Args:
    name: the spec.
    file: of `numpy.savez` or `numpy.savez_compressed`.
    part: of the rows; None is all.
  """

  numbered = True  # classes are numbers up to the largest label

  def __init__(self, name: str, file: str, part: Part | None = None):
    self.name, self._file, self._part = name, file, part
    images, labels = images_and_labels(file)
    largest = labels.shape[1] - 1 if labels.ndim == 2 else labels.max(initial=-1)
    self.classes = numbered(file, int(largest))
    self._images, self.labels = (a if part is None else part.of(a) for a in (images, labels))

  def __reduce__(self):
    return NpzSource, (self.name, self._file, self._part)  # a process reads it for itself

  def listing(self) -> Iterator[np.ndarray]:
    """The arrays."""
    yield from (self.labels, self._images)

  def __len__(self) -> int:
    return len(self.labels)

  def __getitem__(self, i: int) -> dict[str, Any]:
    label = self.labels[i]
    return {"image": self._images[i], "label": label if label.ndim else int(label)}


def numbered(where: str, largest: int) -> tuple[str, ...]:
  """The classes 0 to `largest` by their names.

  Raises:
    DataError: it is no number of a class.
  """
  if largest >= MOST_CLASSES:
    raise DataError(f"{where}: has the label {largest}, and labels are the numbers of classes from"
                    f" 0 up to {MOST_CLASSES - 1} at most; number the classes one after the other")
  return tuple(map(str, range(largest + 1)))


def images_and_labels(file: str) -> tuple[np.ndarray, np.ndarray]:
  """The two arrays of a file.

  Raises:
    DataError: it has others.
  """
  arrays = arrays_of(file)
  if arrays.keys() >= {"images", "labels"}:
    images, labels = arrays["images"], arrays["labels"]
  else:
    found = [[a for a in arrays.values() if a.ndim in ranks] for ranks in ((3, 4), (1,))]
    if [len(f) for f in found] != [1, 1]:
      has = ", ".join(f"{name} {list(a.shape)} {a.dtype}" for name, a in arrays.items())
      raise DataError(f"{file}: needs images [N, H, W] or [N, H, W, C] and labels [N]; it has"
                      f" {has or 'nothing'}")
    (images,), (labels,) = found
  about = (f"images {list(images.shape)} {images.dtype} and labels {list(labels.shape)}"
           f" {labels.dtype}")
  if images.ndim not in (3, 4) or images.dtype != np.uint8:
    raise DataError(f"{file}: has {about}; images must be [N, H, W] or [N, H, W, C] of uint8")
  several = labels.ndim == 2 and len(labels) == len(images) and set(np.unique(labels)) <= {0, 1}
  if not several and (labels.shape != images.shape[:1] or labels.dtype.kind not in "iu"):
    raise DataError(f"{file}: has {about}; labels must be [{len(images)}] of an integer type")
  labels = labels.astype(np.int64)
  if labels.min(initial=0) < 0:
    raise DataError(f"{file}: has the label {labels.min()}; labels count from 0")
  return images, labels


def arrays_of(file: str) -> dict[str, np.ndarray]:
  """Raises DataError where a file is no archive of arrays, or a few bytes of very large ones."""
  try:
    with files.File(file).stream() as f, np.load(f) as arrays:
      for member in arrays.zip.infolist():
        files.check_unpacked(f"{file}: {member.filename}", member.compress_size, member.file_size)
      return dict(arrays)
  except DataError:
    raise
  # A plain array is no context manager, which is a TypeError.
  except (zipfile.BadZipFile, zlib.error, ValueError, TypeError, AttributeError, OSError, EOFError,
          MemoryError) as e:
    raise DataError(f"{file}: is not what numpy.savez writes, or is damaged"
                    f" ({str(e).splitlines()[0] if str(e) else type(e).__name__})") from e


# ------------------------------------------------------------------------------ digits


class Digits:
  """Handwritten digits, 8 x 8 [H, W], of scikit-learn: 1,437 for "train" and 360 for "test"."""

  classes = tuple(map(str, range(10)))

  def __init__(self, split: str):
    self.name, self._split = f"embedded:digits:{split}", split
    if split not in ("train", "test"):
      raise config.ConfigError(f"{self.name}: valid splits are train and test")
    images, labels, splits = digits()
    self._images, self.labels = images[splits[split]], labels[splits[split]]

  def __reduce__(self):
    return Digits, (self._split,)

  def __len__(self) -> int:
    return len(self.labels)

  def __getitem__(self, i: int) -> dict[str, Any]:
    return {"image": self._images[i], "label": int(self.labels[i])}


@functools.cache
def digits() -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
  """Images [1797, 8, 8] uint8, labels [1797], and the numbers of the examples of each split.

  Raises:
    DataError: scikit-learn can't be imported.
  """
  try:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
  except ImportError as e:
    raise DataError(f"embedded:digits: is a part of scikit-learn, which can't be imported ({e});"
                    " install it by: pip install scikit-learn") from e
  bunch = load_digits()
  images = np.round(bunch.images * (255 / 16)).astype(np.uint8)  # from 0..16
  train, test = train_test_split(np.arange(len(images)), test_size=0.2, stratify=bunch.target,
                                 random_state=0)
  return images, bunch.target, {"train": train, "test": test}


def digits_source(subset: str, split: str) -> Digits:
  """Opens `embedded:digits:SPLIT`; there are no subsets."""
  if subset:
    raise config.ConfigError(f"embedded:digits/{subset}: it has no subsets, so leave /{subset}"
                             " away")
  return Digits(split)


# ----------------------------------------------------------------------------- classes


def class_names(sources: Sequence[Any]) -> tuple[str, ...]:
  """The classes that training sources have, for the `names` of `decode_image`.

  Raises:
    DataError: a source does not tell them.
  """
  for source in sources:
    if not hasattr(source, "classes"):
      raise DataError(f"{source.name}: is no source of images; {TABLE}")
    if source.classes is None:
      raise DataError(f"{source.name}: does not tell its classes; write them in order into the"
                      " names of 'decode_image'")
  return max((source.classes for source in sources), key=len)


def check_classes(source: Any, names: Sequence[str]) -> None:
  """Raises DataError where a source does not have the classes of the run.

  Args:
    source: of images; if it does not tell its classes, only its labels are checked, when read.
    names: of the classes, in order.
  """
  classes = getattr(source, "classes", None)
  if classes is None or classes == tuple(names):
    return
  missing, others = ([c for c in some if c not in rest]
                     for some, rest in ((names, set(classes)), (classes, set(names))))
  if hasattr(source, "numbered"):  # it knows the classes of the images that it has, and no others
    missing = []
  if getattr(source, "numbered", False):  # which knows no names
    if len(classes) > len(names):
      raise DataError(f"{source.name}: has labels up to {len(classes) - 1}, but the run has only"
                      f" the {len(names)} classes {listed(names)}")
  elif missing or others:
    told = [f"{what} {listed(some)}"
            for what, some in (("lacks", missing), ("also has", others)) if some]
    raise DataError(f"{source.name}: does not have the classes of the run: it {' and '.join(told)}")
  elif not hasattr(source, "numbered") and not isinstance(source, ImagesSource):
    # Whose labels are numbers; those of the others are names.
    raise DataError(f"{source.name}: has the classes of the run in another order, {listed(classes)}"
                    f" and not {listed(names)}")
