"""Attributes of config.json, read and written.

No attribute is ignored: each is read, or has the one value that jtx computes, or is known
not to change what is computed. All others are refused by name. Rates of dropout act in
training alone, and there each library has places of its own: they are kept as the nearest
of our fields, see each family.
"""

import numbers
from typing import Any, Mapping

from absl import logging

from jtx.errors import ConfigError
from jtx.interop.family import Attributes, task_of
from jtx.models.heads import TASKS
from jtx.nn.block import BlockConfig

# Names of activations, ours by theirs; where ours has several, the first is written.
ACTIVATIONS = {
    "gelu": "gelu", "gelu_python": "gelu", "relu": "relu", "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh", "gelu_accurate": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh", "silu": "silu", "swish": "silu", "quick_gelu": "gelu_sigmoid",
    "tanh": "tanh",
}


def _side(value: Any) -> int | None:
  """The one number of a square's size, which may be written as two."""
  sides = value if isinstance(value, (list, tuple)) and len(value) == 2 else [value]
  whole = all(isinstance(s, int) and not isinstance(s, bool) and s >= 1 for s in sides)
  return sides[0] if whole and len(set(sides)) == 1 else None


# kind -> test of a value, and what it says in an error
KINDS = {
    "size": (lambda v: isinstance(v, int) and not isinstance(v, bool) and v >= 1,
             "a whole number of 1 or more"),
    "size_or_null": (lambda v: v is None or KINDS["size"][0](v),
                     "a whole number of 1 or more, or null"),
    "positive_or_null": (lambda v: v is None or KINDS["positive"][0](v),
                         "a number above 0, or null"),
    "id": (lambda v: isinstance(v, int) and not isinstance(v, bool) and v >= 0,
           "a whole number of 0 or more"),
    "rate": (lambda v: isinstance(v, numbers.Real) and not isinstance(v, bool) and 0 <= v < 1,
             "a number from 0 to below 1"),
    "positive": (lambda v: isinstance(v, numbers.Real) and not isinstance(v, bool) and v > 0,
                 "a number above 0"),
    "not_negative": (lambda v: v == 0 and not isinstance(v, bool) or KINDS["positive"][0](v),
                     "a number of 0 or more"),
    "flag": (lambda v: isinstance(v, bool), "true or false"),
    "activation": (lambda v: isinstance(v, str) and v in ACTIVATIONS,
                   "one of " + ", ".join(ACTIVATIONS)),
    "feed_forward": (lambda v: isinstance(v, str) and v.removeprefix("gated-") in ACTIVATIONS,
                     "one of " + ", ".join(ACTIVATIONS) + ", with or without 'gated-' before it"),
    "pooling": (lambda v: v in ("cls", "mean"), "'cls' or 'mean'"),
    "words": (lambda v: isinstance(v, str) or KINDS["layers"][0](v),
              "words in a list, or joined by '|'"),
    "size_or_minus_1": (lambda v: v == -1 or KINDS["size"][0](v),
                        "a whole number of 1 or more, or -1"),
    "windows": (lambda v: all(KINDS["size"][0](w) and not w % 2
                              for w in (v if isinstance(v, list) else [v])),
                "an even number of places to both sides, or a list of them, one a layer"),
    "layers": (lambda v: isinstance(v, list) and all(isinstance(k, str) for k in v),
               "a list of layer types"),
    "sizes": (lambda v: isinstance(v, list) and bool(v) and all(map(KINDS["size"][0], v)),
              "a list of whole numbers of 1 or more"),
    "name": (lambda v: isinstance(v, str), "a name"),
    "image_position": (lambda v: v in ("sine", "learned"), "'sine' or 'learned'"),
    "rope": (lambda v: isinstance(v, dict), "an object of RoPE parameters by layer type"),
    "square": (lambda v: _side(v) is not None, "a whole number of pixels, or two equal ones"),
    "pixels": (lambda v: isinstance(v, list) and bool(v) and all(
        isinstance(x, numbers.Real) and not isinstance(x, bool) for x in v),
               "a list of numbers, one a channel"),
}

