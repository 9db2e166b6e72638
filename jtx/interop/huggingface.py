"""Directories of Hugging Face models, read and written.

A directory holds config.json, and model.safetensors or its parts with
model.safetensors.index.json. Files of pickles are refused: to read one is to run it.
"""

import json
import os
from typing import Any, Mapping, NamedTuple, Sequence

from absl import logging
from flax.traverse_util import flatten_dict, unflatten_dict
import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy

from jtx.data.tokenizers import encodings
from jtx.data.tokenizers.tokenizer import Tokenizer
from jtx.errors import ConfigError, DataError, nearest
from jtx.interop import attributes, tables
from jtx.interop.families import albert, bert, distilbert, modernbert, roberta, timm, vit
from jtx.interop.files import CONFIG, DTYPES, WEIGHTS, NewDirectory, Tensors, has_mlm, read_config
from jtx.interop.tables import Family, Shape
from jtx.models import MODELS
from jtx.parallel.sharding import unbox

# By `model_type`. A model is saved as the first that can express it.
FAMILIES: dict[str, Family] = {
    "bert": bert.FAMILY,
    "roberta": roberta.FAMILY,
    "albert": albert.FAMILY,
    "distilbert": distilbert.FAMILY,
    "modernbert": modernbert.FAMILY,
    "vit": vit.VIT,
    "deit": vit.DEIT,
    "vit_mae": vit.MAE,
}


class Source(NamedTuple):
  """A config.json that has been read."""
  path: str  # of the file
  config: Mapping[str, Any]
  family: Family

  @property
  def directory(self) -> str:
    return os.path.dirname(self.path)


# ------------------------------------------------------------------------------ reading


def is_hf(config: Mapping[str, Any]) -> bool:
  """Whether the content of a config.json is one of Hugging Face, or of timm."""
  return "model_type" in config or timm.is_timm(config)


def open_source(directory: str) -> Source:
  source = identify(read_config(directory), os.path.join(directory, CONFIG))
  if source.family.model == "vit":
    source = source._replace(config={**source.config, **vit.read_preprocessor(directory)})
  return source


def identify(config: Mapping[str, Any], path: str) -> Source:
  """Finds the family of a config.

  Raises:
    ConfigError: jtx does not have its model type.
  """
  if timm.is_timm(config):
    return Source(path, timm.translated(config, path), timm.FAMILY)
  if "model_type" not in config:
    raise ConfigError(f"{path} has no model_type; valid are: {', '.join(FAMILIES)}")
  model_type = config["model_type"]
  if not isinstance(model_type, str) or model_type not in FAMILIES:
    raise ConfigError(f"{path}: model_type={model_type!r}: {nearest(str(model_type), FAMILIES)}")
  return Source(path, config, FAMILIES[model_type])


def choose(source: Source, architecture: str | None) -> str:
  """The architecture to open: the one that is asked for, or config.json's."""
  valid = source.family.architectures
  if architecture is None:
    named = source.config["architectures"] if "architectures" in source.config else None
    known = [name for name in valid if isinstance(named, list) and name in named]
    if not known:
      raise ConfigError(f"{source.path}: architectures={named!r} names none that jtx has; say which"
                        f" to open by architecture=, one of: {', '.join(valid)}")
    return known[0]
  if architecture not in valid:
    raise ConfigError(f"architecture={architecture!r}: {nearest(architecture, valid)}")
  return architecture


def model_fields(config: Mapping[str, Any], architecture: str | None = None,
                 path: str = CONFIG) -> dict[str, Any]:
  """The fields of the model that a config.json describes.

  Args:
    config: its content.
    architecture: a class of `transformers`; None is the one that it names.
    path: of the file, for errors.

  Returns:
    Fields for `jtx.config.section(MODELS, NAME, ...)`.

  Raises:
    ConfigError: it can't be used; the sentence names the attribute.
  """
  source = identify(config, path)
  heads = source.family.architectures[choose(source, architecture)]
  return attributes.model_fields(source.family, config, *heads, path)


