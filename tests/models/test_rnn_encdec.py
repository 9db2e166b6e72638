"""The recurrent encoder-decoder: its equations, its decoding, and a published trained one."""

import json
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.errors import ConfigError
from jtx.inference.decode import Beam, Ends
from jtx.inference.generate import generate
from jtx.models.rnn_decoding import RecurrentState
from jtx.models.rnn_encdec import RnnEmbeddingConfig, RnnEncDec
from jtx.nn.additive import Source
from jtx.nn.recurrent import CellConfig, RecurrentConfig, State
from jtx.nn.shapes import shapes_of
from tests.helpers import one_fast
from tests.models.test_contract import drawn, field, greedy

V, D = 11, 8
GRU = CellConfig(kind="gru")
LSTM = CellConfig(projection=5)
SOURCES = [[3, 4, 5, 6], [7, 8], [9, 3, 10]]
TARGETS = [[1, 5, 6, 9], [1], [1, 8]]
STEPS = 4


def encdec(encoder_cell=GRU, decoder_cell=GRU, *, layers=1, residual=False, **fields):
  return RnnEncDec(**dict(
      vocab_size=V, attention=6, readout=7, embedding=RnnEmbeddingConfig(width=D),
      encoder=RecurrentConfig(cell=encoder_cell, dim=D, bidirectional=True, num_layers=layers),
      decoder=RecurrentConfig(cell=decoder_cell, dim=D, num_layers=layers, residual=residual),
  ) | fields)


ONE_WAY = RecurrentConfig(cell=LSTM, dim=D, num_layers=2)
MODELS = {
    "attention": encdec(),
    "deep": encdec(LSTM, LSTM, layers=2, residual=True, readout=0,
                   embedding=RnnEmbeddingConfig(width=5, tie=("source", "output"))),
    "fixed": encdec(attention=0, bridge="copy", encoder=ONE_WAY, decoder=ONE_WAY),
}


def batch_of(sources, targets):
  batch = {**field("src", sources), **field("tgt", targets)}
  return batch | {"tgt_in": batch["tgt"]}


def packed(sources, targets):
  """The examples in one row, with a place of padding behind each source."""
  batch = {}
  for name, rows in (("src", [[*row, 0] for row in sources]), ("tgt_in", targets)):
    key = name.removesuffix("_in")
    ids = [[i + 1] * len(row) for i, row in enumerate(rows)]
    if name == "src":
      ids = [[*row[:-1], 0] for row in ids]
    batch |= {name: jnp.array([sum(rows, [])]), f"{key}_segment_ids": jnp.array([sum(ids, [])])}
  return batch | {"tgt": batch["tgt_in"]}


def logits(model, params, batch):
  run = jax.jit(lambda params, batch: model.apply({"params": params}, model.apply(
      {"params": params}, batch), method="logits"))
  return np.asarray(run(params, batch))


@pytest.mark.parametrize("name", one_fast("deep", "attention", "fixed"))
def test_decoding_by_steps_is_the_full_pass_and_rows_do_not_matter(name):
  """Rows of several lengths, each alone, and all in one row."""
  model = MODELS[name]
  params = drawn(model)
  found, tokens = greedy(model, params, SOURCES, TARGETS, hypotheses=2)
  targets = [[*prompt, *tokens[2 * i][:-1]] for i, prompt in enumerate(TARGETS)]
  full = logits(model, params, batch_of(SOURCES, targets))
  together = logits(model, params, packed(SOURCES, targets))[0]
  at = 0
  for i, (prompt, target) in enumerate(zip(TARGETS, targets)):
    for h in range(2):
      np.testing.assert_allclose(found[2 * i + h], full[i, len(prompt) - 1:len(target)], atol=1e-5)
    np.testing.assert_allclose(together[at:at + len(target)], full[i, :len(target)], atol=1e-5)
    at += len(target)


def test_hypotheses_are_put_in_order_and_sources_are_left_out():
  rows = jnp.arange(6) * 10  # of three sources, two hypotheses each
  state = RecurrentState((State(rows[:, None]),), rows[:, None], rows=2)
  ordered = state.reorder(jnp.array([1, 1, 2, 3, 5, 4]))
  assert ordered.layers[0].hidden[:, 0].tolist() == [10, 10, 20, 30, 50, 40]
  assert ordered.source is state.source
  part = ordered.take(jnp.array([2, 0]))
  assert part.layers[0].hidden[:, 0].tolist() == [50, 40, 10, 10]
  assert part.source[:, 0].tolist() == [40, 50, 0, 10]


