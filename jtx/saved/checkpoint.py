"""Checkpoints that are written while training goes on, and checked when they are read.

Orbax writes asynchronously and makes a step's folder appear at once, so a run that is
killed leaves a whole checkpoint or none. It doesn't notice a byte that changes later:
array data is restored with wrong values, silently. Hence every checkpoint carries a
manifest with a checksum of each array, computed on the device, and a checkpoint that
fails it is set aside and the one before is used.

On disk, in the folder of a step: one Orbax item for each key of the state (so that
`params` can be read without `opt_state`), and `manifest`, a JSON file.
"""

import dataclasses
import functools
import json
import math
import os
from typing import Any, Iterator, Mapping, NamedTuple, Sequence
import zlib

from absl import logging
from etils import epath
import jax
from jax.experimental import multihost_utils
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from jtx import storage
from jtx.errors import CheckpointError, ConfigError

_MANIFEST = "manifest"

# Arrays that are waiting for the rest of a file are in memory a second time.
_FILE_BYTES = 64 << 20

# Errors that say nothing about the bytes on disk: to set checkpoints aside because the
# machine is short of memory would lose all of them, one after the other.
_NOT_DAMAGE = (MemoryError, PermissionError, jax.errors.JaxRuntimeError)


class _Damaged(Exception):
  """What is wrong with the bytes of one checkpoint."""


def _flatten(name: str, tree: Any) -> dict[str, Any]:
  """The leaves of `tree` by path, such as "params/encoder/embed/embedding"."""
  leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
  return {
      "/".join([name, *(jax.tree_util.keystr((k,), simple=True) for k in path)]): x
      for path, x in leaves
  }


def _digest(x: jax.Array) -> jax.Array:
  """A checksum of an array's bits and their order, `[]` uint32.

  The sum modulo 2^32 of the words, each times an odd number that grows with its index.
  An odd weight has an inverse modulo 2^32, so a change within one word always shows;
  and integer addition commutes, so the result is the same however `x` is sharded.
  """
  if x.dtype == jnp.bool_:
    words = x.astype(jnp.uint8)
  else:
    words = jax.lax.bitcast_convert_type(x, jnp.dtype(f"uint{8 * min(x.dtype.itemsize, 4)}"))
  index = jnp.zeros(words.shape, jnp.uint32)
  for axis in range(words.ndim):
    stride = jnp.uint32(math.prod(words.shape[axis + 1:]) % 2**32)
    index += stride * jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis)
  return jnp.sum(words.astype(jnp.uint32) * (2 * index + 1), dtype=jnp.uint32)


@functools.lru_cache
def _digest_on(out_sharding: jax.sharding.Sharding | None):
  return jax.jit(_digest, out_shardings=out_sharding)


def digests(arrays: Mapping[str, jax.Array]) -> dict[str, int]:
  """The checksum of every array, computed where the arrays are; waits for them."""
  # Replicated, so that every process of a multi-host run can read the result.
  replicated = next((
      jax.sharding.NamedSharding(x.sharding.mesh, jax.sharding.PartitionSpec())
      for x in arrays.values()
      if isinstance(x.sharding, jax.sharding.NamedSharding)), None)
  # One after the other: at once, they would need memory for the products of all.
  return {path: int(_digest_on(replicated)(x)) for path, x in arrays.items()}


def _crc(content: Any) -> int:
  return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def _spec(x: Any) -> dict[str, Any]:
  return {"shape": list(x.shape), "dtype": jnp.dtype(x.dtype).name}


def _show(spec: Mapping[str, Any]) -> str:
  return f"{spec['dtype']}{spec['shape']}"


@dataclasses.dataclass
class _Newest(ocp.checkpoint_managers.PreservationPolicy):
  """The newest `number` of the newest step and those divisible by `every`."""
  number: int
  every: int

  def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]:
    own = [c.step % self.every == 0 or c is checkpoints[-1] for c in checkpoints]
    return [mine and sum(own[i:]) <= self.number for i, mine in enumerate(own)]


@dataclasses.dataclass
class _Best(ocp.checkpoint_managers.PreservationPolicy):
  """The best score's, or the first of equal ones, among the steps divisible by `every`."""
  scores: Mapping[int, float]
  sign: int
  every: int

  def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]:
    rated = [c.step for c in checkpoints if c.step in self.scores and c.step % self.every == 0]
    best = max(rated, key=lambda step: (self.sign * self.scores[step], -step), default=None)
    return [c.step == best for c in checkpoints]


