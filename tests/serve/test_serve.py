"""The server over a real socket: answers, batches, refusals, streams, counts and the stop."""

import concurrent.futures
import dataclasses
import json
import re
import signal
import socket
import threading
import time

import pytest

from jtx.data.tokenizers import kinds as tokenizers
from jtx.errors import DataError
from jtx.models.text_head import HeadConfig
from jtx.nn.positions import Learned
from jtx.saved import pretrained
from jtx.serve import run
from jtx.serve.app import Limits, Server
from jtx.serve.fields import Field
from jtx.serve.kinds import Kind, open_kinds
from tests.helpers import encoder
from tests.inference.test_continuations import MODEL as LM, PARAMS as LM_PARAMS, TOKENIZER
from tests.inference.test_texts import TEXTS
from tests.models.test_encoder import BLOCK, D, batch_of, drawn
from tests.serve.serving import Client, running, until


class Held:
  """A kind that echoes texts, and waits until it may."""

  def __init__(self):
    self.go, self.began, self.batches = threading.Event(), threading.Event(), []
    self.kind = Kind(name="echo", does="Echoes.", fields={"text": Field(kind="text")},
                     call=self.call)

  def call(self, inputs):
    self.batches.append([x["text"] for x in inputs])
    self.began.set()
    self.go.wait(20)
    for x in inputs:
      if x["text"].startswith("bad"):
        raise {"bad": DataError, "bad fault": RuntimeError}[x["text"]]("it can't be read")
    return [{"text": x["text"], "value": float("nan") if x["text"] == "nan" else 0.0}
            for x in inputs]


@pytest.fixture
def held():
  found = Held()
  yield found
  found.go.set()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  tokenizer = tokenizers.wordpiece(iter(TEXTS), vocab_size=60, min_frequency=1)
  model = encoder(vocab_size=tokenizer.vocab_size, width=D, num_layers=1, block=BLOCK,
                  position=Learned(16), head=HeadConfig(task="classes", outputs=2,
                                                        transform="tanh"))
  place = str(tmp_path_factory.mktemp("serve") / "model")
  pretrained.save_pretrained(place, model, drawn(model, batch_of((1, 2))), tokenizer,
                             labels=("no", "yes"))
  return place


@pytest.fixture(scope="module")
def classifier(folder):
  found = open_kinds(folder)
  with running(found.values(), max_wait_ms=50.0) as this:
    yield this


def in_threads(function, values, number):
  with concurrent.futures.ThreadPoolExecutor(number) as pool:
    return list(pool.map(function, values))


def same(a, b):
  assert a["label"] == b["label"] and a["scores"] == pytest.approx(b["scores"], abs=1e-5)


def test_clients_at_once_get_the_answers_of_single_calls_in_fewer_batches(classifier):
  words = sorted(set(" ".join(TEXTS).split()))
  inputs = [{"text": " ".join(words[i % 5:i % 5 + 1 + i % 4])} |
            ({"second": "mat"} if i % 3 == 0 else {}) for i in range(40)]
  alone = [classifier.server.kinds["predict"].call([x])[0] for x in inputs]
  before = classifier.count("jtx_batch_size_count")
  together = in_threads(lambda x: classifier.ask("/predict", x), inputs, 40)
  for (status, found), expected in zip(together, alone, strict=True):
    assert status == 200
    same(found, expected)
  assert 0 < classifier.count("jtx_batch_size_count") - before <= 20
  # In one request, too, where those of pairs and of texts alone are different batches.
  status, found = classifier.ask("/predict", {"inputs": inputs})
  assert status == 200
  for a, b in zip(found["outputs"], alone, strict=True):
    same(a, b)


def test_a_model_has_paths_for_all_that_it_gives(classifier):
  status, model = classifier.ask("/model")
  assert status == 200 and [kind["path"] for kind in model["kinds"]] == [
      "/predict", "/embed", "/attention"]
  vector = classifier.ask("/embed", {"text": TEXTS[0]})[1]["embedding"]
  assert len(vector) == D and sum(x * x for x in vector) == pytest.approx(1, abs=1e-5)
  found = classifier.ask("/attention", {"text": TEXTS[0]})[1]
  assert found["queries"] == found["keys"]
  assert [sum(row) for row in found["layers"][0]] == pytest.approx([1] * len(found["keys"]),
                                                                  abs=1e-3)
  status, page = classifier.ask("/")
  assert status == 200 and "<title>model</title>" in page
  assert not re.findall(r'(?:src|href)="(?!data:|/)', page)


