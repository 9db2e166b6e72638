"""Goes on with prompts, by a language model: a line in, an object of JSON out, in order.

  python -m experiments.generate --workdir=W [--input=F] [--output=F] [--temperature=0.8]

W is a workdir of jtx or a folder of Hugging Face. The input has a prompt a line; of a file that
ends in .jsonl, or with --jsonl, a line is an object with `prompt`, a text, or with `messages`, a
conversation to be answered; and with a `seed` if its draws shall not depend on the other prompts.
The output has the prompt's object with `text`, what the
model goes on with, and `score`, its log-probability; with --n_best above 1 a list of them,
`texts`. With --stream texts go to standard output as they are made.

Without options of sampling or --beam the likeliest token is taken. A prompt that is too long for
the model is an error that names its line.
"""

import json
import sys
from typing import Any

from absl import flags

from . import cli

WORKDIR = flags.DEFINE_string("workdir", None, "Folder of a training run, or of Hugging Face.")
STEP = cli.define_step()
INPUT = flags.DEFINE_string("input", "-", "UTF-8 text or .jsonl; - is standard input.")
JSONL = flags.DEFINE_bool("jsonl", False, "The input's lines are objects of JSON.")
OUTPUT = cli.define_output("-", "File to write; - is standard output.")
STREAM = flags.DEFINE_bool("stream", False, "Print texts as they are made, token by token.")
MAX_NEW_TOKENS = flags.DEFINE_integer("max_new_tokens", 128, "The most of a text.", lower_bound=1)
STOP = flags.DEFINE_multi_string("stop", [], "A string that ends a text; may be repeated.")
BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "Prompts at a time.", lower_bound=1)
N_BEST = flags.DEFINE_integer("n_best", None, "Texts of each prompt.", lower_bound=1)
BEAM = flags.DEFINE_integer("beam", None, "Hypotheses of beam search.", lower_bound=1)
TEMPERATURE = flags.DEFINE_float("temperature", None, "Of sampling.", lower_bound=0.0)
TOP_K = flags.DEFINE_integer("top_k", None, "Sample from the k likeliest tokens.", lower_bound=1)
TOP_P = flags.DEFINE_float("top_p", None, "Sample from the likeliest tokens of probability p.")
MIN_P = flags.DEFINE_float("min_p", None, "Sample from tokens at least this share as likely as the"
                           " likeliest one.")
REPETITION_PENALTY = flags.DEFINE_float(
    "repetition_penalty", None, "What tokens that were said are made less likely by; 1 is off.")
SEED = flags.DEFINE_integer("seed", None, "Of sampling.", lower_bound=0)

METHOD_FLAGS = (N_BEST, BEAM, TEMPERATURE, TOP_K, TOP_P, MIN_P, REPETITION_PENALTY, SEED)


def read_prompts() -> list[Any]:
  from jtx.data import prompts
  path = INPUT.value
  read = prompts.of_objects if JSONL.value or path.endswith(".jsonl") else prompts.of_lines
  return read(cli.read_lines(path), "standard input" if path == "-" else path)


def main() -> None:
  from jtx.api import Generator
  if STREAM.value and OUTPUT.value != "-":
    raise cli.UsageError(f"--stream and --output={OUTPUT.value} exclude each other: a stream goes"
                         " to standard output")
  found = read_prompts()
  method = {f.name: f.value for f in METHOD_FLAGS if f.value is not None}
  opened = Generator(WORKDIR.value, step=STEP.value, max_new_tokens=MAX_NEW_TOKENS.value,
                     stop=STOP.value, batch_size=BATCH_SIZE.value, **method)
  generator = opened.generator
  tokens = [generator.of_messages(opened.template(), p.given["messages"], p.name)
            if "messages" in p.given else generator.prompts([p.text], [p.name])[0] for p in found]
  seeds = [p.seed for p in found]
  if STREAM.value:
    for prompt, seed in zip(tokens, seeds):
      for piece in generator.stream(prompt, seed):
        sys.stdout.write(piece)
        sys.stdout.flush()
      sys.stdout.write("\n")
    return
  lines = []
  for prompt, best in zip(found, generator(tokens, seeds)):
    said = [{"text": c.text, "score": round(c.score, 4)} for c in best]
    given = prompt.given or {"prompt": prompt.text}
    result = given | (said[0] if len(said) == 1 else {"texts": said})
    lines.append(json.dumps(result, ensure_ascii=False) + "\n")
  cli.write_text(OUTPUT.value, "".join(lines))


if __name__ == "__main__":
  cli.run(main, required=("workdir",))