def finetuned_fields(source: Source, task: str) -> dict[str, Any]:
  """The fields of the model of a config, with the family's own head for another task.

  Args:
    source: as `open_source` and `identify` give it.
    task: of `jtx.models.encoder.TASKS`; the number of its classes or tags stays unset.

  Raises:
    ConfigError: the family has no such head.
  """
  tasks = [task for mlm, task in source.family.architectures.values() if not mlm]
  if task not in tasks:
    raise ConfigError(f"{source.path}: a {source.config['model_type']} has no head for {task!r};"
                      f" {nearest(task, tasks)}")
  fields = attributes.model_fields(source.family, source.config, False, task, source.path)
  fields["head"] = {k: v for k, v in fields["head"].items() if k != "outputs"}
  return {k: v for k, v in fields.items() if v is not None}


def load(directory: str, architecture: str | None = None,
         dtype: str = "auto") -> tuple[Any, dict[str, Any]]:
  """The model of a directory.

  Args:
    directory: with config.json and safetensors.
    architecture: a class of `transformers`, to open the files as; None is config.json's.
    dtype: of the computation.

  Returns:
    The model, and its parameters as float32 NumPy arrays.

  Raises:
    ConfigError: config.json can't be used.
    DataError: the tensors can't be, or are not the model's.
  """
  source = open_source(directory)
  name = choose(source, architecture)
  mlm, task = source.family.architectures[name]
  tensors = Tensors(source.directory, source.family)
  if task == "embedding" and not any(
      row.name in tensors for row in source.family.head_rows[task]):
    logging.info("%s has no pooler: the model returns hidden states", directory)
    task = "none"
  fields = attributes.model_fields(source.family, source.config, mlm, task, source.path)
  model = attributes.make_model(source.family, fields, dtype=dtype)
  shapes = param_shapes(model)
  rows = source.family.rows_for(mlm, task)
  wanted = list(tables.entries(rows, model.stack.segments, shapes))
  tensors.check_names(wanted)
  absent = [e.name for e in wanted if e.name not in tensors]
  if absent:
    raise DataError(f"{directory}: {name} needs tensor {absent[0]!r}, which the files do not have"
                    + (f" (nor {len(absent) - 1} more)" if len(absent) > 1 else ""))
  return model, unflatten_dict(tensors.read(wanted, shapes), sep="/")


def load_params(directory: str, model: Any) -> tuple[dict[str, Any], list[str]]:
  """Parameters for a model that may have other heads than the files.

  Args:
    directory: with config.json and safetensors.
    model: whose layers and embeddings must be those of the files; of images, its size may be
      another.

  Returns:
    The parameters that the files have, a tree of float32 NumPy arrays; and the paths of
    those they do not, all of a head.

  Raises:
    ConfigError: a field of the model is not that of the files.
    DataError: the tensors can't be used, or one of the layers or embeddings is absent.
  """
  source = open_source(directory)
  family, path = source.family, source.path
  if not isinstance(model, MODELS[family.model]):
    raise ConfigError(f"the weights of {directory} are those of a {MODELS[family.model].__name__},"
                      f" not of a {type(model).__name__}")
  fields = attributes.model_fields(family, source.config, False, "none", path)
  theirs = attributes.make_model(family, fields)
  attributes.check_trunk(model, theirs, directory)
  asked = model
  if family.model == "vit":
    model = model.clone(image=theirs.image)
  shapes = param_shapes(model)
  tensors = Tensors(source.directory, source.family)
  params: dict[str, np.ndarray] = {}
  found = []
  for rows in head_candidates(family, source.config, model, path):
    wanted = [e for e in tables.entries(rows, model.stack.segments, shapes)
              if not any(p in params for p, _ in e.places)]
    present = [e for e in wanted if e.name in tensors and tensors.fits(e, shapes)]
    if has_mlm(wanted) and len(present) < len(wanted):
      continue  # parts of it may be another head's, by the same name
    params |= tensors.read(present, shapes)
    found += present
  trunk = list(tables.entries(family.rows, model.stack.segments, shapes))
  # A head with a norm of its own takes the place of the layers' last one.
  all_of_trunk = tables.entries(family.rows, theirs.stack.segments, param_shapes(theirs))
  tensors.check_names([*all_of_trunk, *found])
  absent = [e.name for e in trunk if e.name not in tensors]
  if absent:
    raise DataError(f"{directory} does not have tensor {absent[0]!r} of the model's layers and"
                    " embeddings")
  params |= tensors.read(trunk, shapes)
  missing = [p for p in shapes if p not in params]
  if family.model == "vit":
    params = asked.resized(params, model)
  return unflatten_dict(params, sep="/"), missing


