"""The files of a Hugging Face directory: config.json and safetensors, read and written."""

import json
import os
import re
import shutil
from typing import Any, Iterable, Mapping, Sequence

from absl import logging
import numpy as np
import safetensors

from jtx import storage
from jtx.config_files import read_json
from jtx.errors import ConfigError, DataError
from jtx.interop import tables
from jtx.interop.family import Names, matching
from jtx.interop.tables import Entry, Shape

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5", "flax_model.msgpack")
DTYPES = ("float32", "float16", "bfloat16")
SHORT = {"F16": "float16", "BF16": "bfloat16"}  # as safetensors call them


def read_config(directory: str) -> dict[str, Any]:
  """The content of config.json.

  Raises:
    ConfigError: it is missing, or is not a JSON object.
  """
  path = os.path.join(directory, CONFIG)
  if not storage.is_folder(directory):
    raise ConfigError(f"{directory} is not a directory")
  return read_json(path, missing="a model needs it beside its weights")


def json_text(content: Mapping[str, Any]) -> str:
  return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def write_json(path: str, content: Mapping[str, Any]) -> None:
  with open(path, "w", encoding="utf-8") as f:
    f.write(json_text(content))


def dtype_of(directory: str) -> str:
  """The dtype that all tensors of a directory have; float32 where they differ."""
  found = set()
  for name in os.listdir(directory):
    if name.endswith(".safetensors"):
      with safetensors.safe_open(os.path.join(directory, name), "np") as f:
        found |= {f.get_slice(key).get_dtype() for key in f.keys()}
  return SHORT[found.pop()] if len(found) == 1 and found <= SHORT.keys() else "float32"


