"""Texts of several fields, such as the choices of a question, as rows of one batch."""

from typing import Sequence

import jax.numpy as jnp

from jtx.errors import ConfigError
from jtx.objectives.sums import Batch


def stacked(batch: Batch, fields: Sequence[str]) -> Batch:
  """The texts of several fields as those of a larger batch: `text` [F * B, T], field after field.

  What is aligned with them comes along.

  Raises:
    ConfigError: rows of the fields differ in length.
  """
  first, lengths = fields[0], [batch[field].shape[1] for field in fields]
  if len(set(lengths)) > 1:
    raise ConfigError(f"data.ops: the fields {', '.join(fields)} need rows of one length, not"
                      f" {' and '.join(map(str, lengths))}")
  suffixes = ["", *(key.removeprefix(first) for key in batch if key.startswith(f"{first}_"))]
  return {f"text{suffix}": jnp.concatenate([batch[f"{field}{suffix}"] for field in fields])
          for suffix in suffixes}


def numbered(batch: Batch, stem: str) -> list[str]:
  """The fields STEM_0, STEM_1, ... that a batch has."""
  fields = []
  while f"{stem}_{len(fields)}" in batch:
    fields.append(f"{stem}_{len(fields)}")
  return fields


def in_both_orders(batch: Batch) -> Batch:
  """A batch as the model takes it: rows of `swapped`, where it has them, after those of `text`."""
  return stacked(batch, ("text", "swapped")) if "swapped" in batch else batch
