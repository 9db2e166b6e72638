"""Predicts for each line or image: classes, tags, answers, embeddings, masked tokens.

  python -m experiments.predict --workdir=W --input=F [--output=F] [--step=best|newest|N]

W is a workdir of jtx or a folder of Hugging Face. Of a run, F is read as its own data is, and what
it has of labels is left out: a file that ends as one of the run's sources does, a line with the
same columns, a text alone, or a .jsonl file. Other files may be given as a source, such as
csv:F or conll:F. Of another folder a line is an object of JSON (in a file that ends in .jsonl) or
text: a text, a pair of texts with a tab between them, or words with spaces between them for tags.
A line of the output is an object of JSON; the order is kept. What an object needs depends on the
model's head: see jtx/inference/tasks.py. What doesn't fit is an error that names file and line.

Of a vision transformer the input is a folder of images, an image, or a text file with the path of
one a line; the output has the path, and the five likeliest classes or a vector. With
--patches=F.npy the features of all patches are written, too, an array of float32 [images, H, W, D]
whose rows are in the order of the output's lines. Of a detector the output has the objects whose
score is --threshold or more: label, score and box (left, top, width and height in pixels of the
file), which --pictures=D draws over each image. Of two towers, such as CLIP, --texts=T is a file of
texts, one a line: the output has the probability of each.
"""

from collections.abc import Sequence
import json
import os

from absl import flags

from . import cli

WORKDIR = flags.DEFINE_string("workdir", None, "Folder of a training run, or of Hugging Face.")
STEP = cli.define_step()
INPUT = flags.DEFINE_string(
    "input", "-", "UTF-8 text or .jsonl, - is text on standard input; or a folder of images, or a"
    " list of their paths.")
OUTPUT = cli.define_output("-", "File to write; - is standard output.")
TEXTS = flags.DEFINE_string(
    "texts", None, "File of texts, one a line, of which two towers tell what fits each image.")
THRESHOLD = flags.DEFINE_float(
    "threshold", None, "The least score of an object that a detector gives; if not given, 0.5.",
    lower_bound=0, upper_bound=1)
PICTURES = flags.DEFINE_string(
    "pictures", None, "Folder for images with the boxes of the objects that a detector finds.")
PATCHES = flags.DEFINE_string(
    "patches", None, "File ending in .npy to write the features of every patch of the images to.")
MAX_LENGTH = flags.DEFINE_integer(
    "max_length", None, "Tokens that a text is cut to, and of the windows of a context; if not"
    " given those that the run was trained with, or 256.", lower_bound=8)
BATCH_SIZE = flags.DEFINE_integer(
    "batch_size", None, "Texts or images at a time; if not given 64, and 8 of a detector.",
    lower_bound=1)


def read_inputs(saved, model) -> list[dict]:
  """The input as those of `jtx.inference.tasks.predict`."""
  from jtx.inference.tasks import by_word
  from jtx.saved.trained import reader as reader_of
  path, reader = INPUT.value, reader_of(saved)
  if reader is None:
    return plain_inputs(path, saved.labels() or (), by_word(model))
  if path != "-" and (spec := reader.spec_of(path)):
    return reader.of_file(spec)
  return reader.of_lines(cli.read_lines(path), name_of(path))


def plain_inputs(path: str, labels: Sequence[str], by_word: bool) -> list[dict]:
  """Those of a model without a run: lines, or objects of a .jsonl file."""
  from jtx.data import inputs
  from jtx.data.sources.text import JsonlSource
  if path.endswith(".jsonl"):
    source = JsonlSource(f"jsonl:{path}", path)
    return [source[i] for i in range(len(source))]
  return inputs.of_plain_lines(cli.read_lines(path), name_of(path), labels, by_word)


def batch_size() -> int:
  return BATCH_SIZE.value or 64


def name_of(path: str) -> str:
  return "standard input" if path == "-" else path


