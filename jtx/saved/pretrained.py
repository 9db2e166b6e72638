"""Trained models from and to directories: of Hugging Face, or workdirs of jtx.

  model, params = load_pretrained(DIR)
  hidden = model.apply({"params": params}, batch)
  save_pretrained(NEW, model, params, like=DIR)
"""

import os
from typing import Any, Mapping, Sequence

import jax
import numpy as np

from jtx import hub, storage
from jtx.data.tokenizers.files import read_tokenizer
from jtx.data.tokenizers.tokenizer import Tokenizer
from jtx.errors import ConfigError, nearest
from jtx.inference.images import takes_images
from jtx.interop import export, peft, stablehlo
from jtx.interop.family import task_of
from jtx.interop.files import CONFIG
from jtx.interop.originals import Originals
from jtx.interop.sentences import is_pooled
from jtx.models.heads import TASKS
from jtx.nn import lora
from jtx.nn.layers import compute_dtype
from jtx.saved import card, converted
from jtx.saved.folder import HuggingFace, Run, Saved, open_saved
from jtx.saved.trained import MAX_LENGTH, lengths, warn_of_changes

FORMATS = ("hf", "jtx", "peft")


def load_pretrained(directory: str, architecture: str | None = None,
                    dtype: str = "auto") -> tuple[Any, Any]:
  """The model of a directory, and its parameters.

  Args:
    directory: a Hugging Face model (config.json and model.safetensors), or the workdir of a
      run or of `experiments.convert`, or a name of the Hugging Face Hub; see `jtx.hub`.
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
  compute_dtype(dtype)  # which says what is valid
  model, params = open_saved(directory).load(architecture)
  return model if dtype == "auto" else model.clone(dtype=dtype), params


def save_pretrained(directory: str, model: Any, params: Any,
                    tokenizer: Tokenizer | Mapping[str, Tokenizer] | None = None,
                    format: str = "hf", labels: Sequence[str] | None = None,
                    dtype: str | None = None, like: str | Saved | None = None) -> None:
  """Writes a model, whole or not at all, into a directory that holds nothing yet.

  Args:
    directory: to make.
    model: a Linen module; for format "hf" one that a family of Hugging Face can express.
    params: its parameters.
    tokenizer: written beside the model; in format "jtx" also several, by the field that each is
      for, such as src and tgt.
    format: "hf", which `transformers` loads, and `sentence-transformers` if the head only pools;
      "jtx", a workdir without a run; or, of adapters, which in the other two are merged into
      kernels, "peft": these alone, as files of PEFT, for the model that their run, `like`, is from.
    labels: names of classes or tags; without them `transformers` calls them LABEL_0 and so on.
    dtype: of the tensors in format "hf"; None is that of `like`, where it is a Hugging Face
      model, and else float32. "jtx" is float32.
    like: a folder, such as that which the model was loaded from, whose tokenizer, labels and way
      to make arrays of images are taken where they are not given. Of a Hugging Face model, the
      files of its tokenizer and its settings of generation are copied. In format "hf" a run whose
      parameters these are also gives a model card, README.md, where it has scores.

  Raises:
    ConfigError: what can't be written, and why.
  """
  if format not in FORMATS:
    raise ConfigError(f"format={format!r}: {nearest(format, FORMATS)}")
  if format == "peft":
    if dtype not in (None, "float32") or tokenizer is not None or labels is not None:
      raise ConfigError("format='peft' has adapters in float32, and neither tokenizer nor labels")
    return _save_adapters(directory, model, params, like)
  model, params = lora.merged(model, params)
  if isinstance(tokenizer, Tokenizer):
    tokenizer = {"text": tokenizer}
  elif format == "hf" and tokenizer:
    raise ConfigError(f"tokenizer: format='hf' has one, and these are of {', '.join(tokenizer)}")
  image_ops = about = None
  original = Originals()
  if like is not None:
    like, about = _opened(like, params)
    own, original = like.tokenizers(), like.originals()
    tokenizer = own if tokenizer is None else tokenizer
    if dict(tokenizer) != own:
      original = original.without_tokenizer()
    if labels is None and TASKS[task_of(model.heads)].labelled:
      labels = like.labels()
    image_ops = like.image_ops(model) if takes_images(model) else None
  if format == "hf":
    model, params = export.expressible(model, params)
    first, more = _only(tokenizer or {}, original), {}
    if about is not None:
      written = export.hf_config(model, first, labels, original)
      more[card.CARD] = card.text(directory, written, params, labels, about)
    export.save(directory, model, params, first, labels, dtype or original.dtype,
                image_ops=image_ops, more=more, original=original, max_length=_length(model, like))
  elif dtype not in (None, "float32"):
    raise ConfigError(f"dtype={dtype!r}: format='jtx' has float32 only")
  else:
    converted.save(directory, model, params, tokenizer or {}, labels, image_ops, original)


def _only(tokenizers: Mapping[str, Tokenizer], original: Originals) -> Tokenizer | None:
  """The tokenizer of all fields; None where there is none.

  Raises:
    ConfigError: there are several, and no files of a folder that has them.
  """
  if len(set(tokenizers.values())) > 1 and not original.tokenizer:
    raise ConfigError(f"format='hf' has one tokenizer, and these of {', '.join(tokenizers)}"
                      " differ; train with tokenizer.shared=True, or write format='jtx'")
  return next(iter(tokenizers.values()), None)


def _length(model: Any, like: Saved | None) -> int:
  """The tokens that a model of sentence embeddings cuts texts to, as `jtx.Embedder` does."""
  found = lengths(like) if like is not None and is_pooled(model) else {}
  return found["max_length"] if "max_length" in found else MAX_LENGTH


def _save_adapters(directory: str, model: Any, params: Any, like: str | Saved | None) -> None:
  like = open_saved(like) if isinstance(like, str) else like
  if not isinstance(like, Run):
    raise ConfigError("format='peft' needs like=DIR, the workdir of the adapters' run")
  base = like.config.init_from
  kept = open_saved(base).originals().config
  peft.save(directory, model, params, base, kept.get("model_type"))


def save_program(directory: str, model: Any, params: Any, like: Saved, *,
                 length: int | None = None, dtype: str = "float32") -> None:
  """Writes a model's forward pass as StableHLO; see `jtx.interop.stablehlo`.

  Args:
    directory: to make.
    model: a Linen module.
    params: its parameters.
    like: the folder that they are from.
    length: tokens of a row; None is 128.
    dtype: of the computation.

  Raises:
    ConfigError: what can't be written, and why.
  """
  labels = like.labels() if TASKS[task_of(model.heads)].labelled else None
  of_images = takes_images(model)
  if of_images and length is not None:
    raise ConfigError(f"length={length} is of texts, and {like.directory} holds a model of images")
  stablehlo.save(directory, model, params, length=length or 128, labels=labels, dtype=dtype,
                 tokenizer=next(iter(like.tokenizers().values()), None),
                 image_ops=like.image_ops(model) if of_images else None)


def _opened(like: str | Saved, params: Any) -> tuple[Saved, card.Told | None]:
  """A folder, and what it tells of parameters if they are its own."""
  saved = like if isinstance(like, Saved) else open_saved(like)
  warn_of_changes(saved)
  if saved is like:
    return saved, saved.told()
  if not isinstance(saved, Run):
    return saved, None
  theirs = saved.load()[1]
  same = jax.tree.structure(theirs) == jax.tree.structure(params) and all(
      np.array_equal(a, b) for a, b in zip(jax.tree.leaves(theirs), jax.tree.leaves(params)))
  return saved, saved.told() if same else None


def load_tokenizer(directory: str) -> Tokenizer:
  """The tokenizer of a model's text.

  Args:
    directory: as for `load_pretrained`, or one of tokenizer files alone: tokenizer.json or
      vocab.txt. Of a workdir with several it is that of the first field.

  Raises:
    DataError: there is none, or it can't be read.
  """
  if not storage.exists(os.path.join(directory, CONFIG)):
    return read_tokenizer(directory)
  return open_saved(directory).tokenizer()


def push_to_hub(directory: str, name: str, *, private: bool | None = None) -> str:
  """Uploads a folder of a Hugging Face model, such as `save_pretrained` writes, to the Hub.

  Args:
    directory: whose files are uploaded.
    name: ORG/NAME, or ORG/NAME@BRANCH; it is made unless it is there.
    private: of a model that is made; None is what its owner has set.

  Returns:
    The address of the commit.

  Raises:
    ConfigError: it is no such folder, or the Hub does not take it.
  """
  if not isinstance(open_saved(directory), HuggingFace):
    raise ConfigError(f"{directory} is a workdir of jtx, which the Hub's users can't open; make a"
                      " Hugging Face folder of it first, by save_pretrained or"
                      " experiments.convert --to_hf=DIR")
  return hub.push(directory, name, private=private)
