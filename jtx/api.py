"""The Python interface that `import jtx` gives: models of folders, loaded, saved and used.

  embed = jtx.Embedder(DIR)
  vectors = embed(["a text", "another"])  # [2, D]
  classify = jtx.Classifier(DIR)
  classify(["a text"])  # [Prediction(label="1", scores={...})]
  classify(["cat.jpg"])  # likewise, where DIR has a vision transformer
"""

from typing import Any, Sequence

from jtx.errors import ConfigError
from jtx.inference.images import ImageClassifier, takes_images
from jtx.inference.predictions import Labels, Prediction
from jtx.inference.texts import TextClassifier, TextEmbedder
from jtx.saved.folder import open_saved
from jtx.saved.pretrained import load_pretrained, load_tokenizer, save_pretrained

__all__ = ("Classifier", "Embedder", "load_pretrained", "load_tokenizer", "save_pretrained")


class Embedder(TextEmbedder):
  """Texts to vectors: the mean of the last hidden states, or that of the first token.

  Args:
    directory: a Hugging Face directory or a jtx workdir.
    pool: "mean" or "first".
    normalize: to length 1.
    max_length: tokens that a text is cut to.
    batch_size: texts at a time.
  """

  def __init__(self, directory: str, *, pool: str = "mean", normalize: bool = True,
               max_length: int = 256, batch_size: int = 64):
    saved = open_saved(directory)
    model, params = saved.load()
    super().__init__(model, params, saved.tokenizer_for(model), pool=pool, normalize=normalize,
                     max_length=max_length, batch_size=batch_size)


class Classifier:
  """Texts, pairs of texts, or images to their classes.

  Args:
    directory: a Hugging Face directory or a jtx workdir with a head for classes.
    max_length: tokens that a text or pair is cut to.
    batch_size: texts or images at a time.
  """

  def __init__(self, directory: str, *, max_length: int = 256, batch_size: int = 64):
    saved = open_saved(directory)
    model, params = saved.load()
    if model.head.task == "classes" and model.head.outputs == 1 or (
        model.head.task not in ("classes", "multi_label")):
      raise ConfigError(f"{directory}: its head is for {model.head.task!r}, not for classes")
    self.labels = saved.labels() or tuple(f"LABEL_{i}" for i in range(model.head.outputs))
    if takes_images(model):
      self.classify = ImageClassifier(model, params, saved.image_ops(model), self.labels,
                                      batch_size=batch_size)
    else:
      self.classify = TextClassifier(model, params, saved.tokenizer_for(model), self.labels,
                                     max_length=max_length, batch_size=batch_size)

  def __call__(self, inputs: Sequence[Any],
               second: Sequence[str] | None = None) -> list[Prediction | Labels]:
    """The class or labels of each text, pair of `inputs[i]` and `second[i]`, or image, in order.

    An image is a path, the bytes of a file, or a uint8 array [H, W, C].
    """
    return self.classify(list(inputs), *([] if second is None else [second]))