def test_a_step_with_attention_is_its_equations():
  """Bahdanau et al. 2014, equations 5 and 6, of one source and two tokens, in float64."""
  model = encdec(decoder_cell=CellConfig(kind="gru", reset_after=False), readout=0)
  params = drawn(model)
  p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
  batch = batch_of(SOURCES[:1], [[1, 5]])
  source, starts = model.apply({"params": params}, batch, jnp.ones((1, 1), int), method="encode")
  h, s = np.asarray(source.values[0], np.float64), np.asarray(starts[0].hidden[0, 0], np.float64)
  np.testing.assert_allclose(s, np.tanh(
      np.concatenate([h[-1, :D], h[0, D:]]) @ p["bridge_hidden_0"]["kernel"]
      + p["bridge_hidden_0"]["bias"]), atol=1e-6)
  sigmoid = lambda a: 1 / (1 + np.exp(-a))
  scores, weights = [], []
  for token in (1, 5):
    energy = np.tanh(s @ p["query"] + h @ p["key"]["kernel"] + p["key"]["bias"]) @ p["vector"]
    a = np.exp(energy) / np.exp(energy).sum()
    layer, U = p["decoder_0"], p["decoder_0"]["recurrent"].reshape(D, 3, D)
    x = np.einsum("d,dgh->gh", p["tgt_embed"]["embedding"][token], layer["input"]["kernel"])
    x += layer["input"]["bias"] + np.einsum("e,egh->gh", a @ h, p["context"])
    r, z = sigmoid(x[0] + s @ U[:, 0]), sigmoid(x[1] + s @ U[:, 1])
    s = (1 - z) * np.tanh(x[2] + (r * s) @ U[:, 2]) + z * s
    scores.append(s @ p["output"]["kernel"] + p["output"]["bias"])
    weights.append(a)
  np.testing.assert_allclose(logits(model, params, batch)[0], scores, atol=1e-5)
  found = model.apply({"params": params}, batch, method="attention_weights")
  np.testing.assert_allclose(found["cross"][0, 0, 0], weights, atol=1e-6)


def test_what_long_texts_attend_to_has_the_gradients_of_float32_in_bfloat16():
  """They are sums over the target's places, which in bfloat16 would end early."""
  text, found = np.random.default_rng(0).integers(1, V, (1, 512)), []
  params, ones = drawn(MODELS["attention"]), jnp.ones((1, 512), jnp.int32)
  rng = np.random.default_rng(1)
  values, keys, slopes = (np.float32(rng.normal(0.2, 1, (1, 512, n))) for n in (2 * D, 6, 7))
  starts = (State(jnp.zeros((1, D))),)
  for dtype in ("float32", "bfloat16"):
    model = MODELS["attention"].clone(dtype=dtype)
    decode = lambda values, keys, slopes, model=model, dtype=dtype: (slopes * model.apply(
        {"params": params}, text, ones, Source(values.astype(dtype), keys.astype(dtype), ones),
        starts, method="decode")[0]).mean()
    found.append(jax.device_get(jax.jit(jax.grad(decode, (0, 1)))(values, keys, slopes)))
  for a, b in zip(*found, strict=True):
    assert np.linalg.norm(b - a) < 0.01 * np.linalg.norm(a)


def test_attention_stays_in_its_segment():
  batch = packed(SOURCES, TARGETS)
  model = MODELS["attention"]
  weights = model.apply({"params": drawn(model)}, batch, method="attention_weights")["cross"][0, 0]
  same = np.asarray(batch["tgt_segment_ids"][0][:, None] == batch["src_segment_ids"][0])
  assert (np.asarray(weights[0])[~same] == 0).all()
  np.testing.assert_allclose(weights[0].sum(-1), 1, atol=1e-6)
  assert not MODELS["fixed"].apply({"params": drawn(MODELS["fixed"])}, batch,
                                   method="attention_weights")


@pytest.mark.parametrize("fields, message", [
    (dict(attention=0, bridge="copy"), "bridge='copy' needs an encoder of one direction"),
    (dict(bridge="add"), "bridge='add'"),
    (dict(readout=0, readout_dropout=0.5), "readout_dropout=0.5 goes with readout above 0"),
    (dict(embedding=RnnEmbeddingConfig(width=D, tie=("output",))), "to be readout=7"),
    (dict(src_vocab_size=5, embedding=RnnEmbeddingConfig(tie=("source",))), "one vocabulary"),
    (dict(decoder=RecurrentConfig(bidirectional=True)), "decoder.bidirectional=True"),
])
def test_refusals(fields, message):
  model = encdec(**fields)
  with pytest.raises(ConfigError, match=message):
    shapes_of(model.init, jax.random.key(0), model.example())
  with pytest.raises(ConfigError, match="embedding.tie"):
    RnnEmbeddingConfig(tie=("sources",))


