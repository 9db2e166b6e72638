"""Directories of Hugging Face models, read.

A directory holds config.json, and model.safetensors or its parts with
model.safetensors.index.json. Files of pickles are refused: to read one is to run it.
"""

import os
from typing import Any, Iterator, Mapping, NamedTuple, Sequence

from absl import logging
from flax.traverse_util import unflatten_dict
import numpy as np

from jtx.errors import ConfigError, DataError, nearest
from jtx.interop import attributes, configs, sentences, tables, trunks
from jtx.interop.families import FAMILIES, families_of, timm
from jtx.interop.family import Family, Heads, pretraining, stored, task_of, type_of
from jtx.interop.files import CONFIG, Tensors, read_config
from jtx.interop.generation import Generation, read_generation
from jtx.interop.trunks import param_shapes
from jtx.models import MODELS
from jtx.models.heads import TASKS


class Source(NamedTuple):
  """A config.json that has been read."""
  path: str  # of the file
  config: Mapping[str, Any]
  family: Family

  @property
  def directory(self) -> str:
    return os.path.dirname(self.path)


def is_hf(config: Mapping[str, Any]) -> bool:
  """Whether the content of a config.json is one of Hugging Face, or of timm."""
  return "model_type" in config or timm.is_timm(config)


def open_source(directory: str, architecture: str | None = None) -> Source:
  """The config.json of a directory, read for an architecture; None is the one that it names."""
  source = identify(read_config(directory), os.path.join(directory, CONFIG), architecture)
  side_files = source.family.side_files
  if side_files is not None:
    source = source._replace(config={**source.config, **side_files.read(directory)})
  if source.family.resolved is not None:
    same = Tensors(directory, source.family.names, ties=False).same
    source = source._replace(config=source.family.resolved(source.config, same))
  return source


def identify(config: Mapping[str, Any], path: str, architecture: str | None = None) -> Source:
  """Finds the family of a config.

  Args:
    config: the content of config.json.
    path: of the file, for errors.
    architecture: a class of `transformers`; None is the one that it names.

  Raises:
    ConfigError: jtx does not have its model type.
  """
  types = dict.fromkeys(map(type_of, FAMILIES))
  if timm.is_timm(config):
    return Source(path, timm.translated(config, path), timm.FAMILY)
  if "model_type" not in config:
    raise ConfigError(f"{path} has no model_type; valid are: {', '.join(types)}")
  model_type = config["model_type"]
  if not isinstance(model_type, str) or model_type not in types:
    raise ConfigError(f"{path}: model_type={model_type!r}: {nearest(str(model_type), types)}")
  first, *others = families_of(model_type).values()
  named = config["architectures"] if "architectures" in config else None
  named = [architecture] if architecture else named if isinstance(named, list) else []
  own = (family for family in others if any(name in family.architectures for name in named))
  return Source(path, config, next(own, first))


def alternatives(source: Source) -> list[Family]:
  """The families that a config may be read as, its own first."""
  name = source.config["model_type"] if "model_type" in source.config else ""
  return [source.family, *(f for f in families_of(name).values() if f is not source.family)]


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
    valid = [name for family in alternatives(source) for name in family.architectures]
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
  source = identify(config, path, architecture)
  heads = source.family.architectures[choose(source, architecture)]
  return configs.model_fields(source.family, config, heads, path)


def ties_embeddings(source: Source) -> bool:
  """Whether the output weights are the embedding; model types that do not say it always tie them.

  Raises:
    ConfigError: its attributes can't be used.
  """
  own = source.family.attributes
  values = attributes.read(own, source.config, source.path)
  return values["tie_word_embeddings"] if "tie_word_embeddings" in own.read else True


def fields_for(config: Mapping[str, Any], heads: Heads, path: str = CONFIG) -> dict[str, Any]:
  """As `model_fields`, for heads in place of an architecture."""
  source = identify(config, path)
  return configs.model_fields(source.family, source.config, frozenset(heads), path)


def base_fields(source: Source) -> dict[str, Any]:
  """The fields of the model of a config without its heads."""
  fields = configs.model_fields(source.family, source.config, frozenset(), source.path)
  return trunks.trunk_fields(source.family.model, fields)


