"""The manifest of a checkpoint: its meta data, and shape, dtype and checksum of each array."""

import os
from typing import Any, Mapping, NamedTuple

from absl import logging
import jax
import jax.numpy as jnp

from jtx import storage
from jtx.errors import CheckpointError
from jtx.saved.checksums import crc, digests
from jtx.saved.damage import Damaged, problem_of

ITEM = "manifest"  # of a checkpoint, by Orbax's word
FILE = "metadata"  # of the item


class Manifest(NamedTuple):
  """The content of a manifest."""
  meta: dict[str, Any]  # as it was given to `save`
  arrays: dict[str, dict[str, Any]]  # of each item, by path: shape, dtype and digest
  scores: tuple[tuple[int, float], ...]  # of steps, as far as `rate` had told them
  step: int


def flatten(name: str, tree: Any) -> dict[str, Any]:
  """The leaves of `tree` by path, such as "params/encoder/embed/embedding"."""
  leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
  return {
      "/".join([name, *(jax.tree_util.keystr((k,), simple=True) for k in path)]): x
      for path, x in leaves
  }


def _spec(x: Any) -> dict[str, Any]:
  return {"shape": list(x.shape), "dtype": jnp.dtype(x.dtype).name}


def _show(spec: Mapping[str, Any]) -> str:
  return f"{spec['dtype']}{spec['shape']}"


def content_of(step: int, items: Mapping[str, Mapping[str, jax.Array]], meta: Any,
               scores: Mapping[int, float]) -> dict[str, Any]:
  """The content of a manifest; waits for the arrays.

  Args:
    step: of the checkpoint, whose folder could be renamed.
    items: of the state, by name, as `flatten` gives them.
    meta: what JSON can hold.
    scores: of steps.
  """
  checksums = digests({path: x for item in items.values() for path, x in item.items()})
  arrays = {name: {path: _spec(x) | {"digest": checksums[path]} for path, x in item.items()}
            for name, item in items.items()}
  return {"step": step, "meta": meta, "scores": sorted(scores.items()), "arrays": arrays}


def scores_of(content: Mapping[str, Any]) -> tuple[tuple[int, float], ...]:
  return tuple(map(tuple, content.get("scores", ())))  # older checkpoints have none


def check_structure(where: str, wanted: Mapping[str, Mapping[str, Any]],
                    saved: Mapping[str, Any], whole: bool) -> None:
  """Raises CheckpointError that names the first array that differs, parameters first.

  Args:
    where: the checkpoint's folder.
    wanted: arrays of each item, by path.
    saved: those of the manifest.
    whole: whether items that are saved and not wanted are a difference.
  """
  names = set(wanted) | (set(saved) if whole else set())
  for name in sorted(names, key=lambda n: (n != "params", n)):
    want, have = wanted.get(name, {}), saved.get(name, {})
    for path in [*want, *(p for p in have if p not in want)]:
      ours = _show(_spec(want[path])) if path in want else "absent"
      theirs = _show(have[path]) if path in have else "absent"
      if ours != theirs:
        raise CheckpointError(
            f"checkpoint {where} isn't of this model: {path} is {theirs} in"
            f" the checkpoint and {ours} in the model")


def checked(manifest: Mapping[str, Any], step: int) -> dict[str, Any]:
  """The content of a manifest; raises Damaged where it is not what was written for the step."""
  if crc(manifest["content"]) != manifest["crc32"]:
    raise Damaged("the checksum of its manifest is wrong")
  content = manifest["content"]
  if content.get("step", step) != step:  # older ones have none
    raise Damaged(f"it is of step {content['step']}")
  return content


class Manifests:
  """The manifests of a folder of checkpoints, read as files, for which no device is asked.

  Orbax asks for them, and then this process can't join others any more. So a config that begins
  with a run's tokenizers is made without it. What is damaged stays where it is.

  Args:
    directory: of the checkpoints.
  """

  def __init__(self, directory: str):
    self._directory = directory

  def all_steps(self) -> list[int]:
    """The steps in increasing order."""
    with storage.opened(self._directory) as path:
      names = [p.name for p in path.iterdir()] if path.exists() else []
    return sorted(int(name) for name in names if name.isdecimal())

  def latest_step(self) -> int | None:
    """The newest step, or None."""
    return max(self.all_steps(), default=None)

  def read_meta(self, step: int | None = None) -> dict[str, Any]:
    """The `meta` of the newest checkpoint whose manifest is whole, or of that of `step`.

    Raises:
      CheckpointError: there is none.
    """
    for s in reversed(self.all_steps()):
      if step in (None, s):
        folder = os.path.join(self._directory, str(s))
        try:
          text = storage.read_text(os.path.join(folder, ITEM, FILE))
          return checked(storage.parse_json(text), s)["meta"]
        except Exception as e:  # of a damaged file there may be any
          logging.warning("checkpoint %s is damaged: %s", folder, problem_of(e))
    raise CheckpointError(f"{self._directory} has no good checkpoint")
