"""Checkpoints that are written while training goes on, and checked when they are read.

Orbax writes asynchronously and makes a step's folder appear at once, so a run that is
killed leaves a whole checkpoint or none. It doesn't notice a byte that changes later:
array data is restored with wrong values, silently. Hence every checkpoint carries a
manifest with a checksum of each array, computed on the device, and a checkpoint that
fails it is set aside and the one before is used.

On disk, in the folder of a step: one Orbax item for each key of the state (so that
`params` can be read without `opt_state`), and `manifest`, a JSON file.
"""

import contextlib
import functools
import json
import os
from typing import Any, Iterator, Mapping

from absl import logging
from etils import epath
import jax
from jax.experimental import multihost_utils
import jax.numpy as jnp

from jtx import storage
from jtx.errors import CheckpointError
from jtx.saved import manifest as manifests
from jtx.saved import retention
from jtx.saved.checksums import crc, digests
from jtx.saved.damage import Damaged, problem_of, raise_together, reason_of
from jtx.saved.manifest import Manifest, flatten, scores_of

# Arrays that are waiting for the rest of a file are in memory a second time.
_FILE_BYTES = 64 << 20


def _orbax() -> Any:
  """Orbax, whose import takes a third of a second, for which a mistyped key need not wait."""
  import orbax.checkpoint
  return orbax.checkpoint


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
    self.directory = epath.Path(storage.absolute(os.fspath(directory)))
    self.scores: dict[int, float] = {}  # of steps, as far as they are known
    self._best, self._every = best, every
    self._policy = retention.policy(keep, keep_every, every, best, self.scores)

  @functools.cached_property
  def _manager(self) -> Any:
    ocp = _orbax()
    synced = ocp.options.AsyncOptions(post_finalization_callback=self._sync)
    return ocp.CheckpointManager(self.directory, options=ocp.CheckpointManagerOptions(
        preservation_policy=self._policy, async_options=synced))

  def _sync(self):
    """Sees to it that a step is on disk, before it gets its name and others are deleted for it."""
    for path in self.directory.glob(f"{self._saving}.*"):
      storage.sync_folder(os.fspath(path))

  def all_steps(self) -> list[int]:
    """The steps in increasing order, with that which `save` is still writing."""
    return sorted(self._manager.all_steps()) if self.directory.exists() else []

  def latest_step(self) -> int | None:
    """The newest step, or None; whether it is good shows when it is restored."""
    return max(self.all_steps(), default=None)

  def best_step(self) -> int | None:
    """The step on disk whose score is the best of those in `scores`; None where none has one."""
    return retention.best_of(self.all_steps(), self.scores, retention.SIGNS[self._best])

  def scores_since_best(self) -> int:
    """How many of the steps that are saved anyway have a score, and come after the best of them."""
    steps = [s for s in self.scores if s % self._every == 0]
    best = retention.best_of(steps, self.scores, retention.SIGNS[self._best])
    return sum(s > best for s in steps)  # none, where there is no best

  def at_most(self, number: int, step: int | None) -> int:
    """`number`, or the checkpoints up to `step` where they are fewer; None is the newest."""
    return min(number, sum(step is None or s <= step for s in self.all_steps()))

  def check_none_lost(self):
    """Raises CheckpointError where there is no checkpoint since all were damaged."""
    if self._aside.exists():
      raise CheckpointError(f"{self.directory} has no checkpoint, since all were damaged: they are"
                            f" in {self._aside}; remove that folder to begin at step 0")

  @property
  def _aside(self) -> epath.Path:
    """Where damaged checkpoints are."""
    return self.directory.parent / "corrupt"

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
      CheckpointError: this one can't be written, or the one before could not be.
    """
    self._check_writable()
    if step in self._manager.all_steps():
      return
    ocp = _orbax()
    items = {name: flatten(name, tree) for name, tree in state.items()}
    content = manifests.content_of(step, items, json.loads(json.dumps(meta)), self.scores)
    args = {name: ocp.args.PyTreeSave(item, ocdbt_target_data_file_size=_FILE_BYTES)
            for name, item in items.items() if item}
    args[manifests.ITEM] = ocp.args.JsonSave({"crc32": crc(content), "content": content})
    self.wait()  # for the one before
    self._saving = step
    # Forced: Orbax skips a step older than its newest, without a word.
    with self._writing():
      self._manager.save(step, args=ocp.args.Composite(**args), force=True)
    logging.info("checkpoint of step %d: writing %s", step, self.directory / str(step))

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
    self.scores.update(scores_of(content))
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
    return Manifest(content["meta"], content["arrays"], scores_of(content), step)

  def read_meta(self, step: int | None = None) -> dict[str, Any]:
    """The `meta` of the newest checkpoint whose manifest is whole, or of that of `step`."""
    return self.read_manifest(step).meta

  def wait(self):
    """Returns when everything that `save` started is on disk.

    Raises:
      CheckpointError: something could not be written.
    """
    with self._writing():
      self._manager.wait_until_finished()

  @contextlib.contextmanager
  def _writing(self) -> Iterator[None]:
    try:
      yield
    except Exception as e:  # Orbax and TensorStore raise a dozen types here, too
      raise CheckpointError(f"{self.directory}: a checkpoint could not be written:"
                            f" {reason_of(e)}") from e

  def _check_writable(self):
    """Raises CheckpointError where no folder can be made; Orbax would wait for minutes."""
    if jax.process_index() != 0 or storage.is_remote(str(self.directory)):
      return
    probe = self.directory / ".probe"
    try:
      probe.mkdir(parents=True, exist_ok=True)
      probe.rmdir()
    except OSError as e:
      raise CheckpointError(f"{self.directory}: no checkpoint can be written there:"
                            f" {e.strerror.lower()}") from e

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
      except Damaged as e:
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
    """Reads and verifies the items of `abstract`; raises Damaged, in every process at once."""
    problem, state, content = "", {}, None
    try:
      content = self._read_manifest(step)
    except Exception as e:  # Orbax and TensorStore raise a dozen types for damaged files
      problem = problem_of(e)
    raise_together(problem)
    wanted = {name: flatten(name, tree) for name, tree in abstract.items()}
    manifests.check_structure(str(self.directory / str(step)), wanted, content["arrays"], whole)
    try:
      flat = self._read_arrays(step, wanted, content["arrays"])
    except Exception as e:
      problem = problem_of(e)
    raise_together(problem)
    for name, tree in abstract.items():
      structure = jax.tree.structure(tree)
      state[name] = jax.tree.unflatten(structure, [flat[path] for path in wanted[name]])
    return state, content

  def _read_manifest(self, step: int) -> dict[str, Any]:
    ocp = _orbax()
    args = ocp.args.Composite(**{manifests.ITEM: ocp.args.JsonRestore()})
    return manifests.checked(self._manager.restore(step, args=args)[manifests.ITEM], step)

  def _read_arrays(
      self, step: int, wanted: Mapping[str, dict[str, Any]], saved: Mapping[str, Any]
  ) -> dict[str, jax.Array]:
    ocp, here = _orbax(), jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
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
        raise Damaged(f"the checksum of array {path} is wrong")
    return flat

  def _set_aside(self, step: int) -> epath.Path:
    """Moves a step's folder into `corrupt/`, once, in a multi-host run by process 0."""
    source, target = self.directory / str(step), self._aside / str(step)
    if jax.process_index() == 0:
      self._aside.mkdir(parents=True, exist_ok=True)
      copies = 0
      while target.exists():  # the same step can be written, and damaged, again
        copies += 1
        target = self._aside / f"{step}.{copies}"
      if source.exists():  # a run in another process may have deleted it by now
        source.rename(target)
    if jax.process_count() > 1:
      multihost_utils.sync_global_devices(f"set aside {step}")
    self._manager.reload()
    return target
