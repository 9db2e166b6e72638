"""Sizes against the published counts; heads, pooling and packing against closed forms."""

import dataclasses
import functools
import math

import jax
import numpy as np
import pytest

from jtx import config as config_lib
from jtx.errors import ConfigError
from jtx.interop import huggingface
from jtx.interop.presets import ENCODERS
from jtx.models import MODELS
from jtx.models.encoder import BERT_STACK, Encoder
from jtx.models.pooling import pool
from jtx.models.text_head import Head, HeadConfig
from jtx.nn.convolution import ConvolutionConfig
from jtx.nn.disentangled import Disentangled
from jtx.nn.layers import LayerNorm
from jtx.nn.positions import Learned
from jtx.nn.rope import Rope
from jtx.nn.shapes import shapes_of
from jtx.parallel.sharding import unbox
from tests.helpers import block, encoder, one_fast

V, D, T = 31, 12, 9
BLOCK = block(BERT_STACK.block, num_heads=3, ffn_dim=20, norm_eps=1e-5)
MODERN = block(num_heads=3, ffn_dim=16, activation="gelu", gated=True, use_bias=False,
               norm_position="pre", norm_eps=1e-5, attention_norm=False)
small = functools.partial(encoder, vocab_size=V, width=D, block=BLOCK)


def batch_of(*texts, length=T, types=None):
  """Each text alone in a row, at the row's start."""
  batch = {key: np.zeros((len(texts), length), np.int32)
           for key in ("text", "text_segment_ids", "text_positions", "text_types")}
  for row, text in enumerate(texts):
    n = len(text)
    batch["text"][row, :n], batch["text_segment_ids"][row, :n] = text, 1
    batch["text_positions"][row, :n] = np.arange(n)
    if types:
      batch["text_types"][row, :n] = types[row]
  return batch


def packed(*texts, length=T):
  """All texts in one row."""
  batch, at = batch_of((), length=length), 0
  for number, text in enumerate(texts, 1):
    place = slice(at, at + len(text))
    batch["text"][0, place], batch["text_segment_ids"][0, place] = text, number
    batch["text_positions"][0, place] = np.arange(len(text))
    at = place.stop
  return batch


def drawn(model, batch, seed=0):
  """Parameters of unit scale: a fresh encoder's attention is near uniform."""
  params = unbox(shapes_of(model.init, jax.random.key(0), batch))["params"]
  leaves, tree = jax.tree.flatten(params)
  rng = np.random.default_rng(seed)
  return jax.tree.unflatten(tree, [rng.normal(0, 0.5, x.shape).astype(np.float32) for x in leaves])


def close(a, b, tolerance=2e-5):
  np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=0, atol=tolerance)


def count(model):
  batch = batch_of((1,))
  shapes = shapes_of(model.init, jax.random.key(0), batch)["params"]
  return sum(math.prod(x.shape) for x in jax.tree.leaves(unbox(shapes)))


