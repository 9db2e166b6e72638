"""Rows of texts that are filled up to one length as a part of their text, as SigLIP has it."""

from typing import Any

import jax.numpy as jnp

from jtx.errors import ConfigError
from jtx.parallel.sharding import Batch


def check(model: Any) -> None:
  """Raises ConfigError where rows of an `Encoder` are filled and its fields do not go with it."""
  if model.embedding.pad_id is None:
    return
  filled = f"pad_id={model.embedding.pad_id} fills rows up to a length"
  if model.longest is None:
    raise ConfigError(f"{filled}, and the positions of texts have none; use 'learned'")
  if model.mlm or model.features.layers or model.head.task != "embedding":
    raise ConfigError(f"{filled}, so that only a text as a whole has outputs: it goes with"
                      " head.task='embedding', without mlm and features")


def filled(model: Any, batch: Batch, num_texts: int = 1) -> Batch:
  """The batch with the tokens `embedding.pad_id` of an `Encoder` that fill its rows, if it has.

  Raises:
    ConfigError: a row has room for several texts.
  """
  pad_id = model.embedding.pad_id
  if pad_id is None:
    return batch
  if num_texts > 1:
    raise ConfigError(f"pad_id={pad_id} fills a row as a part of its text, and rows here have up to"
                      f" {num_texts} texts; use the layout 'pad' in data.ops")
  text = batch["text"]
  room = (0, 0), (0, max(model.longest - text.shape[1], 0))
  text = jnp.pad(jnp.where(batch["text_segment_ids"] > 0, text, pad_id), room,
                 constant_values=pad_id)
  return {"text": text, "text_segment_ids": jnp.ones_like(text),
          "text_positions": jnp.broadcast_to(jnp.arange(text.shape[1]), text.shape)}
