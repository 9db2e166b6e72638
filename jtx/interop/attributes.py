"""config.json of Hugging Face to the fields of a model, and back.

No attribute is ignored: each is read, or has the one value that jtx computes, or is known
not to change what is computed. All others are refused by name. Rates of dropout act in
training alone, and there each library has places of its own: they are kept as the nearest
of our fields, see each family.
"""

import dataclasses
import numbers
from typing import Any, Mapping

from absl import logging

from jtx.config import ConfigDict, build, edits_of, fields, section
from jtx.errors import ConfigError, nearest
from jtx.interop.tables import Family
from jtx.models import MODELS
from jtx.models.encoder import Encoder
from jtx.models.text_head import HeadConfig
from jtx.models.image_head import ImageHeadConfig
from jtx.models.mae_decoder import DecoderConfig
from jtx.models.vit import Vit
from jtx.nn.block import BlockConfig
from jtx.nn.positions import Rope
from jtx.nn.stack import StackConfig

# Names of activations, ours by theirs; where ours has several, the first is written.
ACTIVATIONS = {
    "gelu": "gelu", "relu": "relu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu", "swish": "silu", "quick_gelu": "gelu_sigmoid", "tanh": "tanh",
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
    "id": (lambda v: isinstance(v, int) and not isinstance(v, bool) and v >= 0,
           "a whole number of 0 or more"),
    "rate": (lambda v: isinstance(v, numbers.Real) and not isinstance(v, bool) and 0 <= v < 1,
             "a number from 0 to below 1"),
    "positive": (lambda v: isinstance(v, numbers.Real) and not isinstance(v, bool) and v > 0,
                 "a number above 0"),
    "flag": (lambda v: isinstance(v, bool), "true or false"),
    "activation": (lambda v: isinstance(v, str) and v in ACTIVATIONS,
                   "one of " + ", ".join(ACTIVATIONS)),
    "pooling": (lambda v: v in ("cls", "mean"), "'cls' or 'mean'"),
    "layers": (lambda v: isinstance(v, list) and all(isinstance(k, str) for k in v),
               "a list of layer types"),
    "rope": (lambda v: isinstance(v, dict), "an object of RoPE parameters by layer type"),
    "square": (lambda v: _side(v) is not None, "a whole number of pixels, or two equal ones"),
    "pixels": (lambda v: isinstance(v, list) and bool(v) and all(
        isinstance(x, numbers.Real) and not isinstance(x, bool) for x in v),
               "a list of numbers, one a channel"),
}

# What no model type computes with.
FREE = frozenset("""
    architectures model_type transformers_version dtype torch_dtype _name_or_path name_or_path
    _commit_hash _attn_implementation attn_implementation id2label label2id num_labels problem_type
    use_cache gradient_checkpointing initializer_range chunk_size_feed_forward
    pad_token_id bos_token_id eos_token_id sep_token_id cls_token_id mask_token_id unk_token_id
    decoder_start_token_id forced_bos_token_id forced_eos_token_id
    output_attentions output_hidden_states output_past return_dict use_return_dict torchscript
    use_bfloat16 tokenizer_class finetuning_task task_specific_params prefix tie_weights_
    max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty
    temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size
    encoder_no_repeat_ngram_size bad_words_ids num_return_sequences output_scores
    return_dict_in_generate remove_invalid_values exponential_decay_length_penalty suppress_tokens
    begin_suppress_tokens tf_legacy_loss
    """.split())

# What every model type could have, and jtx has in one way.
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

# Fields that change nothing, or nothing but training.
RUN_FIELDS = ("dtype", "unroll", "remat", "block.attention.kernel")
TRAINING_FIELDS = (
    "block.dropout", "block.attention.dropout", "block.ffn.dropout", "block.init_std",
    "block.residual.drop_path", "block.residual.uniform", "position.init", "position.init_std",
    "position.trained", "head.dropout", "head.zero")
LABELLED = ("classes", "tags", "distilled")


