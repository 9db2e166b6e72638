"""Kinds of answers that a model gives: what an input has, and the function of a batch of them.

All heads of texts are one kind, by the table of `jtx.inference.tasks`: a task with a row there is
served. Images, translations, continuations and vectors are the others. A kind's name is its path.
"""

import dataclasses
import secrets
from typing import Any, Callable, Hashable, Iterator, Mapping, Sequence

import numpy as np

from jtx import api
from jtx.errors import ConfigError, DataError
from jtx.inference import attention, tasks
from jtx.inference.decode import Beam
from jtx.inference.images import TOP, ImagePredictor
from jtx.inference.predictions import predicted
from jtx.ranges import SEEDS
from jtx.saved import speaking
from jtx.serve.fields import Field

Input = Mapping[str, Any]
GROWS = 4  # the factor between the numbers of rows of compiled programs
ATTENDED = 64  # tokens of a text whose attention is given


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
  """A kind of answers."""
  name: str  # its path
  does: str  # a sentence
  fields: Mapping[str, Field]
  call: Callable[[Sequence[Input]], Sequence[dict[str, Any]]]  # the outputs of a batch
  one_of: tuple[str, ...] = ()  # fields of which an input has exactly one
  stream: Callable[[Input], Iterator[str]] | None = None  # the pieces of one output's text

  def group(self, given: Input) -> Hashable:
    """Inputs of the same group may be in one batch: they have the same fields."""
    return frozenset(given)


def open_kinds(directory: str, *, step: int | str | None = None, max_length: int | None = None,
               max_batch: int = 16, writing: Mapping[str, Any] | None = None) -> dict[str, Kind]:
  """The kinds of a model by their names, its own first.

  Args:
    directory: a workdir of jtx or a folder of Hugging Face.
    step: see `jtx.api.Opened`.
    max_length: of a text in tokens, likewise.
    max_batch: inputs at a time.
    writing: arguments of `jtx.api.Generator`; of those a translator takes `beam`.

  Raises:
    ConfigError: the model can't be used so.
  """
  opened, writing = api.Opened(directory, step=step, max_length=max_length), dict(writing or {})
  if opened.translates:
    translate = api.Translator(opened, beam=writing.pop("beam", None), max_length=max_length,
                               batch_size=max_batch)
    found = translations(translate, max_batch)
  elif opened.takes_images:
    writing |= {} if max_length is None else {"max_length": max_length}
    found = [(objects if "boxes" in opened.model.heads else images)(opened, max_batch)]
  else:
    writes, task = "lm" in opened.model.heads, tasks.task_of(opened.model)
    found = [predictions(opened, task, max_batch)] if task != "none" or not writes else []
    if writes:
      found.append(continuations(api.Generator(opened, batch_size=max_batch, **writing)))
      writing = {}
    if task not in ("none", "embedding"):
      found.append(vectors(api.Embedder(opened, max_length=opened.max_length,
                                        batch_size=max_batch), max_batch))
    if hasattr(opened.model, "attention_weights"):
      found.append(attended(opened))
  if writing:
    raise ConfigError(f"--{next(iter(writing))}: the model of {directory} does not take it, since"
                      f" it answers at /{found[0].name}")
  return {kind.name: kind for kind in found}


def rows(number: int, most: int) -> int:
  """The rows of the program that runs a batch: one of few, since each is compiled by itself."""
  size = 1
  while size < number:
    size *= GROWS
  return min(size, most)


def predictions(opened: api.Opened, task: str, max_batch: int) -> Kind:
  """What the head of a model of texts says."""

  def call(inputs):
    trained = opened.trained._replace(batch_size=rows(len(inputs), max_batch))
    return tasks.predict(trained, opened.cleaned(inputs))

  return Kind(name="predict", does=f"The prediction of the head for {task!r}.", call=call,
              fields=fields_of(*tasks.tasks_of(opened.model),
                               both_orders=bool(opened.model.head.both_orders)))


def fields_of(*names: str, both_orders: bool = False) -> dict[str, Field]:
  """The fields of an input of heads, by what their rows of the table need."""
  needs = [tasks.HEADS[name][0] for name in names]
  fields = {key: Field(kind=key if key == "words" else "text" if kind is str else "texts",
                       required=all(key in own for own in needs))
            for own in needs for key, kind in own.items()}
  second = Field(kind="text", required=both_orders)
  return fields | ({"second": second} if tasks.TEXT in needs else {})


def images(opened: api.Opened, max_batch: int) -> Kind:
  """The likeliest classes or the labels of images, or their vectors."""
  model, saved = opened.model, opened.saved
  by_class = model.head.task in ("classes", "multi_label")
  labels = saved.labels() or [f"LABEL_{i}" for i in range(model.head.outputs or 0)]
  predictor = ImagePredictor(model, opened.params, saved.image_ops(model),
                             method="predict" if by_class else "features")

  def call(inputs):
    predictor.batch_size = rows(len(inputs), max_batch)
    values = list(predictor([x["image"] for x in inputs]))
    return list(map(best, values)) if by_class else [{"embedding": x.tolist()} for x in values]

  def best(outputs):
    found = predicted(model.head, outputs[0], labels)
    names = sorted(found.scores, key=found.scores.get, reverse=True)[:TOP]
    return found._asdict() | {"scores": {name: found.scores[name] for name in names}}

  return Kind(name="predict", does="The classes of an image." if by_class else
              "The vector of an image.", fields={"image": Field(kind="image")}, call=call)


