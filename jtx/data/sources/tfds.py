"""Sources of TFDS, prepared as ArrayRecord."""

import functools
import importlib
import os
import re
from typing import Any

from jtx.data.sources import boxes
from jtx.errors import DataError


@functools.cache
def defined_in(dataset: str) -> str | None:
  """The module of TFDS with the class of a dataset, which TFDS finds only once it is imported.

  It is looked up in the files of the package, without running them.
  """
  import tensorflow_datasets as tfds
  root, = tfds.__path__
  for folder, _, names in os.walk(root):
    part = os.path.relpath(folder, root).split(os.sep)
    if part[0] in ("core", "datasets", "scripts", "testing"):  # "datasets" it finds by itself
      continue
    for name in sorted(names):
      if not name.endswith(".py") or name.endswith("_test.py"):
        continue
      with open(os.path.join(folder, name), encoding="utf-8") as f:
        classes = re.findall(r"^class (\w+)\(", f.read(), re.MULTILINE)
      if dataset in map(tfds.core.naming.camelcase_to_snakecase, classes):
        return ".".join(["tensorflow_datasets", *filter(lambda p: p != ".", part), name[:-3]])
  return None


def _plain(value: Any) -> Any:
  """`value` with bytes decoded, where they are text, in nested dicts and lists too."""
  if isinstance(value, dict):
    return {k: _plain(v) for k, v in value.items()}
  if isinstance(value, list):
    return [_plain(v) for v in value]
  if isinstance(value, bytes):
    try:
      return value.decode("utf-8")
    except UnicodeDecodeError:
      return value
  return value


class TfdsSource:
  """A split of a TFDS dataset that was prepared as ArrayRecord; needs no TensorFlow.

  Images come as the bytes of their files, and their objects with boxes as of
  `jtx.data.sources.boxes`. `classes` are the names of the feature "label", or of that of objects,
  or None.
  """

  def __init__(self, name: str, dataset: str, split: str, data_dir: str | None):
    import tensorflow_datasets as tfds
    self.name = name
    missing = None
    if module := defined_in(dataset.split("/")[0]):
      try:
        importlib.import_module(module)
      except ImportError as e:
        missing = e  # TFDS needs no code for files that are prepared
    try:
      builder = tfds.builder(dataset, data_dir=data_dir)
    except tfds.core.DatasetNotFoundError as e:
      if missing:
        raise _needs(name, missing) from missing
      raise DataError(f"{name}: TFDS has no dataset {dataset!r}, nor is one prepared in "
                      f"{data_dir or 'its default data_dir'}") from e
    except ImportError as e:
      raise _needs(name, e) from e
    except (ValueError, RuntimeError) as e:  # an unknown config or version
      raise DataError(f"{name}: TFDS cannot build {dataset!r}: {_first_line(e)}") from e
    if not builder.info.splits:
      raise DataError(
          f"{name}: not prepared in {builder.data_path}; prepare it once with "
          f"tfds.builder({dataset!r}, data_dir=..., file_format='array_record')"
          ".download_and_prepare()")
    features = dict(builder.info.features.items())
    self._images = {key for key, feature in features.items()
                    if isinstance(feature, tfds.features.Image)}
    self._names = {key: tuple(feature.names) for key, feature in features.items()
                   if isinstance(feature, tfds.features.ClassLabel)}
    self.classes = self.names_of("label")
    self._objects: str | None = None  # the feature with an image's boxes
    for key, feature in features.items() if "image" in self._images else ():
      inner = getattr(feature, "feature", None)  # of a Sequence
      if isinstance(inner, tfds.features.FeaturesDict):
        parts = dict(inner.items())
        if isinstance(parts.get("bbox"), tfds.features.BBoxFeature) and (
            isinstance(parts.get("label"), tfds.features.ClassLabel)):
          self._objects, self.classes = key, tuple(parts["label"].names)
    try:
      self._data = builder.as_data_source(
          split=split, decoders={key: tfds.decode.SkipDecoding() for key in self._images} or None)
    except NotImplementedError as e:
      raise DataError(f"{name}: the files in {builder.data_path} have no random access; "
                      "prepare it again with file_format='array_record'") from e
    except ValueError as e:
      raise DataError(f"{name}: no split {split!r}; {dataset} has "
                      + ", ".join(builder.info.splits)) from e

  def names_of(self, key: str) -> tuple[str, ...] | None:
    """The classes of a feature in order, if it is a ClassLabel."""
    return self._names.get(key)

  def __len__(self) -> int:
    return len(self._data)

  def __getitem__(self, i: int) -> dict[str, Any]:
    example = {key: value if key in self._images else _plain(value)
               for key, value in self._data[i].items()}
    if self._objects:
      example |= boxes.of_objects(example["image"], example.pop(self._objects), self.classes,
                                  f"{self.name}, example {i}")
    return example


def _needs(name: str, error: ImportError) -> DataError:
  return DataError(f"{name}: TFDS's own code for this dataset needs {error.name or 'TensorFlow'}")


def _first_line(error: Exception) -> str:
  return str(error).strip().split("\n")[0]
