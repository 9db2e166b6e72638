"""ELMo: words of bytes, their characters, both directions, and a published model."""

import json
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.data.tokenizers.utf8 import Bytes
from jtx.errors import ConfigError
from jtx.models.elmo import Elmo
from jtx.models.features import FeatureConfig
from jtx.models.text_head import HeadConfig
from jtx.nn.characters import BEGIN, END, PAD, TEXT_BEGIN, TEXT_END, CharacterConfig, words_of
from jtx.nn.recurrent import CellConfig, RecurrentConfig
from jtx.nn.shapes import shapes_of
from jtx.objectives.bilm import BiLm
from jtx.objectives.contract import units_of
from tests.models.test_contract import drawn

SMALL = CharacterConfig(dim=3, filters=((1, 4), (2, 5)), max_length=7, highways=1)
LAYERS = RecurrentConfig(dim=6, num_layers=2, residual=True, cell=CellConfig(projection=4))
MODEL = Elmo(vocab_size=260, characters=SMALL, recurrent=LAYERS, output_vocab_size=9, bilm=True)
TEXTS = ["Ann sat.", "a  bé\tunusually c"]


def ids_of(text):
  return [1, *Bytes().encode_batch([text])[0].tolist(), 2]


def rows_of(*rows):
  """Rows of texts, each a segment, and all with padding behind."""
  ids = [[ids_of(text) for text in row] for row in rows]
  T = 2 + max(sum(map(len, row)) for row in ids)
  pad = lambda x: jnp.array([y + [0] * (T - len(y)) for y in x])
  tokens = pad([sum(row, []) for row in ids])
  segments = pad([sum(([i + 1] * len(x) for i, x in enumerate(row)), []) for row in ids])
  return {"text": tokens, "text_segment_ids": segments, "text_positions": tokens * 0}


def split(batch, number):
  return jax.jit(words_of, static_argnums=(2, 3))(batch["text"], batch["text_segment_ids"], number,
                                                  7)


def characters_of(word, length=7):
  """As a list: begin, bytes, end, padding."""
  own = word if isinstance(word, list) else [*word.encode("utf-8")]
  own = [BEGIN, *own[:length - 2], END]
  return own + [PAD] * (length - len(own))


def test_words_of_bytes():
  batch = rows_of(TEXTS)
  words = split(batch, 12)
  expected = [w for text in TEXTS for w in ([TEXT_BEGIN], *text.split(), [TEXT_END])]
  n = len(expected)
  assert words.characters[0, :n].tolist() == [characters_of(w) for w in expected]
  assert words.segments[0].tolist() == [1] * 4 + [2] * 6 + [0] * 2
  # White space goes with the word behind it.
  at = lambda text, start: [start] + sum(([start + 1 + i] * (len(w.encode()) + (i > 0))
                                          for i, w in enumerate(text)), [])
  first = at(TEXTS[0].split(), 0) + [3]
  assert words.of_place[0, :len(first)].tolist() == first
  second = words.of_place[0, len(first):len(first) + len(ids_of(TEXTS[1]))].tolist()
  assert second == [4, 5, *[6] * 5, *[7] * 10, 8, 8, 9]


def test_the_published_size_is_that_of_the_defaults():
  """93.6 M parameters, as the authors give for the original model."""
  model = Elmo(vocab_size=260)
  shapes = shapes_of(model.init, jax.random.key(0), model.example())["params"]
  assert sum(x.size for x in jax.tree.leaves(shapes)) == 93_600_848


def test_fewer_words_are_read_where_it_says():
  batch = rows_of(TEXTS)
  whole, part = (split(batch, n) for n in (12, 5))
  np.testing.assert_array_equal(part.characters, whole.characters[:, :5])
  assert part.of_place.max() == 4


