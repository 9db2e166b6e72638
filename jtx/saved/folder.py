"""A folder that holds a trained model, of whichever of the three kinds it is."""

import abc
import functools
import os
from typing import Any, Mapping, Sequence

import jax

from jtx import config as config_lib
from jtx import config_files, hub, storage
from jtx.config import ConfigDict
from jtx.data.dataset import Dataset
from jtx.data.ops.registry import OPS
from jtx.data.tokenizers import files as tokenizer_files
from jtx.data.tokenizers.tokenizer import Tokenizer
from jtx.errors import ConfigError, DataError
from jtx.interop import files, huggingface, originals, preprocessor, trunks
from jtx.interop.originals import Originals
from jtx.models import MODELS, electra, elmo, rnn
from jtx.models.encoder import Encoder
from jtx.models.global_tokens import global_fields
from jtx.models.heads import TASKS
from jtx.nn import lora
from jtx.saved import base, card, texts, workdir
from jtx.saved.manifest import Manifests

TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "spiece.model")  # of a Hugging Face folder
SIDES = {"src": "source.spm", "tgt": "target.spm"}  # of Marian's


class Saved(abc.ABC):
  """A folder with a trained model; `open_saved` makes it of the kind that the folder is."""

  def __init__(self, directory: str):
    self.directory = directory

  @abc.abstractmethod
  def load(self, architecture: str | None = None, step: int | str | None = None,
           average: int | None = None) -> tuple[Any, Any]:
    """The model and its parameters, a tree of float32 arrays.

    Args:
      architecture: of a Hugging Face model, the class of `transformers` to open it as; None is
        the one that its config.json names.
      step: of a run, that of the checkpoint, "best", "newest", or None; see `workdir.chosen_step`.
      average: of a run, how many checkpoints are averaged; None is what its config says.

    Raises:
      ConfigError: a config that can't be used, or an argument of another kind of folder.
      DataError: weights that can't be used.
      CheckpointError: there is no good checkpoint.
    """

  @abc.abstractmethod
  def params_for(self, model: Any, new_tokens: int = 0) -> tuple[Any, list[str]]:
    """Parameters for fine-tuning another model from this one.

    Args:
      model: whose layers and embeddings must be those of the folder; its heads may differ, and
        so may the size of its images, for which positions are interpolated. An `Electra` takes
        those of its encoder.
      new_tokens: by how many its vocabulary may be larger than the folder's.

    Returns:
      A tree of float32 NumPy arrays, which lack the rows of new tokens, and the paths of the
      heads' parameters that the folder does not have, which are not in the tree.

    Raises:
      ConfigError: a field of the model is not that of the folder; the sentence names it.
      DataError: weights that can't be used.
    """

  @abc.abstractmethod
  def fields(self) -> tuple[str, dict[str, Any]]:
    """The name of the model in `jtx.models.MODELS`, and its fields without those of heads."""

  def trunk_fields(self, name: str) -> dict[str, Any]:
    """The fields of the model without its heads, for a config that goes on from it.

    Args:
      name: of `jtx.models.MODELS`, the kind of model that is wanted.

    Raises:
      ConfigError: it is of another kind.
    """
    found, fields = self.fields()
    if found != name:
      raise ConfigError(f"{self.directory} holds a model of the kind {found!r}, not {name!r}")
    return fields

  @abc.abstractmethod
  def finetuned_fields(self, task: str, lm: bool = False) -> tuple[str, dict[str, Any]]:
    """The kind of an encoder or decoder, and its fields with a head whose outputs are not set.

    Args:
      task: of the new head.
      lm: with scores of next tokens, too, which a decoder may have.

    Raises:
      ConfigError: it is neither, or its family has no such head.
    """

  @abc.abstractmethod
  def labels(self) -> tuple[str, ...] | None:
    """The names of classes or tags, or None where there are none."""

  @abc.abstractmethod
  def tokenizers(self) -> dict[str, Tokenizer]:
    """The tokenizers of the model's fields; none of a model of images or saved without one."""

  def tokenizer(self) -> Tokenizer:
    """The tokenizer of the first field.

    Raises:
      DataError: there is none, or it can't be read.
    """
    found = self.tokenizers()
    if not found:
      raise DataError(f"{self.directory} has no tokenizer: the model was saved without one")
    return next(iter(found.values()))

  def tokenizer_for(self, model: Any) -> Tokenizer:
    """The tokenizer for texts of the model.

    Raises:
      ConfigError: it is not of the model's size.
    """
    tokenizer = self.tokenizer()
    if tokenizer.vocab_size != model.vocab_size:
      raise ConfigError(f"{self.directory}: its tokenizer has {tokenizer.vocab_size} tokens, and"
                        f" its model's embedding {model.vocab_size}")
    return tokenizer

  @abc.abstractmethod
  def image_ops(self, model: Any) -> Sequence[Any]:
    """The ops that make arrays of images for the model: decoding, a resize, a crop, the layout.

    Raises:
      ConfigError: the folder asks for what jtx can't compute.
    """

  def originals(self) -> Originals:
    """What is given back as it was where the model is saved as one of Hugging Face."""
    return Originals()

  def told(self) -> card.Told | None:
    """What is known of how the loaded model was trained; None where it has no scores."""
    return None


