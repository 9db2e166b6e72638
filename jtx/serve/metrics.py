"""Counts of what a server does, in the text that Prometheus reads (its exposition format 0.0.4)."""

import bisect
import collections
import threading
from typing import Callable, Iterator, Sequence

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Histogram:
  """Counts of values up to each of some bounds.

  Args:
    bounds: in order.
  """

  def __init__(self, bounds: Sequence[float]):
    self.bounds, self.counts, self.sum = bounds, [0] * (len(bounds) + 1), 0.0

  def add(self, value: float) -> None:
    self.counts[bisect.bisect_left(self.bounds, value)] += 1
    self.sum += value

  def lines(self, name: str) -> Iterator[str]:
    total = 0
    for bound, count in zip((*self.bounds, "+Inf"), self.counts):
      total += count
      yield f'{name}_bucket{{le="{bound}"}} {total}'
    yield f"{name}_sum {self.sum:.6f}"
    yield f"{name}_count {total}"


class Metrics:
  """All counts of a server; each is of one lock, since two threads count.

  Args:
    waiting: the length of the queue.
  """

  def __init__(self, waiting: Callable[[], int] = lambda: 0):
    self._lock, self.waiting = threading.Lock(), waiting
    self.requests: collections.Counter[tuple[str, int]] = collections.Counter()
    self.seconds, self.batches = Histogram(SECONDS), Histogram(SIZES)

  def request(self, path: str, status: int, seconds: float) -> None:
    with self._lock:
      self.requests[path, status] += 1
      self.seconds.add(seconds)

  def batch(self, size: int) -> None:
    with self._lock:
      self.batches.add(size)

  def text(self) -> str:
    with self._lock:
      lines = [*head("jtx_requests_total", "counter", "Requests by path and status.")]
      lines += [f'jtx_requests_total{{path="{path}",status="{status}"}} {count}'
                for (path, status), count in sorted(self.requests.items())]
      for name, told, histogram in (
          ("jtx_request_seconds", "Seconds from a request to the end of its answer.", self.seconds),
          ("jtx_batch_size", "Inputs of the batches that were run.", self.batches)):
        lines += [*head(name, "histogram", told), *histogram.lines(name)]
    lines += [*head("jtx_queue_length", "gauge", "Inputs that wait."),
              f"jtx_queue_length {self.waiting()}"]
    return "\n".join(lines) + "\n"


def head(name: str, kind: str, told: str) -> Iterator[str]:
  yield f"# HELP {name} {told}"
  yield f"# TYPE {name} {kind}"
