"""Parameters of another model that a run starts from; of a model with adapters, the frozen ones.

Checkpoints of a run with adapters have what it trains, and a checksum of each frozen array. The
arrays are read again where the config's `init_from` has them.
"""

import os
from typing import Any, Mapping

from flax.traverse_util import flatten_dict, unflatten_dict
import jax
import jax.numpy as jnp
import numpy as np

from jtx.config import ConfigDict, build
from jtx.errors import CheckpointError, ConfigError
from jtx.interop import trunks
from jtx.models import MODELS
from jtx.models.electra import discriminator
from jtx.saved.checkpoint import Checkpointer
from jtx.saved.checksums import digests


def converted(directory: str, config: ConfigDict) -> tuple[Any, Any]:
  """The model and the parameters of a folder without a run."""
  model = build(MODELS, config.model, what="model")
  abstract = {path: jax.ShapeDtypeStruct(shape, jnp.float32)
              for path, shape in trunks.param_shapes(model).items()}
  checkpoints = Checkpointer(os.path.join(directory, "checkpoints"))
  params, _, _ = checkpoints.restore_params(unflatten_dict(abstract, sep="/"))
  checkpoints.close()
  return model, params


def fitted(directory: str, model: Any, theirs: Any, params: Any,
           new_tokens: int = 0) -> tuple[Any, list[str]]:
  """Parameters of a folder's model for another; see `jtx.saved.folder.Saved.params_for`.

  Args:
    directory: the folder, for errors.
    model: that they are for.
    theirs: the folder's.
    params: of the folder's model.
    new_tokens: by how many the model's vocabulary may be larger.
  """
  theirs, params = discriminator(theirs, params)
  if type(theirs) is not type(model):
    raise ConfigError(f"{directory} holds a {type(theirs).__name__}, not a {type(model).__name__}")
  model = trunks.with_vocabulary_of(model, theirs, new_tokens)
  trunks.check_trunk(model, theirs, directory)
  flat = trunks.resized(model, flatten_dict(jax.tree.map(np.asarray, params), sep="/"), theirs)
  shapes = trunks.param_shapes(model)
  # What another task's outputs mean is nothing to this one's, be there as many of them.
  other = getattr(model, "head", None) and model.head.task != theirs.head.task
  found = {path: np.asarray(x) for path, x in flat.items()
           if path in shapes and x.shape == shapes[path]
           and not (other and path.startswith("task_head/output"))}
  return unflatten_dict(found, sep="/"), [path for path in shapes if path not in found]


def frozen(params: Any, abstract: Any, folder: str,
           expected: Mapping[str, int] | None = None) -> Any:
  """The frozen parameters, on devices.

  Args:
    params: nested dict of a folder's arrays; others than those wanted are left.
    abstract: nested dict of what is frozen, with shardings.
    folder: for errors.
    expected: checksums, as `checksums` gave them when training began; None is any.

  Raises:
    ConfigError: the folder does not have one of them.
    CheckpointError: one is another than it was.
  """
  given, wanted = flatten_dict(params, sep="/"), flatten_dict(abstract, sep="/")
  if absent := sorted(wanted.keys() - given.keys()):
    raise ConfigError(f"model.lora freezes {absent[0]}, which {folder} does not have; train it, by"
                      " model.lora.trained")
  for path, x in wanted.items():
    if x.shape != given[path].shape:
      raise ConfigError(f"model.lora freezes {path}, of which {folder} has {given[path].shape}, and"
                        f" the model {x.shape}; train it, by model.lora.trained, or leave"
                        " tokenizer.delimiters unset")
  placed = unflatten_dict({path: jax.device_put(np.asarray(given[path]), x.sharding)
                           for path, x in wanted.items()}, sep="/")
  if expected is not None:
    found = checksums(placed)
    if other := sorted(path for path in found if found[path] != expected[path]):
      raise CheckpointError(f"{folder} is not what adapters were trained on: its {other[0]} is"
                            " another; put back what was there")
  return placed


def checksums(params: Any) -> dict[str, int]:
  """A checksum of every frozen array, by path."""
  return digests(flatten_dict(params, sep="/"))
