"""Trained models from and to directories: of Hugging Face, or workdirs of jtx.

  model, params = load_pretrained(DIR)
  hidden = model.apply({"params": params}, batch)
  save_pretrained(NEW, model, params, tokenizer)

What is expensive to import is imported where it is used.
"""

import os
from typing import Any, Sequence

from jtx import storage
from jtx.errors import ConfigError, DataError, nearest

FORMATS = ("hf", "jtx")


def load_pretrained(directory: str, architecture: str | None = None,
                    dtype: str = "auto") -> tuple[Any, Any]:
  """The model of a directory, and its parameters.

  Args:
    directory: a Hugging Face model (config.json and model.safetensors), or the workdir of a
      run or of `experiments.convert`.
    architecture: the class of `transformers` to open a Hugging Face model as, such as
      "BertModel"; None is the one that its config.json names.
    dtype: of the computation: "float32", "bfloat16", or "auto", which is what a workdir's
      config says, and bfloat16 on accelerators.

  Returns:
    A Linen module, and its parameters, a tree of float32 arrays.

  Raises:
    ConfigError: a config that can't be used.
    DataError: weights that can't be.
    CheckpointError: a workdir without a good checkpoint.
  """
  import jax

  from jtx.interop import huggingface
  if huggingface.is_hf(directory):
    model, params = huggingface.load(directory, architecture, dtype)
    return model, jax.tree.map(jax.numpy.asarray, params)
  if architecture is not None:
    raise ConfigError(f"architecture={architecture!r}: {directory} is a workdir of jtx, whose"
                      " config says what the model is; leave it unset")
  if is_converted(directory):
    model, params = load_converted(directory)
  else:
    from jtx.saved.workdir import load_run
    task, params, _ = load_run(directory)
    model = task.model
  return model if dtype == "auto" else model.clone(dtype=dtype), params


def load_params(directory: str, model: Any) -> tuple[Any, list[str]]:
  """Parameters for fine-tuning `model` from a trained one.

  Args:
    directory: as for `load_pretrained`.
    model: an Encoder or Vit. Its layers and embeddings must be those of the directory; its heads
      may differ, and so may the size of its images, for which positions are interpolated.

  Returns:
    A tree of float32 NumPy arrays, and the paths of the heads' parameters that the directory
    does not have, which are not in the tree.

  Raises:
    ConfigError: a field of the model is not that of the directory; the sentence names it.
    DataError: weights that can't be used.
  """
  from jtx.interop import huggingface
  if huggingface.is_hf(directory):
    return huggingface.load_params(directory, model)
  return load_params_of_workdir(directory, model)


def trunk_fields(directory: str, name: str) -> dict[str, Any]:
  """The fields of a trained model without its heads, for a config that goes on from it.

  Args:
    directory: as for `load_pretrained`.
    name: of `jtx.models.MODELS`, the kind of model that is wanted.

  Raises:
    ConfigError: it is of another kind.
  """
  from jtx.interop import attributes, huggingface
  if huggingface.is_hf(directory):
    source = huggingface.open_source(directory)
    found = source.family.model
    fields = attributes.model_fields(source.family, source.config, False, "none", source.path)
  else:
    fields = huggingface.read_config(directory)["model"]
    found = fields.pop("name")
  if found != name:
    raise ConfigError(f"{directory} holds a model of the kind {found!r}, not {name!r}")
  from jtx.config import from_plain
  heads = ("head", "decoder", "mlm")
  return {key: from_plain(value) for key, value in fields.items() if key not in heads}


def finetuned_fields(directory: str, task: str) -> dict[str, Any]:
  """The fields of a trained encoder with a head for another task, whose outputs are not set.

  The head is the family's own; after a workdir it is one linear layer, on the mean of a text's
  tokens where they are pooled, since pretraining without a second task does not train [CLS].

  Args:
    directory: as for `load_pretrained`.
    task: of `jtx.models.encoder.TASKS`.

  Raises:
    ConfigError: it is no encoder, or its family has no such head.
  """
  from jtx.interop import huggingface
  if huggingface.is_hf(directory):
    return huggingface.finetuned_fields(huggingface.open_source(directory), task)
  from jtx.models.encoder import BY_TOKEN
  head = {"task": task, "pool": "none" if task in BY_TOKEN else "mean"}
  return trunk_fields(directory, "encoder") | {"head": head}


def load_params_of_workdir(directory: str, model: Any) -> tuple[Any, list[str]]:
  from flax.traverse_util import flatten_dict, unflatten_dict
  import jax
  import numpy as np

  from jtx.interop import attributes
  from jtx.interop.huggingface import param_shapes
  theirs, params = load_pretrained(directory)
  if type(theirs) is not type(model):
    raise ConfigError(f"{directory} holds a {type(theirs).__name__}, not a {type(model).__name__}")
  attributes.check_trunk(model, theirs, directory)
  flat = flatten_dict(jax.tree.map(np.asarray, params), sep="/")
  if hasattr(model, "resized"):
    flat = model.resized(flat, theirs)
  shapes = param_shapes(model)
  found = {path: np.asarray(x) for path, x in flat.items()
           if path in shapes and x.shape == shapes[path]}
  return unflatten_dict(found, sep="/"), [path for path in shapes if path not in found]


