"""Published encoders, in the words of their config.json; what is unset is the family's default."""

from typing import Any

Config = dict[str, Any]


def _sizes(model_type: str, width: int, num_layers: int, **more: Any) -> Config:
  return {"model_type": model_type, "hidden_size": width, "num_hidden_layers": num_layers,
          "num_attention_heads": max(width // 64, 1), "intermediate_size": 4 * width} | more


def _roberta(width: int, num_layers: int) -> Config:
  return _sizes("roberta", width, num_layers, vocab_size=50265, type_vocab_size=1,
                max_position_embeddings=514, layer_norm_eps=1e-5)


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
    # Lan et al. 2020
    "albert_base": _sizes("albert", 768, 12),
    "albert_large": _sizes("albert", 1024, 24),
    "albert_xlarge": _sizes("albert", 2048, 24, num_attention_heads=16),
    # Sanh et al. 2019
    "distilbert": {"model_type": "distilbert"},
    # Warner et al. 2024
    "modernbert_base": {"model_type": "modernbert"},
    "modernbert_large": _sizes("modernbert", 1024, 28, intermediate_size=2624),
}


def fresh(name: str) -> Config:
  """`ENCODERS[name]` for a tokenizer that jtx trains, whose padding is id 0.

  RoBERTa counts positions from the id after it.
  """
  return ENCODERS[name] | {"pad_token_id": 0}
