"""Models written as directories that `transformers` loads."""

import json
import os
import shutil
from typing import Any, Mapping, Sequence

from absl import logging
from flax.traverse_util import flatten_dict, unflatten_dict
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
import tokenizers as hf

from jtx import storage
from jtx.data.tokenizers import encodings
from jtx.data.tokenizers.tokenizer import SPECIALS, Tokenizer
from jtx.errors import ConfigError, Inexpressible
from jtx.interop import configs, sentences, tables
from jtx.interop.attributes import GENERATION
from jtx.interop.families import FAMILIES, families_of
from jtx.interop.family import Family, type_of
from jtx.interop.files import CONFIG, DTYPES, WEIGHTS, NewDirectory, write_json
from jtx.interop.originals import IDS, Originals
from jtx.interop.preprocessor import evaluated, resized
from jtx.interop.trunks import param_shapes
from jtx.models.decoder import Decoder
from jtx.nn import lora
from jtx.parallel.sharding import unbox

# What is kept of every model type.
SETTINGS = GENERATION | {"task_specific_params", "prefix"}
LONGEST = "max_position_embeddings"  # of models whose positions have no end, too
START, BEGIN = "decoder_start_token_id", "bos_token_id"


def hf_config(model: Any, tokenizer: Tokenizer | None = None, labels: Sequence[str] | None = None,
              original: Originals = Originals()) -> dict[str, Any]:
  """The content of config.json for a model; see `save`."""
  return _config(model, tokenizer, labels, original)[1]


def _config(model, tokenizer, labels, original: Originals) -> tuple[str, dict[str, Any]]:
  model = sentences.without_pooling(model)
  ids = dict.fromkeys(IDS)
  if tokenizer is not None:
    ids = dict(zip(IDS, map(int, (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id))))
    ids |= {} if tokenizer.has_begin else {BEGIN: None}
  if original.tokenizer or tokenizer is None:
    ids |= {name: original.config[name] for name in IDS if name in original.config}
  theirs = original.config["model_type"] if "model_type" in original.config else None
  name, config = configs.hf_config(
      families_of(theirs) | FAMILIES, model, None if labels is None else tuple(labels), ids)
  if type_of(name) == theirs:  # what jtx does not compute with
    free = FAMILIES[name].attributes.free | SETTINGS | {LONGEST, START}
    config |= {key: value for key, value in original.config.items()
               if key in free and key not in config}
    for section in FAMILIES[name].attributes.sections:
      own = original.config[section] if section in original.config else {}
      config[section] = {key: own[key] for key in IDS if key in own} | config[section]
  if "seq2seq" in model.heads and START not in config:
    begin = int(tokenizer.bos_id) if ids[BEGIN] is None and tokenizer is not None else ids[BEGIN]
    start = begin if original.start is None else original.start
    config |= {} if start is None else {START: start}
  return name, config


def expressible(model: Any, params: Any) -> tuple[Any, Any]:
  """A model without its scores of next tokens, where it has a task and no architecture has both.

  Classes of decoders are such a task: they may have been learnt together with next tokens.

  Returns:
    The model and its parameters.
  """
  if not isinstance(model, Decoder) or not model.lm or model.head.task == "none" or any(
      family.architecture(model.heads) for family in FAMILIES.values()):
    return model, params
  logging.info("no architecture of transformers has the scores of next tokens beside"
               " head.task=%r: they are left out", model.head.task)
  model = model.clone(lm=False)
  wanted = param_shapes(model)
  flat = flatten_dict(unbox(params), sep="/")
  return model, unflatten_dict({path: x for path, x in flat.items() if path in wanted}, sep="/")


def head_advice(model: Any) -> str:
  """As `configs.head_advice`; "" of a model that can be written as it is, too."""
  model = sentences.without_pooling(lora.plain(model))
  try:
    configs.expressed(FAMILIES, model)
  except Inexpressible:
    return configs.head_advice(FAMILIES, model)
  return ""


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
  rows = family.names.rows_for(model.heads)
  wanted = list(tables.entries(rows, model.stacks, shapes))
  left = set(shapes) - {path for e in wanted for path, _ in e.places}
  if left:
    raise Inexpressible("the model can't be expressed as a Hugging Face model: it has no place for"
                        f" parameter {min(left)}")
  return {file_name(family, model, entry.name): tables.write(entry, flat) for entry in wanted}


def file_name(family: Family, model: Any, name: str) -> str:
  """A name of a family's rows as it is in the files of a model."""
  strip = f"{family.names.prefix}." if model.heads <= family.names.base else ""
  name = name.removeprefix(strip)
  for ours, theirs in family.names.written(model).items():
    name = name.replace(ours, theirs)
  return name


