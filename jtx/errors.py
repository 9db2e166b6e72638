"""Errors that a user can mend: each message is one sentence that says where and what is valid.

`experiments/cli.py` prints them without a traceback.
"""

import difflib
from typing import Iterable, Sequence

RESTART = 75  # EX_TEMPFAIL of sysexits.h; launchers take it for "start me again"


class ConfigError(ValueError):
  """A config that can't be used; the message names the key."""


class Inexpressible(ConfigError):
  """A model that no class of Hugging Face can express."""


class DataError(ValueError):
  """Data that can't be used; the message names the file, the line or the spec at fault."""


class ExampleError(DataError):
  """An example that an op can't take.

  Args:
    op: by its name.
    number: the example's "id", by which others tell its file and line.
    reason: what follows "example NUMBER", such as "has no label".
  """

  def __init__(self, op: str, number: int, reason: str):
    super().__init__(op, number, reason)  # all, so that it can be pickled
    self.op, self.number, self.reason = op, number, reason

  def __str__(self) -> str:
    return f"op {self.op}: example {self.number} {self.reason}"


class BadExample(DataError):
  """An example that can't be used. A run goes on without it, while few are so.

  Args:
    path: names it.
    reason: a clause.
  """

  def __init__(self, path: str, reason: str):
    super().__init__(path, reason)  # both, so that it can be pickled
    self.path, self.reason = path, reason

  def __str__(self) -> str:
    return f"{self.path}: {self.reason}"


class CheckpointError(RuntimeError):
  """A checkpoint that can't be used; the message names it."""


class TrainError(RuntimeError):
  """Training that can't go on."""


class Preempted(RuntimeError):
  """A run that was told to stop, has saved, and goes on when started again."""

  status = RESTART  # of the command that ends so


def nearest(word: str, choices: Iterable[str]) -> str:
  """A clause that names the valid choice nearest to `word`, or all of them."""
  choices = [str(c) for c in choices]
  close = difflib.get_close_matches(word, choices, n=1, cutoff=0.6)
  if close:
    return f"did you mean {close[0]!r}?"
  return "valid are: " + ", ".join(choices)


def listed(names: Sequence[str], most: int = 10) -> str:
  """Names for a message, the first of them where they are many."""
  more = f" and {len(names) - most} more" if len(names) > most else ""
  return ", ".join(names[:most]) + more
