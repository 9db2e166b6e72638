"""Several processes as one run: how they find each other, agree, and end together.

Each process has some of the devices. All of them run the same program; what is written, process 0
writes.
"""

from collections.abc import Callable, Iterator
import contextlib
import json
import os
import sys
import threading
import time
import traceback
from typing import Any

from absl import logging
import jax
import numpy as np

from jtx import storage
from jtx.errors import ConfigError

HEARTBEAT_SECONDS = 10  # without a sign of life, after which a process counts as gone
LOST = ("Connection reset by peer", "Connection closed by peer", "Broken pipe")  # words of Gloo
KEPT_SECONDS = 0.1  # of compiling, from which a program is kept in the cache, where there is one
EXIT_SECONDS = 5.0  # after which a process that has failed ends, whatever it waits for


def initialize(coordinator: str = "", num_processes: int = 0, process_id: int = -1) -> None:
  """Joins the other processes of the job, if there are any. To be called before JAX is used.

  Without arguments they are found by what Slurm, Open MPI, Kubernetes or a Cloud TPU tell each
  process; where none of them does, this process is alone.

  Args:
    coordinator: HOST:PORT of process 0.
    num_processes: of the job.
    process_id: of this one, from 0.

  Raises:
    ConfigError: only some of the arguments are given, or they do not fit together; or others can
      write to the folder of compiled programs.
  """
  cache = jax.config.jax_compilation_cache_dir  # of programs, which are run as they lie there
  if cache and not storage.is_remote(cache):
    jax.config.update("jax_compilation_cache_dir", storage.private_folder(cache))
  if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
    # JAX keeps what takes a second; an evaluation has a program of half of one for every length.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", KEPT_SECONDS)
  given = bool(coordinator), num_processes > 0, process_id >= 0
  if any(given) and not all(given):
    raise ConfigError("--coordinator, --num_processes and --process_id go together: give all of"
                      " them, or none to find the other processes by the environment")
  if all(given) and (process_id >= num_processes or ":" not in coordinator):
    raise ConfigError(f"--coordinator={coordinator} --num_processes={num_processes}"
                      f" --process_id={process_id}: the coordinator is HOST:PORT, and processes are"
                      " numbered from 0")
  known = {}
  # It would keep SIGTERM from ending a process that has nothing to save; see preemption.py.
  jax.config.update("jax_enable_preemption_service", False)
  if all(given):
    known = dict(coordinator_address=coordinator, num_processes=num_processes,
                 process_id=process_id)
  try:
    jax.distributed.initialize(**known, heartbeat_timeout_seconds=HEARTBEAT_SECONDS)
  except ValueError:  # "coordinator_address should be defined": nothing in the environment does
    if known:
      raise
    return
  except RuntimeError as e:
    if known:
      raise ConfigError("--coordinator: JAX was used before the processes have met; a config file"
                        " must not compute with it when it is loaded") from e
    logging.warning("JAX was used before: this process does not look for others")
    return
  if jax.process_index():
    logging.set_verbosity(logging.WARNING)
  logging.info("process %d of %d, %d of %d devices", jax.process_index(), jax.process_count(),
               jax.local_device_count(), jax.device_count())


def is_main() -> bool:
  """Whether this process writes."""
  return jax.process_index() == 0


def share(value: Any) -> Any:
  """Process 0's value, of a kind that JSON can hold, in every process; the others' is not used."""
  if jax.process_count() == 1:
    return value
  from jax.experimental import multihost_utils
  text = json.dumps(value).encode() if is_main() else b""
  length = int(multihost_utils.broadcast_one_to_all(np.int32(len(text))))
  padded = np.zeros(length, np.uint8)
  padded[:len(text)] = np.frombuffer(text, np.uint8)
  return json.loads(multihost_utils.broadcast_one_to_all(padded).tobytes())


def to_host(tree: Any) -> Any:
  """`jax.device_get`, also of arrays that other processes hold parts of; all must call it."""
  def get(x):
    if not isinstance(x, jax.Array) or x.is_fully_addressable or x.is_fully_replicated:
      return jax.device_get(x)
    from jax.experimental import multihost_utils
    return multihost_utils.process_allgather(x, tiled=True)

  return jax.tree.map(get, tree)


@contextlib.contextmanager
def alone(params: Any) -> Iterator[Any]:
  """Parameters for what each process computes by itself in the context; all must enter it."""
  if jax.process_count() == 1:
    yield params
    return
  mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,),
                       devices=jax.local_devices()[:1])
  params = to_host(params)
  with jax.set_mesh(mesh):
    yield params


def leave(status: int, error: Exception | None = None) -> None:
  """Sees to it that this process, which has failed, ends.

  One of several ends at once, so that the others notice: an ordinary exit would wait for all of
  them at a barrier that they never reach. Where all of them end with a status, as after a notice,
  they exit as usual. A process that is alone has EXIT_SECONDS for the ordinary exit, which waits
  for threads, such as one that waits minutes for a save that has failed.

  Args:
    status: of the exit.
    error: what has failed, where nobody has told it yet.
  """
  if not jax.distributed.is_initialized() or jax.process_count() == 1:
    timer = threading.Timer(EXIT_SECONDS, os._exit, (status,))
    timer.daemon = True
    timer.start()
    return
  try:
    if error is not None and (lost := _lost_peer(error)) and logging.get_verbosity() < 1:
      logging.error("another process has ended, or can't be reached: %s", lost)
    elif error is not None:
      traceback.print_exception(error)
    logging.error("process %d of %d ends with status %d", jax.process_index(),
                  jax.process_count(), status)
    sys.stdout.flush()
    sys.stderr.flush()
  finally:  # a full disk may take no word of it
    os._exit(status)


def _lost_peer(error: Exception) -> str:
  """What an error says of the connection to another process, or "" of something else."""
  text = " ".join(str(error).split())
  return text if any(words in text for words in LOST) else ""


class Watchdog:
  """Ends the process where no step was made for a long time, as when another process is gone.

  As a context it watches from `start` to its end.

  Args:
    seconds: between two steps, with the compilation of the first; 0 is no limit.
    exit: what to end it with.
  """

  def __init__(self, seconds: float, exit: Callable[[int], Any] = os._exit):
    self.seconds, self.exit = seconds, exit
    self._last, self._paused, self._stop = time.monotonic(), False, threading.Event()
    self._thread = threading.Thread(target=self._watch, daemon=True)

  def __enter__(self) -> "Watchdog":
    return self

  def __exit__(self, *_: Any) -> None:
    self.stop()

  def start(self) -> None:
    """From now on steps are expected."""
    self.beat()
    if self.seconds:
      self._thread.start()

  def stop(self) -> None:
    """No further step is expected."""
    self._stop.set()

  def beat(self) -> None:
    """A step was made."""
    self._last = time.monotonic()

  @contextlib.contextmanager
  def pause(self) -> Iterator[None]:
    """Inside, no step is expected."""
    self._paused = True
    try:
      yield
    finally:
      self.beat()
      self._paused = False

  def _watch(self) -> None:
    while not self._stop.wait(min(self.seconds / 10, 1.0)):
      silent = time.monotonic() - self._last
      if silent > self.seconds and not self._paused:
        try:
          logging.error("process %d of %d made no step for %.0f seconds: another process is gone,"
                        " or this one hangs", jax.process_index(), jax.process_count(), silent)
          sys.stderr.flush()
        finally:
          self.exit(1)
        return