def read(family: Family, config: Mapping[str, Any], where: str) -> dict[str, Any]:
  """The attributes that the family reads, with its defaults for those that are absent.

  Raises:
    ConfigError: an attribute that is not known, or has a value that jtx can't compute.
  """
  values = defaults(family)
  convert = {"rate": float, "positive": float, "square": _side}
  fixed = {k: v for k, v in {**FIXED, **family.fixed}.items() if k not in family.attributes}
  for name, value in config.items():
    if name in family.attributes:
      kind, default = family.attributes[name]
      is_valid, expected = KINDS[kind]
      if not is_valid(value) and not (value is None and default is None):
        raise ConfigError(f"{where}: {name}={value!r} is not {expected}")
      values[name] = convert[kind](value) if kind in convert and value is not None else value
    elif name in fixed and name not in family.free:
      if value not in fixed[name]:
        only = " or ".join(map(repr, fixed[name]))
        raise ConfigError(f"{where}: {name}={value!r} is not what jtx computes, which is {only}")
    elif name not in FREE | family.free:
      raise ConfigError(f"{where}: {name!r}={value!r} is not known to jtx and might change the"
                        " computation; remove it if it does not")
  return values


def defaults(family: Family) -> dict[str, Any]:
  return {name: default for name, (_, default) in family.attributes.items()}


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


def model_fields(family: Family, config: Mapping[str, Any], mlm: bool, task: str,
                 where: str) -> dict[str, Any]:
  """Fields for `jtx.config.section(MODELS, family.model, ...)`.

  Args:
    family: of config["model_type"].
    config: the content of config.json.
    mlm: whether the model has the head of its pretraining.
    task: of its other head.
    where: the file, for errors.

  Raises:
    ConfigError: as `read`, or values that do not fit together.
  """
  values = read(family, config, where)
  outputs = num_labels(config, where) if task in LABELLED else None
  problem = config["problem_type"] if "problem_type" in config else None
  if task in ("classes", "distilled"):
    single = problem in (None, "single_label_classification")
    if not single and (problem, outputs) != ("regression", 1):
      raise ConfigError(f"{where}: problem_type={problem!r} with {outputs} labels is not known to"
                        " jtx: it has single_label_classification, and regression of one number")
  try:
    result = fields_of(family, values, mlm, task, outputs)
  except ConfigError as e:
    raise ConfigError(f"{where}: {e}") from None
  width, heads = result["stack"]["width"], result["stack"]["block"]["attention"]["num_heads"]
  if width % heads:
    raise ConfigError(f"{where}: {heads} attention heads do not divide the width {width}")
  return result


def fields_of(family: Family, values: Mapping[str, Any], mlm: bool, task: str,
              outputs: int | None) -> dict[str, Any]:
  head = {"task": task, "outputs": outputs}
  if task != "none":
    head |= family.head(values, task)
  return {**family.trunk(values, mlm), "head": head}


def make_model(family: Family, model_fields: Mapping[str, Any], **more: Any) -> Any:
  """The model of `model_fields`."""
  edits = {k: v for k, v in {**model_fields, **more}.items() if v is not None}
  edits["head"] = {k: v for k, v in edits["head"].items() if v is not None}
  return build(MODELS, section(MODELS, family.model, **edits), what="model")


def model_section(model: Any) -> ConfigDict:
  """The config section that builds `model` again."""
  name = next(n for n, constructor in MODELS.items() if constructor is type(model))
  return section(MODELS, name, **edits_of(model))


# ---------------------------------------------------------------------- jtx to config.json


def structure(model: Any) -> dict[str, Any]:
  """The fields of a model by path, written one way where several mean the same."""
  result = _flat(IN_ONE_WAY[type(model)](model) if type(model) in IN_ONE_WAY else model)
  for name, stack in stack_fields(model).items():
    attention, path = stack.block.attention, f"{name}.block.attention"
    head_dim = attention.head_dim or stack.width // attention.num_heads
    result |= {f"{path}.head_dim": head_dim, f"{path}.v_head_dim": attention.v_head_dim or head_dim,
               f"{path}.num_kv_heads": attention.kv_heads,
               f"{path}.biases": frozenset(attention.biases)}
  return {key: value for key, value in result.items() if in_stack(key) not in RUN_FIELDS}


