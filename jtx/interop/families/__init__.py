"""The model families of Hugging Face, one a file, and the table of them."""

from jtx.interop.families import (
    albert, bart, beit, bert, bloom, clip, deberta, detr, dinov2, distilbert, electra, gpt, llama,
    longformer, modernbert, neox, nomic, opt, roberta, siglip, t5, towers, vit, xlnet)
from jtx.interop.family import Family, type_of

# By `model_type`, of which another one has a word behind it. A model is saved as the first that can
# express it.
FAMILIES: dict[str, Family] = {
    "bert": bert.FAMILY,
    "roberta": roberta.FAMILY,
    "xlm-roberta": roberta.XLM,
    "xlm-roberta-xl": roberta.XLM_XL,
    "camembert": roberta.CAMEMBERT,
    "longformer": longformer.FAMILY,
    "albert": albert.FAMILY,
    "distilbert": distilbert.FAMILY,
    "modernbert": modernbert.FAMILY,
    "nomic_bert": nomic.FAMILY,
    "deberta": deberta.V1,
    "deberta-v2": deberta.V2,
    "electra": electra.FAMILY,
    "xlnet": xlnet.FAMILY,
    "openai-gpt": gpt.GPT1,
    "gpt2": gpt.GPT2,
    "llama": llama.LLAMA,
    "mistral": llama.MISTRAL,
    "mixtral": llama.MIXTRAL,
    "qwen2": llama.QWEN2,
    "qwen3": llama.QWEN3,
    "gemma": llama.GEMMA,
    "gemma2": llama.GEMMA2,
    "gemma3_text": llama.GEMMA3,
    "olmo2": llama.OLMO2,
    "gpt_neox": neox.FAMILY,
    "opt": opt.OPT,
    "xglm": opt.XGLM,
    "bloom": bloom.BLOOM,
    "falcon": bloom.FALCON,
    "t5": t5.T5,
    "mt5": t5.MT5,
    "umt5": t5.UMT5,
    "t5 encoder": t5.T5_ENCODER,
    "mt5 encoder": t5.MT5_ENCODER,
    "umt5 encoder": t5.UMT5_ENCODER,
    "marian": bart.MARIAN,
    "bart": bart.BART,
    "mbart": bart.MBART,
    "pegasus": bart.PEGASUS,
    "vit": vit.VIT,
    "deit": vit.DEIT,
    "vit_mae": vit.MAE,
    "dinov2": dinov2.FAMILY,
    "dinov2_with_registers": dinov2.WITH_REGISTERS,
    "beit": beit.FAMILY,
    "clip": clip.FAMILY,
    "siglip": siglip.FAMILY,
    "detr": detr.FAMILY,
    "clip_vision_model": towers.CLIP_IMAGES,
    "siglip_vision_model": towers.SIGLIP_IMAGES,
    "clip_text_model": towers.CLIP_TEXTS,
    "siglip_text_model": towers.SIGLIP_TEXTS,
}


def families_of(model_type: str) -> dict[str, Family]:
  """Those of a `model_type`, by their names in `FAMILIES`."""
  return {name: family for name, family in FAMILIES.items() if type_of(name) == model_type}