BAD = {  # body -> status and part of the sentence
    b"": (400, "not JSON"), b"{": (400, "not JSON"), b"\xff": (400, "not JSON"),
    b"[" * 5000 + b"]" * 5000: (400, "nested"), b'{"text": "\\ud800"}': (400, "surrogate"),
    b"[]": (400, "should be an object"), b"null": (400, "should be an object"),
    b"{}": (400, "lacks 'text'"), b'{"txet": "a"}': (400, "'txet', which is no field"),
    b'{"text": 3}': (400, "no text"), b'{"text": ""}': (400, "empty"),
    b'{"text": " \\n"}': (400, "empty"), b'{"inputs": []}': (400, "list of objects"),
    b'{"inputs": [{"text": "a"}, {"text": null}]}': (400, "input 2: 'text' is None"),
    b'{"inputs": ' + json.dumps([{"text": "a"}] * 300).encode() + b"}": (413, "300 inputs"),
    json.dumps({"text": "a" * 20_001}).encode(): (413, "20001 characters"),
    b'"' + b"a" * 9_000_000 + b'"': (413, "larger than 8 MB")}


@pytest.mark.parametrize("raw", BAD, ids=lambda raw: raw[:30].decode("latin-1"))
def test_what_is_malformed_is_refused_with_a_sentence(classifier, raw):
  status, part = BAD[raw]
  try:
    found = classifier.ask("/predict", raw=raw)
  except (BrokenPipeError, ConnectionResetError):
    assert status == 413 and len(raw) > 2 ** 20  # refused before all of it was sent
  else:
    assert found[0] == status and part in found[1]["error"]
  assert classifier.ask("/health") == (200, {"status": "ok", "waiting": 0})
  assert classifier.ask("/predict", {"text": "a cat"})[0] == 200


@pytest.mark.parametrize("path,raw,status", [("/nowhere", b"{}", 404), ("/predict", None, 405),
                                             ("/health", b"{}", 405)])
def test_paths_and_methods_that_are_none(classifier, path, raw, status):
  found = classifier.ask(path, raw=raw)
  assert found[0] == status and set(found[1]) == {"error"}


def send(address, data):
  """A connection that has sent some bytes."""
  found = socket.create_connection(address, timeout=20)
  found.sendall(data)
  return found


def test_slow_and_aborted_requests_are_given_up(held):
  head = b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n"
  with running([held.kind], timeout_s=0.3, max_wait_ms=0.0) as this:
    with send(this.address, head + b"{") as slow:
      assert slow.recv(1000).startswith(b"HTTP/1.1 408 ")
    send(this.address, head + b"{").close()
    assert this.ask("/echo", {"text": "late"})[0] == 504
    held.began.wait(5)
    body = b'{"text": "gone"}'
    send(this.address, head.replace(b"100", b"%d" % len(body)) + body).close()
    until(lambda: this.count(r'jtx_requests_total\{path="/echo",status="499"\}') == 2)
    held.go.set()
    until(lambda: this.ask("/echo", {"text": "now"})[0] == 200)
  assert held.batches[0] == ["late"] and {x for batch in held.batches[1:] for x in batch} == {"now"}


def test_a_full_queue_is_refused_and_the_rest_are_answered(held):
  with running([held.kind], max_queue=3, max_batch=2, max_wait_ms=0.0) as this:
    with concurrent.futures.ThreadPoolExecutor(5) as pool:
      first = pool.submit(this.ask, "/echo", {"text": "0"})
      held.began.wait(5)
      rest = pool.submit(this.ask, "/echo", {"inputs": [{"text": str(i)} for i in (1, 2, 3)]})
      until(lambda: this.ask("/health")[1]["waiting"] == 3)
      status, found = this.ask("/echo", {"text": "4"})
      assert status == 429 and "3 inputs wait" in found["error"]
      assert this.count("jtx_queue_length") == 3
      held.go.set()
      assert first.result()[1]["text"] == "0"
      assert [x["text"] for x in rest.result()[1]["outputs"]] == ["1", "2", "3"]
  assert held.batches == [["0"], ["1", "2"], ["3"]]


def test_one_bad_input_does_not_spoil_the_batch(held):
  held.go.set()
  texts = ["a", "bad", "b", "bad fault", "nan"]
  with running([held.kind], max_wait_ms=500.0, max_batch=5) as this:
    found = dict(zip(texts, in_threads(lambda x: this.ask("/echo", {"text": x}), texts, 5)))
    assert this.count("jtx_batch_size_sum") == 5
    several = this.ask("/echo", {"inputs": [{"text": "a"}, {"text": "bad"}]})
  assert several == (422, {"error": "input 2: it can't be read"})
  assert [found[x][0] for x in texts] == [200, 422, 200, 500, 500]
  assert found["bad"][1] == {"error": "it can't be read"}
  assert "can't" not in found["bad fault"][1]["error"] and "NaN" in found["nan"][1]["error"]