class Tensors:
  """The tensors of a directory, under the names of the tables.

  Files of old have `gamma` and `beta` for weight and bias, files of a base model lack the
  prefix, and tied tensors may be there twice.

  Args:
    directory: of the files.
    own: the names of the model type.
    ties: whether the tensors of `own.tied` are one.
  """

  def __init__(self, directory: str, own: Names, ties: bool = True):
    if storage.is_remote(directory):
      raise ConfigError(f"{directory}: a Hugging Face model must be in a folder of this machine")
    self.directory, self.own = directory, own
    self.tied, self.buffers = {**own.copies, **(own.tied if ties else {})}, matching(own.buffers)
    self.files: dict[str, tuple[str, str]] = {}  # name -> file and the name in it
    self.handles: dict[str, Any] = {}
    trunk, heads = (self.own.pattern(heads=h) for h in (False, True))
    for original, path in self.listing().items():
      name = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", original))
      for spelling, written in self.own.spellings.items():
        name = re.sub(spelling, written, name)
      prefixed = f"{self.own.prefix}.{name}"
      if any(names.fullmatch(prefixed) for names in (trunk, heads, self.buffers)):
        name = prefixed
      if name in self.files:
        raise DataError(f"{path} has both {self.files[name][1]!r} and {original!r}, which are one"
                        " tensor")
      self.files[name] = path, original
    self.aliases = {first: second for second, first in self.tied.items()
                    if first not in self.files and second in self.files}

  def __contains__(self, name: str) -> bool:
    return name in self.files or name in self.aliases

  def listing(self) -> dict[str, str]:
    """Original name -> file."""
    directory = self.directory
    single, index = os.path.join(directory, WEIGHTS), os.path.join(directory, INDEX)
    if os.path.exists(single):
      return dict.fromkeys(self.open(single).keys(), single)
    if not os.path.exists(index):
      pickles = [name for name in PICKLES if os.path.exists(os.path.join(directory, name))]
      if pickles:
        raise DataError(
            f"{os.path.join(directory, pickles[0])}: jtx reads {WEIGHTS} only; convert it with"
            " transformers, whose AutoModel.from_pretrained(DIR).save_pretrained(NEW,"
            " safe_serialization=True), or the class of the model's head, writes that")
      raise DataError(f"{directory} has no {WEIGHTS}, nor {INDEX} of several parts")
    try:
      parts = storage.parse_json(storage.read_text(index))["weight_map"]
      paths = {name: os.path.join(directory, part) for name, part in parts.items()}
      outside = [part for part in parts.values() if os.path.basename(part) != part]
    except (ValueError, KeyError, TypeError, AttributeError):
      raise DataError(f"{index} is not an index: it must be a JSON object whose weight_map names"
                      " the file of each tensor") from None
    if outside:
      raise DataError(f"{index}: {outside[0]!r} is no file beside it; parts of a model are read"
                      " from its directory only")
    for name, path in paths.items():
      if not os.path.exists(path):
        raise DataError(f"{path} does not exist, and {INDEX} says it has tensor {name!r}")
      if name not in self.open(path).keys():
        raise DataError(f"{path} does not have tensor {name!r}, which {INDEX} says it has")
    return paths

  def open(self, path: str) -> Any:
    if path not in self.handles:
      storage.check_regular(path)
      try:
        self.handles[path] = safetensors.safe_open(path, "np")
      except (safetensors.SafetensorError, OSError) as e:
        raise DataError(f"{path} is not a whole safetensors file ({e})") from None
    return self.handles[path]

  def get(self, name: str) -> np.ndarray:
    path, original = self.files[self.aliases[name] if name in self.aliases else name]
    tensor = self.open(path).get_tensor(original)
    if tensor.dtype.name not in DTYPES:
      raise DataError(f"{path}: tensor {original!r} is {tensor.dtype.name}; valid are"
                      f" {', '.join(DTYPES)}")
    return tensor

  def fits(self, entry: Entry, shapes: Mapping[str, Shape]) -> bool:
    """Whether a head's tensor is of the model's size; one of other labels is not."""
    return self.get(entry.name).shape == tables.tensor_shape(entry, shapes)

  def read(self, wanted: Sequence[Entry], shapes: Mapping[str, Shape]) -> dict[str, np.ndarray]:
    """The parameters of these entries, by path.

    Raises:
      DataError: a tensor of another shape, or with values that are not finite.
    """
    params: dict[str, np.ndarray] = {}
    for entry in wanted:
      try:
        tensor = self.get(entry.name)
        tables.read(entry, tensor, shapes, params)
        if not np.isfinite(tensor.astype(np.float32)).all():
          raise DataError(f"tensor {entry.name!r} has values that are NaN or infinite")
      except DataError as e:
        raise DataError(f"{self.directory}: {e}") from None
    return params

  def same(self, name: str, other: str) -> bool | None:
    """Whether two tensors are equal; None where one is absent."""
    if name not in self.files or other not in self.files:
      return None
    return self.get(name).tobytes() == self.get(other).tobytes()

  def check_tied(self) -> None:
    """Raises DataError where a tensor differs from the one that it is tied to."""
    for second, first in self.tied.items():
      if self.same(first, second) is False:
        raise DataError(f"{self.directory}: tensors {second!r} and {first!r} differ, and"
                        " jtx has them as one")

  def check_names(self, wanted: Iterable[Entry], tied: bool) -> None:
    """Logs tensors of heads that the model does not have.

    Args:
      wanted: the tensors of the model.
      tied: whether it has the head that the tied ones belong to.

    Raises:
      DataError: a tensor that is neither the model's nor a head's.
    """
    names = {e.name for e in wanted}
    heads = self.own.pattern(heads=True)
    unused = []
    for name, (path, original) in self.files.items():
      if name in names or self.buffers.fullmatch(name) or name in self.tied and tied:
        continue
      if not heads.fullmatch(name) and name not in self.tied:
        raise DataError(f"{path}: tensor {original!r} is none of the model's, at config.json's"
                        " size")
      unused.append(original)
    if unused:
      logging.info("%s: not used, being of heads that the model does not have: %s",
                   self.directory, ", ".join(sorted(unused)))


class NewDirectory:
  """A directory that appears whole under its name, or not at all."""

  def __init__(self, directory: str):
    self.target = os.path.abspath(directory)
    self.path = f"{self.target}.tmp{os.getpid()}"
    if os.path.exists(self.target) and not os.path.isdir(self.target):
      raise ConfigError(f"{directory} is a file; name a directory to make")
    if os.path.isdir(self.target) and os.listdir(self.target):
      raise ConfigError(f"{directory} is not empty; name a directory to make")

  def __enter__(self) -> str:
    os.makedirs(self.path)
    return self.path

  def __exit__(self, error: Any, *_) -> None:
    if error is not None:
      shutil.rmtree(self.path, ignore_errors=True)
    else:
      os.replace(self.path, self.target)  # an empty directory may be there