def finetuned_fields(source: Source, task: str, lm: bool = False,
                     ) -> tuple[str, dict[str, Any]]:
  """The kind of the model of a config, and its fields with a head for another task.

  Args:
    source: as `open_source` and `identify` give it.
    task: of `jtx.models.heads.TASKS`; the number of its classes or tags stays unset.
    lm: with scores of next tokens, too, which a decoder may have.

  Raises:
    ConfigError: the family has no such head; a decoder can have any.
  """
  if source.family.model == "decoder":
    fields = configs.model_fields(source.family, source.config, frozenset({"lm"} if lm else ()),
                                  source.path)
    return "decoder", fields | {"head": trunks.decoder_head(task)}
  tasks = {task_of(heads): family for family in reversed(alternatives(source))
           for heads in family.architectures.values() if not pretraining(heads)}
  if (TASKS[task].stored_as or task) not in tasks:
    raise ConfigError(f"{source.path}: a {source.config['model_type']} has no head for {task!r};"
                      f" {nearest(task, tasks)}")
  family = tasks[TASKS[task].stored_as or task]
  fields = configs.model_fields(family, source.config, {task} - {"none"}, source.path)
  head = {k: v for k, v in fields["head"].items() if k != "outputs"}
  fields["head"] = head | {"task": task}  # which problem_type may have changed
  return family.model, {k: v for k, v in fields.items() if v is not None}


def generation(source: Source) -> Generation | None:
  """The generation settings of a model's directory; None of a model that does not generate.

  Raises:
    ConfigError: they can't be used.
  """
  return read_generation(source.directory) if source.family.generates else None


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
  source = open_source(directory, architecture)
  name, names = choose(source, architecture), source.family.names
  heads = source.family.architectures[name]
  tensors = Tensors(source.directory, names, ties_embeddings(source))
  head = None
  if architecture is None and source.family.model in ("encoder", "decoder", "xlnet"):
    head = sentences.read_head(directory)
  if head is not None:
    heads = frozenset()  # pooling has no parameters
  elif heads == {"embedding"} and (pooler := names.rows_of(heads)) and not any(
      row.name in tensors for row in pooler):
    logging.info("%s has no pooler: the model returns hidden states", directory)
    heads = frozenset()
  fields = configs.model_fields(source.family, source.config, heads, source.path)
  model = configs.make_model(source.family, fields, dtype=dtype)
  shapes = param_shapes(model)
  wanted = list(tables.entries(names.rows_for(heads), model.stacks, shapes))
  tied = bool(pretraining(heads))
  tensors.check_names(wanted, tied)
  absent = [e.name for e in wanted if e.name not in tensors]
  if absent:
    raise DataError(f"{directory}: {name} needs tensor {absent[0]!r}, which the files do not have"
                    + (f" (nor {len(absent) - 1} more)" if len(absent) > 1 else ""))
  params = tensors.read(wanted, shapes)
  if tied:
    tensors.check_tied()
  model = model if head is None else model.clone(head=head)
  return model, unflatten_dict(params, sep="/")


