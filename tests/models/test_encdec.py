"""The encoder-decoder: packing, cached decoding and parameter counts."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.errors import ConfigError
from jtx.inference import decode, generate
from jtx.models.text_head import HeadConfig
from jtx.nn.attached import Attached
from jtx.nn.disentangled import Disentangled
from jtx.nn.positions import POSITIONS, Learned, Places, Position, Sinusoidal
from jtx.nn.relative import Alibi, T5Bias
from jtx.nn.rope import Rope
from jtx.nn.shapes import shapes_of
from jtx.nn.shift import LAST
from jtx.nn.transformer_xl import TransformerXl
from jtx.objectives.seq2seq import Seq2Seq
from jtx.parallel.sharding import unbox
from tests.helpers import block, encdec, one_fast

V, BOS = 11, 1

ENCODINGS = {
    "none": Position(),
    "sinusoidal": Sinusoidal(first_position=1),
    "disentangled": Disentangled(span=4, max_distance=6),
    "attached": Attached(layout="concatenated"),
    "learned": Learned(max_length=16, init_std=0.5),
    "rope": Rope(),
    "alibi": Alibi(),
    "t5": T5Bias(num_buckets=8, max_distance=8),
    "transformer_xl": TransformerXl(),
}


def model(position=Rope(), *, norm_position="post", dropout=0.0, heads=4, kv_heads=None, **fields):
  layer = block(num_heads=heads, num_kv_heads=kv_heads, ffn_dim=12, dropout=dropout,
                norm_position=norm_position)
  size = {"vocab_size": V, "width": 8, "num_layers": 2}
  return encdec(**{**size, "block": layer, "position": position, **fields})


def rows(name, rows_of_segments, length):
  """Rows of packed segments of ids as the three arrays of a batch field."""
  tokens, segments, positions = np.zeros((3, len(rows_of_segments), length), np.int32)
  for i, row in enumerate(rows_of_segments):
    at = 0
    for number, ids in enumerate(row, 1):
      part = i, slice(at, at + len(ids))
      tokens[part], segments[part], positions[part] = ids, number, np.arange(len(ids))
      at += len(ids)
  return {name: jnp.array(tokens), f"{name}_segment_ids": jnp.array(segments),
          f"{name}_positions": jnp.array(positions)}


def init(module):
  """Random parameters, none of them zeros or ones."""
  batch = {**rows("src", [[[1]]], 1), **rows("tgt", [[[1]]], 1)}
  boxed = shapes_of(module.init, jax.random.key(0), Seq2Seq(BOS).model_inputs(batch))["params"]
  leaves, tree = jax.tree.flatten(unbox(boxed))
  random = np.random.default_rng(0)
  return tree.unflatten([jnp.asarray(random.normal(size=x.shape) / 2, jnp.float32) for x in leaves])


def close(actual, desired, tol=3e-5):
  np.testing.assert_allclose(actual, desired, rtol=tol, atol=tol)


# ----------------------------------------------------------------------------- packing

SOURCES = [[3, 4, 5, 6], [7, 8], [9, 3, 10]]
TARGETS = [[5, 2], [6, 7, 8, 9, 2], [4, 10, 2]]


@pytest.mark.parametrize("name", one_fast(*sorted(POSITIONS, reverse=True)))
def test_packed_pairs_are_the_pairs_alone(name):
  module, objective = model(ENCODINGS[name], pattern=("global", "local"), window=2), Seq2Seq(BOS)
  params = init(module)
  alone = {**rows("src", [[s] for s in SOURCES], 4), **rows("tgt", [[t] for t in TARGETS], 5)}
  packed = {**rows("src", [SOURCES], 12), **rows("tgt", [TARGETS], 11)}

  @jax.jit
  def run(batch):
    hidden = module.apply({"params": params}, objective.model_inputs(batch))
    return hidden, objective(module, params, batch, train=False)

  hidden, sums = run(alone)
  packed_hidden, packed_sums = run(packed)
  parts = [row[:len(t)] for row, t in zip(np.asarray(hidden), TARGETS)]
  close(packed_hidden[0, :sum(map(len, TARGETS))], np.concatenate(parts))
  for key in sums:
    close(packed_sums[key], sums[key], 1e-4)


# ---------------------------------------------------------------------------- decoding


@pytest.mark.parametrize("case", one_fast(
    (2, "rope", dict(pattern=("local", "global"), window=1, kv_heads=2, norm_position="pre")),
    *((3, name, {}) for name in POSITIONS),
    (3, "alibi", dict(kv_heads=1, norm_position="sandwich", num_decoder_layers=3)),
    (1, "sinusoidal", dict(share_embeddings="none", output_bias=True, norm_position="pre")),
    (3, "t5", dict(remat="full", unroll=-1, pattern=("local",), window=2)),
), ids=str)
def test_cached_decoding_is_the_full_pass(case):
  hypotheses, name, options = case
  module = model(ENCODINGS[name], **options)
  params = init(module)
  source = rows("src", [[[3, 4, 5, 6]], [[7, 8]]], 4)
  length = 5
  targets = np.random.default_rng(1).integers(2, V, (2 * hypotheses, length - 1))
  inputs = jnp.concatenate([jnp.full((len(targets), 1), BOS), targets], 1)
  apply = functools.partial(module.apply, {"params": params})

  @jax.jit
  def cached(source, inputs):
    prompt = jnp.full((len(source["src"]), 1), BOS)
    logits, state = apply(source, hypotheses, length, prompt, method="start")

    def step(state, t):
      logits, state = apply(inputs[:, t], state, t, method="step")
      return state, logits

    _, rest = jax.lax.scan(step, state, jnp.arange(1, length))
    return jnp.concatenate([jnp.repeat(logits, hypotheses, 0)[None], rest]).swapaxes(0, 1)

  @jax.jit
  def full(source, inputs):
    batch = {k: jnp.repeat(x, hypotheses, 0) for k, x in source.items()}
    batch |= rows("tgt", [[[0] * length]] * len(inputs), length)
    return apply(apply({**batch, "tgt_in": inputs}), method="logits")

  close(cached(source, inputs), full(source, inputs), 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("method", [
    decode.Beam(beam=3, n_best=3), decode.Sample(n_best=2, temperature=0.5)], ids=str)
def test_room_that_grows_changes_nothing(method, monkeypatch):
  module = model(ENCODINGS["rope"])
  params = init(module)
  source = rows("src", [[[3, 4, 5, 6]], [[7, 8]]], 4)
  keys = jax.random.split(jax.random.key(1), 2)

  def run(first_length):
    monkeypatch.setattr(decode, "FIRST_LENGTH", first_length)
    length = 9
    assert decode.cache_lengths(length) == {2: [2, 4, 8, 9], 16: [9]}[first_length]
    search = generate.generate.__wrapped__  # not what another length compiled
    return jax.jit(lambda p, b: search(
        module, method, length, decode.Ends((2,), 0), params=p, batch=b,
        prompt=jnp.full((2, 1), BOS), keys=keys))(params, source)

  grown, whole = run(2), run(16)
  np.testing.assert_array_equal(grown.tokens, whole.tokens)
  close(grown.scores, whole.scores, 1e-5)


def test_decoding_past_a_learned_table():
  module = model(Learned(max_length=4))
  with pytest.raises(ConfigError, match="max_length=4 is too short"):
    module.apply({"params": init(module)}, rows("src", [[[3]]], 1), 1, 5, jnp.full((1, 1), BOS),
                 method="start")


# ----------------------------------------------------------------- the rest of the model


def test_weights_for_pictures():
  module = model(kv_heads=2, num_decoder_layers=3)
  batch = {**rows("src", [[[3, 4, 5]]], 4), **rows("tgt_in", [[[1, 6]]], 2)}
  batch |= {k: batch[f"tgt_in{k[3:]}"] for k in ("tgt_segment_ids", "tgt_positions")}
  run = jax.jit(lambda params: module.apply({"params": params}, batch, method="attention_weights"))
  weights = run(init(module))
  shapes = {"encoder": (2, 1, 4, 4, 4), "decoder": (3, 1, 4, 2, 2), "cross": (3, 1, 4, 2, 4)}
  assert {k: w.shape for k, w in weights.items()} == shapes
  assert (weights["cross"][..., 3] == 0).all()
  close(weights["cross"].sum(-1), np.ones((3, 1, 4, 2)))


def test_embeddings_are_scaled_and_dropped():
  module = model(Position(), dropout=0.5, norm_position="pre", num_layers=1)
  params = jax.tree.map(jnp.zeros_like, init(module))
  table = jnp.ones((V, 8))
  params["tgt_embed"]["embedding"] = table
  tokens = jnp.array([[3, 4]])
  embed = lambda train: module.apply(
      {"params": params}, tokens, tokens * 0, train, rngs={"dropout": jax.random.key(0)},
      method=lambda m, x, positions, train: m.embed_target(x, Places(positions), train))
  np.testing.assert_array_equal(embed(False), np.full((1, 2, 8), np.float32(8**0.5)))
  np.testing.assert_allclose(np.unique(embed(True)), [0, 2 * 8**0.5], rtol=1e-6)
  # Each stack has its own rate, logits may be scaled, and scaled embeddings start small.
  block, embedding = module.decoder.block, dataclasses.replace(module.embedding, output_scale=0.5)
  other = module.clone(embedding=embedding, decoder=dataclasses.replace(
      module.decoder, block=dataclasses.replace(block, dropout=0.75))).bind({"params": params})
  assert (other.dropout.rate, other.tgt_dropout.rate) == (0.5, 0.75)
  assert other.tgt_embed.init_std == pytest.approx(8**-0.5)
  np.testing.assert_allclose(other.logits(jnp.ones((1, 8))), np.full((1, V), 4.0), rtol=1e-6)


@pytest.mark.parametrize("start, pooled, place", [(2, "last", -1), (LAST, "before_last", -2)])
def test_a_head_reads_what_the_decoder_makes_of_a_text(start, pooled, place):
  """One state of a text, behind a start token; two texts of a row are each alone."""
  reader = model(seq2seq=False, head_start=start, output_bias=True, head=HeadConfig(
      task="classes", outputs=3, pool=pooled, transform="tanh"))
  texts = [[3, 4, 5], [6, 7]]
  boxed = shapes_of(reader.init, jax.random.key(0), reader.example())["params"]
  leaves, tree = jax.tree.flatten(unbox(boxed))
  draws = np.random.default_rng(0)
  params = tree.unflatten([draws.normal(size=x.shape).astype(np.float32) / 2 for x in leaves])
  assert "output_bias" not in params
  found = reader.apply({"params": params}, rows("text", [texts], 7), 2, method="predict")[0]
  head = jax.tree.map(np.float64, params["task_head"])
  dense, output = head["transform"]["dense"], head["output"]
  for outputs, ids in zip(found, texts, strict=True):
    begin = ids[-1] if start == LAST else start
    pair = {**rows("src", [[ids]], len(ids)), **rows("tgt", [[[begin, *ids[:-1]]]], len(ids))}
    pair["tgt_in"] = pair.pop("tgt")
    state = np.float64(reader.apply({"params": params}, pair))[0, place]
    hidden = np.tanh(state @ dense["kernel"] + dense["bias"])
    close(outputs, hidden @ output["kernel"] + output["bias"])


@pytest.mark.parametrize("share, tables", [
    ("all", {"tgt_embed"}), ("output", {"tgt_embed", "src_embed"}),
    ("none", {"tgt_embed", "src_embed", "output"})])
def test_shared_embeddings(share, tables):
  params = init(model(share_embeddings=share, norm_position="post"))
  assert set(params) - {"encoder", "decoder"} == tables


@pytest.mark.parametrize("fields, message", [
    (dict(tie=("both",)), r"embedding.tie=\('both',\): valid are: source, output, positions"),
    (dict(src_vocab_size=12), "one vocabulary, not 12 source and 11 target tokens"),
    (dict(dtype="int8"), "dtype='int8'"),
])
def test_errors(fields, message):
  with pytest.raises(ConfigError, match=message):
    init(model(**fields))


@pytest.mark.slow
def test_bfloat16_ends_in_float32_logits():
  module = model(dtype="bfloat16")
  params = init(module)
  batch = Seq2Seq(BOS).model_inputs({**rows("src", [[[3, 4]]], 2), **rows("tgt", [[[5, 2]]], 2)})
  hidden = module.apply({"params": params}, batch)
  assert hidden.dtype == jnp.bfloat16
  assert module.apply({"params": params}, hidden, method="logits").dtype == jnp.float32


# -------------------------------------------------------------------- parameter counts


def count(vocab_size=37_000, *, position=Sinusoidal(), width=512, num_layers=6, **fields) -> int:
  module = encdec(vocab_size=vocab_size, width=width, num_layers=num_layers, position=position,
                  block=block(**fields))
  batch = Seq2Seq(BOS).model_inputs({**rows("src", [[[1]]], 1), **rows("tgt", [[[1]]], 1)})
  shapes = shapes_of(module.init, jax.random.key(0), batch)
  return sum(math.prod(x.shape) for x in jax.tree.leaves(unbox(shapes)))


def formula(vocab_size=37_000, *, width=512, num_layers=6, ffn_dim=2048, num_heads=8,
            head_dim=None, v_head_dim=None) -> int:
  """One embedding; attention without biases, feed-forward with, a LayerNorm a sub-layer."""
  head_dim = head_dim or width // num_heads
  attention = 2 * width * num_heads * (head_dim + (v_head_dim or head_dim))
  feed_forward = 2 * width * ffn_dim + ffn_dim + width
  norm = 2 * width
  encoder = attention + feed_forward + 2 * norm
  decoder = 2 * attention + feed_forward + 3 * norm
  return vocab_size * width + num_layers * (encoder + decoder)


BASE = 63_045_632

# Table 3 of Vaswani et al. 2017: what differs from base, and millions of parameters.
TABLE_3 = [
    ("base", {}, 65),
    *(("A", dict(num_heads=h, head_dim=512 // h), 65) for h in (1, 4, 16, 32)),
    ("B", dict(head_dim=16, v_head_dim=64), 58),
    ("B", dict(head_dim=32, v_head_dim=64), 60),
    ("C", dict(num_layers=2), 36),
    ("C", dict(num_layers=4), 50),
    ("C", dict(num_layers=8), 80),
    ("C", dict(width=256, head_dim=32), 28),
    ("C", dict(width=1024, head_dim=128), 168),
    ("C", dict(ffn_dim=1024), 53),
    ("C", dict(ffn_dim=4096), 90),
    ("big", dict(width=1024, ffn_dim=4096, num_heads=16), 213),
]


@pytest.mark.parametrize("row, changes, millions", TABLE_3)
def test_parameters_of_table_3(row, changes, millions):
  total = count(**changes)
  assert total == formula(**changes)
  if row in ("base", "A"):
    assert total == BASE
  elif "width" not in changes:  # differences from base do not depend on the vocabulary
    assert abs((total - BASE) / 1e6 - (millions - 65)) < 1
  elif row == "C":  # the table's absolute counts are those of a vocabulary of about 41,000
    assert abs(formula(41_000, **changes) / 1e6 - millions) < 1
  else:  # the count of big alone fits the 37,000 of the text
    assert abs(total / 1e6 - millions) < 1.2


def test_parameters_of_learned_positions():
  assert count(position=Learned(max_length=100)) == BASE + 100 * 512
