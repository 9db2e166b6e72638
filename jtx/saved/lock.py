"""The lock of a workdir: it is that of one process of a machine at a time."""

import contextlib
import fcntl
import os
import platform
from typing import Iterator

from absl import logging

from jtx import storage
from jtx.errors import ConfigError
from jtx.parallel import processes

LOCK_FILE = ".lock"  # held while a process trains


@contextlib.contextmanager
def claimed(workdir: str) -> Iterator[None]:
  """Makes a workdir, in which no other process of this machine trains meanwhile.

  Raises:
    ConfigError: another does, or the folder can't be made.
  """
  storage.make_folder(workdir)
  if not processes.is_main() or storage.is_remote(workdir):
    yield
    return
  with open(os.path.join(workdir, LOCK_FILE), "a+") as lock:
    try:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      lock.seek(0)
      raise ConfigError(f"--workdir={workdir}: {lock.read() or 'another process'} trains there;"
                        " wait for its end, or choose another workdir") from None
    except OSError as e:
      logging.warning("%s can't be locked (%s): do not train there twice at once", workdir, e)
    lock.truncate(0)
    lock.write(f"process {os.getpid()} of {platform.node()}")
    lock.flush()
    yield
