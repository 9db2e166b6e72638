"""Models written as directories that `transformers` loads."""

import json
import os
import shutil
from typing import Any, Mapping, Sequence

from flax.traverse_util import flatten_dict
import jax.numpy as jnp
import numpy as np
import safetensors.numpy

from jtx import storage
from jtx.data.tokenizers import encodings
from jtx.data.tokenizers.tokenizer import Tokenizer
from jtx.errors import ConfigError
from jtx.interop import configs, tables
from jtx.interop.families import FAMILIES
from jtx.interop.family import Family
from jtx.interop.files import CONFIG, DTYPES, WEIGHTS, NewDirectory
from jtx.interop.preprocessor import evaluated, resized
from jtx.interop.trunks import param_shapes
from jtx.parallel.sharding import unbox


def hf_config(model: Any, tokenizer: Tokenizer | None = None,
              labels: Sequence[str] | None = None) -> dict[str, Any]:
  """The content of config.json for a model; see `save`."""
  return _config(model, tokenizer, labels)[1]


def _config(model, tokenizer, labels) -> tuple[str, dict[str, Any]]:
  ids = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
  if tokenizer is not None:
    ids = {"pad_token_id": int(tokenizer.pad_id), "bos_token_id": int(tokenizer.bos_id),
           "eos_token_id": int(tokenizer.eos_id)}
  return configs.hf_config(FAMILIES, model, None if labels is None else tuple(labels), ids)


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
    raise ConfigError(f"the model can't be expressed as a Hugging Face model: it has no place for"
                      f" parameter {min(left)}")
  strip = f"{family.names.prefix}." if model.heads <= {"embedding"} else ""  # of a base model
  return {e.name.removeprefix(strip): tables.write(e, flat) for e in wanted}


def save(directory: str, model: Any, params: Any, tokenizer: Tokenizer | None = None,
         labels: Sequence[str] | None = None, dtype: str = "float32",
         image_ops: Sequence[Any] | None = None, more: Mapping[str, str] = {}) -> None:
  """Writes a directory that `transformers` loads; all of it, or nothing.

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

  Raises:
    ConfigError: the model, tokenizer, labels or ops can't be expressed, or the directory is in
      use.
  """
  if dtype not in DTYPES:
    raise ConfigError(f"dtype={dtype!r}: valid are {', '.join(DTYPES)}")
  model_type, config = _config(model, tokenizer, labels)
  family, side_files = FAMILIES[model_type], {}
  tensors = {name: np.ascontiguousarray(x.astype(jnp.dtype(dtype)))
             for name, x in tensors_of(family, model, params).items()}
  if family.side_files is not None:
    ops = resized(model.image) if image_ops is None else evaluated(image_ops, model.image)
    config, side_files = family.side_files.split(config, ops)
  texts = {CONFIG: config | {"dtype": dtype}, **side_files}
  if tokenizer is not None:
    texts |= tokenizer_files(model, tokenizer)
  with NewDirectory(directory) as path:
    for name, text in more.items():
      storage.write_text(os.path.join(path, name), text)
    for name, content in texts.items():
      with open(os.path.join(path, name), "w", encoding="utf-8") as f:
        json.dump(content, f, indent=2, ensure_ascii=False)
        f.write("\n")
    safetensors.numpy.save_file(tensors, os.path.join(path, WEIGHTS), {"format": "pt"})
    # The library makes it for its owner alone; others may read what the umask lets them.
    shutil.copymode(os.path.join(path, CONFIG), os.path.join(path, WEIGHTS))


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
  backend = encodings.Encoder(content, ends, tokenizer.text_ids(), frozenset(),
                              max_length=None)._backend
  content["post_processor"] = json.loads(backend.to_str())["post_processor"]
  roles = {"pad": tokenizer.pad_id, "unk": tokenizer.unk_id, "bos": ends[0], "eos": ends[1],
           "cls": ends[0], "sep": ends[1], "mask": tokenizer.mask_id, **tokenizer.roles}
  config = {f"{role}_token": tokenizer.tokens([i])[0] for role, i in roles.items() if i is not None}
  if named := sorted(tokenizer.named_ids):
    config["additional_special_tokens"] = tokenizer.tokens(named)
  config |= {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
  # What the tokenizer gives a model; without types the second text of a pair would be as the first.
  types = ["token_type_ids"] if model.embedding.types > 1 else []
  config["model_input_names"] = ["input_ids", *types, "attention_mask"]
  if model.longest is not None:
    config["model_max_length"] = model.longest
  return {"tokenizer.json": content, "tokenizer_config.json": config}
