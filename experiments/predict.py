"""What a trained encoder says of each line: classes, tags, answers, choices, embeddings, tokens.

  python -m experiments.predict --workdir=W --input=F [--output=F]

W is a workdir of jtx or a folder of Hugging Face. A line of the input is an object of JSON
(a file that ends in .jsonl) or text: a text, a pair of texts with a tab between them, or
words with spaces between them for tags. A line of the output is an object of JSON; the order
is kept. What an object needs depends on the model's head: see jtx/predictions.py.
"""

import json

from absl import flags

from experiments import cli

WORKDIR = flags.DEFINE_string("workdir", None, "Folder of a training run, or of Hugging Face.")
INPUT = flags.DEFINE_string("input", "-", "UTF-8 text or .jsonl; - is text on standard input.")
OUTPUT = flags.DEFINE_string("output", "-", "File to write; - is standard output.")
MAX_LENGTH = flags.DEFINE_integer(
    "max_length", 256, "Tokens that a text is cut to, and of the windows of a context.",
    lower_bound=8)
BATCH_SIZE = flags.DEFINE_integer("batch_size", 64, "Texts at a time.", lower_bound=1)


def read_inputs(path: str, by_word: bool) -> list[dict]:
  """The lines of a file as inputs of `jtx.predictions.predict`."""
  from jtx.data.sources import JsonlSource
  if path.endswith(".jsonl"):
    source = JsonlSource(f"jsonl:{path}", path)
    return [source[i] for i in range(len(source))]
  lines = cli.read_lines(path)
  if by_word:
    return [{"words": line.split()} for line in lines]
  return [dict(zip(("text", "second"), line.split("\t", 1))) for line in lines]


def main() -> None:
  import jtx
  from jtx import predict, pretrained, predictions
  model, params = jtx.load_pretrained(WORKDIR.value)
  inputs = read_inputs(INPUT.value, model.head.task == "tags")
  trained = predictions.Trained(
      model, params, predict.tokenizer_of(WORKDIR.value, model),
      pretrained.labels(WORKDIR.value) or (), predict.longest(model, MAX_LENGTH.value),
      batch_size=BATCH_SIZE.value)
  text = "".join(json.dumps(output, ensure_ascii=False) + "\n"
                 for output in predictions.predict(trained, inputs))
  cli.write_text(OUTPUT.value, text)


if __name__ == "__main__":
  cli.run(main, required=("workdir",))