# Settings of generation, which `jtx.interop.generation` reads.
GENERATION = frozenset("""
    forced_bos_token_id forced_eos_token_id max_length min_length max_new_tokens min_new_tokens
    do_sample early_stopping num_beams num_beam_groups diversity_penalty
    temperature top_k top_p min_p typical_p repetition_penalty length_penalty no_repeat_ngram_size
    encoder_no_repeat_ngram_size bad_words_ids num_return_sequences output_scores
    return_dict_in_generate remove_invalid_values exponential_decay_length_penalty suppress_tokens
    begin_suppress_tokens
    """.split())
# That no model type computes with.
FREE = GENERATION | frozenset("""
    architectures model_type transformers_version dtype torch_dtype _name_or_path name_or_path
    _commit_hash _attn_implementation attn_implementation id2label label2id num_labels problem_type
    use_cache gradient_checkpointing initializer_range chunk_size_feed_forward
    pad_token_id bos_token_id eos_token_id sep_token_id cls_token_id mask_token_id unk_token_id
    decoder_start_token_id
    output_attentions output_hidden_states output_past return_dict use_return_dict torchscript
    use_bfloat16 tokenizer_class finetuning_task task_specific_params prefix tie_weights_
    tf_legacy_loss
    """.split())

MULTI_LABEL = "multi_label_classification"  # a problem_type: labels do not exclude one another

# That every model type could have, and jtx has in one way.
FIXED = {
    "is_decoder": (False,),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (None,),
    "position_embedding_type": ("absolute",),
    "tie_word_embeddings": (True,),
    "tie_encoder_decoder": (False,),
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
    "per_layer_config": (None,),
}


def read(own: Attributes, config: Mapping[str, Any], where: str) -> dict[str, Any]:
  """The attributes that a model type reads, with its defaults for those that are absent.

  Raises:
    ConfigError: an attribute that is not known, or has a value that jtx can't compute.
  """
  values, config = defaults(own), renamed(own, config, where)
  convert = dict.fromkeys(("rate", "positive", "not_negative", "positive_or_null"), float)
  convert["square"] = _side
  fixed = {k: v for k, v in {**FIXED, **own.fixed}.items() if k not in own.read}
  for name, value in config.items():
    if name in own.read:
      kind, default = own.read[name]
      is_valid, expected = KINDS[kind]
      if not is_valid(value) and not (value is None and default is None):
        raise ConfigError(f"{where}: {name}={value!r} is not {expected}")
      values[name] = convert[kind](value) if kind in convert and value is not None else value
      continue
    bare = name if name in fixed else name.rpartition(".")[2]  # of a section
    if bare in fixed and name not in own.free:
      if value not in fixed[bare]:
        only = " or ".join(map(repr, fixed[bare]))
        raise ConfigError(f"{where}: {name}={value!r} is not what jtx computes, which is {only}")
    elif bare not in FREE and name not in own.free:
      raise ConfigError(f"{where}: {name!r}={value!r} is not known to jtx and might change the"
                        " computation; remove it if it does not")
  return values


def renamed(own: Attributes, config: Mapping[str, Any], where: str) -> dict[str, Any]:
  """The content of config.json, with each attribute under its own name."""
  result: dict[str, Any] = {}
  for name, value in flat(own, config, where).items():
    known = own.aliases[name] if name in own.aliases else name
    if known != name and value is None:
      continue  # as if it were absent
    if known in result and result[known] != value:
      raise ConfigError(f"{where}: {known} is {result[known]!r}, and {value!r} by another of its"
                        " names")
    result[known] = value
  return result


