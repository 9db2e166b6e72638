"""Models compared field by field, so that one's weights go into another that fits."""

import dataclasses
import functools
from typing import Any, Callable, Mapping, NamedTuple

from flax.traverse_util import flatten_dict
import jax

from jtx.config import fields
from jtx.errors import ConfigError
from jtx.interop.tables import Shape
from jtx.models import MODELS
from jtx.models.coatnet import CoAtNet
from jtx.models.decoder import Decoder
from jtx.models.detr import Detr
from jtx.models.electra import Electra
from jtx.models.elmo import Elmo
from jtx.models.encdec import EncDec
from jtx.models.encoder import Encoder
from jtx.models.global_tokens import OF_TEXTS
from jtx.models.heads import TASKS
from jtx.models.image_head import ImageHeadConfig
from jtx.models.mae_decoder import DecoderConfig
from jtx.models.patches import PixelConfig
from jtx.models.rnn import Rnn
from jtx.models.rnn_encdec import RnnEncDec
from jtx.models.text_head import HeadConfig
from jtx.models.two_towers import IMAGE, TwoTowers, image_tower
from jtx.models.vit import Vit
from jtx.models.xlnet import Xlnet
from jtx.nn.grid_kinds import RelativeBias
from jtx.nn.grid_positions import Grid, GridPosition, LearnedGrid
from jtx.nn.rope import Rope
from jtx.nn.shapes import shapes_of
from jtx.nn.stack import StackConfig
from jtx.parallel.sharding import unbox

TABLES = ("position_embedding", "position_bias")  # parameters of positions
# Fields of a model or of its stacks that change nothing; and those that change nothing but
# training, or what is made of the outputs.
RUN_FIELDS = ("dtype", "unroll", "remat", "block.attention.kernel", "attention.unroll",
              "attention.kernel")
TRAINING_FIELDS = (
    "block.dropout", "block.attention.dropout", "block.ffn.dropout", "block.ffn.experts.balance",
    "block.ffn.experts.z_loss", "block.init_std", "block.aligned", "block.residual.init_std",
    "block.residual.drop_path", "block.residual.uniform", "position.init", "position.init_std",
    "position.trained", "head.dropout", "head.zero", "head.threshold", "embedding.init_std",
    "embedding.final_dropout", "similarity.log_scale", "similarity.bias", "drop_path", "init_std",
    "attention.dropout", "attention.position.init_std",
    "dropout", "embedding.dropout", "readout_dropout",  # of recurrent models, and of their layers
    *(f"{layers}.dropout" for layers in ("recurrent", "encoder", "decoder")))


def stack_in_one_way(stack: StackConfig) -> StackConfig:
  """An equal stack: of fields that mean the same it has the same."""
  pattern = tuple(stack.pattern[i % len(stack.pattern)] for i in range(stack.num_layers))
  position = stack.position
  local = dataclasses.replace(stack, pattern=pattern).windowed
  if isinstance(position, Rope):
    base = position.base if position.local_base is None else position.local_base
    position = dataclasses.replace(position, local_base=base if local else None)
  return dataclasses.replace(stack, pattern=pattern, position=position,
                             window=stack.window if local else 0)


def text_in_one_way(model: Decoder | Encoder) -> Decoder | Encoder:
  head = model.head
  if head.task == "none":
    head = HeadConfig()
  elif head.transform == "none":
    head = dataclasses.replace(head, use_bias=True)
  head = dataclasses.replace(head, both_orders=bool(head.both_orders))
  embedding = dataclasses.replace(model.embedding,
                                  width=model.embedding.width or model.stack.width)
  if isinstance(model, Encoder) and model.masked.use_bias == model.stack.block.ffn.bias:
    model = model.clone(masked=dataclasses.replace(model.masked, use_bias=None))
  if isinstance(model, Encoder) and model.globals.tokens not in OF_TEXTS:
    model = model.clone(globals=dataclasses.replace(model.globals, separator=None))
  return model.clone(stack=stack_in_one_way(model.stack), embedding=embedding, head=head)


def encdec_in_one_way(model: EncDec) -> EncDec:
  head = model.head if model.head.task != "none" else HeadConfig()
  head = dataclasses.replace(head, both_orders=bool(head.both_orders))
  return model.clone(head=head,
                     encoder=stack_in_one_way(model.encoder),
                     decoder=stack_in_one_way(model.decoder),
                     src_vocab_size=model.src_vocab_size or model.vocab_size)


def recurrent_in_one_way(model: Elmo | Rnn) -> Elmo | Rnn:
  head = model.head if model.head.task != "none" else HeadConfig()
  return model.clone(head=dataclasses.replace(head, both_orders=bool(head.both_orders)))


def image_in_one_way(image: PixelConfig) -> PixelConfig:
  one = lambda numbers: numbers[:1] if len(set(numbers)) == 1 else numbers
  return dataclasses.replace(image, mean=one(image.mean), std=one(image.std))


def image_head_in_one_way(head: ImageHeadConfig) -> ImageHeadConfig:
  return head if head.task != "none" else ImageHeadConfig(norm=head.norm)