def objects(opened: api.Opened, max_batch: int) -> Kind:
  """The objects in images."""
  detector = api.Detector(opened)

  def call(inputs):
    detector.detect.predictor.batch_size = rows(len(inputs), max_batch)
    return [{"objects": [x._asdict() for x in found]}
            for found in detector([x["image"] for x in inputs])]

  return Kind(name="predict", fields={"image": Field(kind="image")}, call=call,
              does="The objects in an image, with boxes (left, top, width and height in pixels).")


def vectors(embed: api.Embedder, max_batch: int) -> Kind:
  """Vectors of texts, of a model whose head is for something else."""

  def call(inputs):
    embed.embed.predictor.batch_size = rows(len(inputs), max_batch)
    return [{"embedding": x.tolist()} for x in embed([x["text"] for x in inputs])]

  return Kind(name="embed", does="The vector of a text: the mean of the last hidden states, of"
              " length 1.", fields={"text": Field(kind="text")}, call=call)


def translations(translate: api.Translator, max_batch: int) -> list[Kind]:
  """Translations, or what else an encoder-decoder makes of texts, and its attention."""

  def call(inputs):
    translate.translator.batch_size = rows(len(inputs), max_batch)
    results = []
    for found in translate.hypotheses([x["text"] for x in inputs]):
      said = [{"text": x.text, "score": x.score} for x in found]
      results.append(said[0] if len(said) == 1 else {**said[0], "n_best": said})
    return results

  def weights(inputs):
    return [told(of(x["text"])) for x in inputs]

  def of(text):
    target = translate([text])[0]
    tokenizers = translate.translator.tokenizers
    check_short(max(len(tokenizers["src"].encode(text)), len(tokenizers["tgt"].encode(target))))
    return attention.of_translation(translate.model, translate.params, tokenizers, text, target)

  fields = {"text": Field(kind="text")}
  found = [Kind(name="translate", does="The translation of a text.", fields=fields, call=call)]
  if hasattr(translate.model, "attention_weights"):
    found.append(Kind(name="attention", fields=fields, call=weights,
                      does="Attention from the tokens of a translation to those of its text."))
  return found


def continuations(generate: api.Generator) -> Kind:
  """Texts behind prompts or conversations, in one piece or in many as they come."""
  generator = generate.generator
  draws = generator.keys(1, None) is not None
  fields = {"prompt": Field(kind="text", required=False)}
  template = None
  if speaking.chat_template(generate.saved):
    template = generate.template()
    fields["messages"] = Field(kind="messages", required=False)
  if draws:
    fields["seed"] = Field(kind="seed", required=False)

  def tokens(given):
    if "messages" in given:
      return generator.of_messages(template, given["messages"])
    return generator.prompts([given["prompt"]], ["the prompt"])[0]

  def seed(given):
    return given.get("seed", secrets.randbelow(len(SEEDS))) if draws else None

  def call(inputs):
    seeds = list(map(seed, inputs))
    results = []
    for best, number in zip(generator(list(map(tokens, inputs)), seeds), seeds):
      said = [{"text": x.text, "score": x.score} for x in best]
      found = said[0] if len(said) == 1 else {**said[0], "n_best": said}
      results.append(found | ({"seed": number} if draws else {}))
    return results

  return Kind(name="generate", does="The text behind a prompt.", fields=fields, call=call,
              one_of=tuple(key for key in fields if key != "seed"),
              # The best of several texts is known at the end only.
              stream=None if isinstance(generator.method, Beam) else
              lambda given: generator.stream(tokens(given), seed(given)))


def attended(opened: api.Opened) -> Kind:
  """The attention of a model over the tokens of a text, or of a pair."""
  trained = opened.trained

  def call(inputs):
    return [told(attention.of_text(
        opened.model, opened.params, trained.tokenizer, x["text"], second=x.get("second"),
        max_length=min(trained.max_length, ATTENDED))) for x in inputs]

  return Kind(name="attention", fields={"text": Field(kind="text"),
                                        "second": Field(kind="text", required=False)}, call=call,
              does=f"Attention between the first {ATTENDED} tokens of a text.")


def check_short(tokens: int) -> None:
  """Raises DataError where there are too many tokens to give the attention between them all."""
  if tokens > ATTENDED:
    raise DataError(f"the text or its translation has {tokens} tokens, and attention is given of"
                    f" {ATTENDED} at most")


def told(weights: attention.Weights) -> dict[str, Any]:
  """The mean over the heads of each layer, [L, T, S], and the tokens of the axes."""
  mean = np.round(weights.values.mean(1).astype(np.float64), 4)
  return {"queries": list(weights.queries), "keys": list(weights.keys), "layers": mean.tolist()}
