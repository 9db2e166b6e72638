"""Sources of images in tar archives, as WebDataset names their files: KEY.jpg beside KEY.cls."""

import os
import tarfile
from typing import Any, Iterator, NamedTuple

from jtx import storage
from jtx.data.sources import files
from jtx.data.sources.images import ENDINGS, numbered
from jtx.errors import BadExample, DataError

LABELS = ("cls", "json")  # endings: a number or a name, or an object that has it as "label"


class Member(NamedTuple):
  """Where an image is."""
  archive: int
  offset: int
  size: int
  path: str  # in the archive, for errors
  label: int | str | None


class WebDatasetSource:
  """Images of tar archives: files that stand together and differ in what follows the first point.

  An example has the "image", the bytes of its file, and the "label" that stands in a file KEY.cls,
  a number or a name, or as "label" in KEY.json. Labels are read when the source is opened, and
  images by their place in the archive, when they are asked for.

  Args:
    name: the spec.
    path: an archive, a folder of archives, or a pattern, "train-{000..099}.tar".

  Raises:
    DataError: an archive can't be read or has no image, or some images have labels and others not.
  """

  def __init__(self, name: str, path: str):
    self.name = name
    self._archives = [files.File(file) for file in files.matching(path, (".tar",))]
    self._members = [member for number, archive in enumerate(self._archives)
                     for member in _members(number, archive)]
    labels = self.labels
    if bad := next((m for m in self._members if type(m.label) is not type(labels[0])), None):
      raise DataError(f"{self._place(bad)}: has the label {bad.label!r}, but the first image has"
                      f" {labels[0]!r}; all have a number, or a name, or none")
    self.numbered = isinstance(labels[0], int) if labels else False
    self.classes = None
    if self.numbered:
      self.classes = numbered(path, max(labels))
    elif labels and labels[0] is not None:
      self.classes = tuple(sorted(set(labels)))

  @property
  def labels(self) -> list[int | str | None]:
    return [member.label for member in self._members]

  def listing(self) -> Iterator[str]:
    """Names in the archives, sizes and labels."""
    yield from (f"{m.path} {m.size} {m.label!r}" for m in self._members)

  def __len__(self) -> int:
    return len(self._members)

  def __getitem__(self, i: int) -> dict[str, Any]:
    member = self._members[i]
    archive = self._archives[member.archive]
    image = archive.read(member.offset, member.size)
    if len(image) < member.size:
      raise BadExample(self._place(member), "is cut off with its archive")
    label = {} if member.label is None else {"label": member.label}
    return {"image": image, **label, "path": self._place(member)}

  def _place(self, member: Member) -> str:
    return os.path.join(self._archives[member.archive].path, member.path)


def _members(number: int, archive: files.File) -> Iterator[Member]:
  """The images of an archive, in order.

  Raises:
    DataError: it is no tar archive, or one with an example that is not as said above.
  """
  try:
    with archive.stream() as file, tarfile.open(fileobj=file, mode="r:") as tar:
      key, found = None, {}
      for info in tar:
        if not info.isfile():
          continue
        folder, name = os.path.split(info.name)
        stem, _, ending = name.partition(".")
        if found and key != (folder, stem):
          yield _member(number, archive, found)
          found = {}
        key = folder, stem
        if ending in found:
          raise DataError(f"{archive.path}: has {info.name} twice")
        found[ending.lower()] = info
      if found:
        yield _member(number, archive, found)
  except tarfile.TarError as e:
    raise DataError(f"{archive.path}: is no tar archive, or is compressed as a whole, or damaged"
                    f" ({e}); images are compressed, so leave the archive as it is") from e


def _member(number: int, archive: files.File, found: dict[str, tarfile.TarInfo]) -> Member:
  images = [ending for ending in found if "." + ending in ENDINGS]
  if len(images) != 1:
    first = next(iter(found.values())).name
    raise DataError(f"{archive.path}: the example of {first} has {len(images)} images; it needs"
                    f" one, KEY{', KEY'.join(ENDINGS)}")
  info = found[images[0]]
  label = next((_label(archive, found[ending], ending) for ending in LABELS if ending in found),
               None)
  return Member(number, info.offset_data, info.size, path=info.name, label=label)


def _label(archive: files.File, info: tarfile.TarInfo, ending: str) -> int | str | None:
  try:
    text = archive.read(info.offset_data, info.size).decode("utf-8").strip()
    value = storage.parse_json(text).get("label") if ending == "json" else text
  except (ValueError, AttributeError) as e:
    kind = "JSON object" if ending == "json" else "text"
    raise DataError(f"{archive.path}: {info.name} is no {kind} ({e})") from e
  if isinstance(value, str) and value.removeprefix("-").isdecimal():
    value = int(value)
  if isinstance(value, bool) or not isinstance(value, (int, str, type(None))) or (
      value == "" or isinstance(value, int) and value < 0):
    raise DataError(f"{archive.path}: {info.name} has the label {value!r}; it is the number of a"
                    " class from 0, or its name")
  return value
