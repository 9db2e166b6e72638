"""Decoder-only models: packing, the cache against the full pass, outputs, and refusals."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.errors import ConfigError
from jtx.models.decoder import GPT2_STACK, Decoder
from jtx.models.text_head import HeadConfig
from jtx.nn.positions import Learned, Sinusoidal
from jtx.nn.relative import Alibi, T5Bias
from jtx.nn.residual import ResidualConfig
from jtx.nn.rope import Linear, Llama3, Rope, Scaling
from jtx.nn.shapes import shapes_of
from jtx.parallel.sharding import unbox
from tests.helpers import block, decoder, one_fast
from tests.models.test_contract import drawn

V, D = 11, 8
SIZE = dict(vocab_size=V, width=D, num_layers=2)
LAYER = dict(num_heads=2, ffn_dim=12, norm_position="pre")
RMS = dict(norm="rmsnorm", attention_bias=False, ffn_bias=False, activation="silu", gated=True)

# Small ones of the families, by what their layers differ in.
FAMILIES = {
    "gpt": decoder(**SIZE, block=block(**{**LAYER, "norm_position": "post"})),
    "gpt2": decoder(**SIZE, block=block(**LAYER)),
    "gpt_neox": decoder(**SIZE, tie=False, position=Rope(fraction=0.5),
                        block=block(**LAYER, parallel="own_norms")),
    "llama": decoder(**SIZE, tie=False, position=Rope(scaling=Llama3(original_length=16)),
                     block=block(**LAYER, **RMS, num_kv_heads=1)),
    "mistral": decoder(**SIZE, tie=False, position=Rope(), pattern=("local",), window=2,
                       block=block(**LAYER, **RMS, num_kv_heads=1)),
    "qwen3": decoder(**SIZE, position=Rope(),
                     block=block(**LAYER, **RMS, head_dim=6, qk_norm="head")),
    "gemma2": decoder(**SIZE, scale_embeddings=True, logits_cap=3.0, position=Rope(),
                      pattern=("local", "global"), window=2, block=block(
                          **{**LAYER, **RMS, "norm_position": "sandwich"}, unit_offset=True,
                          soft_cap=5.0, scale=0.3)),
    "gemma3": decoder(**SIZE, scale_embeddings=True, pattern=("local", "global"), window=2,
                      position=Rope(local_base=100.0, scaling=Linear(factor=8.0),
                                    local_scaling=Scaling()),
                      block=block(**{**LAYER, **RMS, "norm_position": "sandwich"},
                                  unit_offset=True, qk_norm="head")),
    "olmo2": decoder(**SIZE, tie=False, position=Rope(), block=block(
        **{**LAYER, **RMS, "norm_position": "output"}, qk_norm="width")),
    "opt": decoder(**SIZE, embedding_width=4, position=Learned(max_length=32, first_position=2),
                   block=block(**{**LAYER, "norm_position": "post"})),
    "bloom": decoder(**SIZE, embedding_norm=True, position=Alibi(), block=block(**LAYER)),
    "falcon": decoder(**SIZE, position=Rope(), block=block(
        **LAYER, num_kv_heads=1, parallel="shared_norm", ffn_bias=False)),
    "xglm": decoder(**SIZE, scale_embeddings=True, block=block(**LAYER),
                    position=Sinusoidal(layout="concatenated", inclusive=True, first_position=2)),
}
NAMES = one_fast("gemma3", *(name for name in FAMILIES if name != "gemma3"))
ROWS = [[5, 6, 9, 2, 8, 3, 7], [4], [7, 3, 10]]


def batch_of(rows):
  length = max(map(len, rows))
  pad = lambda values: jnp.array([[*v] + [0] * (length - len(v)) for v in values])
  return {"text": pad(rows), "text_segment_ids": pad([[1] * len(row) for row in rows]),
          "text_positions": pad([range(len(row)) for row in rows])}


def scores(model, params, batch):
  run = lambda m, b: m.logits(m(b))
  return jax.jit(lambda p, b: model.apply({"params": p}, b, method=run))(params, batch)


# In which a prompt is seen whole.
PREFIX = {
    "prefix": decoder(**SIZE, pattern=("prefix",), position=T5Bias(num_buckets=8),
                      block=block(**LAYER)),
    "prefix_and_local": decoder(**SIZE, pattern=("prefix", "local"), window=2, position=Rope(),
                                block=block(**LAYER)),
}


@pytest.mark.parametrize("name", [*NAMES, *one_fast(*PREFIX)])
def test_prompts_in_one_batch_and_the_full_pass(name):
  """The cache, prompts of several lengths and two hypotheses each: all equal the full pass."""
  model, steps, hypotheses = (FAMILIES | PREFIX)[name], 5, 2
  params = drawn(model)
  lengths = jnp.array([len(row) for row in ROWS])
  prompt = batch_of(ROWS)["text"]
  logits, state = jax.jit(lambda p: model.apply(
      {"params": p}, {}, hypotheses, steps, prompt, lengths, method="start"))(params)
  logits, out, tokens = jnp.repeat(logits, hypotheses, 0), [], []
  step = jax.jit(lambda p, *args: model.apply({"params": p}, *args, method="step"))
  for index in range(1, steps + 1):
    out.append(logits)
    # Hypotheses of a prompt part at the first token.
    tokens.append((logits.argmax(-1) + (jnp.arange(6) % 2) * (index == 1)) % V)
    if index < steps:
      logits, state = step(params, tokens[-1], state, jnp.array(index))
  tokens = np.stack(tokens, 1)
  texts = [[*row, *map(int, tokens[hypotheses * i + h])] for i, row in enumerate(ROWS)
           for h in range(hypotheses)]
  batch = batch_of(texts)
  if name in PREFIX:
    ends = jnp.array([[len(text) - steps] for text in texts])
    batch["text_prefix"] = jnp.arange(batch["text"].shape[1]) < ends
  full = scores(model, params, batch)
  for i, text in enumerate(texts):
    first = len(text) - steps - 1
    np.testing.assert_allclose(np.stack(out, 1)[i], full[i, first:first + steps], rtol=2e-5,
                               atol=2e-5)


@pytest.mark.parametrize("name", NAMES)
def test_documents_of_a_row_do_not_see_each_other(name):
  model = FAMILIES[name]
  params = drawn(model)
  packed = {
      "text": jnp.array([sum(ROWS, [])]),
      "text_segment_ids": jnp.array([sum(([i + 1] * len(row) for i, row in enumerate(ROWS)), [])]),
      "text_positions": jnp.array([sum((list(range(len(row))) for row in ROWS), [])])}
  together = scores(model, params, packed)[0]
  apart = scores(model, params, batch_of(ROWS))
  apart = np.concatenate([apart[i, :len(row)] for i, row in enumerate(ROWS)])
  np.testing.assert_allclose(together, apart, rtol=2e-5, atol=2e-5)


def test_later_tokens_are_not_seen():
  model = FAMILIES["gpt2"]
  params = drawn(model)
  other = [[5, 6, 9, 1, 1, 1, 1]]
  a, b = (scores(model, params, batch_of(rows))[0] for rows in (ROWS[:1], other))
  np.testing.assert_array_equal(a[:3], b[:3])
  assert np.abs(a[3] - b[3]).max() > 1e-3


def test_soft_capped_scores_of_a_scaled_embedding():
  """The output is c tanh(h E^T / c), and the stack is given E x sqrt(D)."""
  model = decoder(**SIZE, block=block(**LAYER), position=Rope(), scale_embeddings=True,
                  logits_cap=3.0)
  params = drawn(model)
  batch = batch_of(ROWS)
  hidden = model.apply({"params": params}, batch, method="hidden_states")
  table = params["embed"]["embedding"]
  np.testing.assert_allclose(hidden[0], table[batch["text"]] * np.sqrt(D), rtol=1e-6)
  expected = 3 * np.tanh(np.float64(hidden[-1]) @ np.float64(table).T / 3)
  np.testing.assert_allclose(scores(model, params, batch), expected, rtol=1e-5, atol=1e-5)
  assert np.abs(expected).max() > 2


def test_the_last_token_of_every_text_is_pooled():
  model = decoder(**SIZE, block=block(**LAYER), lm=False,
                  head=HeadConfig(task="classes", outputs=3, pool="last", output_bias=False))
  params = drawn(model)
  assert "bias" not in params["task_head"]["output"]
  batch = batch_of([[5, 6, 9, 2], [4, 4, 3]])
  batch["text_segment_ids"] = jnp.array([[1, 1, 2, 0], [1, 2, 2, 0]])
  batch["text_positions"] = jnp.array([[0, 1, 0, 0], [0, 0, 1, 0]])
  run = jax.jit(lambda p: (model.apply({"params": p}, batch), model.apply(
      {"params": p}, batch, 3, method="predict")))
  hidden, outputs = run(params)
  kernel = params["task_head"]["output"]["kernel"]
  for row, text, place in ((0, 0, 1), (0, 1, 2), (1, 0, 0), (1, 1, 2)):
    np.testing.assert_allclose(outputs[row, text], hidden[row, place] @ kernel, rtol=1e-5,
                               atol=1e-5)
  np.testing.assert_array_equal(outputs[:, 2], 0)


def test_kernels_of_outputs_start_smaller():
  """GPT-2's: 0.02 / sqrt(2 layers) for what is added to the residuals, 0.02 for the rest."""
  stack = dataclasses.replace(GPT2_STACK, width=96, num_layers=2, block=dataclasses.replace(
      GPT2_STACK.block, residual=ResidualConfig(init_std=0.01)))
  model = Decoder(vocab_size=V, stack=stack)
  params = unbox(model.init(jax.random.key(0), model.example()))["params"]
  layers = params["decoder"]["layers"]
  for name, std in (("query", 0.02), ("out", 0.01)):
    np.testing.assert_allclose(layers["attention"][name]["kernel"].std(), std, rtol=0.05)
  for name, std in (("in", 0.02), ("out", 0.01)):
    np.testing.assert_allclose(layers["ffn"][name]["kernel"].std(), std, rtol=0.05)


