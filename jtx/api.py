"""The Python interface that `import jtx` gives: models of folders, loaded, saved and used.

  embed = jtx.Embedder(DIR)
  vectors = embed(["a text", "another"])  # [2, D]
  classify = jtx.Classifier(DIR)
  classify(["a text"])  # [Prediction(label="1", scores={...})]
  classify(["cat.jpg"])  # likewise, where DIR has a vision transformer
  jtx.Detector(DIR)(["cat.jpg"])  # [[Found(label="cat", score=0.9, box=(8.0, 4.0, 90.0, 60.0))]]
  jtx.Tagger(DIR)(["Ann sat"])  # [Tagged(words=["Ann", "sat"], tags=["B-PER", "O"])]
  jtx.Answerer(DIR)(["Who sat?"], ["Ann sat."])  # [Answered(answer="Ann", ...)]
  jtx.FillMask(DIR)(["Ann [MASK]."])  # [[{"sat": 0.4, ...}]], a dict for each mask of a text
  jtx.Translator(DIR)(["one", "two"])  # ["eins", "zwei"]
  jtx.Generator(DIR)(["Once upon"])  # [" a time there was"]
  jtx.attention(DIR, "Ann sat.")  # a figure of heads

All are opened by a folder, a workdir of jtx or a Hugging Face directory; they take and give lists,
whose order is kept. Texts may be of any number and length: they are put into batches, and run by a
program that is compiled once a shape.
"""

from typing import Any, Iterator, Sequence

from jtx.config import ConfigDict, build, edit, section
from jtx.data.chat import Message, Template
from jtx.errors import ConfigError
from jtx.evals import pictures
from jtx.figures.panels import attention_panels
from jtx.inference import attention as attention_lib
from jtx.inference import boxes, tasks
from jtx.inference.continuations import Continuation, Limits, TextGenerator
from jtx.inference.decode import METHODS
from jtx.inference.images import ImageClassifier, ImagePredictor, takes_images
from jtx.inference.predictions import Answered, Labels, Prediction, Tagged, firsts, listed, texts_of
from jtx.inference.texts import TextClassifier, TextEmbedder
from jtx.inference.translate import Hypothesis
from jtx.inference.translate import Translator as TextTranslator
from jtx.models.heads import TASKS
from jtx.saved import speaking
from jtx.saved.folder import open_saved
from jtx.saved.languages import between
from jtx.saved.pretrained import load_pretrained, load_tokenizer, push_to_hub, save_pretrained
from jtx.saved.trained import MAX_LENGTH, Cleaner, trained, warn_of_length

__all__ = ("Answerer", "Classifier", "Detector", "Embedder", "FillMask", "Generator", "Tagger",
           "Translator", "attention", "load_pretrained", "load_tokenizer", "push_to_hub",
           "save_pretrained")


class Opened:
  """The model of a folder; the classes below are each for a task.

  Args:
    directory: a Hugging Face directory or a jtx workdir; or a model that is opened already.
    step: of a run, the checkpoint: "best", "newest" or a number; None is the best where the run
      keeps it, and else the newest.
    max_length: tokens that a text is cut to; None is what the run was trained with, or 256.
    batch_size: texts, or images, at a time.

  Raises:
    ConfigError: the model is for something else, or can't be used.
  """
  heads: tuple[str, ...] = ()  # of which the model must have one; none is any
  told = "anything"
  of_images = False  # as well

  def __init__(self, directory: "str | Opened", *, step: int | str | None = None,
               max_length: int | None = None, batch_size: int = 64):
    if isinstance(directory, Opened):
      vars(self).update(vars(directory), batch_size=batch_size)
    else:
      self.directory, self.batch_size = directory, batch_size
      self.saved = open_saved(directory)
      self.model, self.params = self.saved.load(step=step)
    self.takes_images = takes_images(self.model)
    self.translates = "seq2seq" in self.model.heads
    if self.heads:
      self._check()
    if not self.takes_images and not self.translates:
      self.trained = trained(self.saved, self.model, self.params, max_length, batch_size)
      self.cleaned = Cleaner(self.saved)

  def _check(self) -> None:
    """Raises ConfigError where the model is not for this class."""
    task = "seq2seq" if self.translates else self.model.head.task
    if task not in self.heads and not set(self.heads) & self.model.heads:
      # One without a task's head may have that of a language model, say.
      own = sorted(self.model.heads) if task == "none" and self.model.heads else [task]
      # Embedder, the first, takes any head of texts; another is made for it.
      takers = [c.__name__ for c in Opened.__subclasses__()
                if {task, *own} & set(c.heads) and (c.of_images or not self.takes_images)]
      better = f"; jtx.{takers[-1]} takes it" if takers else ""
      raise ConfigError(f"{self.directory}: its head is for {' and '.join(map(repr, own))}, not for"
                        f" {self.told}{better}")
    if self.takes_images and not self.of_images:
      raise ConfigError(f"{self.directory} is of images, jtx.{type(self).__name__} is for texts")

  @property
  def max_length(self) -> int:
    return self.trained.max_length

  def predict(self, inputs: Sequence[dict[str, Any]], task: str | None = None) -> list[dict]:
    return tasks.predict(self.trained, self.cleaned(inputs), task)