def stack_fields(model: Any) -> dict[str, StackConfig]:
  """The fields of a model that are stacks, by name."""
  return {key: value for key in fields(type(model))
          if isinstance(value := getattr(model, key), StackConfig)}


def in_stack(path: str) -> str:
  """The path of a field inside of its stack; others are what they are."""
  name, _, rest = path.partition(".")
  return rest if name in ("stack", "encoder", "decoder") and rest else path


def _flat(value: Any, path: str = "") -> dict[str, Any]:
  """The fields of a dataclass, and of those in it, by path; its own kind has none."""
  if not dataclasses.is_dataclass(value):
    return {path: value}
  result = {path: type(value).__name__} if hasattr(value, "registry") else {}
  for key in fields(type(value)):
    result |= _flat(getattr(value, key), f"{path}.{key}" if path else key)
  return result


def encoder_in_one_way(model: Encoder) -> Encoder:
  """An equal Encoder: of fields that mean the same it has the same."""
  head = model.head
  if head.task == "none":
    head = HeadConfig()
  elif head.transform == "none":
    head = dataclasses.replace(head, use_bias=True)
  stack = model.stack
  pattern = tuple(stack.pattern[i % len(stack.pattern)] for i in range(stack.num_layers))
  position = stack.position
  local = dataclasses.replace(stack, pattern=pattern).windowed
  if isinstance(position, Rope):
    base = position.base if position.local_base is None else position.local_base
    position = dataclasses.replace(position, local_base=base if local else None)
  stack = dataclasses.replace(stack, pattern=pattern, position=position,
                              window=stack.window if local else 0)
  embedding = dataclasses.replace(model.embedding, width=model.embedding.width or stack.width)
  return model.clone(stack=stack, embedding=embedding, head=head)


def vit_in_one_way(model: Vit) -> Vit:
  """An equal Vit."""
  one = lambda numbers: numbers[:1] if len(set(numbers)) == 1 else numbers
  image = dataclasses.replace(model.image, mean=one(model.image.mean), std=one(model.image.std))
  decoder = model.decoder
  if not decoder.num_layers:
    decoder = DecoderConfig(masked=decoder.masked)  # also of an encoder alone, in its config.json
  head = model.head if model.head.task != "none" else ImageHeadConfig(norm=model.head.norm)
  return model.clone(image=image, decoder=decoder, head=head)


IN_ONE_WAY = {Encoder: encoder_in_one_way, Vit: vit_in_one_way}


def differences(model: Any, other: Any) -> dict[str, tuple[Any, Any]]:
  """The fields in which two models differ: path -> values."""
  a, b = structure(model), structure(other)
  missing = "absent"
  keys = [*a, *(k for k in b if k not in a)]
  pairs = {k: (a[k] if k in a else missing, b[k] if k in b else missing) for k in keys}
  return {k: pair for k, pair in pairs.items() if pair[0] != pair[1]}


def check_trunk(model: Any, theirs: Any, directory: str) -> None:
  """Raises ConfigError where layers or embeddings of `model` are not those of a directory."""
  for key, (ours, other) in differences(model, theirs).items():
    of_head = key == "mlm" or key.startswith(("head.", "decoder.", "features."))
    if not of_head and not key.startswith("image.") and in_stack(key) not in TRAINING_FIELDS:
      raise ConfigError(f"model.{key}={ours!r} does not fit the weights of {directory}, whose {key}"
                        f" is {other!r}")


def pretraining_and_task(heads: frozenset[str]) -> tuple[bool, str]:
  """Whether a model has the head of its pretraining, and the task of its other head."""
  own = heads - {"mlm", "mae"}
  return own != heads, "distilled" if "distilled" in own else next(iter(own), "none")