def towers_in_one_way(model: TwoTowers) -> TwoTowers:
  return model.clone(image=image_in_one_way(model.image),
                     text_stack=stack_in_one_way(model.text_stack))


def detr_in_one_way(model: Detr) -> Detr:
  return model.clone(image=image_in_one_way(model.image),
                     encoder=stack_in_one_way(model.encoder),
                     decoder=stack_in_one_way(model.decoder))


def vit_in_one_way(model: Vit) -> Vit:
  image, decoder = image_in_one_way(model.image), model.decoder
  if not decoder.num_layers:
    decoder = DecoderConfig(masked=decoder.masked)  # also of an encoder alone, in its config.json
  return model.clone(image=image, decoder=decoder, head=image_head_in_one_way(model.head))


def coatnet_in_one_way(model: CoAtNet) -> CoAtNet:
  return model.clone(image=image_in_one_way(model.image), head=image_head_in_one_way(model.head))


class Kind(NamedTuple):
  """How two models of a kind are compared."""
  in_one_way: Callable[[Any], Any]  # an equal model: of fields that mean the same it has the same
  head_fields: tuple[str, ...] = ()  # not of the layers and embeddings
  input_fields: tuple[str, ...] = ()  # of the size of inputs, to which parameters can be resized
  resized: Callable[[Any, Mapping[str, Any], Any], Mapping[str, Any]] = (
      lambda model, params, other: params)  # parameters by path of another, for the model


def resized_vit(model: Vit, params: Mapping[str, jax.Array], other: Vit) -> dict[str, jax.Array]:
  """Parameters by path of a model that differs in its image's size, for this one.

  Tables of positions are interpolated (Dosovitskiy et al. 2020, section 3.2).

  Raises:
    ConfigError: positions of the kind can't be.
  """
  if model.grid == other.grid:
    return dict(params)
  return {path: _resized_table(model, path, x, other) if path.endswith(TABLES) else x
          for path, x in params.items()}


def _resized_table(model: Vit, path: str, table: jax.Array, other: Vit) -> jax.Array:
  position = model.decoder.position if path.startswith("mae_decoder/") else model.stack.position
  return _resized(position.bind(model.grid), table, other.grid)


def _resized(position: GridPosition, table: jax.Array, old: Grid) -> jax.Array:
  """A table of another grid for that of the position, of every layer or one."""
  if not isinstance(position, LearnedGrid | RelativeBias):
    raise ConfigError(f"model.image.size: positions of the kind {type(position).__name__} can't be"
                      f" taken from a model of other images, of {old.height} x {old.width} patches")
  resize = functools.partial(position.resized, old=old)
  return jax.vmap(resize)(table) if table.ndim == 3 else resize(table)


def resized_coatnet(model: CoAtNet, params: Mapping[str, jax.Array],
                    other: CoAtNet) -> dict[str, jax.Array]:
  """As `resized_vit`, of the tables of every stage of attention.

  Raises:
    ConfigError: positions of the kind can't be.
  """
  result = dict(params)
  for name, stack in model.stacks.items():
    old = other.stacks[name].position.grid
    for path in (p for p in params if p.startswith(f"{name}/") and p.endswith(TABLES)):
      if stack.position.grid != old:
        result[path] = _resized(stack.position, params[path], old)
  return result


def resized_towers(model: TwoTowers, params: Mapping[str, jax.Array],
                   other: TwoTowers) -> dict[str, jax.Array]:
  """As `resized_vit`, of the encoder of images."""
  prefix = f"{IMAGE}/"
  of_images = {path.removeprefix(prefix): x for path, x in params.items()
               if path.startswith(prefix)}
  resized = resized_vit(image_tower(model), of_images, image_tower(other))
  return {**params, **{f"{prefix}{path}": x for path, x in resized.items()}}


OF_TEXT = "mlm", "masked", "head", "features", "globals"
KINDS: dict[type, Kind] = {
    CoAtNet: Kind(coatnet_in_one_way, ("head",), ("image",), resized_coatnet),
    Decoder: Kind(text_in_one_way, ("lm", "head")),
    Detr: Kind(detr_in_one_way, ("head",)),
    Elmo: Kind(recurrent_in_one_way, (
        "bilm", "output_vocab_size", "max_words", "features", "head")),
    Encoder: Kind(text_in_one_way, OF_TEXT),
    Electra: Kind(text_in_one_way, (*OF_TEXT, "generator", "disentangled")),
    EncDec: Kind(encdec_in_one_way, ("seq2seq", "head", "head_start")),
    Rnn: Kind(recurrent_in_one_way, ("lm", "head")),
    RnnEncDec: Kind(lambda model: model.clone(
        src_vocab_size=model.src_vocab_size or model.vocab_size)),
    TwoTowers: Kind(towers_in_one_way, (), ("image",), resized_towers),
    Vit: Kind(vit_in_one_way, ("head", "decoder"), ("image",), resized_vit),
    Xlnet: Kind(text_in_one_way, (*OF_TEXT, "plm")),
}


