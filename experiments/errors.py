"""Errors that the user can put right, and the sentences that tell them."""

import errno
import os
import signal
import sys

from jtx.errors import CheckpointError, ConfigError, DataError, Preempted, TrainError

USER_ERRORS = (CheckpointError, ConfigError, DataError, Preempted, TrainError)
# Of files that are not there or not what they should be, and of machines that are full.
FILE_ERRORS = (errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.EACCES, errno.EPERM,
               errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE,
               errno.ENAMETOOLONG, errno.ESPIPE)


class UsageError(Exception):
  """A command line that can't be used; the message is one sentence."""

  status = 2


class UnknownKey(UsageError):
  """A config key that the config does not have.

  Args:
    message: one sentence.
    key: the first part of the path that is not there.
  """

  def __init__(self, message: str, key: str):
    super().__init__(message)
    self.key = key


def is_user_error(error: Exception) -> bool:
  """Whether the user can put it right, so that it needs no traceback."""
  return isinstance(error, (UsageError, *USER_ERRORS)) or is_of_files(error)


def is_of_files(error: Exception) -> bool:
  return isinstance(error, OSError) and error.errno in FILE_ERRORS


def sentence(error: Exception) -> str:
  """The error's message in one line."""
  if is_of_files(error) and error.strerror:
    where = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
    return f"{where}{error.strerror.lower()}"
  return " ".join(str(error).split())


def output_closed() -> int:
  """The exit status where what read our standard output has ended, as `head` does."""
  os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # it is flushed at the exit
  return 128 + signal.SIGPIPE
