"""A declared field that changes nothing is caught.

Every field of every constructor below is changed, where it can matter, and the program of
its initialisation, loss and gradient must change with it. A new field fails the test until
it is in `CHANGES`.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest

from jtx import config
from jtx.models import MODELS
from jtx.models.encdec import EncDec
from jtx.models.encoder import Encoder, HeadConfig
from jtx.models.features import FeatureConfig
from jtx.models.image_head import ImageHeadConfig, PrefixConfig
from jtx.models.mae_decoder import DecoderConfig
from jtx.models.resnet import ResnetConfig
from jtx.models.vit import ImageConfig, Vit
from jtx.nn.attention import Attention, Context, LayerKind
from jtx.nn.block import NORM_POSITIONS, BlockConfig, ResidualConfig
from jtx.nn.grid_positions import (
  GRID_POSITIONS,
  GridPosition,
  Learned2d,
  LearnedGrid,
  RelativeBias,
  Rope2d,
  Sincos2d,
)
from jtx.nn.layers import ACTIVATIONS
from jtx.nn.masks import CAUSAL, Rows
from jtx.nn.positions import POSITIONS, Alibi, Attached, Learned, Position, Rope, Sinusoidal, T5Bias
from jtx.nn.stack import Segment, Stack
from jtx.objectives import OBJECTIVES
from jtx.objectives.classify import Classify
from jtx.objectives.distill import Distill
from jtx.objectives.distill_classes import DistillClasses
from jtx.objectives.mae import Mae
from jtx.objectives.mlm import Mlm
from jtx.objectives.multiple_choice import MultipleChoice
from jtx.objectives.seq2seq import Seq2Seq
from jtx.objectives.span import Span
from jtx.objectives.tag import Tag
from jtx.parallel.sharding import unbox

BLOCK = dict(num_heads=2, ffn_dim=8)
IMAGE = dict(image=ImageConfig(size=4, channels=1, mean=(0.5,), std=(0.5,)), patch_size=2, width=8,
             num_layers=2, block=BlockConfig(**BLOCK, norm_position="pre"))
IMAGE_HEAD = dict(task="classes", outputs=2)
VIT = {**IMAGE, "head": ImageHeadConfig(**IMAGE_HEAD)}
MAE = {**IMAGE, "decoder": DecoderConfig(1, 8, 2, 8)}
MODEL = dict(vocab_size=11, width=8, num_layers=2, block=BlockConfig(**BLOCK))
HEAD = dict(task="classes", outputs=1)
ENCODER = {**MODEL, "head": HeadConfig(**HEAD)}
SINUSOIDAL = {"layout": ({}, "concatenated"), "inclusive": ({}, True), "base": ({}, 100.0),
              "first_position": ({}, 1)}

# constructor -> field -> other fields by which it comes to matter, and another value
CHANGES = {
    EncDec: {
        "vocab_size": ({}, 12),
        "src_vocab_size": (dict(share_embeddings="none"), 13),
        "width": ({}, 16),
        "num_layers": (dict(num_decoder_layers=2), 3),
        "num_decoder_layers": ({}, 1),
        "block": ({}, BlockConfig(num_heads=4)),
        "position": ({}, Rope()),
        "pattern": (dict(pattern=("local",), window=1), ("global", "local")),
        "window": (dict(pattern=("local",), window=1), 2),
        "share_embeddings": (dict(share_embeddings="output"), "none"),
        "scale_embeddings": ({}, False),
        "output_bias": ({}, True),
        "unroll": ({}, 2),
        "remat": ({}, "full"),
        "dtype": ({}, "bfloat16"),
    },
    Encoder: {
        "vocab_size": ({}, 12),
        "width": ({}, 16),
        "num_layers": ({}, 3),
        "block": ({}, BlockConfig(num_heads=4)),
        "position": ({}, Rope()),
        "num_token_types": ({}, 0),
        "embedding_width": ({}, 4),
        "share_layers": ({}, True),
        "pattern": (dict(pattern=("local",), window=1), ("global", "local")),
        "window": (dict(pattern=("local",), window=1), 2),
        "causal": ({}, True),
        "mlm": ({}, True),
        "features": ({}, FeatureConfig((-1,))),
        "head": ({}, HeadConfig("classes", 2)),
        "unroll": ({}, 2),
        "remat": ({}, "full"),
        "dtype": ({}, "bfloat16"),
    },
    Vit: {
        "image": ({}, ImageConfig(size=8, channels=1, mean=(0.5,), std=(0.5,))),
        "patch_size": ({}, 1),
        "width": ({}, 16),
        "num_layers": ({}, 3),
        "block": ({}, BlockConfig(num_heads=4, norm_position="pre")),
        "position": ({}, Rope2d()),
        "position_at": ({}, "layers"),
        "prefix": ({}, PrefixConfig(registers=1)),
        "stem": (dict(patch_size=1), ResnetConfig((1,), 4, 2)),
        "head": ({}, ImageHeadConfig("classes", 3)),
        "decoder": ({}, DecoderConfig(1, 8, 2, 8)),
        "unroll": ({}, 2),
        "remat": ({}, "full"),
        "dtype": ({}, "bfloat16"),
    },
    ImageConfig: {
        "size": ({}, 8),
        "channels": ({}, 3),
        "mean": ({}, (0.4,)),
        "std": ({}, (0.4,)),
    },
    PrefixConfig: {
        "cls": ({}, False),
        "distillation": ({}, True),
        "registers": ({}, 2),
    },
    ImageHeadConfig: {
        "task": (dict(outputs=None, task="none"), "embedding"),
        "outputs": ({}, 3),
        "pool": ({}, "attention"),
        "norm": ({}, True),
        "transform": ({}, "tanh"),
        "distilled": ({}, True),
        "dropout": ({}, 0.5),
        "zero": ({}, True),
    },
    DecoderConfig: {
        "num_layers": ({}, 2),
        "width": ({}, 16),
        "num_heads": ({}, 4),
        "ffn_dim": ({}, 16),
        "masked": ({}, 0.5),
        "position": ({}, Sincos2d()),
    },
    ResnetConfig: {
        "stages": ({}, (1, 1)),
        "width": ({}, 8),
        "groups": ({}, 4),
    },
    ResidualConfig: {
        "layer_scale": ({}, 0.1),
        "drop_path": ({}, 0.1),
        "uniform": (dict(drop_path=0.5), True),
    },
    GridPosition: {},
    LearnedGrid: {"init": ({}, "sincos"), "init_std": ({}, 0.5), "of_prefix": ({}, False)},
    Learned2d: {"init_std": ({}, 0.5)},
    Sincos2d: {"base": ({}, 100.0), "order": ({}, "column_row")},
    RelativeBias: {"init_std": ({}, 0.5)},
    Rope2d: {"base": ({}, 50.0), "pairing": ({}, "interleaved")},
    FeatureConfig: {
        "layers": ({}, (2,)),
        "combine": (dict(layers=(1, 2)), "sum"),
        "lstm_layers": ({}, 1),
    },
    HeadConfig: {
        "task": (dict(task="embedding", outputs=None), "choice"),
        "outputs": ({}, 3),
        "pool": ({}, "mean"),
        "transform": ({}, "tanh"),
        "norm": (dict(transform="tanh"), True),
        "use_bias": (dict(transform="tanh"), False),
        "dropout": ({}, 0.5),
    },
    BlockConfig: {
        "num_heads": (dict(head_dim=4), 4),
        "num_kv_heads": ({}, 1),
        "head_dim": ({}, 6),
        "v_head_dim": ({}, 6),
        "score": ({}, "additive"),
        "attention_bias": ({}, True),
        "ffn_dim": ({}, 12),
        "activation": ({}, "gelu"),
        "gated": ({}, True),
        "use_bias": ({}, False),
        "norm": ({}, "rmsnorm"),
        "norm_position": ({}, "pre"),
        "norm_eps": ({}, 1e-3),
        "attention_norm": (dict(norm_position="pre"), False),
        "dropout": ({}, 0.5),
        "attention_dropout": ({}, 0.5),
        "ffn_dropout": ({}, 0.5),
        "init_std": ({}, 0.02),
        "residual": ({}, ResidualConfig(layer_scale=0.1)),
    },
    Attention: {
        "num_heads": (dict(head_dim=4), 4),
        "num_kv_heads": ({}, 1),
        "head_dim": ({}, 6),
        "v_head_dim": ({}, 6),
        "use_bias": ({}, True),
        "dropout": ({}, 0.5),
        "score": ({}, "additive"),
        "init_std": ({}, 0.02),
        "dtype": ({}, jnp.bfloat16),
    },
    Stack: {
        "segments": ({}, (Segment(BlockConfig(**BLOCK), 3),)),
        "position": ({}, T5Bias()),
        "causal": ({}, True),
        "cross": ({}, True),
        "share": ({}, True),
        "window": (dict(segments=(Segment(BlockConfig(**BLOCK), 2, ("local",)),), window=1), 2),
        "position_at": (dict(position=Learned()), "layers"),
        "final_norm": (dict(segments=(Segment(BlockConfig(**BLOCK, norm_position="pre"), 2),)),
                       False),
        "unroll": ({}, -1),
        "remat": ({}, "dots"),
        "dtype": ({}, jnp.bfloat16),
    },
    Position: {},
    Sinusoidal: SINUSOIDAL,
    Attached: SINUSOIDAL,
    Learned: {"max_length": ({}, 99), "init": ({}, "sincos"), "init_std": ({}, 0.5),
              "first_position": ({}, 1)},
    Rope: {"base": ({}, 100.0), "pairing": ({}, "interleaved"), "linear_scale": ({}, 2.0),
           "ntk_scale": ({}, 2.0), "local_base": ({}, 50.0)},
    Alibi: {},
    T5Bias: {"num_buckets": ({}, 8), "max_distance": ({}, 64), "init_std": ({}, 0.5)},
    Classify: {"loss": ({}, "squared_error"), "label_smoothing": ({}, 0.1)},
    DistillClasses: {"loss": ({}, "sigmoid"), "label_smoothing": ({}, 0.1), "mixup": ({}, 0.5),
                     "cutmix": ({}, 0.5), "kind": ({}, "soft"), "weight": ({}, 0.3),
                     "temperature": (dict(kind="soft"), 2.0)},
    Mae: {"normalize": ({}, False)},
    Distill: {"pairs": ({}, False), "temperature": ({}, 3.0), "soft_weight": ({}, 1.0),
              "mlm_weight": ({}, 1.0), "cosine_weight": ({}, 2.0)},
    Mlm: {"pairs": ({}, False)},
    MultipleChoice: {},
    Span: {},
    Tag: {},
    Seq2Seq: {"bos_id": ({}, 2), "label_smoothing": ({}, 0.3), "logits_chunk": ({}, 4)},
}

# What every instance is made with beside the above.
REQUIRED = {
    EncDec: MODEL,
    Encoder: ENCODER,
    FeatureConfig: dict(layers=(1,)),
    Vit: VIT,
    ImageConfig: dict(size=4, channels=1, mean=(0.5,), std=(0.5,)),
    ImageHeadConfig: IMAGE_HEAD,
    DecoderConfig: dict(num_layers=1, width=8, num_heads=2, ffn_dim=8),
    ResnetConfig: dict(stages=(1,), width=4, groups=2),
    HeadConfig: HEAD,
    BlockConfig: BLOCK,
    Attention: dict(num_heads=2),
    Stack: dict(segments=(Segment(BlockConfig(**BLOCK), 2),)),
    Seq2Seq: dict(bos_id=1),
}

EXEMPT = {
    (Distill, "teacher"): "a folder to load from: see test_distill.py",
    (DistillClasses, "teacher"): "likewise: see test_image_objectives.py",
    (Classify, "mixup"): "of images: see DistillClasses",
    (Classify, "cutmix"): "of images: see DistillClasses",
    (LearnedGrid, "trained"): "of the optimiser: see test_optim.py",
    (BlockConfig, "kernel"): "all kernels are one function; which runs is in test_attention.py",
    (Attention, "kernel"): "as above",
}


def program(instance) -> str:
  """Initialisation, loss and gradient of what `instance` configures, as text."""
  match instance:
    case EncDec():
      return model_program(instance, Seq2Seq(1))
    case Encoder():
      return text_program(instance, Probe())
    case FeatureConfig():
      return text_program(Encoder(**ENCODER, features=instance), Probe())
    case HeadConfig():
      return text_program(Encoder(**{**MODEL, "head": instance}), Probe())
    case Vit():
      return image_program(instance, MaeProbe() if instance.decoder.num_layers else Probe())
    case ImageConfig():
      return image_program(Vit(**{**VIT, "image": instance}), Probe())
    case PrefixConfig():
      head = ImageHeadConfig(**IMAGE_HEAD, pool="mean")
      return image_program(Vit(**{**VIT, "head": head}, prefix=instance), Probe())
    case ImageHeadConfig():
      prefix = PrefixConfig(distillation=True)
      return image_program(Vit(**IMAGE, head=instance, prefix=prefix),
                           Hidden() if instance.task == "none" else Probe())
    case DecoderConfig():
      return image_program(Vit(**IMAGE, decoder=instance), MaeProbe())
    case ResnetConfig():
      image = dataclasses.replace(VIT["image"], size=16)
      return image_program(Vit(**{**VIT, "image": image, "patch_size": 1}, stem=instance), Probe())
    case ResidualConfig():
      block = BlockConfig(**BLOCK, norm_position="pre", residual=instance)
      return image_program(Vit(**{**VIT, "block": block}), Probe())
    case GridPosition():
      return image_program(Vit(**{**VIT, "width": 16}, position=instance), Probe())
    case DistillClasses():
      model = Vit(**VIT)
      return image_program(model, Total(instance, model))
    case Mae():
      return image_program(Vit(**MAE), instance)
    case Mlm():  # and Distill
      model = Encoder(**MODEL, mlm=True, head=HeadConfig("next_sentence"))
      return text_program(model, Total(instance, model))
    case Classify() | MultipleChoice():
      return text_program(Encoder(**ENCODER), instance)
    case Span() | Tag():
      return text_program(Encoder(**MODEL, head=HeadConfig("span", pool="none")), instance)
    case Seq2Seq():
      return model_program(EncDec(**MODEL), instance)
    case BlockConfig():
      return model_program(EncDec(**{**MODEL, "block": instance}), Seq2Seq(1))
    case Position():
      return model_program(EncDec(**MODEL, position=instance), Seq2Seq(1))
    case Attention():
      arguments = dict(kinds=(LayerKind(CAUSAL),), kind=None, position=Position(), causal=True,
                       rows=Rows())
      return layer_program(instance, lambda x, ctx: (x, x, ctx), **arguments)
    case Stack():
      return layer_program(instance, lambda x, ctx: (x, ctx))
  raise AssertionError(f"no program for a {type(instance).__name__}")


def model_program(model, objective) -> str:
  tokens = jnp.arange(12).reshape(2, 6) % 9 + 1
  batch = {f"{side}{suffix}": value for side in ("src", "tgt") for suffix, value in {
      "": tokens, "_segment_ids": tokens * 0 + 1, "_positions": tokens * 0 + jnp.arange(6)}.items()}

  def loss(params, batch, key):
    return objective(model, params, batch, train=True, rngs={"dropout": key})["loss"][0]

  return text(lambda key: model.init(key, objective.model_inputs(batch)), loss, batch)


class Probe:
  """The sum of a head's outputs, whatever they are."""

  def model_inputs(self, batch):
    return batch

  def __call__(self, model, params, batch, train, rngs):
    outputs = model.apply({"params": params}, batch, 1, train, rngs=rngs, method="predict")
    return {"loss": (outputs.sum(), 1)}