@pytest.mark.parametrize("name, architecture, expected", [
    ("bert_tiny", "BertForPreTraining", 4_433_468),
    ("bert_mini", "BertForPreTraining", 11_267_900),
    ("bert_small", "BertForPreTraining", 29_058_876),
    ("bert_medium", "BertForPreTraining", 41_668_412),
    ("bert_base", "BertForPreTraining", 110_106_428),
    ("bert_large", "BertForPreTraining", 336_226_108),
    ("bert_multilingual", "BertModel", 177_853_440),
    ("roberta_base", "RobertaModel", 124_645_632),
    ("roberta_large", "RobertaModel", 355_359_744),
    ("xlmr_base", "XLMRobertaForMaskedLM", 278_295_186),
    ("xlmr_large", "XLMRobertaForMaskedLM", 560_142_482),
    ("xlmr_xl", "XLMRobertaXLForMaskedLM", 3_482_741_760),
    ("xlmr_xxl", "XLMRobertaXLForMaskedLM", 10_712_994_816),
    ("longformer_base", "LongformerModel", 148_659_456),
    ("longformer_large", "LongformerModel", 434_600_960),
    ("albert_base", "AlbertModel", 11_683_584),
    ("albert_large", "AlbertModel", 17_683_968),
    ("albert_xlarge", "AlbertModel", 58_724_864),
    ("distilbert", "DistilBertModel", 66_362_880),
    ("modernbert_base", "ModernBertModel", 149_014_272),
    ("modernbert_large", "ModernBertModel", 394_781_696),
    ("nomic_bert", "NomicBertForMaskedLM", 137_354_304),
    ("electra_small", "ElectraForPreTraining", 13_549_057),
    ("electra_base", "ElectraForPreTraining", 109_483_009),
    ("electra_large", "ElectraForPreTraining", 335_142_913),
    ("xlnet_base", "XLNetLMHeadModel", 116_718_336 + 32_000),
    ("xlnet_large", "XLNetLMHeadModel", 360_268_800 + 32_000),
    ("deberta_base", "DebertaModel", 138_601_728),
    ("deberta_large", "DebertaModel", 405_163_008),
    ("deberta_v2_xlarge", "DebertaV2Model", 884_593_152),
    ("deberta_v2_xxlarge", "DebertaV2Model", 1_564_549_632),
    ("deberta_v3_xsmall", "DebertaV2Model", 70_682_112),
    ("deberta_v3_small", "DebertaV2Model", 141_304_320),
    ("deberta_v3_base", "DebertaV2Model", 183_831_552),
    ("deberta_v3_large", "DebertaV2Model", 434_012_160),
])
def test_published_encoders_have_their_number_of_parameters(name, architecture, expected):
  fields = huggingface.model_fields(ENCODERS[name], architecture, name)
  kind = huggingface.identify(ENCODERS[name], name).family.model
  model = config_lib.build(MODELS, config_lib.section(MODELS, kind, **fields))
  assert count(model) == expected


def test_every_published_encoder_is_counted():
  mark = test_published_encoders_have_their_number_of_parameters.pytestmark[0]
  assert [name for name, *_ in mark.args[1]] == list(ENCODERS)


@pytest.mark.parametrize("model", one_fast(
    small(num_layers=2),
    small(num_layers=3, position=Learned(20, first_position=2), embedding_width=5,
          share_layers=True),
    small(num_layers=4, block=MODERN, position=Rope(local_base=10.0), num_token_types=0,
          pattern=("global", "local"), window=1),
    small(num_layers=2, position=Disentangled(2, 4), num_token_types=0,
          block=block(BLOCK, convolution=ConvolutionConfig(size=3))),
), ids=["bert", "albert", "modernbert", "deberta"])
def test_packed_and_padded_texts_have_the_hidden_states_of_texts_alone(model):
  a, b = (3, 7, 1, 20), (9, 2, 2, 30, 8)
  together, rows = packed(a, b), batch_of(a, b)
  params = drawn(model, rows)
  row = model.apply({"params": params}, together)[0]
  alone = model.apply({"params": params}, rows)
  close(row[:4], alone[0, :4])
  close(row[4:9], alone[1, :5])
  close(alone[0, :4], model.apply({"params": params}, batch_of(a, length=4))[0])
  assert np.abs(row[:4] - model.apply({"params": params}, batch_of(a + b))[0, :4]).max() > 1e-2


def test_token_types_and_positions_are_added_before_the_norm():
  model = small(num_layers=1)
  batch = batch_of((4, 5), types=[(1, 0)])
  params = drawn(model, batch)
  table = params["embed"]["embedding"]
  x = np.stack([table[4] + params["type_embedding"][1] + params["position_embedding"][0],
                table[5] + params["type_embedding"][0] + params["position_embedding"][1]])
  expected = LayerNorm(1e-5).apply({"params": params["embed_norm"]}, x)
  close(model.apply({"params": params}, batch, method="hidden_states")[0, 0, :2], expected)
  del batch["text_types"]
  x[0] += params["type_embedding"][0] - params["type_embedding"][1]
  expected = LayerNorm(1e-5).apply({"params": params["embed_norm"]}, x)
  close(model.apply({"params": params}, batch, method="hidden_states")[0, 0, :2], expected)


@pytest.mark.parametrize("model", [
    small(num_layers=3), small(num_layers=3, block=MODERN, position=Rope(), num_token_types=0)],
                         ids=["post", "pre"])