def test_embeddings_and_outputs_as_those_of_t5():
  """Embeddings have a deviation of their own, and the hidden states before the scores a scale."""
  model = Decoder(vocab_size=1000, stack=GPT2_STACK)
  fields = dict(init_std=0.5, output_scale=0.25)
  wide = model.clone(stack=dataclasses.replace(GPT2_STACK, width=96, num_layers=1),
                     embedding=dataclasses.replace(model.embedding, **fields))
  params = unbox(wide.init(jax.random.key(0), wide.example()))["params"]
  np.testing.assert_allclose(params["embed"]["embedding"].std(), 0.5, rtol=0.02)
  hidden = np.random.default_rng(0).normal(size=(3, 96)).astype(np.float32)
  found = wide.apply({"params": params}, hidden, method="logits")
  np.testing.assert_allclose(found, 0.25 * hidden @ np.float64(params["embed"]["embedding"]).T,
                             rtol=1e-4, atol=1e-4)


def test_an_offset_norm_starts_as_one():
  params = FAMILIES["gemma2"].init(jax.random.key(0), FAMILIES["gemma2"].example())["params"]
  np.testing.assert_array_equal(unbox(params)["decoder"]["final_norm"]["scale"], 0)


def test_refusals():
  model = decoder(**SIZE, block=block(**LAYER), causal=False)
  with pytest.raises(ConfigError, match="a decoder needs stack.causal=True"):
    shapes_of(model.init, jax.random.key(0), model.example())
  model = decoder(**SIZE, block=block(**LAYER), position=Learned(max_length=8))
  params = drawn(model)
  with pytest.raises(ConfigError, match="8"):
    model.apply({"params": params}, {}, 1, 5, jnp.ones((1, 5), int), method="start")