def test_packed_texts_are_those_alone_and_directions_are_blind():
  params = drawn(MODEL)
  run = jax.jit(lambda batch: MODEL.apply({"params": params}, batch, method="hidden_states"))
  together, alone = run(rows_of(TEXTS))[:, 0], run(rows_of(*([t] for t in TEXTS)))
  at = 0
  for i, text in enumerate(TEXTS):
    n = len(ids_of(text))
    np.testing.assert_allclose(together[:, at:at + n], alone[:, i, :n], atol=1e-5)
    at += n
  other = run(rows_of(*([t] for t in ("Ann lay.", TEXTS[1]))))
  last = alone[2, 0]
  np.testing.assert_allclose(other[2, 0, :4, :4], last[:4, :4], atol=1e-6)  # forward, before it
  assert np.abs(other[2, 0, :4, 4:] - last[:4, 4:]).max() > 1e-3  # backward
  np.testing.assert_allclose(other[2, 0, 9, 4:], last[9, 4:], atol=1e-6)


def test_loss_is_that_of_both_directions():
  """Of words by number, in float64, over the model's own states."""
  params, batch = drawn(MODEL), rows_of(TEXTS)
  words = split(batch, 12)
  numbers = np.random.default_rng(0).integers(0, 9, 10)
  targets = np.full(batch["text"].shape, -1)
  targets[0, np.asarray(words.first[0, :10])] = numbers
  batch["text_targets"] = jnp.asarray(targets)
  objective = BiLm()
  sums, states = jax.jit(lambda: (
      objective(MODEL, params, batch, train=False),
      MODEL.apply({"params": params}, batch, method="hidden_states")[-1, 0]))()
  states = np.asarray(states[words.first[0, :10]], np.float64)
  total = 0
  for start, stop in ((0, 4), (4, 10)):
    for i in range(start, stop):
      for step, part in ((1, slice(0, 4)), (-1, slice(4, 8))):
        if start <= i + step < stop:
          scores = states[i, part] @ params["output"]["kernel"] + params["output"]["bias"]
          total += np.log(np.exp(scores).sum()) - scores[numbers[i + step]]
  assert objective.weights(batch)["loss"] == sums["loss"][1] == 2 * (3 + 5)
  assert units_of(objective, sums) == 3 + 5
  np.testing.assert_allclose(sums["loss"][0], total, rtol=1e-5)


@pytest.mark.slow
def test_a_head_reads_the_mix_of_layers():
  model = MODEL.clone(bilm=False, head=HeadConfig(task="tags", outputs=2, pool="none", dropout=0),
                      features=FeatureConfig((0, 1, 2), "scalar_mix", lstm_layers=0))
  params, batch = drawn(model), rows_of(TEXTS)
  run = jax.jit(lambda method: model.apply({"params": params}, batch, method=method),
                static_argnums=0)
  states = run("hidden_states")
  s, own = np.exp(params["extractor"]["weights"]), params["task_head"]["output"]
  mix = params["extractor"]["scale"] * np.einsum("l,lbtd->btd", s / s.sum(), states)
  np.testing.assert_allclose(run("predict"), mix @ own["kernel"] + own["bias"], atol=1e-5)


@pytest.mark.parametrize("fields, message", [
    (dict(vocab_size=300), "tokenizer.kind 'bytes'"),
    (dict(output_vocab_size=None), "bilm=True needs output_vocab_size"),
    (dict(recurrent=RecurrentConfig(bidirectional=True)), "two directions of its own"),
    (dict(features=FeatureConfig((0, 1))), "and head.task is 'none'"),
])
def test_refusals(fields, message):
  model = MODEL.clone(**fields)
  with pytest.raises(ConfigError, match=message):
    shapes_of(model.init, jax.random.key(0), model.example())
  with pytest.raises(ConfigError, match="characters.max_length=2 is less than"):
    CharacterConfig(max_length=2, filters=((3, 1),))


# ------------------------------------------------------------------------ a published model

