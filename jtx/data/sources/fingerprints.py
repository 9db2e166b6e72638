"""Digests that a source is known again by, wherever it lies, without reading all of it."""

import hashlib
import json
from typing import Any, Iterator

import numpy as np

from jtx.errors import BadExample

SAMPLES = 64  # examples of a source, by default
IMAGES = 16  # of a source of images: each is a file


def fingerprint(source: Any, samples: int = SAMPLES) -> str:
  """A digest of some of a source's examples, the first and the last among them."""
  places = np.linspace(0, len(source) - 1, min(samples, len(source))).astype(int).tolist()
  text = json.dumps([_example(source, i) for i in places], sort_keys=True, default=_plain)
  return hashlib.sha256(text.encode()).hexdigest()


def of_listed(source: Any, samples: int = IMAGES) -> str:
  """A digest of all that a source lists, and of a few of its examples."""
  digest = hashlib.sha256(fingerprint(source, samples).encode())
  for item in listing(source):
    digest.update(f"{item}\n".encode("utf-8", "surrogateescape") if isinstance(item, str) else
                  np.ascontiguousarray(item))
  return digest.hexdigest()


def listing(source: Any) -> Iterator[str | np.ndarray]:
  """What a source with a `listing` knows of its examples, in order, without reading them.

  These are names of files, sizes, labels, or arrays that are in memory. Others have nothing.
  """
  if hasattr(source, "listing"):
    yield from source.listing()


def _example(source: Any, i: int) -> Any:
  try:
    example = source[i]
  except BadExample:
    return None  # as training leaves it out
  if "image" in example:  # whose path is where it lies
    return {key: value for key, value in example.items() if key != "path"}
  return example


def _plain(value: Any) -> Any:
  if isinstance(value, (np.ndarray, np.generic)):
    return value.tolist()
  return value.hex() if isinstance(value, bytes) else repr(value)
