"""Predictions of a trained encoder for texts: outputs of its head, vectors, or classes.

Texts of any number and lengths are sorted by length, padded to one of few shapes and run by
a program that is compiled once a shape.
"""

import functools
from typing import Any, Callable, Mapping, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jtx.data import batching
from jtx.data.tokenizers.tokenizer import Tokenizer
from jtx.errors import ConfigError, DataError
from jtx.inference.predictions import Labels, Prediction, predicted
from jtx.models.heads import only_pools
from jtx.models.pooling import POOLS
from jtx.models.pooling import pool as pool_texts
from jtx.nn.numerics import unit
from jtx.parallel import processes, sharding

# With `text` [T] and `text_types` [T], int32; for a head with both_orders the same of `swapped`.
Example = Mapping[str, Any]


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
    model: of texts.
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
    fields = ("text", "swapped") if "swapped" in next(iter(examples), ()) else ("text",)
    lengths = [max(len(e[field]) for field in fields) for e in examples]
    for stack in self.model.stacks.values():
      stack.position.check_length(max(lengths, default=0))
    limit = self.model.longest or batching.NO_LIMIT
    for group in batching.groups(lengths, self.batch_size):
      length = batching.bucket(lengths[group[-1]], limit)
      parts = [batching.pad("text", [examples[i][field] for i in group], self.batch_size, length,
                            {"_types": [examples[i][f"{field}_types"] for i in group]})
               for field in fields]
      batch = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
      if self.sharding is not None:
        batch = sharding.spread(batch, len(fields) * self.batch_size, self.sharding)
      values = processes.to_host(run(self.function, self.model, self.params, batch))
      for i, value in zip(group, values):
        results[i] = value[:lengths[i]] if self.by_token else value
    return results

  def empty(self) -> np.ndarray:
    """The values of no text, for a function that is not for every token."""
    one = jax.eval_shape(functools.partial(self.function, self.model), self.params,
                         self.model.example())
    return np.zeros((0, *one.shape[1:]), one.dtype)


def encode(tokenizer: Tokenizer, texts: Sequence[str], second: Sequence[str] | None,
           max_length: int, special: bool = False, both_orders: bool = False) -> list[Example]:
  """Examples of texts or pairs; see `Tokenizer.encode_texts`.

  Raises:
    DataError: `both_orders` is asked for, and there is no second text.
  """
  encodings = tokenizer.encode_texts(texts, second, max_length=max_length, special=special)
  examples = [{"text": e.ids, "text_types": e.types} for e in encodings]
  if both_orders:
    if second is None:
      raise DataError("the model compares two texts, and there is no second one")
    swapped = encode(tokenizer, second, texts, max_length, special)
    examples = [e | {f"swapped{key[4:]}": x for key, x in s.items()}
                for e, s in zip(examples, swapped)]
  return examples


def longest(model: nn.Module, max_length: int) -> int:
  """`max_length`, or the model's positions where they are fewer."""
  limit = model.longest
  return max_length if limit is None else min(max_length, limit)


def text_vectors(kind: str, normalize: bool, model: nn.Module, params: Any,
                 batch: Mapping[str, jax.Array]) -> jax.Array:
  """[B, D]: the pooled hidden states of each text."""
  hidden = model.apply({"params": params}, batch).astype(jnp.float32)
  x = pool_texts(kind, hidden, batch["text_segment_ids"], batch["text_positions"], 1)[:, 0]
  return unit(x) if normalize else x


class TextEmbedder:
  """Texts to vectors: pooled hidden states of the last layer.

  Args:
    model: an Encoder.
    params: its parameters.
    tokenizer: of its texts.
    pool: "mean", "first" or "last" token; None is that of a head that only pools, or "mean".
    normalize: to length 1; None is as such a head does, or True.
    max_length: tokens that a text is cut to.
    batch_size: texts at a time.
  """

  def __init__(self, model: nn.Module, params: Any, tokenizer: Tokenizer, *,
               pool: str | None = None, normalize: bool | None = None, max_length: int = 256,
               batch_size: int = 64):
    own = only_pools(model.head)
    pool = pool or (model.head.pool if own else "mean")
    normalize = (model.head.normalize if own else True) if normalize is None else normalize
    if pool == "none" or pool not in POOLS:
      raise ConfigError(f"pool={pool!r}: valid are 'first', 'last' and 'mean'")
    self.tokenizer, self.max_length = tokenizer, longest(model, max_length)
    function = functools.partial(text_vectors, pool, normalize)
    self.predictor = Predictor(model, params, function, by_token=False, batch_size=batch_size)

  def __call__(self, texts: Sequence[str]) -> np.ndarray:
    """[N] texts to float32 [N, D]."""
    values = self.predictor(encode(self.tokenizer, list(texts), None, self.max_length))
    return np.stack(values) if values else self.predictor.empty()


class TextClassifier:
  """Texts, or pairs of texts, to their classes.

  Args:
    model: an Encoder with a head for classes.
    params: its parameters.
    tokenizer: of its texts.
    labels: names of the classes.
    max_length: tokens that a text or pair is cut to.
    batch_size: texts at a time.
  """

  def __init__(self, model: nn.Module, params: Any, tokenizer: Tokenizer, labels: Sequence[str], *,
               max_length: int = 256, batch_size: int = 64):
    self.tokenizer, self.labels = tokenizer, labels
    self.max_length = longest(model, max_length)
    self.predictor = Predictor(model, params, batch_size=batch_size)

  def __call__(self, texts: Sequence[str],
               second: Sequence[str] | None = None) -> list[Prediction | Labels]:
    """The class or labels of each text, or of each pair of `texts[i]` and `second[i]`, in order."""
    head = self.predictor.model.head
    examples = encode(self.tokenizer, list(texts), second and list(second), self.max_length,
                      both_orders=bool(head.both_orders))
    return [predicted(head, x, self.labels) for x in self.predictor(examples)]