def save(directory: str, model: Any, params: Any, tokenizer: Tokenizer | None = None,
         labels: Sequence[str] | None = None, dtype: str = "float32",
         image_ops: Sequence[Any] | None = None, more: Mapping[str, str] = {},
         original: Originals = Originals(), max_length: int | None = None) -> None:
  """Writes a directory that `transformers` loads; all of it, or nothing.

  Of a model whose head pools hidden states, `sentence-transformers` loads it, too.

  Args:
    directory: to make; it must not hold anything yet.
    model: that one of the families can express.
    params: its parameters.
    tokenizer: written as tokenizer.json, for AutoTokenizer.
    labels: names of classes or tags.
    dtype: of the tensors.
    image_ops: that make arrays of images for the model, such as those of a run's data; None is a
      resize to its size.
    more: texts of more files, by name.
    original: of the folder that the model is from, whose model type it keeps; where its tokenizer's
      files are among them, they are `tokenizer`'s.
    max_length: tokens that sentence-transformers cuts texts to; None is what the model takes.

  Raises:
    ConfigError: the model, tokenizer, labels or ops can't be expressed, a weight is above what the
      dtype holds, or the directory is in use.
  """
  if dtype not in DTYPES:
    raise ConfigError(f"dtype={dtype!r}: valid are {', '.join(DTYPES)}")
  name, config = _config(model, tokenizer, labels, original)
  family, side_files = FAMILIES[name], {}
  of_sentences, model = sentences.files(model, max_length), sentences.without_pooling(model)
  tensors = {name: _narrowed(name, x, dtype)
             for name, x in tensors_of(family, model, params).items()}
  if family.side_files is not None:
    ops = resized(model.image) if image_ops is None else evaluated(image_ops, model.image)
    config, side_files = family.side_files.split(config, ops)
  texts = {CONFIG: config | {"dtype": dtype}, **side_files, **of_sentences}
  copies = dict(original.generation if family.generates else {})
  if of_sentences:
    copies |= original.sentences
  if tokenizer is not None and original.tokenizer:
    copies |= original.tokenizer
  elif tokenizer is not None:
    texts |= tokenizer_files(model, tokenizer, original)
    texts["tokenizer_config.json"] |= {"padding_side": "left"} if family.pads_left else {}
  with NewDirectory(directory) as path:
    for name, text in more.items():
      storage.write_text(os.path.join(path, name), text)
    for name, content in texts.items():
      os.makedirs(os.path.dirname(os.path.join(path, name)), exist_ok=True)
      write_json(os.path.join(path, name), content)
    for name, copy in copies.items():
      storage.write_bytes(os.path.join(path, name), copy)
    safetensors.numpy.save_file(tensors, os.path.join(path, WEIGHTS), {"format": "pt"})
    # The library makes it for its owner alone; others may read what the umask lets them.
    shutil.copymode(os.path.join(path, CONFIG), os.path.join(path, WEIGHTS))


def _narrowed(name, tensor, dtype):
  with np.errstate(over="ignore"):
    narrow = np.asarray(tensor.astype(jnp.dtype(dtype)), order="C")
  if (lost := np.isinf(narrow) & np.isfinite(tensor)).any():
    largest = np.abs(tensor[lost]).max()
    wider = " or ".join(t for t in DTYPES if largest <= float(jnp.finfo(t).max))
    raise ConfigError(f"dtype={dtype!r}: {name} has {largest:g}, and {dtype} ends at"
                      f" {float(jnp.finfo(dtype).max):g}; {wider} would hold it")
  return narrow


def tokenizer_files(model: Any, tokenizer: Tokenizer,
                    original: Originals = Originals()) -> dict[str, Any]:
  """tokenizer.json and tokenizer_config.json; where `original.bare`, texts get an end token alone.

  Prompts of a language model begin, and talks are written, as `original.speaking` says.

  Raises:
    ConfigError: the kind of tokenizer has no tokenizer.json, or there are more ids than the
      model has.
  """
  if tokenizer.vocab_size > model.vocab_size:
    raise ConfigError(f"the tokenizer has {tokenizer.vocab_size} ids, and the model"
                      f" vocab_size={model.vocab_size}")
  content = tokenizer.model()
  ends, speaking = (tokenizer.bos_id, tokenizer.eos_id), original.speaking or {}
  backend = hf.Tokenizer.from_str(json.dumps(content))
  changed = True
  if original.bare:
    backend.post_processor = encodings.template(backend, None, ends[1], ends[1])
  elif "lm" in model.heads:  # a prompt has no end
    begin = speaking.get("begin")
    first = tokenizer.begin_ids() if begin is None else ends[:1] * begin
    changed = first != encodings.before_text(backend) or (
        # What a file without a template leaves open is <bos>: see `HuggingFace.begin_ids`.
        not first and tokenizer.tokens([ends[0]]) == [SPECIALS[1]]
        and not encodings.has_template(content))
    if changed:
      backend.post_processor = encodings.template(backend, *(first or (None,)), None, None)
  else:
    # Where its own template adds nothing, that by which `encode_texts` adds its ends, if any.
    backend = encodings.Encoder(content, tokenizer.ends, tokenizer.text_ids(), frozenset(),
                                max_length=None)._backend
  if changed:
    content["post_processor"] = json.loads(backend.to_str())["post_processor"]
  roles = {"pad": tokenizer.pad_id, "unk": tokenizer.unk_id, "bos": ends[0], "eos": ends[1],
           "cls": ends[0], "sep": ends[1], "mask": tokenizer.mask_id, **tokenizer.roles}
  config = {f"{role}_token": tokenizer.tokens([i])[0] for role, i in roles.items() if i is not None}
  if named := sorted(tokenizer.named_ids):
    config["additional_special_tokens"] = tokenizer.tokens(named)
  if template := speaking.get("template") or tokenizer.chat_template:
    config["chat_template"] = template
  config |= {"truncation_side": "left"} if tokenizer.truncation_side == "left" else {}
  config |= {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
  # What the tokenizer gives a model; without types the second text of a pair would be as the first.
  types = ["token_type_ids"] if reads_types(model) else []
  config["model_input_names"] = ["input_ids", *types, "attention_mask"]
  if model.longest is not None:
    config["model_max_length"] = model.longest
  return {"tokenizer.json": content, "tokenizer_config.json": config}


def reads_types(model: Any) -> bool:
  """Whether a model of texts computes with token types: in its embeddings, or in attention."""
  of_positions = any(getattr(stack.position, "types", False) for stack in model.stacks.values())
  return of_positions or getattr(getattr(model, "embedding", None), "types", 0) > 1
