"""Published decoders: their numbers of parameters."""

import math

import pytest

from jtx.interop import configs, huggingface
from jtx.interop.presets import DECODERS
from jtx.interop.trunks import param_shapes


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
