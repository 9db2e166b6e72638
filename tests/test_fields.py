"""A declared field that changes nothing is caught.

Every field of every constructor below is changed, where it can matter, and the program of
its initialisation, loss and gradient must change with it. A new field fails the test until
it is in `CHANGES`.
"""

import functools
import re

import jax
import jax.numpy as jnp
import pytest

from jtx import config
from jtx.models import MODELS
from jtx.models.encdec import EncDec
from jtx.models.encoder import Encoder, HeadConfig
from jtx.models.features import FeatureConfig
from jtx.nn.attention import Attention, Context, LayerKind
from jtx.nn.block import NORM_POSITIONS, BlockConfig
from jtx.nn.layers import ACTIVATIONS
from jtx.nn.masks import CAUSAL, Rows
from jtx.nn.positions import POSITIONS, Alibi, Attached, Learned, Position, Rope, Sinusoidal, T5Bias
from jtx.nn.stack import Segment, Stack
from jtx.objectives import OBJECTIVES
from jtx.objectives.classify import Classify
from jtx.objectives.distill import Distill
from jtx.objectives.mlm import Mlm
from jtx.objectives.multiple_choice import MultipleChoice
from jtx.objectives.seq2seq import Seq2Seq
from jtx.objectives.span import Span
from jtx.objectives.tag import Tag
from jtx.sharding import unbox

BLOCK = dict(num_heads=2, ffn_dim=8)
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
        "unroll": ({}, -1),
        "remat": ({}, "dots"),
        "dtype": ({}, jnp.bfloat16),
    },
    Position: {},
    Sinusoidal: SINUSOIDAL,
    Attached: SINUSOIDAL,
    Learned: {"max_length": ({}, 99), "init_std": ({}, 0.5), "first_position": ({}, 1)},
    Rope: {"base": ({}, 100.0), "pairing": ({}, "interleaved"), "linear_scale": ({}, 2.0),
           "ntk_scale": ({}, 2.0), "local_base": ({}, 50.0)},
    Alibi: {},
    T5Bias: {"num_buckets": ({}, 8), "max_distance": ({}, 64), "init_std": ({}, 0.5)},
    Classify: {"loss": ({}, "squared_error")},
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
    HeadConfig: HEAD,
    BlockConfig: BLOCK,
    Attention: dict(num_heads=2),
    Stack: dict(segments=(Segment(BlockConfig(**BLOCK), 2),)),
    Seq2Seq: dict(bos_id=1),
}

EXEMPT = {
    (Distill, "teacher"): "a folder to load from: see test_distill.py",
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
    self.objective, self.taught = objective, isinstance(objective, Distill)
    if self.taught:
      self.objective = objective.taught_by(model)

  def model_inputs(self, batch):
    return batch

  def __call__(self, model, params, batch, train, rngs):
    extra = {"teacher": params} if self.taught else {}
    sums = self.objective(model, params, batch, train=train, rngs=rngs, **extra)
    weights = self.objective.weights(batch)
    return {"loss": (sum(sums[name][0] / weight for name, weight in weights.items()), 1)}


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
  key = jax.random.key(0)
  params = unbox(jax.eval_shape(init, key))["params"]
  made = re.sub(r" at 0x[0-9a-f]+", "", str(jax.make_jaxpr(init)(key)))
  return made + jax.jit(jax.value_and_grad(loss)).lower(params, inputs, key).as_text()


@functools.cache
def unchanged(constructor, context: tuple) -> str:
  return program(constructor(**{**REQUIRED.get(constructor, {}), **dict(context)}))


FIELDS = [(c, f) for c in CHANGES for f in config.fields(c) if (c, f) not in EXEMPT]


@pytest.mark.parametrize("constructor, field", FIELDS, ids=lambda x: getattr(x, "__name__", x))
def test_a_field_changes_the_program(constructor, field):
  assert field in CHANGES[constructor], f"add {constructor.__name__}.{field} to CHANGES"
  context, value = CHANGES[constructor][field]
  changed = constructor(**{**REQUIRED.get(constructor, {}), **context, field: value})
  assert program(changed) != unchanged(constructor, tuple(context.items()))


@pytest.mark.parametrize("constructor", CHANGES, ids=lambda c: c.__name__)
def test_the_same_fields_are_the_same_program(constructor):
  """Without this, a difference would say nothing."""
  make = lambda: constructor(**REQUIRED.get(constructor, {}))
  assert program(make()) == unchanged(constructor, ())


def test_every_registered_constructor_is_covered():
  registered = {*MODELS.values(), *OBJECTIVES.values(), *POSITIONS.values()}
  assert registered <= set(CHANGES)


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