def head_candidates(family: Family, config: Mapping[str, Any], model: Any,
                    path: str) -> list[tuple[tables.Row, ...]]:
  """Rows that may fill the heads of `model`, best first.

  The output of a head is only taken where all before it is the family's too; a transform
  where its activation is, so that a pooler serves every task that has one.
  """
  candidates = []
  values, head = attributes.read(family, config, path), model.head
  pretrains, own_task = attributes.pretraining_and_task(model.heads)
  if pretrains and has_our_mlm_head(family, values):
    candidates.append(family.mlm_rows)
  for task in dict.fromkeys((own_task, "embedding")):
    if task not in family.head_rows:
      continue
    theirs = {"transform": "none", "norm": False, "use_bias": True, **family.head(values, task)}
    same_transform = all(getattr(head, k) == theirs[k] for k in ("transform", "norm", "use_bias")
                         if hasattr(head, k))
    same = same_transform and task == own_task and head.pool == theirs["pool"]
    if same_transform:
      candidates.append(tuple(
          row for row in family.head_rows[task]
          if same or all(p.startswith("task_head/transform/") for p in row.paths)))
  return candidates


def has_our_mlm_head(family: Family, values: Mapping[str, Any]) -> bool:
  try:
    family.trunk(values, True)
  except ConfigError as e:
    logging.info("the head of pretraining is not taken: %s", e)
    return False
  return True


def param_shapes(model: Any) -> dict[str, Shape]:
  """The shape of every parameter, by path."""
  boxed = jax.eval_shape(model.init, jax.random.key(0), model.example())["params"]
  return {path: x.shape for path, x in flatten_dict(unbox(boxed), sep="/").items()}


def label_names(directory: str) -> tuple[str, ...] | None:
  """The names of classes or tags, if config.json has them."""
  config = read_config(directory)
  if timm.is_timm(config):
    return tuple(config["label_names"]) if "label_names" in config else None
  return attributes.label_names(config, os.path.join(directory, CONFIG))


# ------------------------------------------------------------------------------ writing


def hf_config(model: Any, tokenizer: Tokenizer | None = None,
              labels: Sequence[str] | None = None) -> dict[str, Any]:
  """The content of config.json for a model; see `save`."""
  return _config(model, tokenizer, labels)[1]


def _config(model, tokenizer, labels) -> tuple[str, dict[str, Any]]:
  ids = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
  if tokenizer is not None:
    ids = {"pad_token_id": int(tokenizer.pad_id), "bos_token_id": int(tokenizer.bos_id),
           "eos_token_id": int(tokenizer.eos_id)}
  return attributes.hf_config(FAMILIES, model, None if labels is None else tuple(labels), ids)


