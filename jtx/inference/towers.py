"""Vectors of texts of two towers, and which of several texts an image fits."""

import functools
from typing import Any, Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jtx.data import batching
from jtx.models.two_towers import normed
from jtx.parallel import processes

Encode = Callable[[str], np.ndarray]  # a text to its tokens [T]


@functools.partial(jax.jit, static_argnums=0)
def embed(model: Any, params: Any, batch: dict[str, jax.Array]) -> jax.Array:
  return model.apply({"params": params}, batch, method="embed_texts")


def text_vectors(model: Any, params: Any, encode: Encode, texts: Sequence[str],
                 batch_size: int = 64) -> np.ndarray:
  """Vectors [N, W] of length 1, in the order of the texts.

  Args:
    model: a `TwoTowers`.
    params: its parameters.
    encode: with the special tokens.
    texts: to embed.
    batch_size: texts at a time.

  Raises:
    ConfigError: a text has more tokens than the model takes.
  """
  rows = [encode(text) for text in texts]
  length = batching.bucket(max(map(len, rows)), model.longest or batching.NO_LIMIT)
  found = []
  for start in range(0, len(rows), batch_size):
    part = rows[start:start + batch_size]
    batch = batching.pad("text", part, batch_size, length)
    found.append(processes.to_host(embed(model, params, batch))[:len(part)])
  return np.concatenate(found)


def class_vectors(model: Any, params: Any, encode: Encode, names: Sequence[str],
                  templates: Sequence[str], batch_size: int = 64) -> jax.Array:
  """Vectors [C, W] of classes: the mean over templates, made of length 1.

  Radford et al. 2021, section 3.1.4. Arguments are as for `text_vectors`.
  """
  texts = [template.replace("{}", name.replace("_", " "))
           for name in names for template in templates]
  vectors = text_vectors(model, params, encode, texts, batch_size)
  return normed(jnp.asarray(vectors).reshape(len(names), len(templates), -1).mean(1))


def fits(model: Any, params: Any, images: np.ndarray, texts: np.ndarray) -> np.ndarray:
  """The probability [B, N] of each text for an image.

  They are a softmax over the texts; of a model with a bias, which was trained to tell each pair
  alone, a sigmoid of each.
  """
  scores = np.asarray(model.apply({"params": params}, images, texts, method="scores"))
  return np.asarray(jax.nn.sigmoid(scores) if model.similarity.biased
                    else jax.nn.softmax(scores, -1))