class Embedder(Opened):
  """Texts to vectors: pooled hidden states of the last layer.

  Args:
    directory: a Hugging Face directory or a jtx workdir.
    pool: "mean", "first" or "last" token; None is that of a head that only pools, or "mean".
    normalize: to length 1; None is as such a head does, or True.
    **options: of `Opened`: step, max_length, batch_size.
  """
  heads, told = tuple(TASKS), "vectors"

  def __init__(self, directory: str, *, pool: str | None = None, normalize: bool | None = None,
               **options: Any):
    super().__init__(directory, **options)
    self.embed = TextEmbedder(
        self.model, self.params, self.trained.tokenizer, pool=pool, normalize=normalize,
        max_length=self.max_length, batch_size=self.batch_size)

  def __call__(self, texts: Sequence[str]) -> Any:
    """[N] texts to float32 [N, D]."""
    return self.embed(*self.cleaned.columns(text=texts_of(texts)))


class Classifier(Opened):
  """Texts, pairs of texts, or images to their classes, or to labels that exclude no others."""
  heads, told, of_images = ("classes", "multi_label"), "classes", True

  def __init__(self, directory: str, **options: Any):
    super().__init__(directory, **options)
    model, params = self.model, self.params
    if model.head.task == "classes" and model.head.outputs == 1:
      raise ConfigError(f"{self.directory}: its head is for a number, not for classes")
    self.labels = self.saved.labels() or tuple(f"LABEL_{i}" for i in range(model.head.outputs))
    if self.takes_images:
      self.classify = ImageClassifier(model, params, self.saved.image_ops(model), self.labels,
                                      batch_size=self.batch_size)
    else:
      self.classify = TextClassifier(model, params, self.trained.tokenizer, self.labels,
                                     max_length=self.max_length, batch_size=self.batch_size)

  def __call__(self, inputs: Sequence[Any],
               second: Sequence[str] | None = None) -> list[Prediction | Labels]:
    """The class or labels of each text, pair of `inputs[i]` and `second[i]`, or image, in order.

    An image is a path, the bytes of a file, or a uint8 array [H, W, C].
    """
    if self.takes_images:
      return self.classify(listed(inputs))
    return self.classify(*self.cleaned.columns(text=firsts(inputs, second), second=second))


class Detector(Opened):
  """Images to the objects in them."""
  heads, told, of_images = ("boxes",), "objects", True

  def __init__(self, directory: str, *, batch_size: int = boxes.BATCH_SIZE, **options: Any):
    super().__init__(directory, batch_size=batch_size, **options)
    self.labels = self.saved.labels() or tuple(f"LABEL_{i}" for i in range(self.model.head.outputs))
    self.detect = boxes.Detector(self.model, self.params, self.saved.image_ops(self.model),
                                 self.labels, batch_size=self.batch_size)

  def __call__(self, images: Sequence[Any],
               threshold: float = boxes.THRESHOLD) -> list[list[boxes.Found]]:
    """The objects of each image whose score is `threshold` or more, best first.

    An object has a `label`, a `score`, and a `box`: left, top, width and height in pixels of the
    file. An image is a path, the bytes of a file, or a uint8 array [H, W, C].
    """
    return list(self.detect(listed(images), threshold))


