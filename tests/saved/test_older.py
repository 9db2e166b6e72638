"""Configs of an earlier version, converted key by key."""

import json

import pytest

from jtx.config import build, section
from jtx.config_files import from_plain
from jtx.errors import ConfigError
from jtx.inference.decode import METHODS
from jtx.models import MODELS
from jtx.nn.rope import Linear, Ntk
from jtx.saved import older

BLOCK = dict(
    num_heads=2, num_kv_heads=1, head_dim=6, v_head_dim=None, score="dot", attention_bias=True,
    ffn_dim=8, activation="gelu", gated=True, use_bias=False, norm="layernorm", norm_position="pre",
    norm_eps=1e-5, attention_norm=True, dropout=0.1, attention_dropout=0.2, ffn_dropout=0.3,
    init_std=0.02, kernel="xla", residual=dict(layer_scale=None, drop_path=0.0, uniform=False))
ROPE = dict(name="rope", base=7.0, pairing="half", linear_scale=1.0, ntk_scale=1.0, local_base=None)
LAYERS = dict(width=12, num_layers=2, block=BLOCK, unroll=2, remat="full", dtype="float32")
TRANSLATOR = LAYERS | dict(
    name="encdec", vocab_size=11, src_vocab_size=None, num_decoder_layers=3, position=ROPE,
    pattern=["local", "global"], window=2, share_embeddings="output", scale_embeddings=False,
    output_bias=True)
ENCODER = LAYERS | dict(
    name="encoder", vocab_size=11, position=ROPE, num_token_types=0, embedding_width=4,
    share_layers=True, pattern=["global"], window=0, causal=True, mlm=True,
    features=dict(layers=[], combine="concat", lstm_layers=2),
    head=dict(task="none", outputs=None, pool="first", transform="none", norm=False,
              use_bias=False, dropout=0.1))


def opened(tmp_path, **config):
  (tmp_path / "config.json").write_text(json.dumps(config))
  return older.read(str(tmp_path / "config.json"))


def model(tmp_path, section):
  return build(MODELS, opened(tmp_path, model=section).model)


def test_a_translator_has_two_stacks(tmp_path):
  found = model(tmp_path, TRANSLATOR)
  attention, ffn, norm = (getattr(found.decoder.block, k) for k in ("attention", "ffn", "norm"))
  assert (found.encoder.num_layers, found.decoder.num_layers) == (2, 3)
  assert (found.encoder.causal, found.decoder.causal) == (False, True)
  assert found.encoder.block == found.decoder.block and found.decoder.pattern == ("local", "global")
  assert attention.biases == ("query", "key", "value", "out")
  assert (attention.num_kv_heads, attention.head_dim, attention.dropout) == (1, 6, 0.2)
  assert (ffn.dim, ffn.gated, ffn.bias, ffn.dropout) == (8, True, False, 0.3)
  assert (norm.position, norm.eps, norm.bias) == ("pre", 1e-5, False)
  assert found.embedding.tie == ("output", "positions")
  assert not found.embedding.scale and found.embedding.output_bias
  assert (found.decoder.unroll, found.decoder.remat, found.dtype) == (2, "full", "float32")


def test_an_encoder_has_a_stack_and_embeddings(tmp_path):
  found = model(tmp_path, ENCODER)
  assert (found.stack.causal, found.stack.share, found.stack.position.base) == (True, True, 7.0)
  assert (found.embedding.types, found.embedding.width, found.embedding.norm) == (0, 4, True)
  assert found.head.use_bias  # there is no transform that it could be of


@pytest.mark.parametrize("key,scaling", [("linear_scale", Linear), ("ntk_scale", Ntk)])
def test_factors_of_rope_are_kinds_of_scaling(tmp_path, key, scaling):
  found = model(tmp_path, ENCODER | {"position": ROPE | {key: 4.0}})
  assert found.stack.position.scaling == scaling(factor=4.0)


def test_two_factors_at_once_are_refused(tmp_path):
  both = ENCODER | {"position": ROPE | {"linear_scale": 2.0, "ntk_scale": 4.0}}
  with pytest.raises(ConfigError, match="linear_scale and ntk_scale are both set"):
    opened(tmp_path, model=both)


def test_a_base_of_local_layers_without_such_layers_is_left_out(tmp_path):
  found = model(tmp_path, ENCODER | {"position": ROPE | {"local_base": 5.0}})
  assert found.stack.position.local_base is None
  local = ENCODER | {"position": ROPE | {"local_base": 5.0}, "pattern": ["local"], "window": 1}
  assert model(tmp_path, local).stack.position.local_base == 5.0


@pytest.mark.parametrize("width,lr", [(12, 1.0), (48, 0.5)])
def test_noam_with_a_width_of_its_own_has_another_rate(tmp_path, width, lr):
  """lr * own^-0.5 is what it was, with the model's width of 12."""
  optim = {"lr": 1.0, "schedule": {"name": "noam", "width": width, "warmup": 10}}
  found = opened(tmp_path, model=TRANSLATOR, optim=optim).optim
  assert found.lr == lr and "width" not in found.schedule


def test_a_vision_transformer_has_a_stack(tmp_path):
  section = LAYERS | dict(name="vit", patch_size=2, position_at="shared", position=dict(
      name="rope_2d", base=100.0, pairing="half"))
  found = model(tmp_path, section)
  assert (found.stack.width, found.patch_size) == (12, 2)
  assert found.stack.position_at == "stem"  # where RoPE adds nothing to embeddings


@pytest.mark.parametrize("normalize", [True, False])
def test_normalised_pixels_were_the_objectives_key(tmp_path, normalize):
  found = opened(tmp_path, model={"name": "vit", "decoder": {"num_layers": 1, "masked": 0.5}},
                 objective={"name": "mae", "normalize": normalize})
  assert found.objective.to_dict() == {"name": "mae"}
  assert found.model.decoder.normalize is normalize and found.model.decoder.masked == 0.5


def test_todays_configs_stay_as_they_are(tmp_path):
  assert opened(tmp_path, model={"name": "vit", "patch_size": 2}).model.patch_size == 2
  broken = {key: value for key, value in ENCODER.items() if key != "causal"}
  with pytest.raises(ConfigError, match="has no model.causal"):
    opened(tmp_path, model=broken)


def test_a_search_has_the_fields_that_it_has_got_since():
  decode = {"method": {"name": "beam", "beam": 3}, "batch_size": 7}
  opened = lambda **values: older.with_defaults(from_plain(values))
  config = opened(decode=decode, texts={"ops": [], "decode": decode})
  for found in config.decode, config.texts.decode:
    assert found.batch_size == 7 and found.method == section(METHODS, "beam", beam=3)
  assert opened(texts={"ops": [], "decode": None}).texts.decode is None
