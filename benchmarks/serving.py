"""Many clients at a server for minutes, and then requests that are broken: does it stay true?

Starts `experiments.serve` on a model of texts, such as a classifier, and asks it on the loopback
device: first one text at a time, for a sixth of the seconds, which also gives the answers that are
right; then the same texts by all clients at once, each of whose answers must be the right one, but
for the last digits of its numbers, which depend on the other rows of a batch; then broken, huge,
slow and aborted requests; and the texts once more. The server's memory is read after the first
programs are compiled, after the clients and at the end.
"""

import collections
import http.client
import itertools
import json
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Iterator

from absl import logging
import numpy as np

from experiments import cli

BROKEN = 100  # requests
TEXTS = 200  # different ones
WORDS = ("a", "good", "bad", "film", "the", "plot", "is", "dull", "and", "long", "not", "funny")
TOLERANCE = 1e-4  # of the numbers of an answer


class Server:
  """The process of a server, and its address."""

  def __init__(self, workdir: str):
    self.process = subprocess.Popen(
        [sys.executable, "-m", "experiments.serve", f"--workdir={workdir}", "--port=0"],
        stdout=subprocess.PIPE, text=True)
    said = self.process.stdout.readline()
    found = re.search(r"http://([\d.]+):(\d+)$", said.strip())
    if found is None:
      raise cli.UsageError(f"the server of {workdir} did not start")
    self.host, self.port = found[1], int(found[2])

  def connect(self) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(self.host, self.port, timeout=60)

  def memory(self) -> float:
    """Resident memory in MiB (Linux)."""
    with open(f"/proc/{self.process.pid}/status", encoding="ascii") as f:
      return int(re.search(r"VmRSS:\s+(\d+) kB", f.read())[1]) / 1024

  def stop(self) -> int:
    self.process.send_signal(signal.SIGTERM)
    return self.process.wait(60)


def ask(connection: http.client.HTTPConnection, path: str, body: bytes) -> tuple[int, Any]:
  """The status and the JSON of an answer."""
  connection.request("POST", path, body, {"Content-Type": "application/json"})
  answer = connection.getresponse()
  return answer.status, json.loads(answer.read())


def same(found: Any, right: Any) -> bool:
  """Whether answers are the same, numbers within TOLERANCE."""
  if isinstance(right, dict):
    return isinstance(found, dict) and found.keys() == right.keys() and all(
        same(found[key], right[key]) for key in right)
  if isinstance(right, list):
    return isinstance(found, list) and len(found) == len(right) and all(map(same, found, right))
  if isinstance(right, float):
    return isinstance(found, (int, float)) and abs(found - right) <= TOLERANCE
  return found == right


def one_at_a_time(server: Server, path: str, texts: list[str], seconds: float
                  ) -> tuple[list[Any], float]:
  """The answers to the texts, and answers a second once each was given."""
  connection = server.connect()
  bodies = [json.dumps({"text": text}).encode() for text in texts]
  answers = []
  for body in bodies:
    status, answer = ask(connection, path, body)
    if status != 200:
      raise cli.UsageError(f"{path} answers {status} to a text: {answer}")
    answers.append(answer)
  start, number = time.monotonic(), 0
  while time.monotonic() - start < seconds:
    ask(connection, path, bodies[number % len(bodies)])
    number += 1
  return answers, number / (time.monotonic() - start)


class Crowd:
  """Clients that ask at once; counts statuses and answers that are wrong."""

  def __init__(self, server: Server, path: str, texts: list[str], answers: list[Any]):
    self._server, self._path = server, path
    self._pairs = [(json.dumps({"text": text}).encode(), answer)
                   for text, answer in zip(texts, answers)]
    self.statuses: collections.Counter[str] = collections.Counter()
    self.wrong: list[str] = []
    self.latencies: list[float] = []
    self._lock = threading.Lock()

  def run(self, clients: int, seconds: float) -> None:
    end = time.monotonic() + seconds
    threads = [threading.Thread(target=self._client, args=(random.Random(i), end))
               for i in range(clients)]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()

  def _client(self, draws: random.Random, end: float) -> None:
    connection = self._server.connect()
    while (start := time.monotonic()) < end:
      body, right = draws.choice(self._pairs)
      try:
        status, found = ask(connection, self._path, body)
      except (OSError, http.client.HTTPException, ValueError) as e:
        status, found = type(e).__name__, None
        connection = self._server.connect()
      with self._lock:
        self.statuses[str(status)] += 1
        self.latencies.append(time.monotonic() - start)
        if status == 200 and not same(found, right):
          self.wrong.append(f"{body.decode()}: {found}, not {right}")


