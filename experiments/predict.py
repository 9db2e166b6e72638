"""Predicts for each line or image: classes, tags, answers, embeddings, masked tokens.

  python -m experiments.predict --workdir=W --input=F [--output=F]

W is a workdir of jtx or a folder of Hugging Face. A line of the input is an object of JSON
(a file that ends in .jsonl) or text: a text, a pair of texts with a tab between them, or
words with spaces between them for tags. A line of the output is an object of JSON; the order
is kept. What an object needs depends on the model's head: see jtx/inference/tasks.py.

Of a vision transformer the input is a folder of images, an image, or a text file with the path of
one a line; the output has the path, and the five likeliest classes or a vector.
"""

import json

from absl import flags

from . import cli

WORKDIR = flags.DEFINE_string("workdir", None, "Folder of a training run, or of Hugging Face.")
STEP = cli.define_step()
INPUT = flags.DEFINE_string(
    "input", "-", "UTF-8 text or .jsonl, - is text on standard input; or a folder of images, or a"
    " list of their paths.")
OUTPUT = flags.DEFINE_string("output", "-", "File to write; - is standard output.")
MAX_LENGTH = flags.DEFINE_integer(
    "max_length", 256, "Tokens that a text is cut to, and of the windows of a context.",
    lower_bound=8)
BATCH_SIZE = flags.DEFINE_integer("batch_size", 64, "Texts or images at a time.", lower_bound=1)


def read_inputs(path: str, by_word: bool) -> list[dict]:
  """The lines of a file as inputs of `jtx.inference.tasks.predict`."""
  from jtx.data.sources.text import JsonlSource
  if path.endswith(".jsonl"):
    source = JsonlSource(f"jsonl:{path}", path)
    return [source[i] for i in range(len(source))]
  lines = cli.read_lines(path)
  if by_word:
    return [{"words": line.split()} for line in lines]
  return [dict(zip(("text", "second"), line.split("\t", 1))) for line in lines]


def of_images(saved, model, params) -> list[dict]:
  """The predictions of each image."""
  from jtx.inference.images import TOP, ImagePredictor, listed_images
  from jtx.inference.predictions import predicted
  paths = listed_images(INPUT.value)
  by_class = model.head.task in ("classes", "multi_label")
  run = ImagePredictor(model, params, saved.image_ops(model), batch_size=BATCH_SIZE.value,
                       method="predict" if by_class else "features")
  if not by_class:
    return [{"path": path, "embedding": x.tolist()} for path, x in zip(paths, run(paths))]
  labels = saved.labels() or [f"LABEL_{i}" for i in range(model.head.outputs)]
  results = []
  for path, x in zip(paths, run(paths)):
    found = predicted(model.head, x[0], labels)
    best = sorted(found.scores, key=found.scores.get, reverse=True)[:TOP]
    results.append({"path": path, **found._asdict(),
                    "scores": {name: found.scores[name] for name in best}})
  return results


def main() -> None:
  from jtx.inference import tasks, texts
  from jtx.inference.images import takes_images
  from jtx.saved.folder import open_saved
  saved = open_saved(WORKDIR.value)
  model, params = saved.load(step=STEP.value)
  tasks.check_predicts(model, f"--workdir={WORKDIR.value}")
  if takes_images(model):
    write(of_images(saved, model, params))
    return
  inputs = read_inputs(INPUT.value, tasks.by_word(model))
  trained = tasks.Trained(
      model, params, saved.tokenizer_for(model), saved.labels() or (),
      max_length=texts.longest(model, MAX_LENGTH.value), batch_size=BATCH_SIZE.value)
  write(tasks.predict(trained, inputs))


def write(outputs: list[dict]) -> None:
  cli.write_text(OUTPUT.value, "".join(json.dumps(output, ensure_ascii=False) + "\n"
                                       for output in outputs))


if __name__ == "__main__":
  cli.run(main, required=("workdir",))
