"""Adapters as files of PEFT: adapter_config.json and adapter_model.safetensors.

The format is that of PEFT's guide "PEFT checkpoint format". Layers have the names of the modules of
`transformers` 5.23, which are not always those of its files. A layer that has several of
our kernels, such as GPT-2's queries, keys and values, gets the adapters of all as one, whose rank
is the sum of theirs and whose B has a block for each; what is beside the blocks is 0.
"""

import json
import os
import re
from typing import Any, Iterable, Mapping

from flax.traverse_util import flatten_dict
import numpy as np
import safetensors.numpy

from jtx.errors import ConfigError
from jtx.interop import configs, export, sentences, tables
from jtx.interop.families import FAMILIES, families_of
from jtx.interop.family import Family
from jtx.interop.files import NewDirectory
from jtx.interop.tables import Entry
from jtx.nn import lora

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
# PEFT's classes, by the end of the architecture's name; others are opened as they are.
TASKS = {"ForCausalLM": "CAUSAL_LM", "LMHeadModel": "CAUSAL_LM",
         "ForSequenceClassification": "SEQ_CLS", "ForTokenClassification": "TOKEN_CLS",
         "ForQuestionAnswering": "QUESTION_ANS", "Model": "FEATURE_EXTRACTION"}
CLASSIFIERS = "classifier", "score"  # that PEFT adds to `modules_to_save` of a classifier


def save(directory: str, model: Any, params: Any, base: str,
         model_type: str | None = None) -> None:
  """Writes the adapters of a model, and the parts that are trained whole; all of it, or nothing.

  Args:
    directory: to make; it must not hold anything yet.
    model: with adapters, whose layers a family of Hugging Face has.
    params: its parameters.
    base: the folder, or the name of the Hub, of the model without adapters.
    model_type: of the base; None is the first that can express the model.

  Raises:
    ConfigError: it has no adapters, or PEFT has no way to express them.
  """
  if not lora.adapted(model):
    raise ConfigError("format='peft' is for a model with adapters, and its lora.rank is 0")
  config, tensors = contents(model, params, model_type)
  config["base_model_name_or_path"] = base
  with NewDirectory(directory) as path:
    with open(os.path.join(path, CONFIG), "w", encoding="utf-8") as f:
      json.dump(config, f, indent=2, sort_keys=True)
      f.write("\n")
    safetensors.numpy.save_file(tensors, os.path.join(path, WEIGHTS), {"format": "pt"})