def load_params(directory: str, model: Any,
                new_tokens: int = 0) -> tuple[dict[str, Any], list[str]]:
  """Parameters for a model that may have other heads than the files.

  Args:
    directory: with config.json and safetensors.
    model: whose layers and embeddings must be those of the files; of images, its size may be
      another.
    new_tokens: by how many its vocabulary may be larger.

  Returns:
    The parameters that the files have, a tree of float32 NumPy arrays, without rows of new tokens;
    and the paths of those they do not, all of a head.

  Raises:
    ConfigError: a field of the model is not that of the files.
    DataError: the tensors can't be used, or one of the layers or embeddings is absent.
  """
  source = open_source(directory)
  family = next((f for f in alternatives(source) if isinstance(model, MODELS[f.model])),
                source.family)
  source = source._replace(family=family)
  if not isinstance(model, MODELS[family.model]):
    raise ConfigError(f"the weights of {directory} are those of a {MODELS[family.model].__name__},"
                      f" not of a {type(model).__name__}")
  fields = configs.model_fields(family, source.config, frozenset(), source.path)
  theirs = configs.make_model(family, fields)
  model = trunks.with_vocabulary_of(model, theirs, new_tokens)
  trunks.check_trunk(model, theirs, directory)
  sized = trunks.at_size_of(model, theirs)
  shapes = param_shapes(sized)
  tensors = Tensors(source.directory, family.names, ties_embeddings(source))
  params, found, tied = read_heads(tensors, source, sized, shapes)
  trunk = list(tables.entries(family.names.trunk, sized.stacks, shapes))
  # A head with a norm of its own takes the place of the layers' last one.
  all_of_trunk = tables.entries(family.names.trunk, theirs.stacks, param_shapes(theirs))
  tensors.check_names([*all_of_trunk, *found], tied)
  absent = [e.name for e in trunk if e.name not in tensors]
  if absent:
    raise DataError(f"{directory} does not have tensor {absent[0]!r} of the model's layers and"
                    " embeddings")
  params |= tensors.read(trunk, shapes)
  missing = [p for p in shapes if p not in params]
  return unflatten_dict(trunks.resized(model, params, sized), sep="/"), missing


def read_heads(tensors: Tensors, source: Source, model: Any, shapes: Mapping[str, tables.Shape],
               ) -> tuple[dict[str, np.ndarray], list[tables.Entry], bool]:
  """The parameters of heads that the files have; their entries; whether some are of pretraining."""
  params: dict[str, np.ndarray] = {}
  found, pretrains = [], False
  for heads, rows in head_candidates(source, model):
    wanted = [e for e in tables.entries(rows, model.stacks, shapes)
              if not any(p in params for p, _ in e.places)]
    present = [e for e in wanted if e.name in tensors and tensors.fits(e, shapes)]
    if pretraining(heads):
      if len(present) < len(wanted):
        continue  # parts of it may be another head's, by the same name
      tensors.check_tied()
      pretrains = True
    params |= tensors.read(present, shapes)
    found += present
  return params, found, pretrains


def head_candidates(source: Source, model: Any) -> Iterator[tuple[Heads, tuple[tables.Row, ...]]]:
  """Heads whose rows may fill those of `model`, best first.

  The output of a head is only taken where all before it is the family's too; a transform
  where its activation is, so that a pooler serves every task that has one.
  """
  family, names = source.family, source.family.names
  values = attributes.read(family.attributes, source.config, source.path)
  first = pretraining(model.heads)
  if first and names.rows_of(first) and has_our_pretraining(family, values, first):
    yield first, names.rows_of(first)
  own = stored(model.heads - first)
  for heads in dict.fromkeys((own, frozenset({"embedding"}))):
    if not heads or not heads <= names.heads.keys():
      continue
    theirs = {"transform": "none", "norm": False, "use_bias": True, **family.head(values, heads)}
    same_transform = all(getattr(model.head, k) == theirs[k]
                         for k in ("transform", "norm", "use_bias") if hasattr(model.head, k))
    pool = getattr(model.head, "pool", None)  # a detector's has none
    same = same_transform and heads == own and pool == theirs.get("pool")
    if same_transform:
      yield heads, tuple(row for row in names.rows_of(heads)
                         if same or all(p.startswith("task_head/transform/") for p in row.paths))


def has_our_pretraining(family: Family, values: Mapping[str, Any], heads: Heads) -> bool:
  try:
    family.trunk(values, heads)
  except ConfigError as e:
    logging.info("the head of pretraining is not taken: %s", e)
    return False
  return True


def image_ops(directory: str, image: Any) -> Sequence[Any]:
  """The ops that make a model's arrays of files of images, as the directory says.

  Args:
    directory: with config.json.
    image: of the model, a `jtx.models.vit.ImageConfig`.

  Raises:
    ConfigError: what jtx can't compute.
  """
  source = open_source(directory)
  return source.family.side_files.image_ops(directory, image)


def label_names(directory: str) -> tuple[str, ...] | None:
  """The names of classes or tags, if config.json has them."""
  config = read_config(directory)
  if timm.is_timm(config):
    return tuple(config["label_names"]) if "label_names" in config else None
  return attributes.label_names(config, os.path.join(directory, CONFIG))
