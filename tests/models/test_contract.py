"""What every model family offers, of every family; and prompts of several lengths in one batch."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.errors import ConfigError
from jtx.models import MODELS
from jtx.models.backbone import BackboneConfig
from jtx.models.box_head import BoxHeadConfig
from jtx.models.detr import STACK, Detr
from jtx.models.coatnet import CoAtNet, LayersConfig, StagesConfig, StemConfig
from jtx.models.electra import Electra, GeneratorConfig
from jtx.models.elmo import Elmo
from jtx.models.heads import TASKS
from jtx.models.image_head import ImageHeadConfig, PrefixConfig
from jtx.models.mae_decoder import DecoderConfig
from jtx.models.packed_vit import PACKED_STACK, PackedVit
from jtx.models.rnn import Rnn
from jtx.models.rnn_encdec import RnnEncDec
from jtx.models.text_head import HeadConfig
from jtx.models.two_towers import TEXT_STACK, TwoTowers
from jtx.models.vit import VIT_STACK, ImageConfig
from jtx.models.xlnet import Xlnet
from jtx.nn import cache
from jtx.nn.characters import CharacterConfig
from jtx.nn.grid_positions import Sincos2d
from jtx.nn.positions import Learned, Sinusoidal
from jtx.nn.recurrent import RecurrentConfig
from jtx.nn.relative import Alibi, T5Bias
from jtx.nn.rope import Rope
from jtx.nn.shapes import shapes_of
from jtx.nn.transformer_xl import TransformerXl
from jtx.parallel.sharding import unbox
from tests.helpers import block, decoder, encdec, encoder, one_fast, vit

V, D = 11, 8
SIZE = dict(vocab_size=V, width=D, num_layers=2, block=block(num_heads=2, ffn_dim=12))
IMAGE = dict(image=ImageConfig(size=8), patch_size=4, width=D, num_layers=2,
             block=block(VIT_STACK.block, num_heads=2, ffn_dim=12))
CLASSES = ImageHeadConfig(task="classes", outputs=3)
FIRST_BARE = block(num_heads=2, ffn_dim=12, norm_position="pre", attention_norm=False)

# Model, and the heads that it has.
CASES = {
    "decoder": (decoder(**SIZE), {"lm"}),
    "decoder with a head": (
        decoder(**{**SIZE, "block": FIRST_BARE}, position=Rope(), lm=False,
                head=HeadConfig(task="classes", outputs=3, pool="last")), {"classes"}),
    "encdec": (encdec(**SIZE), {"seq2seq"}),
    "encdec of other depths": (encdec(**SIZE, num_decoder_layers=3, share_embeddings="none"),
                               {"seq2seq"}),
    "encdec of tables": (encdec(**SIZE, position=Learned(max_length=5)), {"seq2seq"}),
    "encdec with a head": (
        encdec(**SIZE, seq2seq=False, output_bias=True, head_start=1,
               head=HeadConfig(task="classes", outputs=3, pool="last", transform="tanh")),
        {"classes"}),
    "encoder": (encoder(**SIZE), set()),
    "encoder with heads": (
        encoder(**SIZE, position=Learned(max_length=6, first_position=2), mlm=True,
                head=HeadConfig(task="next_sentence", transform="tanh")),
        {"mlm", "next_sentence"}),
    "encoder of two segments": (
        encoder(**{**SIZE, "block": FIRST_BARE}, position=Rope(),
                head=HeadConfig(task="tags", outputs=3, pool="none")), {"tags"}),
    "encoder of special tokens": (
        encoder(**SIZE, position=T5Bias(), pattern=("prefix", "global_tokens"), window=1,
                head=HeadConfig(task="embedding")), {"embedding"}),
    "electra": (Electra(vocab_size=V, stack=encoder(**SIZE).stack, head=HeadConfig(
        task="replaced", pool="none", transform="gelu"), generator=GeneratorConfig(
            num_layers=1, width=D, num_heads=2, ffn_dim=6)), {"replaced", "generator"}),
    "xlnet": (Xlnet(vocab_size=V, plm=True, head=HeadConfig(task="choice", pool="last"),
                    stack=encoder(**SIZE, position=TransformerXl()).stack), {"plm", "choice"}),
    "rnn": (Rnn(vocab_size=V, recurrent=RecurrentConfig(dim=D), lm=True,
                head=HeadConfig(task="classes", outputs=3, pool="last")), {"lm", "classes"}),
    "recurrent encdec": (RnnEncDec(vocab_size=V, readout=D), {"seq2seq"}),
    "elmo": (Elmo(vocab_size=260, output_vocab_size=9, bilm=True,
                  characters=CharacterConfig(filters=((1, 3),)),
                  recurrent=RecurrentConfig(dim=D // 2, num_layers=2)), {"bilm"}),
    "vit": (vit(**IMAGE), set()),
    "vit with a head": (vit(**IMAGE, head=CLASSES), {"classes"}),
    "vit of two segments": (
        vit(**{**IMAGE, "block": FIRST_BARE}, position=Sincos2d(), head=CLASSES), {"classes"}),
    "vit with a distilled head": (
        vit(**IMAGE, prefix=PrefixConfig(distillation=True),
            head=ImageHeadConfig(task="classes", outputs=3, distilled=True)),
        {"classes", "distilled"}),
    "detr": (Detr(  # which has as many queries as its images have places
        backbone=BackboneConfig(stages=(1,), width=4, kind="basic", stem="strided", groups=2),
        num_queries=3,
        encoder=dataclasses.replace(STACK, width=D, num_layers=2, block=SIZE["block"]),
        decoder=dataclasses.replace(STACK, width=D, num_layers=3, block=SIZE["block"]),
        head=BoxHeadConfig(outputs=3)), {"boxes"}),
    "packed vit": (PackedVit(
        max_side=4, patch_size=2, stack=dataclasses.replace(PACKED_STACK, width=D, num_layers=2,
                                                            block=IMAGE["block"]),
        head=HeadConfig(task="classes", outputs=3, pool="mean")), {"classes"}),
    "mae": (vit(**IMAGE, decoder=DecoderConfig(num_layers=1, width=8, num_heads=2, ffn_dim=8)),
            {"mae"}),
    "coatnet": (CoAtNet(
        image=IMAGE["image"], stem=StemConfig(width=D), attention=LayersConfig(head_dim=4),
        stages=StagesConfig(kinds="CT", num_layers=(1, 2), widths=(D, D), strides=(1, 2)),
        head=ImageHeadConfig(task="classes", outputs=3, pool="mean")), {"classes"}),
    "two towers": (TwoTowers(  # whose rows are as long as an image has tokens
        vocab_size=V, image=ImageConfig(size=8), patch_size=4, image_stack=vit(**IMAGE).stack,
        text_stack=dataclasses.replace(TEXT_STACK, width=D, num_layers=1, position=Learned(5),
                                       block=IMAGE["block"])), {"image_text"}),
}
all_cases = pytest.mark.parametrize("name", CASES)
FAST = ("decoder", "encdec with a head", "encoder with heads", "rnn", "vit of two segments")
costly = pytest.mark.parametrize("name", [
    pytest.param(name, marks=[pytest.mark.slow] * (name not in FAST)) for name in CASES])


def drawn(model):
  """Random parameters, none of them zeros or ones."""
  boxed = shapes_of(model.init, jax.random.key(0), model.example())["params"]
  leaves, tree = jax.tree.flatten(unbox(boxed))
  random = np.random.default_rng(0)
  numbers = [np.float32(random.normal(size=x.shape) / 2) for x in leaves]
  return jax.device_put(tree.unflatten(numbers))


def of_length(model, length):
  """The example with rows of `length` tokens; an image has as many patches of one row more."""
  batch = model.example()
  if "size" in batch:  # with its padding; any number of places in a row
    _, side, _, channels = batch["image"].shape
    return {"image": jnp.zeros((1, side, length * side, channels), jnp.uint8),
            "size": jnp.array([[side, length * side]])}
  if "text" in batch or "image" not in batch:
    return {key: x if key == "image" else jnp.zeros((1, length, *x.shape[2:]), x.dtype)
            for key, x in batch.items()}
  _, height, width, channels = batch["image"].shape
  if length != model.longest:
    height += (length - model.longest) * model.patch_size
  return {"image": jnp.zeros((1, height, width, channels), jnp.uint8)}


def test_every_family_is_here():
  assert {type(model) for model, _ in CASES.values()} == set(MODELS.values())


@all_cases
def test_its_example_makes_its_parameters(name):
  model, _ = CASES[name]
  boxed = jax.eval_shape(model.init, jax.random.key(0), model.example())
  assert shapes_of(model.init, jax.random.key(0), model.example()) == boxed
  params = unbox(boxed)["params"]
  for stack, config in model.stacks.items():
    of_stack = functools.reduce(lambda tree, part: tree[part], stack.split("/"), params)
    segments = [segment for key, segment in of_stack.items() if key.startswith("layers")]
    depths = [{x.shape[0] for x in jax.tree.leaves(segment)} for segment in segments]
    assert all(len(depth) == 1 for depth in depths)
    assert sum(depth.pop() for depth in depths) == config.num_layers
    assert config.width == D


def test_shared_layers_are_one():
  model = encoder(**SIZE, share_layers=True)
  shapes = shapes_of(model.init, jax.random.key(0), model.example())["params"]
  assert model.stacks["encoder"].num_layers == 2
  assert unbox(shapes)["encoder"]["layers"]["ffn"]["in"]["kernel"].shape == (D, 12)


@all_cases
def test_its_heads_are_named(name):
  model, heads = CASES[name]
  assert model.heads == heads
  others = {"seq2seq", "lm", "mlm", "plm", "mae", "distilled", "generator", "image_text", "bilm"}
  assert heads <= {*TASKS} - {"none"} | others
  params = shapes_of(model.init, jax.random.key(0), model.example())["params"]
  assert ("mlm_head" in params) == ("mlm" in heads)
  assert ("plm_bias" in params) == ("plm" in heads)
  assert ("mae_decoder" in params) == ("mae" in heads)
  assert ("generator_head" in params) == ("generator" in heads)
  outputs = params.get("task_head", {})
  assert ("output" in outputs) == any(task in TASKS and TASKS[task].scored for task in heads)
  assert ("distillation_output" in outputs) == ("distilled" in heads)


LIMITS = {"decoder": 1024, "decoder with a head": None,
          "encdec of tables": 5, "encoder with heads": 4, "encoder": 512, "vit": 5,
          "vit with a distilled head": 6, "encdec": None, "encoder of two segments": None,
          "two towers": 5, "rnn": None, "recurrent encdec": None, "elmo": None}


@pytest.mark.parametrize("name", LIMITS)
def test_texts_are_no_longer_than_it_says(name):
  """Of images one that is larger is refused; a row may be longer than its texts."""
  model, _ = CASES[name]
  assert model.longest == LIMITS[name]
  run = lambda batch: model.init_with_output(jax.random.key(0), batch)[0]
  shape = lambda length: jax.eval_shape(run, of_length(model, length)).shape
  length = model.longest or 599
  assert shape(length) == (1, length, D)
  if "image" in model.example() and "text" not in model.example():
    with pytest.raises(ConfigError):
      shape(length + 1)
    return
  assert shape(length + 1) == (1, length + 1, D)
  if model.longest is None:
    return

  def finite(length):
    batch = of_length(model, length)
    places = lambda key, x: np.arange(length)[None] if key.endswith("positions") else x
    ones = lambda key, x: jnp.ones_like(x) if key.endswith("segment_ids") else places(key, x)
    return bool(jnp.isfinite(jax.jit(run)({key: ones(key, x) for key, x in batch.items()})).all())

  assert finite(length) and not finite(length + 1)


def test_the_shorter_of_two_tables_is_the_limit():
  model = encdec(**SIZE, position=Learned(max_length=6), tie=("source", "output"),
                 decoder=dict(position=Learned(max_length=4)))
  assert model.longest == 4
  assert encdec(**SIZE, decoder=dict(position=Rope()),
                position=Learned(max_length=6), tie=("source", "output")).longest == 6


@costly
def test_hidden_states_and_weights(name):
  model, _ = CASES[name]
  T = model.longest if "image" in model.example() and model.longest else 3
  batch = jax.tree.map(lambda x: jnp.concatenate([x, x]), of_length(model, T))
  batch |= {key: jnp.ones_like(x) for key, x in batch.items() if key.endswith("segment_ids")}
  run = jax.jit(lambda params: (model.apply({"params": params}, batch), model.apply(
      {"params": params}, batch, method="attention_weights")))
  hidden, weights = run(drawn(model))
  assert hidden.shape == (2, T, D) and np.isfinite(hidden).all()
  assert set(model.stacks) <= set(weights)
  for stack, config in model.stacks.items():
    assert weights[stack].shape == (config.num_layers, 2, 2, T, T)
    np.testing.assert_allclose(weights[stack].sum(-1), 1, atol=1e-5)


def test_tied_positions_are_the_same():
  for encoder_position, decoder_position in ((Learned(max_length=6), Rope()),
                                             (Rope(), Learned(max_length=6))):
    model = encdec(**SIZE, position=encoder_position, decoder=dict(position=decoder_position))
    with pytest.raises(ConfigError, match="leave out 'positions'"):
      shapes_of(model.init, jax.random.key(0), model.example())


# ------------------------------------------------------------------------------- prompts

SOURCES = [[3, 4, 5, 6], [7, 8], [9, 3, 10]]
PROMPTS = [[1, 5, 6, 9], [1], [1, 8]]
STEPS = 4


def field(name, rows):
  length = max(map(len, rows))
  tokens = jnp.array([row + [0] * (length - len(row)) for row in rows])
  return {name: tokens, f"{name}_segment_ids": jnp.array(
      [[1] * len(row) + [0] * (length - len(row)) for row in rows]),
      f"{name}_positions": jnp.broadcast_to(jnp.arange(length), tokens.shape)}


def greedy(model, params, sources, prompts, hypotheses=1, together=True):
  """Logits [B, STEPS, V] and tokens of `STEPS` greedy steps behind each prompt."""
  variables = {"params": params}
  prompt = field("prompt", prompts)["prompt"]
  lengths = jnp.array([len(p) for p in prompts]) if together else None
  start = jax.jit(lambda source, prompt, lengths: model.apply(
      variables, source, hypotheses, STEPS, prompt, lengths, method="start"))
  logits, state = start(field("src", sources), prompt, lengths)
  logits = jnp.repeat(logits, hypotheses, 0)
  step = jax.jit(lambda *args: model.apply(variables, *args, method="step"))
  out, tokens = [logits], [logits.argmax(-1)]
  for index in range(1, STEPS):
    logits, state = step(tokens[-1], state, jnp.array(index))
    out.append(logits)
    tokens.append(logits.argmax(-1))
  return np.stack(out, 1), np.stack(tokens, 1)


@pytest.mark.parametrize("hypotheses", one_fast(2, 1))
@pytest.mark.parametrize("fields", one_fast(
    dict(position=Rope(), pattern=("local", "global"), window=1),
    dict(position=Sinusoidal()), dict(position=Learned(max_length=8)), dict(position=T5Bias()),
    dict(position=Alibi(), block=block(num_heads=2, num_kv_heads=1, norm_position="pre")),
), ids=lambda f: type(f["position"]).__name__)
def test_prompts_of_several_lengths_are_each_alone_and_the_full_pass(fields, hypotheses):
  model = encdec(**{**SIZE, **fields})
  params = drawn(model)
  logits, tokens = greedy(model, params, SOURCES, PROMPTS, hypotheses)
  said = []
  for row, (source, prompt) in enumerate(zip(SOURCES, PROMPTS)):
    alone, best = greedy(model, params, [source], [prompt], together=False)
    said.append(best[0].tolist())
    for h in range(hypotheses):
      np.testing.assert_array_equal(tokens[row * hypotheses + h], best[0])
      np.testing.assert_allclose(logits[row * hypotheses + h], alone[0], rtol=1e-5, atol=1e-5)
  targets = [[*prompt, *tokens][:-1] for prompt, tokens in zip(PROMPTS, said)]
  batch = {**field("src", SOURCES), **field("tgt", targets)}
  full = jax.jit(lambda params: model.apply({"params": params}, model.apply(
      {"params": params}, batch | {"tgt_in": batch["tgt"]}), method="logits"))(params)
  for row, prompt in enumerate(PROMPTS):
    behind = full[row, len(prompt) - 1:len(prompt) - 1 + STEPS]
    for h in range(hypotheses):
      np.testing.assert_allclose(logits[row * hypotheses + h], behind, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("fields", one_fast(
    dict(position=T5Bias(), pattern=("local", "global"), window=1),
    dict(position=Rope(), share=True), dict(position=Sinusoidal(), block=FIRST_BARE)), ids=str)
def test_layers_apart_decode_as_those_of_a_scan(fields, monkeypatch):
  """On a CPU layers have arrays of their own, as on no other platform."""
  model = encdec(**{**SIZE, **fields})
  params = drawn(model)
  found = {}
  for apart in (True, False):
    monkeypatch.setattr(cache, "layers_apart", lambda apart=apart: apart)
    found[apart] = greedy(model, model.apart(params), SOURCES, PROMPTS, hypotheses=2)
  np.testing.assert_allclose(found[True][0], found[False][0], rtol=1e-5, atol=1e-5)
  np.testing.assert_array_equal(found[True][1], found[False][1])


def test_prompts_share_rows():
  model = decoder(**SIZE, position=Rope(), pattern=("local", "global"), window=1)
  params = drawn(model)
  rows = jnp.array([[1, 5, 6, 9], [1, 8, 1, 0]])
  start = lambda *args: jax.jit(lambda: model.apply(
      {"params": params}, {}, 1, STEPS, *args, method="start"))()
  together, state = start(rows, jnp.array([1, 4, 2]), None, jnp.array([6, 0, 4]))
  alone, other = start(field("prompt", [PROMPTS[i] for i in (1, 0, 2)])["prompt"],
                       jnp.array([1, 4, 2]))
  np.testing.assert_allclose(together, alone, rtol=1e-5, atol=1e-5)
  step = lambda state: jax.jit(lambda: model.apply(
      {"params": params}, jnp.array([3, 4, 5]), state, jnp.array(1), method="step"))()[0]
  np.testing.assert_allclose(step(state), step(other), rtol=1e-5, atol=1e-5)