# ------------------------------------------------------------------- a published trained model

START, END = 2, 3  # of phonemes


@pytest.fixture(scope="module")
def g2p():
  """Letters to phonemes, of Kyubyong/g2p: the model, its parameters and what was published."""
  if "JTX_TEST_DATA" not in os.environ:
    pytest.skip("JTX_TEST_DATA is unset; the published model is in its folder golden/g2p_gru")
  folder = pathlib.Path(os.environ["JTX_TEST_DATA"], "golden", "g2p_gru")
  w, told = np.load(folder / "checkpoint20.npz"), json.loads((folder / "expected.json").read_text())
  one = RecurrentConfig(cell=GRU, dim=256)
  model = RnnEncDec(vocab_size=74, src_vocab_size=29, encoder=one, decoder=one, attention=0,
                    bridge="copy", readout=0)

  def layer(side):
    """PyTorch's names: its two biases of r and z are added, that of n is inside the reset."""
    b, inner = (w[f"{side}_b_{part}"].reshape(3, 256) for part in ("ih", "hh"))
    return {"input": {"kernel": w[f"{side}_w_ih"].T.reshape(256, 3, 256),
                      "bias": b + inner * np.array([[1], [1], [0]])},
            "recurrent": w[f"{side}_w_hh"].T, "reset_bias": inner[2]}

  params = {
      "src_embed": {"embedding": w["enc_emb"]}, "tgt_embed": {"embedding": w["dec_emb"]},
      "encoder": {"forward_0": layer("enc")}, "decoder_0": layer("dec"),
      "output": {"kernel": w["fc_w"].T, "bias": w["fc_b"]}}
  shapes = shapes_of(model.init, jax.random.key(0), model.example())["params"]
  assert jax.tree.structure(params) == jax.tree.structure(
      jax.tree.map(lambda x: x.value, shapes, is_leaf=lambda x: hasattr(x, "value")))
  ids = {kind: {c: i for i, c in enumerate(told[kind])} for kind in ("graphemes", "phonemes")}
  sources = [[ids["graphemes"].get(c, 1) for c in case["word"]] + [2] for case in told["cases"]]
  targets = [[*map(ids["phonemes"].get, case["phonemes"]), END] for case in told["cases"]]
  return model, jax.device_put(params), told["cases"], sources, targets


@pytest.mark.slow
def test_published_phonemes(g2p):
  model, params, _, sources, targets = g2p
  prompt = jnp.full((len(sources), 1), START)
  found = generate(model, Beam(beam=1), 20, Ends((END,), 0), params=params,
                   batch=field("src", sources), prompt=prompt)
  ends = [row[:len(target)].tolist() for row, target in zip(found.tokens[:, 0], targets)]
  assert ends == targets and len(targets) == 14


def test_published_log_probabilities_and_encodings(g2p):
  model, params, cases, sources, targets = g2p
  batch = batch_of(sources, [[START, *target[:-1]] for target in targets])
  log_p = np.asarray(jax.nn.log_softmax(logits(model, params, batch)))
  _, starts = jax.jit(lambda params: model.apply(
      {"params": params}, field("src", sources), jnp.ones((14, 1), int), method="encode"))(params)
  hidden = np.asarray(starts[0].hidden)
  for i, (case, target) in enumerate(zip(cases, targets)):
    ours = log_p[i, np.arange(len(target)), np.array(target)]
    np.testing.assert_allclose(ours[:len(case["log_probs"])], case["log_probs"], atol=1e-5)
    np.testing.assert_allclose(hidden[i, 0, :4], case["encoding_first4"], atol=1e-5)


@pytest.mark.slow
def test_beams_are_those_of_all_hypotheses():
  """A beam as wide as all continuations finds the likeliest target of two tokens and an end."""
  model = MODELS["deep"]
  params = drawn(model)
  found = generate(model, Beam(beam=V * V, alpha=0.0), 3, Ends((END,), 0), params=params,
                   batch=field("src", SOURCES), prompt=jnp.full((3, 1), 1))
  others = [t for t in range(V) if t != END]
  every = [[END], *([a, END] for a in others), *([a, b, END] for a in others for b in others)]
  for i, source in enumerate(SOURCES):
    batch = batch_of([source] * len(every), [[1, *target[:-1]] for target in every])
    log_p = jax.nn.log_softmax(logits(model, params, batch))
    scores = [float(sum(log_p[j, k, token] for k, token in enumerate(target)))
              for j, target in enumerate(every)]
    best = int(np.argmax(scores))
    assert found.tokens[i, 0].tolist() == every[best] + [0] * (3 - len(every[best]))
    np.testing.assert_allclose(found.scores[i, 0], scores[best], atol=1e-5)