class Tagger(Opened):
  """Texts to a tag for every word."""
  heads, told = ("tags",), "tags"

  def __call__(self, texts: Sequence[str | Sequence[str]]) -> list[Tagged]:
    """The tags of each text, which is a list of words, or is split into words at its spaces."""
    words = [text.split() if isinstance(text, str) else list(text) for text in listed(texts)]
    return [Tagged(**found) for found in self.predict([{"words": w} for w in words])]


class Answerer(Opened):
  """Questions and their contexts to answers, which are spans of the contexts."""
  heads, told = ("span",), "answers"

  def __call__(self, questions: Sequence[str], contexts: Sequence[str]) -> list[Answered]:
    """The answer to each question, in its context, of any length."""
    pairs = zip(listed(questions, contexts), contexts)
    return [Answered(**found) for found in self.predict(
        [{"question": question, "context": context} for question, context in pairs])]


class FillMask(Opened):
  """Texts to the likeliest tokens for each of their masks."""
  heads, told = ("mlm",), "masked tokens"

  def __call__(self, texts: Sequence[str]) -> list[list[dict[str, float]]]:
    """For each mask of each text, written by its name, such as [MASK]: tokens by probability."""
    return [x["masks"] for x in self.predict([{"text": t} for t in texts_of(texts)], "mlm")]


class Translator(Opened):
  """Texts to their translations, or to what else an encoder-decoder makes of them.

  Args:
    directory: a jtx workdir, or a Hugging Face directory, whose settings of generation are kept.
    beam: hypotheses of beam search, 1 is greedy; None is what the directory says, or 4.
    max_length: tokens that a text is cut to; None is what the config says, or all with positions.
    batch_size: texts at a time.
    languages: codes such as ("de_DE", "en_XX") of texts and translations, of a model that has many;
      "" is what the directory says.
    **options: of `Opened`: step.
  """
  heads, told = ("seq2seq",), "translations"

  def __init__(self, directory: str, *, beam: int | None = None, max_length: int | None = None,
               batch_size: int = 64, languages: tuple[str, str] = ("", ""), **options: Any):
    super().__init__(directory, batch_size=batch_size, **options)
    decode, writing = speaking.writing(self.saved, self.model)
    self.clean = speaking.cleaner(self.saved)
    tokenizers, writing = between(self.saved.tokenizers(), writing, *languages)
    with decode.unlocked():
      decode.batch_size = batch_size
      if max_length is not None:
        decode.max_source_length = max_length
      if beam is not None:
        if decode.method.name != "beam":
          decode.method = section(METHODS, "beam")
        edit(decode.method, {"beam": beam}, "decode.method")
    self.translator = TextTranslator(self.model, self.params, tokenizers, decode, writing=writing)

  def __call__(self, texts: Sequence[str]) -> list[str]:
    """The best translation of each text."""
    return [best[0].text for best in self.hypotheses(texts)]

  def hypotheses(self, texts: Sequence[str]) -> list[list[Hypothesis]]:
    """The `decode.method.n_best` translations of each text, best first, with their scores."""
    return self.translator(self.clean(listed(texts)))


