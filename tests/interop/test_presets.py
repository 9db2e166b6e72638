"""Published decoders and encoder-decoders: their numbers of parameters."""

import math

import pytest

from jtx.interop import configs, huggingface
from jtx.interop.presets import DECODERS, ENCDECS, TOWERS
from jtx.interop.trunks import param_shapes
from tests.helpers import one_fast


def gpt3(D, L):
  """Of layers, tables of tokens and of positions, and the last norm."""
  return L * (12 * D**2 + 13 * D) + (50257 + 2048) * D + 2 * D


COUNTS = {
    "gpt1": 116_534_784, "gpt2": 124_439_808, "gpt2_medium": 354_823_168,
    "gpt2_large": 774_030_080, "gpt2_xl": 1_557_611_200, "gpt3": 174_604_259_328,
    "stories260k": 260_032, "llama_7b": 6_738_415_616, "llama_13b": 13_015_864_320,
    "llama_65b": 65_285_660_672, "llama2_70b": 68_976_648_192, "llama3_8b": 8_030_261_248,
    "llama3_70b": 70_553_706_496, "llama3.2_1b": 1_235_814_400, "llama3.2_3b": 3_212_749_824,
    "smollm_135m": 134_515_008, "smollm_360m": 361_821_120, "mistral_7b": 7_241_732_096,
    "mixtral_8x7b": 46_702_792_704,
    "qwen2_0.5b": 494_032_768, "qwen2_7b": 7_615_616_512, "qwen3_0.6b": 596_049_920,
    "qwen3_8b": 8_190_735_360, "gemma_2b": 2_506_172_416, "gemma_7b": 8_537_680_896,
    "gemma2_2b": 2_614_341_888, "gemma2_9b": 9_241_705_984, "gemma3_1b": 999_885_952,
    "olmo2_7b": 7_298_617_344, "gpt_neox_20b": 20_554_567_680, "pythia_160m": 162_322_944,
    "opt_125m": 125_239_296, "opt_350m": 331_196_416, "opt_6.7b": 6_658_473_984,
    "bloom_560m": 559_214_592, "bloom": 176_247_271_424, "falcon_7b": 6_921_720_704,
    "falcon_40b": 41_303_293_952, "xglm_564m": 564_463_616,
    "gpt3_small": gpt3(768, 12), "gpt3_medium": gpt3(1024, 24), "gpt3_large": gpt3(1536, 24),
    "gpt3_2.7b": gpt3(2560, 32), "gpt3_6.7b": gpt3(4096, 32),
}


@pytest.mark.parametrize("name", DECODERS)
def test_published_decoders_have_their_number_of_parameters(name):
  config = DECODERS[name]
  family = huggingface.identify(config, name).family
  model = configs.make_model(family, huggingface.fields_for(config, {"lm"}, name))
  assert sum(math.prod(shape) for shape in param_shapes(model).values()) == COUNTS[name]


def t5(D, F, layers, H, *, N, V=32128, v1=False):
  """Of as many layers in both stacks, `H` wide heads, two tables of biases, tied or not."""
  attention, ffn = 4 * D * N * H, (2 if v1 else 3) * D * F
  layer = 3 * attention + 2 * ffn + 5 * D
  return layers * layer + 2 * 32 * N + 2 * D + (1 if v1 else 2) * V * D


ENCDEC_COUNTS = {
    "t5_small": 60_506_624, "t5_base": 222_903_552, "t5_large": 737_668_096,
    "t5_3b": t5(1024, 16384, 24, 128, N=32, v1=True),
    "t5_11b": t5(1024, 65536, 24, 128, N=128, v1=True),
    "t5_v1_1_small": 76_961_152, "t5_v1_1_base": 247_577_856, "t5_v1_1_large": 783_150_080,
    "t5_v1_1_xl": t5(2048, 5120, 24, 64, N=32), "t5_v1_1_xxl": t5(4096, 10240, 24, 64, N=64),
    "mt5_small": 300_176_768, "mt5_base": 582_401_280, "mt5_large": 1_229_581_312,
    "mt5_xl": t5(2048, 5120, 24, 64, N=32, V=250112),
    "mt5_xxl": t5(4096, 10240, 24, 64, N=64, V=250112),
    "byt5_small": 299_637_760, "byt5_base": 581_653_248,
    # With the bias of the output, which is a constant in the authors' models.
    "bart_base": 139_420_416 + 50265, "bart_large": 406_291_456 + 50265,
}


@pytest.mark.parametrize("name", ENCDECS)
def test_published_encoder_decoders_have_their_number_of_parameters(name):
  config = ENCDECS[name]
  family = huggingface.identify(config, name).family
  model = configs.make_model(family, huggingface.fields_for(config, {"seq2seq"}, name))
  assert sum(math.prod(shape) for shape in param_shapes(model).values()) == ENCDEC_COUNTS[name]


TOWER_COUNTS = {"clip_b32": 151_277_313, "clip_b16": 149_620_737, "clip_l14": 427_616_513,
                "siglip_b16": 203_155_970, "siglip_l16": 652_150_786,
                "siglip_so400m": 877_415_602}


@pytest.mark.parametrize("name", one_fast(*TOWERS))
def test_published_towers_have_their_number_of_parameters(name):
  config = TOWERS[name]
  family = huggingface.identify(config, name).family
  model = configs.make_model(family, huggingface.fields_for(config, {"image_text"}, name))
  assert sum(math.prod(shape) for shape in param_shapes(model).values()) == TOWER_COUNTS[name]


def test_counts_by_formula_are_those_that_are_published():
  assert t5(512, 2048, 6, 64, N=8, v1=True) == ENCDEC_COUNTS["t5_small"]
  assert t5(1024, 2816, 24, 64, N=16) == ENCDEC_COUNTS["t5_v1_1_large"]


def test_a_config_of_timm_has_fields():
  """ViT-B/16 of 1,000 classes has 86,567,656 parameters (Dosovitskiy et al. 2021, table 1)."""
  config = {"architecture": "vit_base_patch16_224", "num_classes": 1000}
  family = huggingface.identify(config, "config.json").family
  model = configs.make_model(family, huggingface.fields_for(config, {"classes"}))
  assert sum(math.prod(shape) for shape in param_shapes(model).values()) == 86_567_656