def test_hidden_states_are_those_of_a_shorter_stack(model):
  batch = batch_of((4, 5, 6, 7))
  params = drawn(model, batch)
  states = model.apply({"params": params}, batch, method="hidden_states")
  assert states.shape == (4, 1, T, D)
  close(states[-1], model.apply({"params": params}, batch), 0)

  def first(depth):  # of the layers, by cutting the stacked parameters
    cut = dict(params["encoder"])
    if "layers" in cut:
      cut["layers"] = jax.tree.map(lambda x: x[:depth], cut["layers"])
    elif depth == 1:
      del cut["layers_1"]
      cut["layers"] = cut.pop("layers_0")
    else:
      cut["layers_1"] = jax.tree.map(lambda x: x[:depth - 1], cut["layers_1"])
    return {**params, "encoder": cut}

  for depth in (1, 2):
    short = encoder(model, num_layers=depth)
    out = short.apply({"params": first(depth)}, batch)
    state = states[depth]
    if model.stack.block.norm.position == "pre":
      state = LayerNorm(1e-5, use_bias=False).apply(
          {"params": params["encoder"]["final_norm"]}, state)
    close(out, state)


def test_shared_layers_are_equal_layers():
  shared = small(num_layers=3, share_layers=True)
  batch = batch_of((4, 5, 6))
  params = drawn(shared, batch)
  layers = jax.tree.map(lambda x: np.stack([x] * 3), params["encoder"]["layers"])
  separate = {**params, "encoder": {"layers": layers}}
  close(shared.apply({"params": params}, batch),
        small(num_layers=3).apply({"params": separate}, batch))


def test_local_layers_turn_by_their_own_base_and_the_first_takes_x_as_it_is():
  """ModernBERT of two layers against one whose layers are both global, and both bases equal."""
  batch = batch_of((4, 5, 6, 7, 8, 9))
  fields = dict(vocab_size=V, width=D, num_layers=2, block=MODERN, num_token_types=0)
  wide = encoder(**fields, position=Rope(50.0, local_base=10.0), pattern=("global", "local"),
                 window=T)
  params = drawn(wide, batch)
  run = lambda model: np.asarray(model.apply({"params": params}, batch, method="hidden_states"))
  mixed, long, short = (run(m) for m in (
      wide, encoder(**fields, position=Rope(50.0)), encoder(**fields, position=Rope(10.0))))
  close(mixed[1], long[1])  # the first layer is global
  assert np.abs(mixed[1] - short[1])[0, :6].max() > 1e-3
  assert np.abs(mixed[2] - long[2])[0, :6].max() > 1e-3
  assert "attention_norm" not in params["encoder"]["layers_0"]
  assert "attention_norm" in params["encoder"]["layers_1"]


def test_pooling():
  hidden = np.arange(2 * 6 * 2, dtype=np.float32).reshape(2, 6, 2)
  segments = np.array([[1, 1, 2, 2, 2, 0], [1, 1, 1, 1, 0, 0]])
  positions = np.array([[0, 1, 0, 1, 2, 0], [0, 1, 2, 3, 0, 0]])
  first = pool("first", hidden, segments, positions, 3)
  np.testing.assert_array_equal(first, [[[0, 1], [4, 5], [0, 0]], [[12, 13], [0, 0], [0, 0]]])
  mean = pool("mean", hidden, segments, positions, 2)
  np.testing.assert_array_equal(mean, [[[1, 2], [6, 7]], [[15, 16], [0, 0]]])