def save_pretrained(directory: str, model: Any, params: Any, tokenizer: Any = None,
                    format: str = "hf", labels: Sequence[str] | None = None,
                    dtype: str = "float32") -> None:
  """Writes a model, whole or not at all, into a directory that holds nothing yet.

  Args:
    directory: to make.
    model: a Linen module; an Encoder for format "hf".
    params: its parameters.
    tokenizer: a jtx.data.tokenizers.tokenizer.Tokenizer, written beside the model.
    format: "hf", which `transformers` loads, or "jtx", a workdir without a run.
    labels: names of classes or tags.
    dtype: of the tensors in format "hf"; "jtx" is float32.

  Raises:
    ConfigError: what can't be written, and why.
  """
  if format not in FORMATS:
    raise ConfigError(f"format={format!r}: {nearest(format, FORMATS)}")
  from jtx.interop import huggingface
  if format == "hf":
    huggingface.save(directory, model, params, tokenizer, labels, dtype)
    return
  if dtype != "float32":
    raise ConfigError(f"dtype={dtype!r}: format='jtx' has float32 only")
  save_converted(directory, model, params, tokenizer, labels)


def labels(directory: str) -> tuple[str, ...] | None:
  """The names of a model's classes or tags, or None where it has none.

  Args:
    directory: as for `load_pretrained`.
  """
  from jtx.interop import huggingface
  if huggingface.is_hf(directory):
    return huggingface.label_names(directory)
  config = huggingface.read_config(directory)
  if is_converted(directory):
    return None if config["labels"] is None else tuple(config["labels"])
  return open_dataset(directory).labels or None


def load_tokenizer(directory: str) -> Any:
  """The tokenizer of a model's text, a jtx.data.tokenizers.tokenizer.Tokenizer.

  Args:
    directory: as for `load_pretrained`, or one of tokenizer files alone: tokenizer.json or
      vocab.txt. Of a workdir with several it is that of the first field.

  Raises:
    DataError: there is none, or it can't be read.
  """
  from jtx.data.tokenizers.files import from_json, load_tokenizers, read_tokenizer
  from jtx.interop import huggingface
  alone = not storage.exists(os.path.join(directory, huggingface.CONFIG))
  if alone or huggingface.is_hf(directory):
    return read_tokenizer(directory)
  if is_converted(directory):
    texts = load_tokenizers(directory)
    if texts is None:
      raise DataError(f"{directory} has no tokenizer: the model was saved without one")
    return from_json(texts["text"])
  data = open_dataset(directory)
  return data.tokenizers[data.fields[0]]


# ----------------------------------------------------- a workdir that holds a model, no run


def is_converted(directory: str) -> bool:
  """Whether a workdir is one that `save_converted` wrote."""
  from jtx.interop.huggingface import read_config
  config = read_config(directory)
  if "model" not in config:
    raise ConfigError(f"{os.path.join(directory, 'config.json')} has neither the model_type of a"
                      " Hugging Face model nor the model of a jtx workdir")
  return "data" not in config


def save_converted(directory: str, model: Any, params: Any, tokenizer: Any,
                   labels: Sequence[str] | None) -> None:
  """config.json with the model's section, the tokenizer, and checkpoints/0."""
  import jax

  from jtx import config as config_lib
  from jtx.data.tokenizers.files import save_tokenizers
  from jtx.interop import attributes, huggingface
  from jtx.saved.checkpoint import Checkpointer
  content = config_lib.ConfigDict({"model": attributes.model_section(model)})
  content.labels = None if labels is None else tuple(labels)
  tokenizers = {} if tokenizer is None else {"text": tokenizer.to_json()}
  with huggingface.NewDirectory(directory) as path:
    config_lib.save(content, os.path.join(path, "config.json"))
    if tokenizers:
      save_tokenizers(tokenizers, path)
    checkpoints = Checkpointer(os.path.join(path, "checkpoints"))
    checkpoints.save(0, {"params": jax.tree.map(jax.numpy.asarray, params)},
                     {"tokenizers": tokenizers, "labels": content.labels, "cursor": [0, 0]})
    checkpoints.close()


def load_converted(directory: str) -> tuple[Any, Any]:
  """The model and parameters that `save_converted` wrote."""
  from flax.traverse_util import unflatten_dict
  import jax

  from jtx import config as config_lib
  from jtx.interop.huggingface import param_shapes
  from jtx.models import MODELS
  from jtx.saved.checkpoint import Checkpointer
  config = config_lib.load(os.path.join(directory, "config.json"))
  model = config_lib.build(MODELS, config.model, what="model")
  abstract = {path: jax.ShapeDtypeStruct(shape, jax.numpy.float32)
              for path, shape in param_shapes(model).items()}
  checkpoints = Checkpointer(os.path.join(directory, "checkpoints"))
  params, _, _ = checkpoints.restore_params(unflatten_dict(abstract, sep="/"))
  checkpoints.close()
  return model, params


def open_dataset(workdir: str) -> Any:
  """The data of a training run, with its tokenizers."""
  from jtx import config as config_lib
  from jtx.saved import workdir as workdirs
  from jtx.saved.checkpoint import Checkpointer
  config = config_lib.load(os.path.join(workdir, workdirs.CONFIG_FILE))
  return workdirs.open_data(config, workdir, Checkpointer(os.path.join(workdir, "checkpoints")))