class Total:
  """What the train step makes of an objective's terms; a model that is taught teaches itself."""

  def __init__(self, objective, model):
    self.objective, self.taught = objective, hasattr(objective, "taught_by")
    if self.taught:
      self.objective = objective.taught_by(model)

  def model_inputs(self, batch):
    return batch

  def __call__(self, model, params, batch, train, rngs):
    extra = {"teacher": params} if self.taught else {}
    sums = self.objective(model, params, batch, train=train, rngs=rngs, **extra)
    weights = self.objective.weights(batch)
    return {"loss": (sum(sums[name][0] / weight for name, weight in weights.items()), 1)}


class Hidden(Probe):
  """The sum of hidden states."""

  def __call__(self, model, params, batch, train, rngs):
    return {"loss": (model.apply({"params": params}, batch, train, rngs=rngs).sum(), 1)}


class MaeProbe(Probe):
  """The sum of reconstructed pixels."""

  def __call__(self, model, params, batch, train, rngs):
    noise = jnp.tile(jnp.arange(4.0), (2, 1))
    pixels, _ = model.apply({"params": params}, batch, noise, train, rngs=rngs,
                            method="reconstruct")
    return {"loss": (pixels.sum(), 1)}


def image_program(model, objective) -> str:
  size, channels = model.image.size, model.image.channels
  pixels = jnp.arange(2 * size * size * channels).reshape(2, size, size, channels) % 251
  batch = {"image": pixels.astype(jnp.uint8), "label": jnp.array([[0], [1]]),
           "real": jnp.ones((2, 1), int)}

  def loss(params, batch, key):
    return objective(model, params, batch, train=True, rngs={"dropout": key})["loss"][0]

  return text(lambda key: model.init(key, objective.model_inputs(batch)), loss, batch)