class HuggingFace(Saved):
  """A directory of Hugging Face or timm: config.json and safetensors."""

  def load(self, architecture=None, step=None, average=None):
    _refuse(self.directory, "is no run", step=step, average=average)
    model, params = huggingface.load(self.directory, architecture)
    return model, jax.device_put(params)

  def params_for(self, model, new_tokens=0):
    return huggingface.load_params(self.directory, electra.encoder_of(model), new_tokens)

  def fields(self):
    source = huggingface.open_source(self.directory)
    return source.family.model, _plain(huggingface.base_fields(source))

  def finetuned_fields(self, task, lm=False):
    return huggingface.finetuned_fields(huggingface.open_source(self.directory), task, lm)

  def labels(self):
    return huggingface.label_names(self.directory)

  def tokenizers(self):
    in_folder = functools.partial(os.path.join, self.directory)
    if any(storage.exists(in_folder(name)) for name in TOKENIZER_FILES):
      return {"text": tokenizer_files.read_tokenizer(self.directory)}
    if not storage.exists(in_folder(SIDES["src"])):
      return {}
    return {side: tokenizer_files.read_tokenizer(in_folder(name)) for side, name in SIDES.items()}

  def tokenizer(self):
    return tokenizer_files.read_tokenizer(self.directory)  # which says what is missing

  def image_ops(self, model):
    return huggingface.image_ops(self.directory, model.image)

  def originals(self):
    return originals.read(self.directory)


class Workdir(Saved):
  """A folder that jtx wrote: config.json and checkpoints."""

  @functools.cached_property
  def config(self) -> ConfigDict:
    return workdir.read_config(self.directory)

  @property
  @abc.abstractmethod
  def texts(self) -> ConfigDict | None:
    """How the model reads and writes texts; see `jtx.saved.texts`. None is not told."""

  def load(self, architecture=None, step=None, average=None):
    if architecture is not None:
      raise ConfigError(f"architecture={architecture!r}: {self.directory} is a workdir of jtx,"
                        " whose config says what the model is; leave it unset")
    return self._load(step, average)

  @abc.abstractmethod
  def _load(self, step: int | str | None, average: int | None) -> tuple[Any, Any]:
    """The model and its parameters."""

  def params_for(self, model, new_tokens=0):
    return base.fitted(self.directory, electra.encoder_of(model), *self.load(), new_tokens)

  def fields(self):
    name = self.config.model.name
    fields = {key: value for key, value in self.config.model.items() if key != "name"}
    left = "encoder" if name == "electra" else name  # as `load` has it
    return left, _plain(trunks.trunk_fields(name, fields))

  def finetuned_fields(self, task, lm=False):
    name, fields = self.fields()
    if name == "decoder":
      return name, {**fields, "lm": lm, "head": trunks.decoder_head(task)}
    if "image" in fields:  # pooled as the head that it has
      own = {k: v for k, v in self.config.model.head.items() if k in ("pool", "norm")}
      return name, {**fields, "head": {"task": task, **own}}
    if name == "encdec":  # whose head is as T5's and BART's, behind the begin token
      tokenizer, = set(self.tokenizers().values())
      own = {"task": task, "pool": "none"} if TASKS[task].by_token else {
          "task": task, "pool": "last", "transform": "tanh"}
      return name, {**fields, "seq2seq": False, "head": own, "head_start": tokenizer.bos_id}
    head = trunks.pooled_head(task, self.config.model.head)
    kind = name if issubclass(MODELS[name], (Encoder, elmo.Elmo, rnn.Rnn)) else "encoder"
    more = {"lm": lm} if "lm" in trunks.KINDS[MODELS[kind]].head_fields else {}
    fields = self.trunk_fields(kind)
    return kind, fields | more | {"head": head} | global_fields(task, fields)