def hf_values(family: Family, model: Any) -> tuple[str, dict[str, Any], list[str]]:
  """The model as an architecture of the family.

  Returns:
    The architecture's name; its attributes; and the fields of training that they leave out.

  Raises:
    ConfigError: the family has no such model; the sentence names what it lacks.
  """
  heads = pretraining_and_task(model.heads)
  name = family.architecture(*heads)
  if name is None and heads == (False, "none"):  # a base model that comes without its pooler
    name = family.architecture(False, "embedding")
  if name is None:
    with_it = f"with{'' if heads[0] else 'out'} the head of pretraining"
    raise ConfigError(f"has no architecture {with_it} and head.task={heads[1]!r}")
  values = family.values(model)
  fields = fields_of(family, defaults(family) | values, *heads, model.head.outputs)
  again = make_model(family, fields)
  wrong = differences(model, again)
  lost = [key for key in wrong if in_stack(key) in TRAINING_FIELDS]
  for key, (ours, theirs) in wrong.items():
    if key not in lost:
      raise ConfigError(f"has {key}={theirs!r} in {name}, not {ours!r}")
  return name, values, lost


def hf_config(families: Mapping[str, Family], model: Any, labels: tuple[str, ...] | None,
              token_ids: Mapping[str, int | None]) -> tuple[str, dict[str, Any]]:
  """The model type, and the content of config.json.

  Args:
    families: by model type; the first that can express the model is taken.
    model: to express.
    labels: names of classes or tags.
    token_ids: `pad_token_id` and the like.

  Raises:
    ConfigError: no family can, and why; or the labels do not fit the model.
  """
  own = {name: f for name, f in families.items() if MODELS[f.model] is type(model)}
  if not own:
    able = " or ".join(dict.fromkeys(MODELS[f.model].__name__ for f in families.values()))
    raise ConfigError(f"a {type(model).__name__} can't be saved as a Hugging Face model: only"
                      f" {able} can")
  reasons = []
  for model_type, family in own.items():
    try:
      name, values, lost = hf_values(family, model)
      break
    except ConfigError as e:
      reasons.append(f"{model_type} {e}")
  else:
    raise ConfigError("the model can't be expressed as a Hugging Face model: " + "; ".join(reasons))
  for key in lost:
    logging.info("config.json of %s has no place for %s: it is not kept", name, key)
  for key, value in token_ids.items():
    if key in values and values[key] != value and value is not None:
      raise ConfigError(f"{key}={value} of the tokenizer does not fit the model, whose positions"
                        f" were counted for {key}={values[key]} (position.first_position)")
  of_text = {"tie_word_embeddings": True, **token_ids} if family.model == "encoder" else {}
  config = {"architectures": [name], "model_type": model_type, "dtype": "float32", **of_text,
            **values}
  return model_type, config | label_attributes(model, labels)


def label_attributes(model: Any, labels: tuple[str, ...] | None) -> dict[str, Any]:
  """`id2label` and what goes with it, for models with classes or tags."""
  head = model.head
  if head.task not in LABELLED:
    if labels:
      raise ConfigError(f"labels={labels!r}: a model with head.task={head.task!r} has none")
    return {}
  if labels is None:
    labels = tuple(f"LABEL_{i}" for i in range(head.outputs))
  if len(labels) != head.outputs:
    raise ConfigError(f"labels has {len(labels)} names, and the model has"
                      f" head.outputs={head.outputs}")
  result = {"id2label": {str(i): name for i, name in enumerate(labels)},
            "label2id": {name: i for i, name in enumerate(labels)}}
  if head.task == "classes" and head.outputs == 1:
    result["problem_type"] = "regression"
  return result


# -------------------------------------------------------------------- for the families


def need(condition: bool, text: str) -> None:
  """Raises ConfigError, the rest of a sentence that begins with the model type or the file."""
  if not condition:
    raise ConfigError(text)


def activation_name(ours: str) -> str:
  """The name of one of our activations in config.json."""
  names = [theirs for theirs, name in ACTIVATIONS.items() if name == ours]
  need(bool(names), f"has no activation {ours!r}; {nearest(ours, ACTIVATIONS.values())}")
  return names[0]


def init_std(block: BlockConfig) -> float:
  """`initializer_range`; the classes' own default where a model draws its parameters otherwise."""
  return 0.02 if block.init_std is None else block.init_std