def published():
  """Of allenai/bilm-tf: the model, its parameters, sentences and outputs of the top layer."""
  if "JTX_TEST_DATA" not in os.environ:
    pytest.skip("JTX_TEST_DATA is unset; the published model is in its folder golden/elmo_bilm_tf")
  folder = pathlib.Path(os.environ["JTX_TEST_DATA"], "golden", "elmo_bilm_tf")
  w = dict(np.load(folder / "weights.npz"))
  options = json.loads((folder / "options.json").read_text())
  lstm, chars = options["lstm"], options["char_cnn"]
  model = Elmo(vocab_size=260, dropout=0.0, characters=CharacterConfig(
      dim=chars["embedding"]["dim"], filters=tuple(map(tuple, chars["filters"])),
      highways=chars["n_highway"], max_length=chars["max_characters_per_token"],
      activation=chars["activation"]), recurrent=RecurrentConfig(
          dim=lstm["dim"], num_layers=lstm["n_layers"], residual=lstm["use_skip_connections"],
          cell=CellConfig(projection=lstm["projection_dim"], forget_bias=1.0,
                          cell_clip=lstm["cell_clip"], projection_clip=lstm["proj_clip"])))
  dense = lambda name, kernel, bias: {"kernel": w[f"{name}.{kernel}"], "bias": w[f"{name}.{bias}"]}
  cnn = {"embedding": w["char_embed"], "projection": dense("CNN_proj", "W_proj", "b_proj")}
  for i in range(len(chars["filters"])):
    cnn |= {f"filter_{i}": w[f"CNN.W_cnn_{i}"][0], f"filter_bias_{i}": w[f"CNN.b_cnn_{i}"]}
  for i in range(2):
    cnn |= {f"gate_{i}": dense(f"CNN_high_{i}", "W_carry", "b_carry"),
            f"highway_{i}": dense(f"CNN_high_{i}", "W_transform", "b_transform")}

  def layer(name):
    """Theirs has i, g, f, o and one kernel, of the input before the state."""
    order = lambda x: x.reshape(*x.shape[:-1], 4, -1)[..., [0, 2, 1, 3], :]
    kernel = order(w[f"{name}.W_0"])
    return {"input": {"kernel": kernel[:16], "bias": order(w[f"{name}.B"])},
            "recurrent": kernel[16:].reshape(16, -1), "projection": w[f"{name}.W_P_0"]}

  ways = {f"{way}_layers": {f"forward_{i}": layer(f"RNN_{k}.RNN.MultiRNNCell.Cell{i}.LSTMCell")
                            for i in range(2)} for k, way in enumerate(("forward", "backward"))}
  params = jax.device_put({"words": cnn, **ways})
  rows = json.loads((folder / "sentences_dev.json").read_text())
  return model, params, rows, np.load(folder / "expected.npz")


def test_published_states_which_go_on_from_batch_to_batch():
  model, params, rows, expected = published()
  shapes = shapes_of(model.init, jax.random.key(0), model.example())["params"]
  assert jax.tree.structure(params) == jax.tree.structure(
      jax.tree.map(lambda x: x.value, shapes, is_leaf=lambda x: hasattr(x, "value")))
  starts, length = (None, None), max(len(s.split()) for row in rows for s in row) + 2
  read = jax.jit(lambda *args: model.apply({"params": params}, *args, method="read"))
  for step in range(5):
    words = [[[TEXT_BEGIN], *row[step].split(), [TEXT_END]] for row in rows]
    table = np.full((3, length, 50), PAD)
    for i, row in enumerate(words):
      table[i, :len(row)] = [characters_of(word, 50) for word in row]
    segments = np.arange(length) < np.array([[len(row)] for row in words])
    _, ways, carried = jax.device_get(read(table, segments.astype(int), starts))
    starts = tuple(c.last for c in carried)
    for i, row in enumerate(words):
      for way in range(2):
        ours = ways[way][-1][i, 1:len(row) - 1]  # theirs have no begin and end
        np.testing.assert_allclose(ours, expected[f"row{i}_step{step}"][way], atol=1e-5)
