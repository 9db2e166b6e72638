"""Serves a trained model over HTTP: JSON in, JSON out, and a page to try it.

  python -m experiments.serve --workdir=W [--host=127.0.0.1] [--port=8000] [--step=best|newest|N]
    [--max_batch=16] [--max_wait_ms=5] [--max_queue=256] [--max_body_mb=8] [--timeout_s=60]

W is a workdir of jtx or a folder of Hugging Face. What the model is for has its path, such as
/predict, /translate or /generate; /model lists them, with the fields of their inputs. Inputs of
concurrent clients run together, one batch at a time. /health and /metrics are for what watches the
server. SIGTERM and ctrl-C stop it: what waits is answered, what comes is refused, and the exit
status is 0. There are no passwords and no TLS: a proxy has them.
"""

import os

from absl import flags

from . import cli

WORKDIR = flags.DEFINE_string("workdir", None, "Folder of a training run, or of Hugging Face.")
STEP = cli.define_step()
HOST = flags.DEFINE_string("host", "127.0.0.1", "Address to listen at; 0.0.0.0 is all of this"
                           " machine's.")
PORT = flags.DEFINE_integer("port", 8000, "To listen at; 0 is any that is free.", lower_bound=0,
                            upper_bound=65535)
MAX_BATCH = flags.DEFINE_integer("max_batch", 16, "Inputs that run together.", lower_bound=1)
MAX_WAIT_MS = flags.DEFINE_float("max_wait_ms", 5.0, "Milliseconds that an input waits for others.",
                                 lower_bound=0.0)
MAX_QUEUE = flags.DEFINE_integer(
    "max_queue", 256, "Inputs that may wait, and that a request may have; what comes when the queue"
    " is full is refused with the status 429.", lower_bound=1)
MAX_BODY_MB = flags.DEFINE_float("max_body_mb", 8.0, "MB of a request.", lower_bound=0.001)
MAX_CHARS = flags.DEFINE_integer("max_chars", 20_000, "Characters of a text.", lower_bound=1)
TIMEOUT_S = flags.DEFINE_float("timeout_s", 60.0, "Seconds until a request is sent, and again until"
                               " it is answered.", lower_bound=0.1)
MAX_LENGTH = flags.DEFINE_integer(
    "max_length", None, "Tokens that a text is cut to; if not given those that the run was trained"
    " with, or 256.", lower_bound=8)
BEAM = flags.DEFINE_integer("beam", None, "Hypotheses of beam search, of translators and language"
                            " models.", lower_bound=1)
MAX_NEW_TOKENS = flags.DEFINE_integer(
    "max_new_tokens", None, "The most of a language model's text; 128 if not given.", lower_bound=1)
STOP = flags.DEFINE_multi_string("stop", [], "A string that ends such a text; may be repeated.")
TEMPERATURE = flags.DEFINE_float("temperature", None, "Of sampling.", lower_bound=0.0)
TOP_K = flags.DEFINE_integer("top_k", None, "Sample from the k likeliest tokens.", lower_bound=1)
TOP_P = flags.DEFINE_float("top_p", None, "Sample from the likeliest tokens of probability p.")

WRITING_FLAGS = (BEAM, MAX_NEW_TOKENS, STOP, TEMPERATURE, TOP_K, TOP_P)


def main() -> None:
  from jtx.serve.kinds import open_kinds
  try:
    from jtx.serve import run
    from jtx.serve.app import Limits, Server
  except ModuleNotFoundError as error:
    if error.name not in ("starlette", "uvicorn"):
      raise
    raise cli.UsageError(
        'the server needs Starlette and uvicorn: pip install -e ".[serve]"') from error
  limits = Limits(max_batch=MAX_BATCH.value, max_wait_ms=MAX_WAIT_MS.value,
                  max_queue=MAX_QUEUE.value, max_body_mb=MAX_BODY_MB.value,
                  max_chars=MAX_CHARS.value, timeout_s=TIMEOUT_S.value)
  listener = run.bound(HOST.value, PORT.value)
  writing = {f.name: f.value for f in WRITING_FLAGS if f.value not in (None, [])}
  found = open_kinds(WORKDIR.value, step=STEP.value, max_length=MAX_LENGTH.value,
                     max_batch=MAX_BATCH.value, writing=writing)
  name = os.path.basename(os.path.abspath(WORKDIR.value))
  host, port = listener.getsockname()[:2]
  print(f"serving {name} at http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)
  run.run(Server(name, found, limits), listener)


if __name__ == "__main__":
  cli.run(main, required=("workdir",))