def broken(server: Server, path: str, draws: random.Random) -> Iterator[Callable[[], None]]:
  """Without end: requests that no server can answer, or whose client does not wait for it."""

  def sent(text: bytes, wait: float = 0.0, read: bool = True) -> None:
    with socket.create_connection((server.host, server.port), 10) as s:
      for part in (text[:len(text) // 2], text[len(text) // 2:]):
        s.sendall(part)
        time.sleep(wait)
      if read:
        s.recv(1000)

  def post(body: bytes, length: int | None = None) -> bytes:
    length = len(body) if length is None else length
    return f"POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n".encode() + body

  good = json.dumps({"text": "a good film"}).encode()
  while True:
    noise = draws.randbytes(200)
    yield lambda: sent(noise + b"\r\n\r\n")
    yield lambda: sent(post(noise))
    yield lambda: sent(post(b"{" * 100_000))
    yield lambda: sent(post(b'{"text": 5}'))
    yield lambda: sent(post(b'{"text": ""}'))
    yield lambda: sent(post(b'{"tekst": "a"}'))
    yield lambda: sent(post(json.dumps({"text": "a " * 100_000}).encode()))
    yield lambda: sent(post(good, length=10 ** 12))
    yield lambda: sent(post(good, length=len(good) + 5), read=False)  # and leaves
    yield lambda: sent(post(good), wait=0.5)
    yield lambda: sent(post(good), read=False)


def run(workdir: str, clients: int, seconds: float) -> dict[str, Any]:
  """Asks the server of a workdir as above, `clients` at once for `seconds`.

  Returns:
    What was measured: `ratio` is that of the answers a second of all clients to one at a time;
    `memory_mib` has three numbers. `failed` tells of a wrong or missing answer.
  """
  draws = random.Random(0)
  texts = list({" ".join(draws.choices(WORDS, k=draws.randint(1, 12))) for _ in range(TEXTS)})
  server = Server(workdir)
  connection = server.connect()
  connection.request("GET", "/model")
  path = json.loads(connection.getresponse().read())["kinds"][0]["path"]
  answers, alone = one_at_a_time(server, path, texts, seconds / 6)
  logging.info("one at a time: %.0f answers a second", alone)
  Crowd(server, path, texts, answers).run(clients, 5)  # compiles
  memory = [server.memory()]
  crowd = Crowd(server, path, texts, answers)
  crowd.run(clients, seconds)
  memory.append(server.memory())
  rate = crowd.statuses["200"] / seconds
  logging.info("%d clients: %.0f answers a second", clients, rate)
  for request in itertools.islice(broken(server, path, draws), BROKEN):
    try:
      request()
    except OSError as e:
      logging.info("a broken request: %s", e)
  again, _ = one_at_a_time(server, path, texts, 0)
  memory.append(server.memory())
  changed = sum(not same(*pair) for pair in zip(again, answers))
  status = server.stop()
  for wrong in crowd.wrong[:5]:
    logging.error("%s", wrong)
  number = len(crowd.wrong) + changed
  return {
      "clients": clients, "seconds": seconds, "statuses": dict(crowd.statuses), "wrong": number,
      "one_at_a_time_per_second": round(alone, 1), "per_second": round(rate, 1),
      "ratio": round(rate / alone, 2),
      "milliseconds": {f"p{q}": round(1000 * float(np.percentile(crowd.latencies, q)), 1)
                       for q in (50, 95, 99)},
      "broken": BROKEN, "memory_mib": [round(m, 1) for m in memory], "exit_status": status,
      "failed": bool(number or set(crowd.statuses) != {"200"} or status)}
