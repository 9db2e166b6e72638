"""Published models, in the words of their config.json; what is unset is the family's default."""

from typing import Any

Config = dict[str, Any]


def _sizes(model_type: str, width: int, num_layers: int, **more: Any) -> Config:
  return {"model_type": model_type, "hidden_size": width, "num_hidden_layers": num_layers,
          "num_attention_heads": max(width // 64, 1), "intermediate_size": 4 * width} | more


def _roberta(width: int, num_layers: int, kind: str = "roberta", vocab: int = 50265) -> Config:
  return _sizes(kind, width, num_layers, vocab_size=vocab, type_vocab_size=1,
                max_position_embeddings=514, layer_norm_eps=1e-5)


DEBERTA = {"relative_attention": True, "position_biased_input": False, "pos_att_type": "c2p|p2c"}
DEBERTA_V2 = DEBERTA | {"position_buckets": 256, "share_att_key": True,
                        "norm_rel_ebd": "layer_norm"}
CONVOLUTION = {"conv_kernel_size": 3, "conv_act": "gelu"}

ENCODERS: dict[str, Config] = {
    # Devlin et al. 2019; the smaller ones are of Turc et al. 2019.
    "bert_tiny": _sizes("bert", 128, 2),
    "bert_mini": _sizes("bert", 256, 4),
    "bert_small": _sizes("bert", 512, 4),
    "bert_medium": _sizes("bert", 512, 8),
    "bert_base": _sizes("bert", 768, 12),
    "bert_large": _sizes("bert", 1024, 24),
    "bert_multilingual": _sizes("bert", 768, 12, vocab_size=119547),  # cased
    # Liu et al. 2019
    "roberta_base": _roberta(768, 12),
    "roberta_large": _roberta(1024, 24),
    # Conneau et al. 2020
    "xlmr_base": _roberta(768, 12, "xlm-roberta", 250_002),
    "xlmr_large": _roberta(1024, 24, "xlm-roberta", 250_002),
    # Goyal et al. 2021
    "xlmr_xl": {"model_type": "xlm-roberta-xl"},
    "xlmr_xxl": {"model_type": "xlm-roberta-xl", "hidden_size": 4096, "num_hidden_layers": 48,
                 "intermediate_size": 16384},
    # Beltagy et al. 2020
    "longformer_base": _roberta(768, 12, "longformer") | {"max_position_embeddings": 4098},
    "longformer_large": _roberta(1024, 24, "longformer") | {"max_position_embeddings": 4098},
    # Lan et al. 2020
    "albert_base": _sizes("albert", 768, 12),
    "albert_large": _sizes("albert", 1024, 24),
    "albert_xlarge": _sizes("albert", 2048, 24, num_attention_heads=16),
    # Sanh et al. 2019
    "distilbert": {"model_type": "distilbert"},
    # Warner et al. 2024
    "modernbert_base": {"model_type": "modernbert"},
    "modernbert_large": _sizes("modernbert", 1024, 28, intermediate_size=2624),
    # Nussbaum et al. 2024
    "nomic_bert": {"model_type": "nomic_bert"},
    # Clark et al. 2020: the discriminators
    "electra_small": {"model_type": "electra"},
    "electra_base": _sizes("electra", 768, 12, embedding_size=768),
    "electra_large": _sizes("electra", 1024, 24, embedding_size=1024),
    # Yang et al. 2019
    "xlnet_base": {"model_type": "xlnet", "d_model": 768, "n_layer": 12, "n_head": 12,
                   "d_inner": 3072},
    "xlnet_large": {"model_type": "xlnet"},
    # He et al. 2020
    "deberta_base": _sizes("deberta", 768, 12, **DEBERTA),
    "deberta_large": _sizes("deberta", 1024, 24, **DEBERTA),
    # The same with a convolution; He et al. 2021
    "deberta_v2_xlarge": _sizes("deberta-v2", 1536, 24, **DEBERTA_V2, **CONVOLUTION),
    "deberta_v2_xxlarge": _sizes("deberta-v2", 1536, 48, **DEBERTA_V2, **CONVOLUTION),
    "deberta_v3_xsmall": _sizes("deberta-v2", 384, 12, **DEBERTA_V2),
    "deberta_v3_small": _sizes("deberta-v2", 768, 6, **DEBERTA_V2),
    "deberta_v3_base": _sizes("deberta-v2", 768, 12, **DEBERTA_V2),
    "deberta_v3_large": _sizes("deberta-v2", 1024, 24, **DEBERTA_V2),
}


def _gpt(width: int, num_layers: int, num_heads: int, **more: Any) -> Config:
  return {"model_type": "gpt2", "n_embd": width, "n_layer": num_layers, "n_head": num_heads} | more


def _llama(model_type: str, width: int, num_layers: int, num_heads: int, ffn_dim: int,
           kv_heads: int | None = None, **more: Any) -> Config:
  return {"model_type": model_type, "hidden_size": width, "num_hidden_layers": num_layers,
          "num_attention_heads": num_heads, "intermediate_size": ffn_dim,
          "num_key_value_heads": kv_heads or num_heads} | more


def _llama3(*sizes: int, **more: Any) -> Config:
  return _llama("llama", *sizes, vocab_size=128256, rms_norm_eps=1e-5, rope_theta=500_000.0,
                max_position_embeddings=8192) | more


LLAMA32 = {"max_position_embeddings": 131072, "tie_word_embeddings": True, "rope_scaling": {
    "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192}}
FALCON40 = {"new_decoder_architecture": True, "num_kv_heads": 8}
QWEN = {"rope_theta": 1_000_000.0, "tie_word_embeddings": True}


def _opt(width: int, num_layers: int, num_heads: int, **more: Any) -> Config:
  return {"model_type": "opt", "hidden_size": width, "num_hidden_layers": num_layers,
          "num_attention_heads": num_heads, "ffn_dim": 4 * width} | more


DECODERS: dict[str, Config] = {
    # Radford et al. 2018, 2019
    "gpt1": {"model_type": "openai-gpt"},
    "gpt2": _gpt(768, 12, 12),
    "gpt2_medium": _gpt(1024, 24, 16),
    "gpt2_large": _gpt(1280, 36, 20),
    "gpt2_xl": _gpt(1600, 48, 25),
    # Brown et al. 2020, table 2.1, without its sparse layers; "xl" and 13 B have widths there that
    # their heads do not fill, and are left out.
    "gpt3_small": _gpt(768, 12, 12, n_positions=2048),
    "gpt3_medium": _gpt(1024, 24, 16, n_positions=2048),
    "gpt3_large": _gpt(1536, 24, 16, n_positions=2048),
    "gpt3_2.7b": _gpt(2560, 32, 32, n_positions=2048),
    "gpt3_6.7b": _gpt(4096, 32, 32, n_positions=2048),
    "gpt3": _gpt(12288, 96, 96, n_positions=2048),
    # Touvron et al. 2023; Grattafiori et al. 2024. stories260K is one of karpathy/llama2.c.
    "stories260k": _llama("llama", 64, 5, 8, 172, 4, vocab_size=512, tie_word_embeddings=True,
                          rms_norm_eps=1e-5),
    "llama_7b": _llama("llama", 4096, 32, 32, 11008),
    "llama_13b": _llama("llama", 5120, 40, 40, 13824),
    "llama_65b": _llama("llama", 8192, 80, 64, 22016),
    "llama2_70b": _llama("llama", 8192, 80, 64, 28672, 8, rms_norm_eps=1e-5),
    "llama3_8b": _llama3(4096, 32, 32, 14336, 8),
    "llama3_70b": _llama3(8192, 80, 64, 28672, 8),
    "llama3.2_1b": _llama3(2048, 16, 32, 8192, 8, **LLAMA32),
    "llama3.2_3b": _llama3(3072, 28, 24, 8192, 8, **LLAMA32),
    "smollm_135m": _llama("llama", 576, 30, 9, 1536, 3, vocab_size=49152, rms_norm_eps=1e-5,
                          tie_word_embeddings=True),
    "smollm_360m": _llama("llama", 960, 32, 15, 2560, 5, vocab_size=49152, rms_norm_eps=1e-5,
                          tie_word_embeddings=True),
    # Jiang et al. 2023
    "mistral_7b": _llama("mistral", 4096, 32, 32, 14336, 8, rms_norm_eps=1e-5),
    # Jiang et al. 2024
    "mixtral_8x7b": {"model_type": "mixtral"},
    # Yang et al. 2024, 2025
    "qwen2_0.5b": _llama("qwen2", 896, 24, 14, 4864, 2, **QWEN),
    "qwen2_7b": _llama("qwen2", 3584, 28, 28, 18944, 4, vocab_size=152064,
                       rope_theta=1_000_000.0),
    "qwen3_0.6b": _llama("qwen3", 1024, 28, 16, 3072, 8, **QWEN),
    "qwen3_8b": _llama("qwen3", 4096, 36, 32, 12288, 8, rope_theta=1_000_000.0),
    # Gemma Team 2024, 2024, 2025
    "gemma_2b": _llama("gemma", 2048, 18, 8, 16384, 1),
    "gemma_7b": {"model_type": "gemma"},
    "gemma2_2b": {"model_type": "gemma2"},
    "gemma2_9b": _llama("gemma2", 3584, 42, 16, 14336, 8),
    "gemma3_1b": _llama("gemma3_text", 1152, 26, 4, 6912, 1, vocab_size=262144,
                        sliding_window=512, max_position_embeddings=32768),
    # OLMo Team 2025
    "olmo2_7b": _llama("olmo2", 4096, 32, 32, 11008, vocab_size=100352, rope_theta=500_000.0,
                       rms_norm_eps=1e-6, max_position_embeddings=4096),
    # Black et al. 2022; Biderman et al. 2023
    "gpt_neox_20b": {"model_type": "gpt_neox"},
    "pythia_160m": {"model_type": "gpt_neox", "hidden_size": 768, "num_hidden_layers": 12,
                    "num_attention_heads": 12, "intermediate_size": 3072, "vocab_size": 50304},
    # Zhang et al. 2022
    "opt_125m": _opt(768, 12, 12),
    "opt_350m": _opt(1024, 24, 16, word_embed_proj_dim=512, do_layer_norm_before=False),
    "opt_6.7b": _opt(4096, 32, 32),
    # Scao et al. 2022
    "bloom_560m": {"model_type": "bloom", "hidden_size": 1024, "n_layer": 24, "n_head": 16},
    "bloom": {"model_type": "bloom", "hidden_size": 14336, "n_layer": 70, "n_head": 112},
    # Almazrouei et al. 2023
    "falcon_7b": {"model_type": "falcon"},
    "falcon_40b": {"model_type": "falcon", "hidden_size": 8192, "num_hidden_layers": 60,
                   "num_attention_heads": 128} | FALCON40,
    # Lin et al. 2022
    "xglm_564m": {"model_type": "xglm"},
}


def _t5(width: int, ffn_dim: int, num_layers: int, num_heads: int, **more: Any) -> Config:
  return {"model_type": "t5", "d_model": width, "d_ff": ffn_dim, "num_layers": num_layers,
          "num_heads": num_heads} | more


# Version 1.1, and mT5 and ByT5, which are of it: small to XXL.
T5_V11 = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
V11_SIZES = {"small": (512, 1024, 8, 6), "base": (768, 2048, 12, 12), "large": (1024, 2816, 24, 16),
             "xl": (2048, 5120, 24, 32), "xxl": (4096, 10240, 24, 64)}
BYT5 = T5_V11 | {"vocab_size": 384}

ENCDECS: dict[str, Config] = {
    # Raffel et al. 2020
    "t5_small": _t5(512, 2048, 6, 8),
    "t5_base": _t5(768, 3072, 12, 12),
    "t5_large": _t5(1024, 4096, 24, 16),
    "t5_3b": _t5(1024, 16384, 24, 32, d_kv=128),
    "t5_11b": _t5(1024, 65536, 24, 128, d_kv=128),
    **{f"t5_v1_1_{name}": _t5(*sizes, **T5_V11) for name, sizes in V11_SIZES.items()},
    # Xue et al. 2021
    **{f"mt5_{name}": _t5(*sizes, **T5_V11, vocab_size=250112) | {"model_type": "mt5"}
       for name, sizes in V11_SIZES.items()},
    # Xue et al. 2022
    "byt5_small": _t5(1472, 3584, 12, 6, num_decoder_layers=4, **BYT5),
    "byt5_base": _t5(1536, 3968, 18, 12, num_decoder_layers=6, **BYT5),
    # Lewis et al. 2020
    "bart_base": {"model_type": "bart", "d_model": 768} | {
        f"{stack}_{key}": value for stack in ("encoder", "decoder")
        for key, value in (("layers", 6), ("ffn_dim", 3072), ("attention_heads", 12))},
    "bart_large": {"model_type": "bart"},
}


def _towers(model_type: str, text: Config, vision: Config, **more: Any) -> Config:
  return {"model_type": model_type, "text_config": text, "vision_config": vision} | more


def _tower(width: int, num_layers: int, num_heads: int, ffn_dim: int, **more: Any) -> Config:
  return {"hidden_size": width, "num_hidden_layers": num_layers, "num_attention_heads": num_heads,
          "intermediate_size": ffn_dim} | more


LARGE, SHAPED = (1024, 24, 16, 4096), (1152, 27, 16, 4304)

TOWERS: dict[str, Config] = {
    # Radford et al. 2021, table 20
    "clip_b32": {"model_type": "clip"},
    "clip_b16": _towers("clip", {}, {"patch_size": 16}),
    "clip_l14": _towers("clip", _tower(768, 12, 12, 3072), _tower(*LARGE, patch_size=14),
                        projection_dim=768),
    # Zhai et al. 2023; the sizes of the last are those of Alabdulmohsin et al. 2023.
    "siglip_b16": {"model_type": "siglip"},
    "siglip_l16": _towers("siglip", _tower(*LARGE), _tower(*LARGE, image_size=256)),
    "siglip_so400m": _towers("siglip", _tower(*SHAPED),
                             _tower(*SHAPED, patch_size=14)),
}


def fresh(name: str) -> Config:
  """A config of ENCODERS or DECODERS for a tokenizer that jtx trains, whose padding is id 0.

  RoBERTa counts positions from the id after it.
  """
  return ENCODERS[name] | {"pad_token_id": 0} if name in ENCODERS else DECODERS[name]
