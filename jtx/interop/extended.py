"""Models with more tokens or longer texts than the one that their parameters are of."""

import dataclasses
from typing import Any, Mapping, Sequence

from flax.traverse_util import flatten_dict, unflatten_dict
import jax
import numpy as np

from jtx.errors import ConfigError
from jtx.interop.family import task_of
from jtx.interop.trunks import param_shapes
from jtx.models.encoder import Encoder
from jtx.models.global_tokens import OF_TEXTS, GlobalConfig, tokens_for
from jtx.nn.positions import Learned

PROJECTIONS = ("query", "key", "value")


def with_tokens(model: Any, params: Any, first: int, pieces: Sequence[Sequence[int]]) -> Any:
  """A model whose tokens from `first` on are new, and its parameters.

  A new token has the mean of the tokens that it was before, in the embedding and wherever else
  tokens have rows.

  Args:
    model: with a `vocab_size`.
    params: its parameters.
    first: id of the first new token; rows from there on stood for nothing.
    pieces: of each new token, the ids that it was before.

  Returns:
    The model and its parameters, float32 NumPy arrays.
  """
  size = max(model.vocab_size, first + len(pieces))
  wider = model.clone(vocab_size=size)
  shapes, result = param_shapes(wider), {}
  for path, x in _flat(params).items():
    if x.shape != shapes[path]:
      axis = next(a for a, (old, new) in enumerate(zip(x.shape, shapes[path])) if old != new)
    elif size == model.vocab_size and path.endswith(("embed/embedding", "mlm_head/bias")):
      axis = 0  # the model had rows to spare
    else:
      result[path] = x
      continue
    rows = np.moveaxis(x, axis, 0)
    more = np.stack([rows[list(ids)].mean(0) for ids in pieces])
    whole = np.concatenate([rows[:first], more, rows[first + len(pieces):]])
    result[path] = np.moveaxis(whole, 0, axis)
  return wider, unflatten_dict(result, sep="/")


def lengthened(model: Encoder, params: Any, max_length: int, window: int,
               separator: int) -> tuple[Encoder, Any]:
  """An encoder of long texts, of one whose layers see all (Beltagy et al. 2020, section 5).

  Its vectors of positions are repeated, and global tokens begin with the projections of all.

  Args:
    model: an encoder with learned positions.
    params: its parameters.
    max_length: tokens of a text.
    window: places that a query sees, half of them to each side.
    separator: id of the token behind a text.

  Returns:
    The model and its parameters, float32 NumPy arrays.

  Raises:
    ConfigError: the model is of another kind, or `max_length` and `window` are not possible.
  """
  if not isinstance(model, Encoder) or not isinstance(model.stack.position, Learned) or (
      set(model.stack.pattern) != {"global"} or model.stack.causal):
    raise ConfigError("only an encoder with learned positions, whose layers see all, such as"
                      " RoBERTa, can be made one of long texts")
  stack, position = model.stack, model.stack.position
  if max_length <= position.limit:
    raise ConfigError(f"max_length={max_length} must be more than the {position.limit} tokens that"
                      " the model reads")
  if window < 2 or window % 2:
    raise ConfigError(f"window={window} must be an even number of places, 2 or more")
  table = position.first_position + max_length
  attention = dataclasses.replace(stack.block.attention, global_projections=True)
  tokens = tokens_for(task_of(model.heads))
  longer = model.clone(
      globals=GlobalConfig(tokens=tokens, separator=separator if tokens in OF_TEXTS else None),
      stack=dataclasses.replace(
          stack, pattern=("global_tokens",), window=window // 2,
          position=dataclasses.replace(position, max_length=table),
          block=dataclasses.replace(stack.block, attention=attention)))
  result = {}
  for path, x in _flat(params).items():
    if path.endswith("position_embedding"):
      body = x[position.first_position:]
      index = np.arange(max_length) % len(body)
      x = np.concatenate([x[:position.first_position], body[index]])
    result[path] = x
    parent, _, leaf = path.rpartition("/")
    module, _, name = parent.rpartition("/")
    if name in PROJECTIONS and module.endswith("/attention"):
      result[f"{module}/global_{name}/{leaf}"] = x
  return longer, unflatten_dict(result, sep="/")


def _flat(params: Any) -> Mapping[str, np.ndarray]:
  return flatten_dict(jax.tree.map(lambda x: np.asarray(x, np.float32), params), sep="/")
