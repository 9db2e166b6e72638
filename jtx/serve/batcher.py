"""Batches of what many clients ask at once, which one thread runs, one batch after another."""

import collections
import concurrent.futures
import threading
import time
from typing import Any, Callable, Sequence

from jtx.serve.kinds import Kind


class Full(RuntimeError):
  """The queue has no room."""


class Stopping(RuntimeError):
  """Nothing more is taken."""


class Job:
  """An input that waits for its output.

  Args:
    kind: what is made of it.
    given: the input.
    sink: of a stream, called with each piece of text in the thread that runs; the output is then
      the whole text. It says whether there is still someone to read.
  """

  def __init__(self, kind: Kind, given: dict[str, Any],
               sink: Callable[[str], bool] | None = None):
    self.kind, self.given, self.sink = kind, given, sink
    self.group = kind.name, kind.group(given), id(sink) if sink else None  # streams go alone
    self.future: concurrent.futures.Future = concurrent.futures.Future()
    self.came = time.monotonic()


class Batcher:
  """Puts jobs of one group together, for as long as the first of them may wait.

  Args:
    max_batch: the most jobs of a batch.
    max_wait_ms: after which a batch runs that is not full.
    max_queue: jobs that may wait.
    watch: called with the size of each batch.
  """

  def __init__(self, *, max_batch: int, max_wait_ms: float, max_queue: int,
               watch: Callable[[int], None] = lambda size: None):
    self.max_batch, self.max_wait, self.max_queue = max_batch, max_wait_ms / 1000, max_queue
    self._watch, self._closed = watch, False
    self._jobs: collections.deque[Job] = collections.deque()
    self._changed = threading.Condition()
    self._thread = threading.Thread(target=self._work, name="batches", daemon=True)

  def start(self) -> None:
    self._thread.start()

  def __len__(self) -> int:
    """The jobs that wait."""
    return len(self._jobs)

  def put(self, jobs: Sequence[Job]) -> None:
    """Adds jobs, all or none.

    Raises:
      Full: there is no room for them.
      Stopping: after `close`.
    """
    with self._changed:
      if self._closed:
        raise Stopping
      if len(self._jobs) + len(jobs) > self.max_queue:
        # Whoever has left no longer waits.
        self._jobs = collections.deque(job for job in self._jobs if not job.future.cancelled())
        if len(self._jobs) + len(jobs) > self.max_queue:
          raise Full
      self._jobs.extend(jobs)
      self._changed.notify()

  def close(self) -> None:
    """From now on nothing is taken; takes no lock, so that a handler of a signal may call it."""
    self._closed = True

  def stop(self) -> None:
    """Closes, and returns when all that waits is answered."""
    self.close()
    with self._changed:
      self._changed.notify()
    self._thread.join()

  def _work(self) -> None:
    while jobs := self._take():
      # A job whose client has left is cancelled, and runs no more.
      if jobs := [job for job in jobs if job.future.set_running_or_notify_cancel()]:
        self._watch(len(jobs))
        run(jobs)

  def _take(self) -> list[Job]:
    """The jobs of the next batch, in order; none when all is done."""
    with self._changed:
      while not self._jobs:
        if self._closed:
          return []
        self._changed.wait()
      first = self._jobs[0]
      while (not self._closed and (left := first.came + self.max_wait - time.monotonic()) > 0
             and sum(job.group == first.group for job in self._jobs) < self.max_batch):
        self._changed.wait(left)
      batch, rest = [], collections.deque()
      for job in self._jobs:
        fits = job.group == first.group and len(batch) < self.max_batch
        (batch if fits else rest).append(job)
      self._jobs = rest
      return batch


def run(jobs: Sequence[Job]) -> None:
  """Answers jobs of one group; where they fail together, each runs alone, since one may be bad."""
  try:
    if jobs[0].sink is not None:
      outputs = [streamed(jobs[0])]
    else:
      outputs = list(jobs[0].kind.call([job.given for job in jobs]))
    answers = list(zip(jobs, outputs, strict=True))
  except Exception as error:
    if len(jobs) == 1:
      jobs[0].future.set_exception(error)
      return
    for job in jobs:
      run([job])
    return
  for job, output in answers:
    job.future.set_result(output)


def streamed(job: Job) -> dict[str, str]:
  """The whole text of a stream, as far as somebody reads it."""
  pieces = []
  for piece in job.kind.stream(job.given):
    pieces.append(piece)
    if not job.sink(piece):
      break
  return {"text": "".join(pieces)}
