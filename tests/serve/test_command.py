"""The command `serve`: what its flags become, and what it refuses."""

import socket

import pytest

from jtx.saved import pretrained
from jtx.serve import run
from jtx.serve.app import Limits
from tests.helpers import refused, run_command
from tests.inference.test_continuations import MODEL, PARAMS, TOKENIZER


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  found = str(tmp_path_factory.mktemp("serve") / "lm")
  pretrained.save_pretrained(found, MODEL, PARAMS, TOKENIZER, format="jtx")
  return found


def test_flags_are_limits_and_settings(folder, monkeypatch, capsys):
  served = []
  monkeypatch.setattr(run, "run", lambda server, listener: served.append((server, listener)))
  run_command("serve", f"--workdir={folder}", "--port=0", "--max_batch=3", "--max_wait_ms=7",
              "--max_queue=5", "--max_body_mb=0.5", "--max_chars=9", "--timeout_s=2",
              "--max_new_tokens=6", "--temperature=0.5")
  (server, listener), = served
  with listener:
    port = listener.getsockname()[1]
  assert capsys.readouterr().out == f"serving lm at http://127.0.0.1:{port}\n"
  assert server.limits == Limits(max_batch=3, max_wait_ms=7.0, max_queue=5, max_body_mb=0.5,
                                 max_chars=9, timeout_s=2.0)
  kind = server.kinds["generate"]
  assert list(kind.fields) == ["prompt", "seed"]
  first, again = (kind.call([{"prompt": "a", "seed": 1}])[0] for _ in range(2))
  assert first == again and first["seed"] == 1


def test_a_port_that_is_taken_is_refused(folder):
  with socket.create_server(("127.0.0.1", 0)) as other:
    port = other.getsockname()[1]
    status, sentence = refused("serve", f"--workdir={folder}", f"--port={port}")
  assert (status, sentence) == (1, f"--host=127.0.0.1 --port={port}: address already in use")
