"""Runs a server until a signal stops it."""

import contextlib
import signal
import socket
from typing import Callable, Iterator

import uvicorn

from jtx.errors import ConfigError
from jtx.serve.app import Server

SIGNALS = (signal.SIGTERM, signal.SIGINT)
BACKLOG = 1024  # connections that wait to be taken


class Uvicorn(uvicorn.Server):
  """Of uvicorn, which after a signal stops in order and raises it once more; this one returns."""

  @contextlib.contextmanager
  def capture_signals(self) -> Iterator[None]:
    yield


def bound(host: str, port: int) -> socket.socket:
  """A socket at an address; who connects before it listens is refused at once.

  Raises:
    ConfigError: the port is taken, or the host is not of this machine.
  """
  with told(host, port):
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM,
                                             flags=socket.AI_PASSIVE)[0]
    # asyncio turns Nagle's delays off only where a socket says that it is of TCP.
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.bind(address)
    return found


@contextlib.contextmanager
def told(host: str, port: int) -> Iterator[None]:
  try:
    yield
  except OSError as e:
    raise ConfigError(f"--host={host} --port={port}: {(e.strerror or str(e)).lower()}") from e


def run(server: Server, listener: socket.socket,
        started: Callable[[uvicorn.Server], None] = lambda _: None) -> None:
  """Serves until SIGTERM or ctrl-C: what waits is then answered, and what comes is refused.

  The second signal ends it at once.

  Args:
    server: of a model.
    listener: see `bound`.
    started: called with uvicorn's server as soon as clients can connect.
  """
  program = Uvicorn(uvicorn.Config(
      server.app, log_config=None, log_level="error", access_log=False, lifespan="on",
      ws="none", loop="asyncio", timeout_keep_alive=30,
      timeout_graceful_shutdown=int(server.limits.timeout_s) + 1))

  def stop(number, _):
    server.close()
    program.should_exit = True
    signal.signal(number, signal.SIG_DFL)

  with told(*listener.getsockname()[:2]):
    listener.listen(BACKLOG)
  started(program)
  before = {}
  with contextlib.suppress(ValueError):  # only the main thread has handlers
    before = {number: signal.signal(number, stop) for number in SIGNALS}
  try:
    program.run(sockets=[listener])
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)