class Run(Workdir):
  """The workdir of a training run."""
  step = average = None  # what was loaded

  @functools.cached_property
  def data(self) -> Dataset:
    """The data of the run, with its tokenizers and labels."""
    checkpoints = Manifests(os.path.join(self.directory, "checkpoints"))
    return workdir.open_data(self.config, self.directory, checkpoints)

  def _load(self, step, average, merge=True):
    task, params, self.step = workdir.load_run(self.directory, step, average, merge=merge)
    self.average = average
    return electra.discriminator(task.model, params)

  def load_adapted(self, step: int | str | None = None,
                   average: int | None = None) -> tuple[Any, Any]:
    """As `load`, of a run of adapters: the model that has them, not that which they are merged to.

    Raises:
      ConfigError: the run has none.
    """
    model, params = self._load(step, average, merge=False)
    if not lora.adapted(model):
      raise ConfigError(f"{self.directory} holds a run without adapters: its config.model.lora.rank"
                        " is 0")
    return model, params

  def labels(self):
    return self.data.labels or None

  def tokenizers(self):
    return {field: self.data.tokenizers[field] for field in self.data.fields}

  def image_ops(self, model):
    first, *others, layout = (op for op in self.data.recipe.augment if not op.tokenizer_fields)
    return [*first.evaluated, *others, *layout.evaluated]  # which ask for no labels and boxes

  @functools.cached_property
  def texts(self):
    return texts.of_run(self.config, self.data)

  def originals(self):
    return texts.originals(self.texts, self.data.tokenizers)

  def told(self):
    return card.told(self.directory, self.config, self.step, self.average)


class Converted(Workdir):
  """A folder that `jtx.saved.converted.save` wrote: a model without a run."""

  def _load(self, step, average):
    _refuse(self.directory, "holds a model and no run", step=step, average=average)
    return base.converted(self.directory, self.config)

  def labels(self):
    return None if self.config.labels is None else tuple(self.config.labels)

  def tokenizers(self):
    texts = tokenizer_files.load_tokenizers(self.directory) or {}
    return {field: tokenizer_files.from_json(text) for field, text in texts.items()}

  @property
  def texts(self):
    return self.config.get("texts")

  def originals(self):
    kept = originals.kept_in(self.directory)
    return kept if self.texts is None else texts.originals(self.texts, self.tokenizers())

  def image_ops(self, model):
    if "image_ops" not in self.config:  # those of before had a resize
      return preprocessor.resized(model.image)
    return tuple(config_lib.build(OPS, section, what=f"image_ops[{i}]")
                 for i, section in enumerate(self.config.image_ops))


def open_saved(directory: str) -> Saved:
  """The trained model of a folder, as the kind of folder that its config.json says it is.

  Args:
    directory: the folder, or a name of the Hub; see `jtx.hub`.

  Raises:
    ConfigError: there is no folder, or nothing in it that is known.
  """
  directory = hub.folder(directory)
  config = files.read_config(directory)
  if huggingface.is_hf(config):
    return HuggingFace(directory)
  if "model" not in config:
    raise ConfigError(f"{os.path.join(directory, workdir.CONFIG_FILE)} has neither the model_type"
                      " of a Hugging Face model nor the model of a jtx workdir")
  return Run(directory) if "data" in config else Converted(directory)


def _plain(fields: Mapping[str, Any]) -> dict[str, Any]:
  return {key: config_files.from_plain(value) for key, value in fields.items()}


def _refuse(directory: str, what: str, **given: Any) -> None:
  """Raises ConfigError that names the first argument that is given and has no place here."""
  for key, value in given.items():
    if value is not None:
      raise ConfigError(f"{key}={value!r}: {directory} {what}; leave it unset")
