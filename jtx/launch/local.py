"""Runs a job of several processes on this machine, and starts it again when it was stopped.

Nothing here imports JAX: the processes have the devices.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import os
import signal
import socket
import subprocess
import time

from absl import logging

from jtx.errors import RESTART
from jtx.launch.children import POLL_SECONDS, caught_signals, on_cores, signal_group, signal_name
from jtx.launch.shares import Share, shares

ABORTED = -signal.SIGABRT
GRACE_SECONDS = 10.0  # for the others to end by themselves, after one has failed
NOTICE_SECONDS = 300.0  # for all to save, after they were told to stop


@dataclasses.dataclass(frozen=True)
class Command:
  """One process of a job."""
  base: tuple[str, ...]
  number: int
  processes: int
  env: Mapping[str, str] = dataclasses.field(default_factory=dict)
  cores: frozenset[int] | None = None

  def arguments(self, coordinator: str) -> list[str]:
    if self.processes == 1:
      return list(self.base)
    return [*self.base, f"--coordinator={coordinator}", f"--num_processes={self.processes}",
            f"--process_id={self.number}"]


def local_commands(base: Sequence[str], processes: int, cpu_devices: int = 0,
                   env: Mapping[str, str] | None = None) -> list[Command]:
  """The processes of a job on this machine.

  Args:
    base: the command of each.
    processes: number of them.
    cpu_devices: that each simulates; 0 divides what the machine has.
    env: variables of all of them, where this process has no others.

  Raises:
    ConfigError: there are fewer devices than processes.
  """
  if cpu_devices:
    simulated = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(cpu_devices)}
    parts = [Share(simulated)] * processes
  else:
    parts = shares(processes)
  env = {key: os.environ.get(key, value) for key, value in (env or {}).items()}
  return [Command(tuple(base), i, processes, env={**env, **part.env}, cores=part.cores)
          for i, part in enumerate(parts)]


def run(commands: Sequence[Command], restarts: int) -> int:
  """Runs the processes until all are done, and returns the job's exit status.

  Args:
    commands: of the processes.
    restarts: how often to start again after one was killed. After a notice to stop, such as the
      end of --max_seconds, it is not counted.
  """
  left = restarts
  with caught_signals() as caught:
    while True:
      number, status = _attempt(commands, caught)
      if caught:
        logging.error("stopped by %s; the same command goes on", signal.Signals(caught[0]).name)
        # Who was not at its first step yet leaves at once, and the runtime aborts its peers.
        left_early = (0, RESTART, ABORTED, -signal.SIGTERM)
        return RESTART if status in left_early else 128 + caught[0]
      if status == 0:
        return 0
      what = f"process {number} of {len(commands)}"
      if status == RESTART:
        logging.info("the processes were told to stop, and start again")
      elif status < 0 and left:
        logging.warning("%s was ended by %s; all start again, %d times more at most", what,
                        signal_name(-status), left)
        left -= 1
      else:
        how = f"was ended by {signal_name(-status)}" if status < 0 else f"failed with {status}"
        logging.error("%s %s", what, how)
        return status if status > 0 else 128 - status


def _attempt(commands: Sequence[Command], caught: Sequence[int]) -> tuple[int, int]:
  """Runs all processes once: the number and status of the one that tells how it ended."""
  coordinator = f"127.0.0.1:{_free_port()}"
  running = []
  try:
    for command in commands:
      with on_cores(command.cores):
        running.append(subprocess.Popen(
            command.arguments(coordinator), stdin=subprocess.DEVNULL,
            env={**os.environ, **command.env}, start_new_session=True))
    deadline, told = float("inf"), False
    ended: dict[int, int] = {}  # statuses, in the order in which they came
    while len(ended) < len(running) and time.monotonic() < deadline:
      time.sleep(POLL_SECONDS)
      if caught and not told:
        told, deadline = True, time.monotonic() + NOTICE_SECONDS
        for p in running:
          signal_group(p, signal.SIGTERM)
      now = {i: p.returncode for i, p in enumerate(running) if p.poll() is not None}
      # An abort is last of those seen together: the runtime's, whose peer is gone.
      ended |= dict(sorted(now.items() - ended.items(), key=lambda x: (x[1] == ABORTED, x[0])))
      if any(status not in (0, RESTART) for status in ended.values()):
        deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
  finally:
    for p in running:
      if p.poll() is None:
        signal_group(p, signal.SIGKILL)
        p.wait()
  # What was killed is the cause; else what failed first, since the others miss it.
  killed = lambda status: status < 0 and status != ABORTED
  failed = [(i, status) for i, status in ended.items() if status]
  return min(failed, key=lambda x: (not killed(x[1]), x[1] == RESTART), default=(0, 0))


def _free_port() -> int:
  with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    return s.getsockname()[1]