class Generator(Opened):
  """Prompts to the texts that a language model goes on with, by greedy search if not told else.

  Args:
    directory: a Hugging Face directory or a jtx workdir.
    max_new_tokens: the most of a text.
    stop: strings that end a text, and are not part of it.
    beam: hypotheses of beam search; None samples, or takes the likeliest token.
    batch_size: prompts at a time.
    step: see `Opened`.
    **method: fields of `jtx.inference.decode.Sample`, such as temperature=0.8 and top_p=0.9, or of
      `Beam`; without any the likeliest token is taken.
  """
  heads, told = ("lm",), "going on with texts"

  def __init__(self, directory: str, *, max_new_tokens: int = 128, stop: Sequence[str] = (),
               beam: int | None = None, batch_size: int = 32, step: int | str | None = None,
               **method: Any):
    super().__init__(directory, step=step, batch_size=batch_size)
    if beam is not None:
      method["beam"] = beam
    elif not method.keys() - {"repetition_penalty"}:
      method["temperature"] = 0.0
    options = edit(section(METHODS, "sample" if beam is None else "beam"), method, "method")
    warn_of_length(self.saved, self.model, max_new_tokens, "a text by max_new_tokens")
    self.generator = TextGenerator(
        self.model, self.params, self.trained.tokenizer,
        method=build(METHODS, options, what="method"), batch_size=batch_size, limits=Limits(
            max_new_tokens=max_new_tokens, stop=tuple(listed(stop)),
            begin_ids=speaking.begin_ids(self.saved), end_ids=speaking.end_ids(self.saved)))

  def __call__(self, prompts: Sequence[str]) -> list[str]:
    """The best text behind each prompt."""
    return [best[0].text for best in self.continuations(prompts)]

  def continuations(self, prompts: Sequence[str],
                    seeds: Sequence[int] | None = None) -> list[list[Continuation]]:
    """The `n_best` texts behind each prompt, with tokens and log-probabilities.

    Args:
      prompts: texts.
      seeds: of each one's draws; None is by its number.
    """
    return self.generator(self.generator.prompts(listed(prompts, seeds)), seeds)

  def chat(self, conversations: Sequence[Sequence[Message]]) -> list[str]:
    """The next answer of each conversation, of messages with a `role` and a `content`.

    Raises:
      ConfigError: neither the run nor the tokenizer has a chat template.
    """
    template = self.template()
    return [best[0].text for best in self.generator(
        [self.generator.of_messages(template, c, f"conversation {i}")
         for i, c in enumerate(listed(conversations), 1)])]

  def template(self) -> Template:
    """The chat template."""
    if not (source := speaking.chat_template(self.saved)):
      raise ConfigError(f"{self.directory} has no chat template: give it prompts, not messages")
    return Template(source, self.trained.tokenizer.special_names())

  def stream(self, prompt: str, seed: int | None = None) -> Iterator[str]:
    """The text behind a prompt, in pieces as they come."""
    return self.generator.stream(self.generator.prompts([prompt])[0], seed)


def attention(model: Any, text: Any, second: str | None = None, *,
              layers: Sequence[int] | None = None, heads: Sequence[int] | None = None,
              mean: bool = False, kind: str | None = None) -> Any:
  """A figure of what the heads of a model attend to.

  Args:
    model: the folder of a model, or one of the classes above, opened.
    text: a text; or an image, of which the figure has the attention of all layers, rolled out.
    second: the second of a pair of texts; of a translator the translation, None is its own.
    layers: by number, from 1, and -1 is the last. None is all, or the last where all have more
      than 16 heads.
    heads: by number, from 1; None is all.
    mean: draw the mean over the heads.
    kind: of a translator, "cross", "encoder" or "decoder"; None is "cross".

  Returns:
    A `matplotlib.figure.Figure`, at the width of a paper's column or page.

  Raises:
    ConfigError: there is no such layer or head, or the model has nothing of the kind.
  """
  model = Opened(model) if isinstance(model, str) else model
  if kind is not None and not model.translates:
    raise ConfigError(f"kind={kind!r} is of a translator, which {model.directory} is not")
  if model.translates:
    second = Translator(model)([text])[0] if second is None else second
    weights = attention_lib.of_translation(model.model, model.params, model.saved.tokenizers(),
                                           source=text, target=second, kind=kind or "cross")
  elif model.takes_images:
    if mean or any(x is not None for x in (second, layers, heads)):
      raise ConfigError("second, layers, heads and mean are of texts; of an image the attention of"
                        " all layers is drawn, rolled out")
    predictor = ImagePredictor(model.model, model.params, model.saved.image_ops(model.model))
    return pictures.attention(model.model, model.params, predictor.array(text)[None])
  else:
    weights = attention_lib.of_text(model.model, model.params, model.trained.tokenizer, text,
                                    second=second, max_length=model.max_length)
  maps = attention_lib.panels(weights, layers, heads, mean)
  return attention_panels(maps, weights.queries, weights.keys)