def flat(own: Attributes, config: Mapping[str, Any], where: str) -> dict[str, Any]:
  """The content of config.json, with the attributes of its sections as SECTION.NAME.

  Raises:
    ConfigError: a section is no object.
  """
  older = {old: section for section, old in own.sections.items()}
  result = {name: value for name, value in config.items()
            if name not in own.sections and name not in older}
  for name in (*own.sections, *older):
    content = config[name] if name in config else None
    need(content is None or isinstance(content, Mapping),
         f"{where}: {name}={content!r} is not an object")
    section = older[name] if name in older else name
    result |= {f"{section}.{key}": value for key, value in (content or {}).items()}
  return result


def nested(own: Attributes, values: Mapping[str, Any]) -> dict[str, Any]:
  """The inverse of `flat`."""
  result: dict[str, Any] = {}
  for name, value in values.items():
    section, dot, key = name.partition(".")
    if dot and section in own.sections:
      result.setdefault(section, {})[key] = value
    else:
      result[name] = value
  return result


def defaults(own: Attributes) -> dict[str, Any]:
  return {name: default for name, (_, default) in own.read.items()}


def num_labels(config: Mapping[str, Any], where: str) -> int:
  """The number of classes or tags: 2 where nothing says it, as in `transformers`."""
  if names := label_names(config, where):
    return len(names)
  number = config["num_labels"] if "num_labels" in config else 2
  if not KINDS["size"][0](number):
    raise ConfigError(f"{where}: num_labels={number!r} is not {KINDS['size'][1]}")
  return number


def label_names(config: Mapping[str, Any], where: str) -> tuple[str, ...] | None:
  """The names of classes or tags in order, from `id2label`.

  Raises:
    ConfigError: its keys are not 0, 1, ... or its values not names.
  """
  if "id2label" not in config or config["id2label"] is None:
    return None
  names = config["id2label"]
  numbered = isinstance(names, dict) and set(names) == {str(i) for i in range(len(names))}
  if not numbered or not all(isinstance(n, (str, int)) for n in names.values()):
    raise ConfigError(f"{where}: id2label must name the labels \"0\", \"1\" and so on, one each")
  return tuple(str(names[str(i)]) for i in range(len(names)))


def label_attributes(model: Any, labels: tuple[str, ...] | None) -> dict[str, Any]:
  """`id2label` and what goes with it, for models with classes or tags."""
  task = task_of(model.heads)
  if not TASKS[task].labelled:
    if labels:
      raise ConfigError(f"labels={labels!r}: a model with head.task={task!r} has none")
    return {}
  head = model.head
  if labels is None:
    labels = tuple(f"LABEL_{i}" for i in range(head.outputs))
    if head.outputs > 1:
      logging.warning("no names of the model's %d classes or tags are given (labels=, or like= the"
                      " folder that has them): they are called LABEL_0 and so on", head.outputs)
  if len(labels) != head.outputs:
    raise ConfigError(f"labels has {len(labels)} names, and the model has"
                      f" head.outputs={head.outputs}")
  result = {"id2label": {str(i): name for i, name in enumerate(labels)},
            "label2id": {name: i for i, name in enumerate(labels)}}
  if task == "classes" and head.outputs == 1:
    result["problem_type"] = "regression"
  if task == "multi_label":
    result["problem_type"] = MULTI_LABEL
  return result


# -------------------------------------------------------------------- for the families


def need(condition: bool, text: str) -> None:
  """Raises ConfigError, the rest of a sentence that begins with the model type or the file."""
  if not condition:
    raise ConfigError(text)


def activation_name(ours: str) -> str:
  """The name of one of our activations in config.json."""
  names = [theirs for theirs, name in ACTIVATIONS.items() if name == ours]
  known = ", ".join(dict.fromkeys(ACTIVATIONS.values()))
  need(bool(names), f"has the activations {known}, not {ours!r}")
  return names[0]


def init_std(block: BlockConfig) -> float:
  """`initializer_range`; the classes' own default where a model draws its parameters otherwise."""
  return 0.02 if block.init_std is None else block.init_std