def contents(model: Any, params: Any, model_type: str | None = None,
             ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
  """The content of adapter_config.json without the base's name, and the tensors by name."""
  bare = sentences.without_pooling(lora.merged(model, params)[0])
  name, (architecture, *_) = configs.expressed(families_of(model_type) | FAMILIES, bare)
  family, c = FAMILIES[name], model.lora
  flat = {path: np.asarray(x, np.float32) for path, x in flatten_dict(params, sep="/").items()}
  shapes = export.param_shapes(bare)
  rows = family.names.rows_for(bare.heads)
  entries = [part for entry in tables.entries(rows, bare.stacks, shapes)
             for part in of_modules(entry, family, bare)]
  trained = {entry.name for entry in entries if any(c.trains(path) for path, _ in entry.places)}
  wholly = whole_modules(trained)
  tensors, targets, ranks = {}, [], {}
  for entry in entries:
    target, at = _module(entry.name), [_adapter(flat, path, index) for path, index in entry.places]
    if entry.name in trained or any(entry.name.startswith(f"{module}.") for module in wholly):
      if any(at) or "." not in entry.name:
        raise ConfigError(f"model.lora: PEFT has no place for {entry.places[0][0]}, which"
                          + (" has adapters and is trained whole, too" if any(at) else
                             " is trained whole and is no part of a layer"))
      tensors[PREFIX + entry.name] = tables.write(entry, flat)
    elif any(at):
      own = tables.place_shapes(entry, shapes)
      if not target:
        raise ConfigError(f"model.lora.names: {entry.places[0][0]} is of no linear layer in"
                          " `transformers`, so PEFT has no place for its adapters; leave it out")
      if len(tables.tensor_shape(entry, shapes)) != 2:
        raise ConfigError(f"model.lora.names: {entry.places[0][0]} is a convolution in files of"
                          " PEFT, for whose adapters jtx has no layout; leave it out")
      a, b = joined(entry, at, own)
      tensors |= {f"{PREFIX}{target}.lora_A.weight": a, f"{PREFIX}{target}.lora_B.weight": b}
      targets.append(target)
      if len(a) != c.rank:
        ranks[target] = len(a)
  return {
      "peft_type": "LORA", "r": c.rank, "lora_alpha": c.alpha, "lora_dropout": c.dropout,
      "bias": "none", "target_modules": targets,
      "modules_to_save": sorted(set(map(_saved, wholly))) or None,
      # So that alpha / rank is as it was.
      "rank_pattern": ranks, "alpha_pattern": {k: r * c.alpha / c.rank for k, r in ranks.items()},
      "fan_in_fan_out": any(e.layout.axis == 1 for e in entries), "use_rslora": False,
      "init_lora_weights": True, "inference_mode": True,
      "task_type": next((task for end, task in TASKS.items() if architecture.endswith(end)), None),
  }, tensors


def whole_modules(names: Iterable[str]) -> set[str]:
  """The modules that have parameters, without those that are in one of the others.

  One that is no layer's, such as the query that pools images, goes with all of the module that it
  is beside other layers in.
  """
  modules = {name.rpartition(".")[0] for name in names}
  return {m for m in modules if not any(m.startswith(f"{other}.") for other in modules)}


def of_modules(entry: Entry, family: Family, model: Any) -> list[Entry]:
  """A tensor of a file by the names that modules of `transformers` have.

  Returns:
    One, or one for each of its parameters where these are in modules of their own. Its name is
    empty where they are in no linear layer.
  """
  names = [export.file_name(family, model, entry.name)]
  for pattern, written in family.names.modules.items():
    if re.search(pattern, names[0]):
      given = (written,) if isinstance(written, str) else written
      names = [re.sub(pattern, new, name) for name in names for new in given] or [""]
  if len(names) == 1:
    return [entry._replace(name=names[0])]
  return [entry._replace(name=name, places=(place,))
          for name, place in zip(names, entry.places, strict=True)]


def joined(entry: Entry, adapters: list[tuple[np.ndarray, np.ndarray] | None],
           shapes: list[tables.Shape]) -> tuple[np.ndarray, np.ndarray]:
  """A [rank, inputs] and B [outputs, rank] of a layer of the file, from those of its kernels.

  Args:
    entry: of the layer's weight.
    adapters: A and B of each kernel, or None.
    shapes: of the kernels.
  """
  found = [pair[0] for pair in adapters if pair is not None]
  num_in, total = found[0].ndim - 1, sum(a.shape[-1] for a in found)
  parts, start = [], 0
  for shape, pair in zip(shapes, adapters):
    # B stands where a kernel with `total` inputs would.
    b = np.zeros((total, *(1,) * (num_in - 1), *shape[num_in:]), np.float32)
    if pair is not None:
      rank = pair[1].shape[0]
      b[start:start + rank] = pair[1].reshape(rank, *b.shape[1:])
      start += rank
    parts.append(b)
  b = tables.join(entry, [entry.layout.write(b) for b in parts], [b.shape for b in parts])
  rows = [a.reshape(-1, a.shape[-1]).T for a in found]
  return (np.ascontiguousarray(np.concatenate(rows)),
          np.ascontiguousarray(b.T if entry.layout.axis == 1 else b))


def _adapter(flat: Mapping[str, np.ndarray], path: str, index: int | None):
  layer = path.removesuffix("/kernel")
  if layer == path or f"{layer}/{lora.A}" not in flat:
    return None
  pair = flat[f"{layer}/{lora.A}"], flat[f"{layer}/{lora.B}"]
  return pair if index is None else tuple(x[index] for x in pair)


def _saved(module: str) -> str:
  """The module that PEFT saves whole; it takes one of `CLASSIFIERS` with all that is in it."""
  first = module.partition(".")[0]
  return first if first in CLASSIFIERS else module


def _module(name: str) -> str:
  return name.rpartition(".")[0] if name.endswith((".weight", ".bias")) else name