def test_the_heads_of_texts_and_tokens():
  """tanh pooler and classes; norm, gelu and tags: against NumPy."""
  hidden = np.random.default_rng(0).normal(size=(1, 4, 6)).astype(np.float32)
  batch = {"text_segment_ids": np.array([[1, 1, 2, 0]]), "text_positions": np.array([[0, 1, 0, 0]])}
  layer = block(BERT_STACK.block, norm_eps=1e-5)

  def run(head, texts):
    module = Head(head, layer)
    shapes = unbox(shapes_of(module.init, jax.random.key(0), hidden, batch)).get("params", {})
    rng = np.random.default_rng(1)
    p = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), shapes)
    return np.asarray(module.apply({"params": p}, hidden, batch, texts)), p

  out, p = run(HeadConfig(task="classes", outputs=3, transform="tanh"), 2)
  dense = p["transform"]["dense"]
  pooled = np.tanh(hidden[0, [0, 2]] @ dense["kernel"] + dense["bias"])
  close(out[0], pooled @ p["output"]["kernel"] + p["output"]["bias"])

  out, p = run(HeadConfig(task="tags", outputs=5, pool="none", transform="relu", norm=True,
                          use_bias=False), 1)
  x = np.maximum(hidden[0] @ p["transform"]["dense"]["kernel"], 0)
  x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
  x = x * p["transform"]["norm"]["scale"] + p["transform"]["norm"]["bias"]
  close(out[0], x @ p["output"]["kernel"] + p["output"]["bias"], 1e-4)

  out, p = run(HeadConfig(task="embedding", pool="mean"), 1)
  assert p == {}
  close(out[0, 0], hidden[0, :2].mean(0))

  out, p = run(HeadConfig(task="token_embeddings", pool="none", projection=6, output_bias=False,
                          normalize=True), 1)
  assert list(p) == ["projection"] and list(p["projection"]) == ["kernel"]
  x = hidden[0] @ p["projection"]["kernel"]
  close(out[0], x / np.linalg.norm(x, axis=-1, keepdims=True))


def test_the_scores_of_the_vocabulary_are_tied_to_the_embedding():
  model = small(num_layers=1, embedding_width=5, mlm=True)
  batch = batch_of((4, 5))
  params = drawn(model, batch)
  hidden = np.random.default_rng(2).normal(size=(1, 2, D)).astype(np.float32)
  head = params["mlm_head"]
  dense = head["transform"]["dense"]
  x = hidden @ dense["kernel"] + dense["bias"]
  x = np.asarray(jax.nn.gelu(x, approximate=False))
  x = LayerNorm(1e-5).apply({"params": head["transform"]["norm"]}, x)
  close(model.apply({"params": params}, hidden, method="mlm_logits"),
        x @ params["embed"]["embedding"].T + head["bias"], 1e-4)


def test_attention_weights_of_all_layers():
  model = small(num_layers=3, block=MODERN, position=Rope(), num_token_types=0)
  batch = batch_of((4, 5, 6))
  weights = model.apply({"params": drawn(model, batch)}, batch, method="attention_weights")
  assert weights["encoder"].shape == (3, 1, 3, T, T)
  close(weights["encoder"].sum(-1)[:, 0, :, :3], np.ones((3, 3, 3)), 1e-5)


def test_dropout_is_on_in_training_only():
  model = small(num_layers=1, head=HeadConfig(task="classes", outputs=2, dropout=0.5))
  batch = batch_of((4, 5, 6))
  params = drawn(model, batch)
  apply = jax.jit(lambda train, key: model.apply(
      {"params": params}, batch, 1, train, method="predict", rngs={"dropout": key}),
                  static_argnums=0)
  run = lambda seed, train=True: np.asarray(apply(train, jax.random.key(seed)))
  assert np.abs(run(0) - run(1)).max() > 1e-3
  close(run(0), run(0), 0)
  close(run(0, False), run(1, False), 0)
  embed = lambda train: model.apply(
      {"params": params}, batch, rngs={"dropout": jax.random.key(0)},
      method=lambda m, batch: m.embed_tokens(batch, m.places(batch), train))
  assert (np.asarray(embed(True)) == 0).any() and (np.asarray(embed(False)) != 0).all()


@pytest.mark.parametrize("fields, message", [
    (dict(task="class"), "head.task='class': did you mean 'classes'?"),
    (dict(task="classes", pool="max"),
     "head.pool='max': valid are: first, last, before_last, mean, none"),
    (dict(task="tags"), "head.task='tags' needs head.pool='none', not 'first'"),
    (dict(task="classes", pool="none"),
     "head.task='classes' needs head.pool='first' or 'last' or 'before_last' or 'mean', not"
     " 'none'"),
    (dict(task="span", pool="none", outputs=3),
     "head.outputs=3: a head for 'span' has 2; leave it unset"),
    (dict(task="embedding", outputs=3), "head.outputs=3: head.task='embedding' has none"),
    (dict(task="classes", outputs=3, norm=True), "head.norm=True goes with a head.transform"),
])
def test_a_head_says_what_is_wrong_with_it(fields, message):
  with pytest.raises(ConfigError) as e:
    HeadConfig(**fields)
  assert str(e.value) == message


