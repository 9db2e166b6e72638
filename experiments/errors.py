"""Errors that the user can put right, and the sentences that tell them."""

import os
import signal
import sys

from jtx.errors import CheckpointError, ConfigError, DataError, Preempted, TrainError

USER_ERRORS = (CheckpointError, ConfigError, DataError, Preempted, TrainError)
FILE_ERRORS = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)


class UsageError(Exception):
  """A command line that can't be used; the message is one sentence."""

  status = 2


def is_user_error(error: Exception) -> bool:
  """Whether the user can put it right, so that it needs no traceback."""
  return isinstance(error, (UsageError, *USER_ERRORS, *FILE_ERRORS))


def sentence(error: Exception) -> str:
  """The error's message in one line."""
  if isinstance(error, FILE_ERRORS) and error.filename is not None:
    return f"{os.fsdecode(error.filename)}: {error.strerror.lower()}"
  return " ".join(str(error).split())


def output_closed() -> int:
  """The exit status where what read our standard output has ended, as `head` does."""
  os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # it is flushed at the exit
  return 128 + signal.SIGPIPE
