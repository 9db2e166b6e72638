"""Host memory while a checkpoint is written, beside the size of the state.

What a process has at most in memory while it saves, above what it has when the state is there: once
where nothing else is done until the files are written, and once where steps go on that give their
state away. On a CPU the files are written from the arrays themselves, so that the first of these
steps can't reuse their memory; on other devices they are copied to the host first.
"""

from collections.abc import Iterator
import contextlib
import os
import shutil
import threading
import time
from typing import Any

PERIOD = 0.002  # seconds between two looks
ARRAYS = 64  # of the parameters


def resident() -> int:
  """Bytes of this process that are in memory."""
  with open("/proc/self/statm", encoding="ascii") as f:
    return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def highest() -> Iterator[dict[str, int]]:
  """The most that is resident until the end of the context, above what is at its beginning."""
  before, found, end = resident(), {"bytes": 0}, threading.Event()

  def look() -> None:
    while not end.wait(PERIOD):
      found["bytes"] = max(found["bytes"], resident() - before)

  thread = threading.Thread(target=look)
  thread.start()
  try:
    yield found
  finally:
    end.set()
    thread.join()


def make_state(total: int) -> dict[str, Any]:
  """Parameters and two moments of them, `total` bytes in all."""
  import jax
  shape = (total // (3 * ARRAYS * 4 * 64), 64)
  draw = jax.jit(lambda seed: {str(i): jax.random.normal(jax.random.key(seed + i), shape)
                               for i in range(ARRAYS)})
  state = {"params": draw(0), "opt_state": {"mu": draw(ARRAYS), "nu": draw(2 * ARRAYS)}}
  return jax.block_until_ready(state)


def run(workdir: str, rounds: int, total: int) -> dict[str, Any]:
  """Measures saving a state of `total` bytes.

  Returns:
    The state's bytes, and a list with a number for each round of: `idle` and `training`, the most
    memory above that with the state, in sizes of the state; `blocked_s` and `written_s`, the time
    until training may go on, and until the files are written, while nothing else is done.
  """
  import jax

  from benchmarks import harness
  from jtx.saved.checkpoint import Checkpointer
  folder = os.path.join(workdir, "checkpoints")
  shutil.rmtree(folder, ignore_errors=True)
  state = make_state(total)
  update = jax.jit(lambda tree: jax.tree.map(lambda x: 0.9 * x, tree), donate_argnums=0)
  state = jax.block_until_ready(update(state))
  size = sum(x.nbytes for x in jax.tree.leaves(state))
  numbers = {"idle": [], "training": [], "blocked_s": [], "written_s": []}
  checkpoints = Checkpointer(folder, keep=1)
  checkpoints.save(0, state, {})  # programs are compiled, threads started
  checkpoints.wait()
  for number in range(1, 2 * rounds + 1):
    training = number % 2 == 0
    start = time.perf_counter()
    with highest() as found:
      checkpoints.save(number, state, {})
      blocked = time.perf_counter() - start
      if training:
        for _ in range(5):
          state = jax.block_until_ready(update(state))
      checkpoints.wait()
    numbers["training" if training else "idle"].append(found["bytes"] / size)
    if not training:
      numbers["blocked_s"].append(blocked)
      numbers["written_s"].append(time.perf_counter() - start)
  checkpoints.close()
  shutil.rmtree(folder)
  return {"state_bytes": size, "arrays": 3 * ARRAYS, "machine": harness.machine(), **numbers}