def text_program(model, objective) -> str:
  tokens = jnp.arange(12).reshape(2, 6) % 9 + 1
  row = {"": tokens, "_segment_ids": tokens * 0 + 1, "_positions": tokens * 0 + jnp.arange(6),
         "_types": tokens % 2}
  batch = {f"{f}{suffix}": value for f in ("text", "choice_0", "choice_1")
           for suffix, value in row.items()}
  batch |= dict.fromkeys(("label", "start", "end"), jnp.zeros((2, 1), int)) | {"tags": tokens % 2}
  batch |= {"mlm_positions": tokens[:, :2] % 6, "mlm_labels": tokens[:, :2]}

  def loss(params, batch, key):
    return objective(model, params, batch, train=True, rngs={"dropout": key})["loss"][0]

  return text(lambda key: model.init(key, objective.model_inputs(batch)), loss, batch)


def layer_program(module, arguments, **keywords) -> str:
  x, memory = jnp.ones((2, 6, 8)), jnp.ones((2, 5, 8))
  positions = jnp.broadcast_to(jnp.arange(6), (2, 6))
  context = lambda memory, train: Context(
      positions, memory=memory, memory_segments=jnp.ones((2, 5), int), train=train)

  def loss(params, inputs, key):
    x, memory = inputs
    return module.apply({"params": params}, *arguments(x, context(memory, True)), **keywords,
                        rngs={"dropout": key})[0].astype(jnp.float32).sum()

  return text(lambda key: module.init(key, *arguments(x, context(memory, False)), **keywords),
              loss, (x, memory))


