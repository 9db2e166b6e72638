"""Adapters as files of PEFT: adapter_config.json and adapter_model.safetensors.

The format is that of PEFT's guide "PEFT checkpoint format". A layer of the file that has several of
our kernels, such as GPT-2's queries, keys and values, gets the adapters of all as one, whose rank
is the sum of theirs and whose B has a block for each; what is beside the blocks is 0.
"""

import json
import os
from typing import Any, Mapping

from flax.traverse_util import flatten_dict
import numpy as np
import safetensors.numpy

from jtx.errors import ConfigError
from jtx.interop import configs, export, sentences, tables
from jtx.interop.families import FAMILIES
from jtx.interop.files import NewDirectory
from jtx.interop.tables import Entry
from jtx.nn import lora

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
# PEFT's classes, by the end of the architecture's name; others are opened as they are.
TASKS = {"ForCausalLM": "CAUSAL_LM", "LMHeadModel": "CAUSAL_LM",
         "ForSequenceClassification": "SEQ_CLS", "ForTokenClassification": "TOKEN_CLS",
         "ForQuestionAnswering": "QUESTION_ANS", "Model": "FEATURE_EXTRACTION"}


def save(directory: str, model: Any, params: Any, base: str) -> None:
  """Writes the adapters of a model, and the parts that are trained whole; all of it, or nothing.

  Args:
    directory: to make; it must not hold anything yet.
    model: with adapters, whose layers a family of Hugging Face has.
    params: its parameters.
    base: the folder, or the name of the Hub, of the model without adapters.

  Raises:
    ConfigError: it has no adapters, or PEFT has no way to express them.
  """
  if not lora.adapted(model):
    raise ConfigError("format='peft' is for a model with adapters, and its lora.rank is 0")
  config, tensors = contents(model, params)
  config["base_model_name_or_path"] = base
  with NewDirectory(directory) as path:
    with open(os.path.join(path, CONFIG), "w", encoding="utf-8") as f:
      json.dump(config, f, indent=2, sort_keys=True)
      f.write("\n")
    safetensors.numpy.save_file(tensors, os.path.join(path, WEIGHTS), {"format": "pt"})


def contents(model: Any, params: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
  """The content of adapter_config.json without the base's name, and the tensors by name."""
  bare = sentences.without_pooling(lora.merged(model, params)[0])
  name, config = configs.hf_config(FAMILIES, bare, None, {})
  family, c = FAMILIES[name], model.lora
  flat = {path: np.asarray(x, np.float32) for path, x in flatten_dict(params, sep="/").items()}
  shapes = export.param_shapes(bare)
  entries = list(tables.entries(family.names.rows_for(bare.heads), bare.stacks, shapes))
  wholly = {_module(entry.name) for entry in entries
            if any(c.trains(path) for path, _ in entry.places)}
  tensors, targets, ranks = {}, [], {}
  for entry in entries:
    name = export.file_name(family, bare, entry.name)
    at = [_adapter(flat, path, index) for path, index in entry.places]
    if _module(entry.name) in wholly:
      if any(at) or not name.endswith((".weight", ".bias")):
        raise ConfigError(f"model.lora.trained: PEFT has no place for {entry.places[0][0]}, which"
                          + (" has adapters too" if any(at) else " is no part of a layer"))
      tensors[PREFIX + name] = tables.write(entry, flat)
    elif any(at):
      target, own = _module(name), tables.place_shapes(entry, shapes)
      if len(tables.tensor_shape(entry, shapes)) != 2:
        raise ConfigError(f"model.lora.names: {entry.places[0][0]} is a convolution in files of"
                          " PEFT, for whose adapters jtx has no layout; leave it out")
      a, b = joined(entry, at, own)
      tensors |= {f"{PREFIX}{target}.lora_A.weight": a, f"{PREFIX}{target}.lora_B.weight": b}
      targets.append(target)
      if len(a) != c.rank:
        ranks[target] = len(a)
  modules = sorted({export.file_name(family, bare, name) for name in wholly})
  name = config["architectures"][0]
  return {
      "peft_type": "LORA", "r": c.rank, "lora_alpha": c.alpha, "lora_dropout": c.dropout,
      "bias": "none", "target_modules": targets, "modules_to_save": modules or None,
      # So that alpha / rank is as it was.
      "rank_pattern": ranks, "alpha_pattern": {k: r * c.alpha / c.rank for k, r in ranks.items()},
      "fan_in_fan_out": any(e.layout.axis == 1 for e in entries), "use_rslora": False,
      "init_lora_weights": True, "inference_mode": True,
      "task_type": next((task for end, task in TASKS.items() if name.endswith(end)), None),
  }, tensors


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


def _module(name: str) -> str:
  return name.rpartition(".")[0] if name.endswith((".weight", ".bias")) else name
