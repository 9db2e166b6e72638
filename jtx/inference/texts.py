"""What a trained encoder says of texts: the outputs of its head, embeddings, or classes.

  embed = Embedder(DIR)
  vectors = embed(["a text", "another"])  # [2, D]
  classify = Classifier(DIR)
  classify(["a text"])  # [Prediction(label="1", scores={...})]
  classify(["cat.jpg"])  # likewise, where DIR has a vision transformer

Texts of any number and lengths are sorted by length, padded to one of few shapes and run by
a program that is compiled once a shape.
"""

import functools
from typing import Any, Callable, Mapping, NamedTuple, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jtx.data import batching
from jtx.errors import ConfigError
from jtx.models.encoder import pool
from jtx.parallel import processes, sharding

Example = Mapping[str, Any]  # with `text` [T] and `text_types` [T], int32


@functools.partial(jax.jit, static_argnums=(0, 1))
def run(function: Callable, model: nn.Module, params: Any, batch: Mapping[str, jax.Array]):
  return function(model, params, batch)


def head_outputs(model: nn.Module, params: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
  """[B, outputs] of pooled heads, [B, T, outputs] of heads of tokens."""
  outputs = model.apply({"params": params}, batch, method="predict")
  return outputs if model.head.pool == "none" else outputs[:, 0]


class Predictor:
  """Runs a function of a model over examples.

  Args:
    model: an Encoder.
    params: its parameters.
    function: (model, params, batch of B rows) -> [B, ...], or [B, T, ...] for every token.
    by_token: whether it is for every token.
    batch_size: texts at a time.
    mesh: to split batches over; None is one device.
  """

  def __init__(self, model: nn.Module, params: Any, function: Callable = head_outputs,
               by_token: bool | None = None, batch_size: int = 64, mesh=None):
    self.model, self.params, self.function = model, params, function
    self.by_token = model.head.pool == "none" if by_token is None else by_token
    self.batch_size, self.sharding = batch_size, None
    if mesh is not None:
      self.batch_size = sharding.padded_batch(batch_size, mesh)
      self.sharding = sharding.batch_sharding(mesh)

  def __call__(self, examples: Sequence[Example]) -> list[np.ndarray]:
    """The function's values in the order of the examples; of tokens, as many as the text has."""
    results: list[Any] = [None] * len(examples)
    lengths = [len(e["text"]) for e in examples]
    self.model.position.check_length(max(lengths, default=0))
    limit = self.model.position.limit or batching.NO_LIMIT
    for group in batching.groups(lengths, self.batch_size):
      length = batching.bucket(lengths[group[-1]], limit)
      batch = batching.pad("text", [examples[i]["text"] for i in group], self.batch_size, length,
                           {"_types": [examples[i]["text_types"] for i in group]})
      if self.sharding is not None:
        batch = sharding.spread(batch, self.batch_size, self.sharding)
      values = processes.to_host(run(self.function, self.model, self.params, batch))
      for i, value in zip(group, values):
        results[i] = value[:lengths[i]] if self.by_token else value
    return results


def encode(tokenizer, texts: Sequence[str], second: Sequence[str] | None, max_length: int,
           special: bool = False) -> list[Example]:
  """Examples of texts or pairs; see `Tokenizer.encode_texts`."""
  encodings = tokenizer.encode_texts(texts, second, max_length=max_length, special=special)
  return [{"text": e.ids, "text_types": e.types} for e in encodings]


# ------------------------------------------------------------------- from Python, by directory


def longest(model: nn.Module, max_length: int) -> int:
  """`max_length`, or the model's positions where they are fewer."""
  limit = model.position.limit
  return max_length if limit is None else min(max_length, limit)


def tokenizer_of(directory: str, model: nn.Module):
  """The directory's tokenizer.

  Raises:
    ConfigError: it is not of the model's size.
  """
  from jtx.saved import pretrained
  tokenizer = pretrained.load_tokenizer(directory)
  if tokenizer.vocab_size != model.vocab_size:
    raise ConfigError(f"{directory}: its tokenizer has {tokenizer.vocab_size} tokens, and its"
                      f" model's embedding {model.vocab_size}")
  return tokenizer


class Embedder:
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
    from jtx.models.encoder import POOLS
    from jtx.saved import pretrained
    if pool not in POOLS[:2]:
      raise ConfigError(f"pool={pool!r}: valid are 'first' and 'mean'")
    model, params = pretrained.load_pretrained(directory)
    self.tokenizer = tokenizer_of(directory, model)
    self.max_length = longest(model, max_length)
    function = functools.partial(text_vectors, pool, normalize)
    self.predictor = Predictor(model, params, function, False, batch_size)

  def __call__(self, texts: Sequence[str]) -> np.ndarray:
    """[N] texts to float32 [N, D]."""
    values = self.predictor(encode(self.tokenizer, list(texts), None, self.max_length))
    return np.stack(values) if values else np.zeros((0, self.predictor.model.width), np.float32)


def text_vectors(kind: str, normalize: bool, model: nn.Module, params: Any,
                 batch: Mapping[str, jax.Array]) -> jax.Array:
  """[B, D]: the pooled hidden states of each text."""
  hidden = model.apply({"params": params}, batch).astype(jnp.float32)
  x = pool(kind, hidden, batch["text_segment_ids"], batch["text_positions"], 1)[:, 0]
  return x / jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), 1e-12) if normalize else x


class Prediction(NamedTuple):
  label: str  # the likeliest class
  scores: dict[str, float]  # probability of each class


class Classifier:
  """Texts, pairs of texts, or images to their classes.

  Args:
    directory: a Hugging Face directory or a jtx workdir with a head for classes.
    max_length: tokens that a text or pair is cut to.
    batch_size: texts or images at a time.
  """

  def __init__(self, directory: str, *, max_length: int = 256, batch_size: int = 64):
    from jtx.saved import pretrained
    model, params = pretrained.load_pretrained(directory)
    if model.head.task != "classes" or model.head.outputs == 1:
      raise ConfigError(f"{directory}: its head is for {model.head.task!r}, not for classes")
    self.labels = (pretrained.labels(directory)
                   or tuple(f"LABEL_{i}" for i in range(model.head.outputs)))
    self.of_images = hasattr(model, "image")
    if self.of_images:
      from jtx.inference.images import ImagePredictor
      self.predictor = ImagePredictor(directory, model, params, batch_size=batch_size)
      return
    self.tokenizer = tokenizer_of(directory, model)
    self.max_length = longest(model, max_length)
    self.predictor = Predictor(model, params, batch_size=batch_size)

  def __call__(self, texts: Sequence[Any],
               second: Sequence[str] | None = None) -> list[Prediction]:
    """The class of each text, of each pair of `texts[i]` and `second[i]`, or image, in order.

    An image is a path, the bytes of a file, or a uint8 array [H, W, C].
    """
    if self.of_images:
      return [prediction(x[0], self.labels) for x in self.predictor(list(texts))]
    examples = encode(self.tokenizer, list(texts), second and list(second), self.max_length)
    return [prediction(x, self.labels) for x in self.predictor(examples)]


def prediction(outputs: np.ndarray, labels: Sequence[str]) -> Prediction:
  """Of logits [C]."""
  p = np.exp(outputs - outputs.max())
  p /= p.sum()
  return Prediction(labels[int(p.argmax())], dict(zip(labels, map(float, p))))
