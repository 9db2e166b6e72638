"""The application: JSON in, batches, JSON out; every refusal is a sentence with its status."""

import asyncio
import contextlib
import dataclasses
import json
import time
from typing import Any, AsyncIterator, Awaitable, Callable, Mapping

from absl import logging
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.responses import StreamingResponse
from starlette.routing import Route

from jtx import storage
from jtx.errors import ConfigError, DataError
from jtx.serve import metrics, page
from jtx.serve.batcher import Batcher, Full, Job, Stopping
from jtx.serve.fields import Refused, check
from jtx.serve.kinds import Kind

CLIENT_LEFT = 499  # as nginx counts it; nobody reads it
END = object()  # of a stream's pieces


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
  """Of what is taken, and for how long."""
  max_batch: int = 16  # inputs that run together
  max_wait_ms: float = 5.0  # that an input waits for others
  max_queue: int = 256  # inputs that may wait, and that a request may have
  max_body_mb: float = 8.0  # of a request
  max_chars: int = 20_000  # of a text
  timeout_s: float = 60.0  # until a request is sent, and again until it is answered


class Server:
  """Answers requests for some kinds of a model.

  Args:
    name: of the model, for the page.
    kinds: by their names, the model's own first.
    limits: of requests.
  """

  def __init__(self, name: str, kinds: Mapping[str, Kind], limits: Limits = Limits()):
    self.name, self.kinds, self.limits = name, kinds, limits
    self.metrics = metrics.Metrics(lambda: len(self.batcher))
    self.batcher = Batcher(max_batch=limits.max_batch, max_wait_ms=limits.max_wait_ms,
                           max_queue=limits.max_queue, watch=self.metrics.batch)
    self.stopping = False
    routes = [Route("/", self.page), Route("/health", self.health), Route("/model", self.model),
              Route("/metrics", self.show_metrics)]
    for kind in kinds.values():
      routes.append(Route(f"/{kind.name}", self.answers(kind), methods=["POST"]))
      if kind.stream is not None:
        routes.append(Route(f"/{kind.name}/stream", self.streams(kind), methods=["POST"]))
    self.paths = {route.path for route in routes}
    app = Starlette(routes=routes, lifespan=self.lifespan, exception_handlers={
        HTTPException: of_http, Refused: refused, Exception: failed})
    self.app = self.counted(app)

  def close(self) -> None:
    """Refuses what comes from now on; what waits is answered. A signal's handler may call it."""
    self.stopping = True
    self.batcher.close()

  @contextlib.asynccontextmanager
  async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
    self.batcher.start()
    yield
    self.close()
    await asyncio.to_thread(self.batcher.stop)

  def counted(self, app: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """The application, whose requests are counted; paths that are none are one."""

    async def call(scope, receive, send):
      if scope["type"] != "http":
        await app(scope, receive, send)
        return
      status, start = CLIENT_LEFT, time.monotonic()

      async def sent(message):
        nonlocal status
        if message["type"] == "http.response.start":
          status = message["status"]
        await send(message)

      try:
        await app(scope, receive, sent)
      finally:
        path = scope["path"] if scope["path"] in self.paths else "other"
        self.metrics.request(path, status, time.monotonic() - start)

    return call

  async def page(self, _: Request) -> Response:
    return HTMLResponse(page.text(self.name, self.described()), headers=page.HEADERS)

  async def health(self, _: Request) -> Response:
    if self.stopping:
      return JSONResponse({"status": "stopping"}, 503)
    return JSONResponse({"status": "ok", "waiting": len(self.batcher)})

  async def model(self, _: Request) -> Response:
    return JSONResponse(self.described())

  async def show_metrics(self, _: Request) -> Response:
    return PlainTextResponse(self.metrics.text(), media_type=metrics.CONTENT_TYPE)

  def described(self) -> dict[str, Any]:
    """The kinds and limits, as JSON."""
    kinds = [{"path": f"/{kind.name}", "does": kind.does, "one_of": kind.one_of,
              "stream": f"/{kind.name}/stream" if kind.stream else None,
              "fields": {key: dataclasses.asdict(field) for key, field in kind.fields.items()}}
             for kind in self.kinds.values()]
    return {"name": self.name, "kinds": kinds, "limits": dataclasses.asdict(self.limits)}

  def answers(self, kind: Kind) -> Callable[[Request], Awaitable[Response]]:
    """The endpoint of a kind: an object to its output, or `inputs` to `outputs`."""

    async def endpoint(request: Request) -> Response:
      given = await self.body(request)
      several = isinstance(given, dict) and given.keys() == {"inputs"}
      inputs = self.checked(kind, given["inputs"] if several else [given], several)
      jobs = [Job(kind, x) for x in inputs]
      self.put(jobs)
      outputs = await self.outputs(request, jobs)
      return written({"outputs": outputs} if several else outputs[0])

    return endpoint

  def streams(self, kind: Kind) -> Callable[[Request], Awaitable[Response]]:
    """The endpoint of a kind's streams, of server-sent events."""

    async def endpoint(request: Request) -> Response:
      given, = self.checked(kind, [await self.body(request)], False)
      loop, pieces = asyncio.get_running_loop(), asyncio.Queue()
      heard = True

      def sink(piece):
        loop.call_soon_threadsafe(pieces.put_nowait, piece)
        return heard

      job = Job(kind, given, sink)
      job.future.add_done_callback(lambda _: loop.call_soon_threadsafe(pieces.put_nowait, END))
      self.put([job])
      first = asyncio.ensure_future(pieces.get())
      try:
        await self.first(request, first)
        if first.result() is END and (error := job.future.exception()):
          raise of_model(error)
      except Refused:
        heard = False
        job.future.cancel()
        raise

      async def events():
        nonlocal heard
        try:
          piece = first.result()
          async with asyncio.timeout(self.limits.timeout_s):
            while piece is not END:
              yield event({"text": piece})
              piece = await pieces.get()
          yield event(job.future.result(), "done")
        except TimeoutError:
          yield event({"error": self.late()}, "error")
        except Exception as e:
          yield event({"error": of_model(e).sentence}, "error")
        finally:
          heard = False
          job.future.cancel()

      return StreamingResponse(events(), media_type="text/event-stream",
                               headers={"Cache-Control": "no-store"})

    return endpoint

  async def body(self, request: Request) -> Any:
    """The JSON of a request.

    Raises:
      Refused: it is too large, comes too slowly, or is no JSON.
    """
    if self.stopping:
      raise stopping()
    most = int(self.limits.max_body_mb * 2 ** 20)
    large = Refused(413, f"the request is larger than {self.limits.max_body_mb:g} MB")
    if (length := request.headers.get("content-length", "0")).isdecimal() and int(length) > most:
      raise large
    parts, size = [], 0
    try:
      async with asyncio.timeout(self.limits.timeout_s):
        async for part in request.stream():
          size += len(part)
          if size > most:
            raise large
          parts.append(part)
    except TimeoutError:
      raise Refused(408, f"the request took longer than {self.limits.timeout_s:g} s") from None
    except ClientDisconnect:
      raise Refused(CLIENT_LEFT, "the client has left") from None
    try:
      return storage.parse_json(b"".join(parts).decode("utf-8"))
    except ValueError as e:
      raise Refused(400, f"the request is not JSON in UTF-8: {e}") from None

  def checked(self, kind: Kind, inputs: Any, several: bool) -> list[dict[str, Any]]:
    """Inputs as the kind takes them.

    Raises:
      Refused: one is not; the sentence says which, counted from 1.
    """
    most = self.limits.max_queue
    if not isinstance(inputs, list) or not inputs:
      raise Refused(400, "'inputs' should be a list of objects")
    if len(inputs) > most:
      raise Refused(413, f"the request has {len(inputs)} inputs, and may have {most}")
    return [check(x, kind.fields, kind.one_of, f"input {i}" if several else "the input",
                  self.limits.max_chars) for i, x in enumerate(inputs, 1)]

  def put(self, jobs: list[Job]) -> None:
    try:
      self.batcher.put(jobs)
    except Full:
      raise Refused(429, f"{len(self.batcher)} inputs wait already; try again in a second"
                    ) from None
    except Stopping:
      raise stopping() from None

  async def outputs(self, request: Request, jobs: list[Job]) -> list[dict[str, Any]]:
    """The outputs of jobs. What nobody waits for any more is not run.

    Raises:
      Refused: a job fails, or takes too long, or the client has left.
    """
    answered = asyncio.gather(*(asyncio.wrap_future(job.future) for job in jobs),
                              return_exceptions=True)
    try:
      await self.first(request, answered)
    finally:
      answered.cancel()
      for job in jobs:
        job.future.cancel()
    for number, output in enumerate(answered.result(), 1):
      if isinstance(output, BaseException):
        error = of_model(output)
        where = f"input {number}: " if len(jobs) > 1 else ""
        raise Refused(error.status, f"{where}{error.sentence}")
    return answered.result()

  async def first(self, request: Request, answered: asyncio.Future) -> None:
    """Returns when there is an answer.

    Raises:
      Refused: it takes too long, or the client has left.
    """
    gone = asyncio.ensure_future(left(request))
    try:
      await asyncio.wait({answered, gone}, timeout=self.limits.timeout_s,
                         return_when=asyncio.FIRST_COMPLETED)
      if not answered.done():
        raise Refused(CLIENT_LEFT, "the client has left") if gone.done() else Refused(
            504, self.late())
    finally:
      gone.cancel()

  def late(self) -> str:
    return f"the answer took longer than {self.limits.timeout_s:g} s"


async def left(request: Request) -> None:
  """Returns when the client has closed its connection."""
  while (await request.receive())["type"] != "http.disconnect":
    pass


def stopping() -> Refused:
  return Refused(503, "the server is stopping")


def of_model(error: Exception) -> Refused:
  """A failure of the model: a sentence for who gave it what it can't take, else a fault of ours."""
  if isinstance(error, (ConfigError, DataError)):
    return Refused(422, " ".join(str(error).split()))
  logging.error("a batch has failed", exc_info=error)
  return Refused(500, "the model has failed at this input; the log of the server says how")


def event(value: dict[str, Any], name: str = "") -> str:
  """A server-sent event of JSON."""
  head = f"event: {name}\n" if name else ""
  return f"{head}data: {json.dumps(value, ensure_ascii=False)}\n\n"


def written(value: dict[str, Any]) -> Response:
  try:
    return JSONResponse(value)
  except ValueError:  # NaN and infinities are no JSON
    raise Refused(500, "the model gives numbers that are NaN or infinite") from None


async def of_http(_: Request, error: HTTPException) -> Response:
  sentence = {404: "there is no such path; / and /model say which there are",
              405: "the path does not take this method"}.get(error.status_code, error.detail)
  return JSONResponse({"error": sentence}, error.status_code, error.headers)


async def refused(_: Request, error: Refused) -> Response:
  headers = {"Retry-After": "1"} if error.status in (429, 503) else None
  return JSONResponse({"error": error.sentence}, error.status, headers)


async def failed(_: Request, error: Exception) -> Response:
  return JSONResponse({"error": "the server has failed; its log says how"}, 500)