def tensors_of(family: Family, model: Any, params: Any) -> dict[str, np.ndarray]:
  """The tensors of a file, float32, by name.

  Raises:
    ConfigError: `params` are not the model's.
  """
  flat = flatten_dict(unbox(params), sep="/")
  flat = {path: np.asarray(x, np.float32) for path, x in flat.items()}
  shapes = param_shapes(model)
  for path in [*shapes, *(p for p in flat if p not in shapes)]:
    theirs = list(flat[path].shape) if path in flat else "absent"
    ours = list(shapes[path]) if path in shapes else "absent"
    if ours != theirs:
      raise ConfigError(f"params are not of this model: {path} is {theirs} in params and {ours} in"
                        " the model")
  pretrains, task = attributes.pretraining_and_task(model.heads)
  rows = family.rows_for(pretrains, task)
  wanted = list(tables.entries(rows, model.stack.segments, shapes))
  left = set(shapes) - {path for e in wanted for path, _ in e.places}
  if left:
    raise ConfigError(f"the model can't be expressed as a Hugging Face model: it has no place for"
                      f" parameter {min(left)}")
  is_base = not pretrains and task in ("none", "embedding")
  strip = f"{family.prefix}." if is_base else ""
  return {e.name.removeprefix(strip): tables.write(e, flat) for e in wanted}


def save(directory: str, model: Any, params: Any, tokenizer: Tokenizer | None = None,
         labels: Sequence[str] | None = None, dtype: str = "float32") -> None:
  """Writes a directory that `transformers` loads; all of it, or nothing.

  Args:
    directory: to make; it must not hold anything yet.
    model: that one of the families can express.
    params: its parameters.
    tokenizer: written as tokenizer.json, for AutoTokenizer.
    labels: names of classes or tags.
    dtype: of the tensors.

  Raises:
    ConfigError: the model, tokenizer or labels can't be expressed, or the directory is in use.
  """
  if dtype not in DTYPES:
    raise ConfigError(f"dtype={dtype!r}: valid are {', '.join(DTYPES)}")
  model_type, config = _config(model, tokenizer, labels)
  tensors = tensors_of(FAMILIES[model_type], model, params)
  tensors = {name: np.ascontiguousarray(x.astype(jnp.dtype(dtype))) for name, x in tensors.items()}
  if FAMILIES[model_type].model == "vit":
    config, preprocessor = vit.split_preprocessor(config)
    texts = {CONFIG: config | {"dtype": dtype}, vit.PREPROCESSOR: preprocessor}
  else:
    texts = {CONFIG: config | {"dtype": dtype}}
  if tokenizer is not None:
    texts |= tokenizer_files(model, tokenizer)
  with NewDirectory(directory) as path:
    for name, content in texts.items():
      with open(os.path.join(path, name), "w", encoding="utf-8") as f:
        json.dump(content, f, indent=2, ensure_ascii=False)
        f.write("\n")
    safetensors.numpy.save_file(tensors, os.path.join(path, WEIGHTS), {"format": "pt"})


def tokenizer_files(model: Any, tokenizer: Tokenizer) -> dict[str, Any]:
  """tokenizer.json and tokenizer_config.json.

  Raises:
    ConfigError: the kind of tokenizer has no tokenizer.json, or there are more ids than the
      model has.
  """
  if tokenizer.vocab_size > model.vocab_size:
    raise ConfigError(f"the tokenizer has {tokenizer.vocab_size} ids, and the model"
                      f" vocab_size={model.vocab_size}")
  content = tokenizer.model()
  ends = tokenizer.bos_id, tokenizer.eos_id
  # Where the tokenizer's own template adds nothing, that by which `encode_texts` adds its ends.
  backend = encodings.Encoder(content, ends, tokenizer.text_ids(), None, None)._backend
  content["post_processor"] = json.loads(backend.to_str())["post_processor"]
  roles = {"pad": tokenizer.pad_id, "unk": tokenizer.unk_id, "bos": ends[0], "eos": ends[1],
           "cls": ends[0], "sep": ends[1], "mask": tokenizer.mask_id}
  config = {f"{role}_token": tokenizer.tokens([i])[0] for role, i in roles.items() if i is not None}
  config |= {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
  if model.longest is not None:
    config["model_max_length"] = model.longest
  return {"tokenizer.json": content, "tokenizer_config.json": config}