def test_a_head_for_classes_needs_their_number():
  model = small(num_layers=1, head=HeadConfig(task="classes"))
  with pytest.raises(ConfigError, match="head.outputs must be set: head.task='classes'"):
    shapes_of(model.init, jax.random.key(0), batch_of((1, 2)))


def test_texts_longer_than_the_position_table_are_no_numbers():
  model, batch = small(num_layers=1, position=Learned(8)), batch_of((1, 2), range(1, 10))
  params = model.init(jax.random.key(0), batch)["params"]
  hidden = model.apply({"params": params}, batch)
  assert np.isfinite(hidden[0]).all() and np.isnan(hidden[1]).all()


def test_a_first_layer_without_norm_is_for_pre_norm():
  with pytest.raises(ConfigError, match="norm.attention=False goes with norm.position='pre'"):
    block(BLOCK, attention_norm=False)


def test_the_section_of_a_config_has_the_heads_keys():
  section = config_lib.section({"encoder": Encoder}, "encoder", vocab_size=V, head=dict(
      task="classes", outputs=3))
  model = config_lib.build({"encoder": Encoder}, section)
  assert model.head == HeadConfig(task="classes", outputs=3) and model.stack == BERT_STACK


def test_a_causal_encoder_does_not_see_what_follows():
  model = small(num_layers=2, causal=True)
  params = drawn(model, batch_of((3, 7, 1)))
  a, b = (model.apply({"params": params}, batch_of(text))[0]
          for text in ((3, 7, 1, 20, 4), (3, 7, 1, 9, 2)))
  close(a[:3], b[:3])
  assert np.abs(a[3] - b[3]).max() > 1e-3
  sees_all = encoder(model, causal=False).apply(
      {"params": params}, batch_of((3, 7, 1, 20, 4)))[0]
  assert np.abs(sees_all[:3] - a[:3]).max() > 1e-3
  pairs = {"text_pairs": np.tri(9, dtype=bool)[None]}
  close(encoder(model, causal=False).apply(
      {"params": params}, batch_of((3, 7, 1, 20, 4)) | pairs)[0], a)


@pytest.mark.slow
def test_rows_are_filled_up_as_a_part_of_their_text():
  """SigLIP's: as if the batch had the token `pad_id` up to the longest, seen by all others."""
  fields = dict(position=Learned(max_length=T), mlm=False,
                head=HeadConfig(task="embedding", pool="last"))
  plain = small(**fields)
  filling = plain.clone(embedding=dataclasses.replace(plain.embedding, pad_id=7))
  texts = [[5, 6, 4], [8], [3] * T]
  params = filling.init(jax.random.key(0), batch_of(*texts))["params"]
  by_hand = batch_of(*([*text, *[7] * (T - len(text))] for text in texts))
  embed = lambda model, batch: np.asarray(model.apply({"params": params}, batch, method="predict"))
  expected = embed(plain, by_hand)
  np.testing.assert_allclose(embed(filling, batch_of(*texts)), expected, atol=1e-6)
  np.testing.assert_allclose(embed(filling, batch_of(*texts[:2], length=3)), expected[:2],
                             atol=1e-6)
  assert np.abs(embed(plain, batch_of(*texts)) - expected)[0].max() > 1e-2
  with pytest.raises(ConfigError, match="rows here have up to 2 texts; use the layout 'pad'"):
    filling.apply({"params": params}, packed(*texts[:2]), 2, method="predict")


@pytest.mark.parametrize("fields, said", [
    (dict(position=Rope()), "pad_id=7 fills rows up to a length, and the positions of texts have"),
    (dict(mlm=True), "only a text as a whole has outputs: it goes with head.task='embedding'"),
    (dict(head=HeadConfig()), "only a text as a whole has outputs: it goes with head.task="),
])
def test_what_can_not_be_filled_up(fields, said):
  model = small(**dict(position=Learned(max_length=T), mlm=False,
                       head=HeadConfig(task="embedding")) | fields)
  model = model.clone(embedding=dataclasses.replace(model.embedding, pad_id=7))
  with pytest.raises(ConfigError, match=said):
    shapes_of(model.init, jax.random.key(0), batch_of([3]))
