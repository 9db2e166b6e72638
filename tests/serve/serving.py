"""A server in a thread, and its client."""

import contextlib
import http.client
import json
import re
import threading
import time

from jtx.serve import run
from jtx.serve.app import Limits, Server


def until(condition):
  """Returns when something is so, which it must be soon."""
  deadline = time.monotonic() + 20
  while not condition():
    assert time.monotonic() < deadline
    time.sleep(0.005)


class Client:
  """Asks the server at an address."""

  def __init__(self, address):
    self.address = address

  def connection(self, timeout=30):
    return contextlib.closing(http.client.HTTPConnection(*self.address, timeout=timeout))

  def ask(self, path, value=None, *, raw=None, headers=None):
    """The status and the JSON, or text, of an answer."""
    body = raw if value is None else json.dumps(value).encode()
    with self.connection() as connection:
      connection.request("GET" if body is None else "POST", path, body, headers or {})
      answer = connection.getresponse()
      text = answer.read().decode()
      is_json = answer.headers["content-type"].startswith("application/json")
      return answer.status, json.loads(text) if is_json else text

  def count(self, name):
    return sum(float(x) for x in re.findall(f"^{name} (.*)$", self.ask("/metrics")[1],
                                            re.MULTILINE))


class Running(Client):
  """A server in a thread, and its client."""

  def __init__(self, server):
    self.server, self.socket = server, run.bound("127.0.0.1", 0)
    super().__init__(self.socket.getsockname())
    ready = threading.Event()
    self.thread = threading.Thread(
        target=run.run, args=(server, self.socket, lambda p: (setattr(self, "program", p),
                                                              ready.set())))
    self.thread.start()
    ready.wait()

  def stop(self):
    """As a signal does."""
    self.server.close()
    self.program.should_exit = True


@contextlib.contextmanager
def running(found, **limits):
  this = Running(Server("model", {kind.name: kind for kind in found}, Limits(**limits)))
  try:
    yield this
  finally:
    this.stop()
    this.thread.join(20)
    assert not this.thread.is_alive()
