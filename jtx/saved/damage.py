"""Damage to a checkpoint on disk, told apart from other errors and agreed on by all processes."""

import jax
from jax.experimental import multihost_utils
import numpy as np

from jtx.errors import CheckpointError

# Errors that say nothing about the bytes on disk: to set checkpoints aside because the
# machine is short of memory would lose all of them, one after the other.
_NOT_DAMAGE = (MemoryError, PermissionError, jax.errors.JaxRuntimeError)


class Damaged(Exception):
  """The bytes of one checkpoint are not what was written; the text says which."""


def problem_of(e: Exception) -> str:
  """Says on one line what an exception found damaged; raises those about something else."""
  if isinstance(e, _NOT_DAMAGE) or "RESOURCE_EXHAUSTED" in str(e):
    raise e
  if "PERMISSION_DENIED" in str(e) or "Permission denied" in reason_of(e):
    raise CheckpointError(f"a checkpoint can't be read: {reason_of(e)}") from e
  return reason_of(e)


def reason_of(e: Exception) -> str:
  """An exception of Orbax or TensorStore in one line."""
  while e.__cause__ is not None:  # the first one names the file or the array
    e = e.__cause__
  text = " ".join(str(e).split())
  text = text if len(text) <= 400 else text[:397] + "..."
  return text if isinstance(e, Damaged) else f"{type(e).__name__}: {text}"


def raise_together(problem: str):
  """Raises Damaged in every process when any of them has a problem."""
  bad = bool(problem)
  if jax.process_count() > 1:
    bad = bool(multihost_utils.process_allgather(np.array(bad)).any())
  if bad:
    raise Damaged(problem or "another process could not read it")
