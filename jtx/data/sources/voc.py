"""The source of images with boxes of PASCAL VOC, whose annotations are XML."""

import os
import re
from typing import Any, Iterator
import xml.etree.ElementTree as ET

from jtx.data.sources import files
from jtx.data.sources.boxes import (
    Annotated,
    BoxesSource,
    Folder,
    Object,
    Place,
    four_numbers,
    kept,
)
from jtx.data.sources.images import Archive
from jtx.errors import BadExample, DataError

IMAGES, ANNOTATIONS, SETS = "JPEGImages/", "Annotations/", "ImageSets/Main/"
FLAGGED = re.compile(r"(.*\S)\s+-?[01]")  # 1 where an image has the class, -1 where not, else 0
LEVELS = 5  # of folders that are listed: VOCdevkit/VOC2012/ImageSets/Main, and what is in it


def voc(name: str, path: str, split: str) -> BoxesSource:
  """The images and boxes of PASCAL VOC, in a folder or a zip archive; classes are those of a split.

  It has the folders JPEGImages and Annotations, maybe inside of others, and a list of a split's
  images as ImageSets/Main/SPLIT.txt, or as SPLIT.txt beside them. Corners are pixels that belong to
  the box, counted from 1 (Everingham et al. 2010), so the left one is at x - 1 here.

  Args:
    name: the spec.
    path: of the folder or the archive.
    split: such as "train"; "" is all annotations.

  Raises:
    DataError: a file is missing, or of another form.
  """
  place: Any = Folder(path) if files.is_folder(path) else Archive(path)
  names = set(files.walked(path, LEVELS) if isinstance(place, Folder) else place.files)
  roots = sorted({n.partition(ANNOTATIONS)[0] for n in names if f"/{ANNOTATIONS}" in f"/{n}"},
                 key=lambda root: (len(root), root))
  if not roots:
    raise DataError(f"{path}: has no folder Annotations; PASCAL VOC has Annotations/ID.xml,"
                    " JPEGImages/ID.jpg and ImageSets/Main/SPLIT.txt")
  root = roots[0]
  stems = {os.path.splitext(n)[0].removeprefix(root + IMAGES): n for n in sorted(names)
           if n.startswith(root + IMAGES) and not n.endswith("/")}
  images = []
  for identity, where in _identities(path, place, names, root, split):
    file = f"{root}{ANNOTATIONS}{identity}.xml"
    for missing in [file] * (file not in names) + [f"{root}{IMAGES}{identity}.jpg"] * (
        identity not in stems):
      raise DataError(f"{where}: names {identity!r}, and there is no {missing}")
    images.append(annotated(place, stems[identity], file))
  return BoxesSource(name, place, images)


def _identities(path: str, place: Place, names: set[str], root: str,
                split: str) -> Iterator[tuple[str, str]]:
  """The images of a split by their names, in the order of its list, and where each is named."""
  if not split:
    own = (n.removeprefix(root + ANNOTATIONS) for n in names
           if n.startswith(root + ANNOTATIONS) and n.endswith(".xml"))
    where = os.path.join(place.path, root, ANNOTATIONS)
    yield from ((identity, where) for identity in sorted(n.removesuffix(".xml") for n in own))
    return
  for folder in (SETS, ""):
    if (file := f"{root}{folder}{split}.txt") in names:
      lines = map(str.strip, place.read(file).decode("utf-8", "replace").splitlines())
      for number, line in enumerate(lines, 1):
        # Lists of a class have a flag behind the name, in which there may be spaces, too.
        flagged = FLAGGED.fullmatch(line) if f"{root}{ANNOTATIONS}{line}.xml" not in names else None
        if line:
          yield (flagged[1] if flagged else line), f"{os.path.join(place.path, file)}:{number}"
      return
  known = sorted({os.path.basename(n).removesuffix(".txt") for n in names if n.endswith(".txt")
                  and os.path.dirname(n) + "/" in (root + SETS, root or "/")})
  raise DataError(f"{path}: has no list {split}.txt of images, in {SETS} or beside it; it has"
                  f" {', '.join(known) or 'none'}")


def annotated(place: Place, image: str, file: str) -> Annotated:
  """An image with what its annotation says.

  Args:
    place: of both files.
    image: the file of the image.
    file: the annotation.

  Raises:
    DataError: it is no XML, or an object lacks something.
  """
  where = os.path.join(place.path, file)
  try:
    content = ET.fromstring(place.read(file))
  except (ET.ParseError, BadExample) as e:
    raise DataError(f"{where}: not valid XML ({e})") from e
  sides = [(content.findtext(f"size/{key}") or "").strip() for key in ("height", "width")]
  size = tuple(int(side) for side in sides if side.isdecimal())
  objects = []
  for number, item in enumerate(content.iter("object")):
    label = (item.findtext("name") or "").strip()
    if not label:
      raise DataError(f"{where}: object {number} has no name")
    corners = [item.findtext(f"bndbox/{key}") for key in ("xmin", "ymin", "xmax", "ymax")]
    try:
      left, top, right, bottom = map(float, corners)
      box = four_numbers((left, top, right, bottom), f"{where}: object {number}", "xmin to ymax")
    except (TypeError, ValueError) as e:
      raise DataError(f"{where}: object {number} has the bndbox {corners}; it needs the numbers"
                      " xmin, ymin, xmax and ymax") from e
    if kept(box, f"{where}: object {number}", label):
      objects.append(Object((left - 1, top - 1, right, bottom), label))
  return Annotated(image, objects, size if len(size) == 2 else None)