def text(init, loss, inputs) -> str:
  def both(key, inputs):
    params = unbox(init(key))["params"]
    return params, jax.value_and_grad(loss)(params, inputs, key)

  return jax.jit(both).lower(jax.random.key(0), inputs).as_text()


@functools.cache
def unchanged(constructor, context: tuple) -> str:
  return program(constructor(**{**REQUIRED.get(constructor, {}), **dict(context)}))


# Programs of whole models take longest: they are in the slow set.
FIELDS = [pytest.param(c, f, marks=[pytest.mark.slow] * (c not in (Attention, Stack)))
          for c in CHANGES for f in config.fields(c) if (c, f) not in EXEMPT]


@pytest.mark.parametrize("constructor, field", FIELDS, ids=lambda x: getattr(x, "__name__", x))
def test_a_field_changes_the_program(constructor, field):
  assert field in CHANGES[constructor], f"add {constructor.__name__}.{field} to CHANGES"
  context, value = CHANGES[constructor][field]
  changed = constructor(**{**REQUIRED.get(constructor, {}), **context, field: value})
  assert program(changed) != unchanged(constructor, tuple(context.items()))


@pytest.mark.slow
@pytest.mark.parametrize("constructor", CHANGES, ids=lambda c: c.__name__)
def test_the_same_fields_are_the_same_program(constructor):
  """Without this, a difference would say nothing."""
  make = lambda: constructor(**REQUIRED.get(constructor, {}))
  assert program(make()) == unchanged(constructor, ())


def test_every_registered_constructor_is_covered():
  registered = {*MODELS.values(), *OBJECTIVES.values(), *POSITIONS.values(),
                *GRID_POSITIONS.values()}
  assert registered <= set(CHANGES)


@pytest.mark.slow
def test_choices_are_different_programs():
  """Not only the one alternative of a field, but all of its choices."""
  blocks = [BlockConfig(**BLOCK, norm_position=p) for p in NORM_POSITIONS]
  blocks += [BlockConfig(**BLOCK, activation=a) for a in ACTIVATIONS if a != "relu"]
  remat = [EncDec(**MODEL, remat=r) for r in ("dots", "full")]
  programs = [program(x) for x in blocks + remat]
  assert len(set(programs)) == len(programs)


def test_no_stale_entries():
  for constructor, changes in CHANGES.items():
    assert set(changes) <= set(config.fields(constructor))
  assert all(field in config.fields(constructor) for constructor, field in EXEMPT)