def structure(model: Any) -> dict[str, Any]:
  """The fields of a model by path, written one way where several mean the same."""
  result = _flat(KINDS[type(model)].in_one_way(model))
  for name, stack in stack_fields(model).items():
    attention, path = stack.block.attention, f"{name}.block.attention"
    head_dim = attention.head_dim or stack.width // attention.num_heads
    result |= {f"{path}.head_dim": head_dim, f"{path}.v_head_dim": attention.v_head_dim or head_dim,
               f"{path}.num_kv_heads": attention.kv_heads,
               f"{path}.biases": frozenset(attention.biases)}
  return {key: value for key, value in result.items() if in_stack(model, key) not in RUN_FIELDS}


def stack_fields(model: Any) -> dict[str, StackConfig]:
  """The fields of a model that are stacks, by name."""
  return {key: value for key in fields(type(model))
          if isinstance(value := getattr(model, key), StackConfig)}


def in_stack(model: Any, path: str) -> str:
  """The path of a field inside of its stack; others are what they are."""
  name, _, rest = path.partition(".")
  return rest if name in stack_fields(model) and rest else path


def _flat(value: Any, path: str = "") -> dict[str, Any]:
  """The fields of a dataclass, and of those in it, by path; its own kind has none."""
  if not dataclasses.is_dataclass(value):
    return {path: value}
  result = {path: type(value).__name__} if hasattr(value, "registry") else {}
  for key in fields(type(value)):
    result |= _flat(getattr(value, key), f"{path}.{key}" if path else key)
  return result


def differences(model: Any, other: Any) -> dict[str, tuple[Any, Any]]:
  """The fields in which two models of a kind differ: path -> values."""
  a, b = structure(model), structure(other)
  missing = "absent"
  keys = [*a, *(k for k in b if k not in a)]
  pairs = {k: (a[k] if k in a else missing, b[k] if k in b else missing) for k in keys}
  return {k: pair for k, pair in pairs.items() if pair[0] != pair[1]}


def of_training(model: Any, path: str) -> bool:
  """Whether a field changes nothing but training, or what is made of the outputs."""
  return in_stack(model, path) in TRAINING_FIELDS


def decoder_head(task: str) -> dict[str, Any]:
  """The fields of a decoder's head for a task: of its last token, which has seen all others.

  `transformers` has the same for the classes and choices of GPT-2.
  """
  of = TASKS[task]
  pool = "none" if of.by_token else "last"
  return {"task": task, "pool": pool, "output_bias": of.by_token or not of.labelled}


def pooled_head(task: str, own: Mapping[str, Any]) -> dict[str, Any]:
  """The fields of an encoder's head for a task, which pools as the one that it was trained with.

  Args:
    task: of the new head.
    own: the fields of the encoder's head. If it has no task that pools, [CLS] was not trained, and
      texts have the mean of their tokens.
  """
  if TASKS[task].by_token:
    return {"task": task, "pool": "none"}
  if own["task"] == "none" or own["pool"] == "none":
    return {"task": task, "pool": "mean"}
  same = ("pool", "transform", "norm", "use_bias")
  return {"task": task, **{key: own[key] for key in same if key in own}}


def check_trunk(model: Any, theirs: Any, directory: str) -> None:
  """Raises ConfigError where layers or embeddings of `model` are not those of a directory."""
  kind = KINDS[type(model)]
  for key, (ours, other) in differences(model, theirs).items():
    free = key.partition(".")[0] in (*kind.head_fields, *kind.input_fields)
    if not free and not of_training(model, key):
      raise ConfigError(f"model.{key}={ours!r} does not fit the weights of {directory}, whose {key}"
                        f" is {other!r}")


def param_shapes(model: Any) -> dict[str, Shape]:
  """The shape of every parameter, by path."""
  boxed = shapes_of(model.init, jax.random.key(0), model.example())["params"]
  return {path: x.shape for path, x in flatten_dict(unbox(boxed), sep="/").items()}


def at_size_of(model: Any, theirs: Any) -> Any:
  """The model for inputs of another's size."""
  return model.clone(**{key: getattr(theirs, key) for key in KINDS[type(model)].input_fields})


def with_vocabulary_of(model: Any, theirs: Any, new_tokens: int) -> Any:
  """The model with another's vocabulary, where its own has up to `new_tokens` more."""
  if getattr(model, "vocab_size", None) is None or not hasattr(theirs, "vocab_size"):
    return model
  new = 0 < model.vocab_size - theirs.vocab_size <= new_tokens
  return model.clone(vocab_size=theirs.vocab_size) if new else model


def resized(model: Any, params: Mapping[str, Any], theirs: Any) -> dict[str, Any]:
  """Parameters by path of another model, for a model of inputs of another size.

  Raises:
    ConfigError: there is no way to resize them.
  """
  return dict(KINDS[type(model)].resized(model, params, theirs))


def trunk_fields(name: str, model_fields: Mapping[str, Any]) -> dict[str, Any]:
  """The fields of a model that are not those of its heads, nor of adapters, which are merged.

  Args:
    name: of `jtx.models.MODELS`.
    model_fields: all of them.
  """
  heads = KINDS[MODELS[name]].head_fields
  return {key: value for key, value in model_fields.items() if key not in (*heads, "lora")}