def test_a_stop_answers_what_waits_and_refuses_what_comes(held):
  with running([held.kind], max_batch=1) as this:
    with concurrent.futures.ThreadPoolExecutor(3) as pool, this.connection() as open_before:
      open_before.connect()
      waiting = [pool.submit(this.ask, "/echo", {"text": str(i)}) for i in range(3)]
      held.began.wait(5)
      until(lambda: this.ask("/health")[1]["waiting"] == 2)
      this.server.close()
      open_before.request("POST", "/echo", b'{"text": "new"}')
      answer = open_before.getresponse()
      assert answer.status == 503 and "stopping" in json.load(answer)["error"]
      assert this.ask("/health") == (503, {"status": "stopping"})
      this.program.should_exit = True
      held.go.set()
      assert [x.result()[0] for x in waiting] == [200] * 3
    this.thread.join(20)
    with pytest.raises(ConnectionRefusedError):
      this.ask("/health")


def test_a_signal_stops_it(held):
  """Here the server has the main thread; that it returns is the exit status 0."""
  server, listener = Server("model", {"echo": held.kind}, Limits()), run.bound("127.0.0.1", 0)
  client = Client(listener.getsockname())
  with concurrent.futures.ThreadPoolExecutor(2) as pool:
    def work():
      answer = pool.submit(client.ask, "/echo", {"text": "a"})
      held.began.wait(5)
      signal.raise_signal(signal.SIGTERM)  # as a thread has no handlers, the main one takes it
      until(lambda: server.stopping)
      held.go.set()
      return answer.result()

    before, done = signal.getsignal(signal.SIGTERM), []
    run.run(server, listener, lambda _: done.append(pool.submit(work)))
    assert done[0].result() == (200, {"text": "a", "value": 0.0})
    assert signal.getsignal(signal.SIGTERM) is before


def test_requests_are_counted(held):
  held.go.set()
  with running([held.kind]) as this:
    for value in ({"text": "a"}, {"text": "b"}, {}):
      this.ask("/echo", value)
    this.ask("/x" * 50, {})
    text = this.ask("/metrics")[1]
  for line in ('jtx_requests_total{path="/echo",status="200"} 2',
               'jtx_requests_total{path="/echo",status="400"} 1',
               'jtx_requests_total{path="other",status="404"} 1', "jtx_queue_length 0",
               'jtx_request_seconds_bucket{le="+Inf"} 4', 'jtx_batch_size_bucket{le="1"} 2'):
    assert line in text.splitlines()


@pytest.fixture(scope="module")
def writer(tmp_path_factory):
  place = str(tmp_path_factory.mktemp("serve") / "lm")
  pretrained.save_pretrained(place, LM, LM_PARAMS, TOKENIZER, format="jtx")
  found = open_kinds(place, max_batch=4, writing={"max_new_tokens": 8})
  with running([found["generate"]]) as this:
    yield this


def events(text):
  """Pairs of the name and the value of server-sent events."""
  for part in text.removesuffix("\n\n").split("\n\n"):
    name, _, data = part.rpartition("data: ")
    yield name.removeprefix("event: ").strip(), json.loads(data)


def test_the_pieces_of_a_stream_are_the_whole_answer(writer):
  whole = writer.ask("/generate", {"prompt": "Once upon"})[1]["text"]
  *pieces, last = events(writer.ask("/generate/stream", {"prompt": "Once upon"})[1])
  assert last == ("done", {"text": whole}) and len(pieces) > 1
  assert "".join(piece["text"] for _, piece in pieces) == whole
  for path in ("/generate", "/generate/stream"):
    assert writer.ask(path, {"prompt": ""})[0] == writer.ask(path, {})[0] == 400
    assert writer.ask(path, {"prompt": "a", "seed": 1})[0] == 400  # nothing is drawn


def test_a_failure_of_a_stream_is_told(held):
  def stream(given):
    if given["text"] == "bad":
      raise DataError("it is bad")
    yield "a"
    raise DataError("it ends")

  kind = dataclasses.replace(held.kind, stream=stream)
  with running([kind]) as this:
    assert this.ask("/echo/stream", {"text": "bad"}) == (422, {"error": "it is bad"})
    assert list(events(this.ask("/echo/stream", {"text": "good"})[1])) == [
        ("", {"text": "a"}), ("error", {"error": "it ends"})]


def test_a_stream_ends_where_nobody_reads(held):
  ended = threading.Event()

  def stream(given):
    try:
      while True:
        yield given["text"]
        time.sleep(0.01)
    finally:
      ended.set()

  body = b'{"text": "a"}'
  with running([dataclasses.replace(held.kind, stream=stream)]) as this:
    head = b"POST /echo/stream HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
    with send(this.address, head + body) as client:
      assert client.recv(1000)
    assert ended.wait(10)