def of_images(saved, model, params) -> list[dict]:
  """The predictions of each image."""
  from jtx.inference.images import TOP, ImagePredictor, listed_images
  from jtx.inference.predictions import predicted
  paths = listed_images(INPUT.value)
  by_class = model.head.task in ("classes", "multi_label")
  run = ImagePredictor(model, params, saved.image_ops(model), batch_size=batch_size(),
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


def of_boxes(saved, model, params) -> list[dict]:
  """The objects of each image, drawn where they are asked for."""
  from jtx import storage
  from jtx.figures.figure import save_figure
  from jtx.inference import boxes, tasks
  from jtx.inference.images import listed_images
  paths, labels = listed_images(INPUT.value), saved.labels() or ()
  threshold = boxes.THRESHOLD if THRESHOLD.value is None else THRESHOLD.value
  ready = tasks.Trained(model, params, None, labels, ops=saved.image_ops(model),
                        batch_size=BATCH_SIZE.value or boxes.BATCH_SIZE, threshold=threshold)
  outputs = tasks.predict(ready, [{"image": path} for path in paths])
  for number, (path, output) in enumerate(zip(paths, outputs) if PICTURES.value else ()):
    name = f"{number:05d}_{os.path.splitext(os.path.basename(path))[0]}.png"
    found = [boxes.Found(**x) for x in output["objects"]]
    save_figure(boxes.picture(path, found, labels), storage.join(PICTURES.value, name))
  return [{"path": path, **output} for path, output in zip(paths, outputs)]


def write_patches(saved, model, params) -> None:
  from jtx.errors import ConfigError
  from jtx.inference.images import listed_images, save_patches, takes_images
  if not takes_images(model):
    raise ConfigError("--patches goes with a model of images, and"
                      f" --workdir={WORKDIR.value} holds a {type(model).__name__}")
  save_patches(PATCHES.value, model, params, saved.image_ops(model), listed_images(INPUT.value),
               batch_size())


def of_pairs(saved, model, params) -> list[dict]:
  """The likeliest text of each image, and the probability of all."""
  from jtx.errors import ConfigError
  from jtx.inference import towers
  from jtx.inference.images import ImagePredictor, listed_images
  from jtx.saved.trained import caption_encoder
  if "image_text" not in model.heads:
    raise ConfigError("--texts goes with a model of images and texts, and"
                      f" --workdir={WORKDIR.value} holds a {type(model).__name__}")
  # Of a text that is there twice each would have half of its probability.
  texts = list(dict.fromkeys(text for text in cli.read_lines(TEXTS.value) if text.strip()))
  if not texts:
    raise ConfigError(f"--texts={TEXTS.value} has no text; write one a line")
  vectors = towers.text_vectors(model, params, caption_encoder(saved, model), texts)
  paths, results = listed_images(INPUT.value), []
  run = ImagePredictor(model, params, saved.image_ops(model), batch_size=batch_size(),
                       method="features")
  for path, x in zip(paths, run(paths)):
    p = towers.fits(model, params, x[None], vectors)[0]
    results.append({"path": path, "text": texts[p.argmax()],
                    "scores": dict(zip(texts, map(float, p)))})
  return results


def main() -> None:
  from jtx.errors import ConfigError
  from jtx.inference import tasks
  from jtx.inference.images import takes_images
  from jtx.saved.folder import open_saved
  from jtx.saved.trained import trained
  saved = open_saved(WORKDIR.value)
  model, params = saved.load(step=STEP.value)
  tasks.check_predicts(model, f"--workdir={WORKDIR.value}")
  if PATCHES.value is not None:
    write_patches(saved, model, params)
  if TEXTS.value is not None:
    write(of_pairs(saved, model, params))
    return
  finds = "boxes" in model.heads
  for flag in ("threshold", "pictures"):
    if not finds and flags.FLAGS[flag].value is not None:
      raise ConfigError(f"--{flag} is of detectors, and --workdir={WORKDIR.value} holds a"
                        f" {type(model).__name__} without a head for boxes")
  if takes_images(model):
    write((of_boxes if finds else of_images)(saved, model, params))
    return
  ready = trained(saved, model, params, MAX_LENGTH.value, batch_size())
  write(tasks.predict(ready, read_inputs(saved, model)))


def write(outputs: list[dict]) -> None:
  cli.write_text(OUTPUT.value, "".join(json.dumps(output, ensure_ascii=False) + "\n"
                                       for output in outputs))


if __name__ == "__main__":
  cli.run(main, required=("workdir",))