class Manifest(NamedTuple):
  """What a checkpoint says of itself."""
  meta: dict[str, Any]  # as it was given to `save`
  arrays: dict[str, dict[str, Any]]  # of each item, by path: shape, dtype and digest
  scores: tuple[tuple[int, float], ...]  # of steps, as far as `rate` had told them
  step: int


class Checkpointer:
  """The checkpoints of one run.

  Args:
    directory: their folder; a step is a sub-folder of it. Damaged steps are moved into
      its sibling `corrupt/`, never deleted. The folder is made by the first `save`.
    keep: number of newest checkpoints that stay, at least 1.
    keep_every: steps divisible by it stay for good; 0 for none.
    every: steps divisible by it are those that a run saves anyway; another, saved since the run was
      told to stop, stays only as long as it is the newest, so that those kept are always the same.
    best: "min" or "max": that whose score, given to `rate`, is the lowest or the highest stays,
      too; "" for none.
  """

  def __init__(self, directory: str | os.PathLike[str], keep: int = 3, keep_every: int = 0,
               every: int = 1, best: str = ""):
    if keep < 1:
      raise ConfigError(f"keep={keep}: at least 1 checkpoint must stay")
    if keep_every < 0:
      raise ConfigError(f"keep_every={keep_every}: it is a number of steps, or 0 for none")
    self.directory = epath.Path(storage.absolute(os.fspath(directory)))
    policies = [_Newest(keep, every)]
    if keep_every:
      policies.append(ocp.checkpoint_managers.EveryNSteps(keep_every))
    self.scores: dict[int, float] = {}  # of steps, as far as they are known
    if best:
      policies.append(_Best(self.scores, {"min": -1, "max": 1}[best], every))
    self._policy = ocp.checkpoint_managers.AnyPreservationPolicy(policies)

  @functools.cached_property
  def _manager(self) -> ocp.CheckpointManager:
    return ocp.CheckpointManager(
        self.directory, options=ocp.CheckpointManagerOptions(preservation_policy=self._policy))

  def all_steps(self) -> list[int]:
    """The steps in increasing order, with that which `save` is still writing."""
    return sorted(self._manager.all_steps()) if self.directory.exists() else []

  def latest_step(self) -> int | None:
    """The newest step, or None; whether it is good shows when it is restored."""
    return max(self.all_steps(), default=None)

  def rate(self, step: int, score: float) -> None:
    """Tells the score of a step's checkpoint, which may come later; `save` keeps all that it knows.

    What a restored checkpoint knew of those before it is known again.
    """
    self.scores[step] = score

  def save(self, step: int, state: Mapping[str, Any], meta: Mapping[str, Any]):
    """Starts to write a checkpoint and returns before it is on disk.

    It returns when the arrays have been copied to the host, so the caller may donate
    them. The state is a function of the step: a step that is on disk isn't written twice.

    Args:
      step: the number of updates that `state` has seen.
      state: a dict of trees of `jax.Array`, such as step, params and opt_state.
      meta: what JSON can hold: the config, tokenizers, the position in the data.

    Raises:
      Exception: whatever went wrong with the write that an earlier call started.
    """
    if step in self._manager.all_steps():
      return
    items = {name: _flatten(name, tree) for name, tree in state.items()}
    arrays = {path: x for item in items.values() for path, x in item.items()}
    checksums = digests(arrays)
    content = {
        "meta": json.loads(json.dumps(meta)),
        "scores": sorted(self.scores.items()),
        "arrays": {
            name: {path: _spec(x) | {"digest": checksums[path]} for path, x in item.items()}
            for name, item in items.items()
        },
    }
    args = {name: ocp.args.PyTreeSave(item, ocdbt_target_data_file_size=_FILE_BYTES)
            for name, item in items.items() if item}
    args[_MANIFEST] = ocp.args.JsonSave({"crc32": _crc(content), "content": content})
    # Forced: Orbax skips a step older than its newest, without a word.
    self._manager.save(step, args=ocp.args.Composite(**args), force=True)

  def restore(
      self, abstract_state: Mapping[str, Any], step: int | None = None
  ) -> tuple[dict[str, Any], dict[str, Any], int]:
    """Reads the newest good checkpoint, or the one of `step`.

    Args:
      abstract_state: the state with a `jax.ShapeDtypeStruct` for every array. Its
        shardings say where the arrays go, whatever the mesh they were saved from; an
        array without one goes to the first device.
      step: a step that must be used; without it, a damaged one falls back to the one before.

    Returns:
      The state, the `meta` that was saved with it, and the step.

    Raises:
      CheckpointError: there is no good checkpoint, or its arrays aren't those of
        `abstract_state`; the sentence names the first array that differs.
    """
    state, content, step = self._first(self._good(abstract_state, step, whole=True))
    self.scores.update(_scores(content))
    return state, content["meta"], step

  def restore_params(
      self, abstract_params: Any, step: int | None = None, average: int = 1, key: str = "params"
  ) -> tuple[Any, dict[str, Any], int]:
    """Reads one item of the state alone, or its mean over the last checkpoints.

    Args:
      abstract_params: the tree with a `jax.ShapeDtypeStruct` for every array.
      step: the newest checkpoint to use; without it, the newest good one.
      average: number of good checkpoints whose mean, in float32, is returned.
      key: the item, such as "params" or "ema".

    Returns:
      The tree, and `meta` and the step of the newest checkpoint used.

    Raises:
      CheckpointError: as `restore`, and when there are fewer than `average` good ones.
    """
    if average < 1:
      raise CheckpointError(f"average={average}: the mean needs at least 1 checkpoint")
    good = self._good({key: abstract_params}, step, whole=False)
    state, content, newest = self._first(good)
    if average == 1:
      return state[key], content["meta"], newest
    total = jax.tree.map(lambda x: x.astype(jnp.float32), state[key])
    for found in range(1, average):
      older = next(good, None)
      if older is None:
        raise CheckpointError(
            f"average={average}: {self.directory} has {found} good checkpoints up to step {newest}")
      total = jax.tree.map(lambda t, x: t + x.astype(jnp.float32), total, older[0][key])
    mean = jax.tree.map(lambda t, x: (t / average).astype(x.dtype), total, state[key])
    return mean, content["meta"], newest

  def read_manifest(self, step: int | None = None) -> Manifest:
    """That of the newest checkpoint whose manifest is whole, or of `step`; reads no array."""
    _, content, step = self._first(self._good({}, step, whole=False))
    return Manifest(content["meta"], content["arrays"], _scores(content), step)

  def read_meta(self, step: int | None = None) -> dict[str, Any]:
    """The `meta` of the newest checkpoint whose manifest is whole, or of that of `step`."""
    return self.read_manifest(step).meta

  def wait(self):
    """Returns when everything that `save` started is on disk; raises what went wrong."""
    self._manager.wait_until_finished()

  def close(self):
    """Waits, and ends the threads that write."""
    if "_manager" in self.__dict__:
      self.wait()
      self._manager.close()

  def _good(
      self, abstract: Mapping[str, Any], step: int | None, whole: bool
  ) -> Iterator[tuple[dict[str, Any], dict[str, Any], int]]:
    """Yields (state, manifest, step) of the good checkpoints, newest first, starting at `step`.

    Sets damaged ones aside on the way. A damaged `step` that was asked for by number
    raises, since another one isn't what was asked for.
    """
    steps = self.all_steps()
    if steps:
      self.wait()  # a folder that is half written would look damaged
    if step is not None and step not in steps:
      have = ", ".join(map(str, steps)) or "none"
      raise CheckpointError(f"{self.directory} has no checkpoint of step {step}; it has: {have}")
    for s in reversed([s for s in steps if step is None or s <= step]):
      try:
        result = self._read(s, abstract, whole)
      except _Damaged as e:
        moved = self._set_aside(s)
        sentence = f"checkpoint {self.directory / str(s)} is damaged and now in {moved}: {e}"
        if s == step:
          raise CheckpointError(sentence) from e
        logging.warning("%s", sentence)
        continue
      yield *result, s

  def _first(self, good: Iterator[tuple]) -> tuple[dict[str, Any], dict[str, Any], int]:
    found = next(good, None)
    if found is None:
      raise CheckpointError(f"{self.directory} has no good checkpoint")
    return found

  def _read(
      self, step: int, abstract: Mapping[str, Any], whole: bool
  ) -> tuple[dict[str, Any], dict[str, Any]]:
    """Reads and verifies the items of `abstract`; raises _Damaged, in every process at once."""
    problem, state, content = "", {}, None
    try:
      content = self._read_manifest(step)
    except Exception as e:  # Orbax and TensorStore raise a dozen types for damaged files
      problem = _problem(e)
    _raise_together(problem)
    wanted = {name: _flatten(name, tree) for name, tree in abstract.items()}
    self._check_structure(step, wanted, content["arrays"], whole)
    try:
      flat = self._read_arrays(step, wanted, content["arrays"])
    except Exception as e:
      problem = _problem(e)
    _raise_together(problem)
    for name, tree in abstract.items():
      structure = jax.tree.structure(tree)
      state[name] = jax.tree.unflatten(structure, [flat[path] for path in wanted[name]])
    return state, content

  def _read_manifest(self, step: int) -> dict[str, Any]:
    args = ocp.args.Composite(**{_MANIFEST: ocp.args.JsonRestore()})
    manifest = self._manager.restore(step, args=args)[_MANIFEST]
    if _crc(manifest["content"]) != manifest["crc32"]:
      raise _Damaged("the checksum of its manifest is wrong")
    return manifest["content"]

  def _read_arrays(
      self, step: int, wanted: Mapping[str, dict[str, Any]], saved: Mapping[str, Any]
  ) -> dict[str, jax.Array]:
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    args = {}
    for name, item in wanted.items():
      targets = {
          path: jax.ShapeDtypeStruct(
              x.shape, x.dtype, sharding=getattr(x, "sharding", None) or here)
          for path, x in item.items()
      }
      if targets:  # an item without arrays has no folder
        args[name] = ocp.args.PyTreeRestore(
            targets, restore_args=ocp.checkpoint_utils.construct_restore_args(targets))
    if not args:
      return {}
    restored = self._manager.restore(step, args=ocp.args.Composite(**args))
    flat = {path: x for name in args for path, x in restored[name].items()}
    expected = {path: spec for item in saved.values() for path, spec in item.items()}
    for path, digest in digests(flat).items():
      if digest != expected[path]["digest"]:
        raise _Damaged(f"the checksum of array {path} is wrong")
    return flat

  def _check_structure(
      self, step: int, wanted: Mapping[str, dict[str, Any]], saved: Mapping[str, Any], whole: bool
  ):
    """Raises CheckpointError that names the first array that differs, parameters first."""
    names = set(wanted) | (set(saved) if whole else set())
    for name in sorted(names, key=lambda n: (n != "params", n)):
      want, have = wanted.get(name, {}), saved.get(name, {})
      for path in [*want, *(p for p in have if p not in want)]:
        ours = _show(_spec(want[path])) if path in want else "absent"
        theirs = _show(have[path]) if path in have else "absent"
        if ours != theirs:
          raise CheckpointError(
              f"checkpoint {self.directory / str(step)} isn't of this model: {path} is {theirs} in"
              f" the checkpoint and {ours} in the model")

  def _set_aside(self, step: int) -> epath.Path:
    """Moves a step's folder into `corrupt/`, once, in a multi-host run by process 0."""
    source, folder = self.directory / str(step), self.directory.parent / "corrupt"
    target = folder / str(step)
    if jax.process_index() == 0:
      folder.mkdir(parents=True, exist_ok=True)
      copies = 0
      while target.exists():  # the same step can be written, and damaged, again
        copies += 1
        target = folder / f"{step}.{copies}"
      if source.exists():  # a run in another process may have deleted it by now
        source.rename(target)
    if jax.process_count() > 1:
      multihost_utils.sync_global_devices(f"set aside {step}")
    self._manager.reload()
    return target


def _scores(content: Mapping[str, Any]) -> tuple[tuple[int, float], ...]:
  return tuple(map(tuple, content.get("scores", ())))  # older checkpoints have none


def _problem(e: Exception) -> str:
  """Says on one line what an exception found damaged; raises those about something else."""
  if isinstance(e, _NOT_DAMAGE) or "RESOURCE_EXHAUSTED" in str(e):
    raise e
  while e.__cause__ is not None:  # the first one names the file or the array
    e = e.__cause__
  text = " ".join(str(e).split())
  text = text if len(text) <= 400 else text[:397] + "..."
  return text if isinstance(e, _Damaged) else f"{type(e).__name__}: {text}"


def _raise_together(problem: str):
  """Raises _Damaged in every process when any of them has a problem."""
  bad = bool(problem)
  if jax.process_count() > 1:
    bad = bool(multihost_utils.process_allgather(np.array(bad)).any())
  if bad:
    raise _Damaged(problem or "another process could not read it")
