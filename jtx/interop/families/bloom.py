"""BLOOM (Scao et al. 2022) and Falcon (Almazrouei et al. 2023): queries, keys and values fused.

Dropout: `hidden_dropout` is block.dropout.
"""

from typing import Any, Mapping

from jtx.config import section
from jtx.interop import rope
from jtx.interop.attributes import ACTIVATIONS, activation_name, init_std, need
from jtx.interop.family import Attributes, Family, Heads, Names
from jtx.interop.families.llama import head
from jtx.interop.tables import Row, dense, norm, table
from jtx.models.decoder import Decoder
from jtx.nn.attention import PROJECTIONS
from jtx.nn.positions import POSITIONS
from jtx.nn.relative import Alibi

ATTRIBUTES = {
    "vocab_size": ("size", 250880),
    "hidden_size": ("size", 64),
    "num_hidden_layers": ("size", 2),
    "num_attention_heads": ("size", 8),
    "layer_norm_epsilon": ("positive", 1e-5),
    "initializer_range": ("positive", 0.02),
    "hidden_dropout": ("rate", 0.0),
    "attention_dropout": ("rate", 0.0),
    "tie_word_embeddings": ("flag", True),
}
FALCON_ATTRIBUTES = ATTRIBUTES | {
    "vocab_size": ("size", 65024),
    "hidden_size": ("size", 4544),
    "num_hidden_layers": ("size", 32),
    "num_attention_heads": ("size", 71),
    "ffn_hidden_size": ("size", None),
    "activation": ("activation", "gelu"),
    "bias": ("flag", False),
    "multi_query": ("flag", True),
    "parallel_attn": ("flag", True),
    "new_decoder_architecture": ("flag", False),
    "num_kv_heads": ("size", None),  # of the new architecture
    "num_ln_in_parallel_attn": ("size", None),
    "max_position_embeddings": ("size", 2048),
    **rope.ATTRIBUTES,
}
NAMES = {"n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "n_embed": "hidden_size"}
# What changes rounding alone, or says in other words what is fixed.
BLOOM_FREE = frozenset({"pretraining_tp", "slow_but_exact", "masked_softmax_fusion", "seq_length",
                        "bias_dropout_fusion", "offset_alibi", "skip_bias_add", "n_inner",
                        "skip_bias_add_qkv", "attention_softmax_in_fp32"})


def stack_fields(values: Mapping[str, Any]) -> dict[str, Any]:
  """What both have, with the feed-forward of BLOOM."""
  return {
      "width": values["hidden_size"],
      "num_layers": values["num_hidden_layers"],
      "position": section(POSITIONS, "alibi"),
      "block": {
          "attention": {"num_heads": values["num_attention_heads"], "biases": PROJECTIONS,
                        "dropout": values["attention_dropout"]},
          "ffn": {"dim": 4 * values["hidden_size"], "activation": "gelu_tanh"},
          "norm": {"position": "pre", "eps": values["layer_norm_epsilon"]},
          "dropout": values["hidden_dropout"],
          "init_std": values["initializer_range"],
      },
  }


def trunk_of_bloom(values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
  return {"vocab_size": values["vocab_size"], "lm": "lm" in heads, "stack": stack_fields(values),
          "embedding": {"tie": values["tie_word_embeddings"], "norm": True}}


def trunk_of_falcon(values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
  stack, is_new = stack_fields(values), values["new_decoder_architecture"]
  block, number = stack["block"], values["num_attention_heads"]
  norms = values["num_ln_in_parallel_attn"] or (2 if is_new else 1)
  need(values["parallel_attn"] or not is_new,
       "parallel_attn=False goes with new_decoder_architecture=False in jtx")
  need(norms in ((1, 2) if is_new else (1,)),
       f"num_ln_in_parallel_attn={norms} is not what jtx computes")
  if is_new:
    block["attention"]["num_kv_heads"] = values["num_kv_heads"] or number
  else:
    block["attention"]["num_kv_heads"] = 1 if values["multi_query"] else number
  if values["parallel_attn"]:
    block["parallel"] = "own_norms" if norms == 2 else "shared_norm"
  block["attention"]["biases"] = PROJECTIONS if values["bias"] else ()
  block["ffn"] = {"dim": values["ffn_hidden_size"] or 4 * values["hidden_size"],
                  "activation": ACTIVATIONS[values["activation"]], "bias": values["bias"]}
  stack["position"] = section(POSITIONS, "rope", **rope.fields(
      rope.given(values), values["max_position_embeddings"]))
  return {"vocab_size": values["vocab_size"], "lm": "lm" in heads, "stack": stack,
          "embedding": {"tie": values["tie_word_embeddings"]}}


def common_values(model: Decoder) -> dict[str, Any]:
  stack, block = model.stack, model.stack.block
  return {
      "vocab_size": model.vocab_size,
      "hidden_size": stack.width,
      "num_hidden_layers": stack.num_layers,
      "num_attention_heads": block.attention.num_heads,
      "layer_norm_epsilon": block.norm.eps,
      "initializer_range": init_std(block),
      "hidden_dropout": block.dropout,
      "attention_dropout": block.attention.dropout,
      "tie_word_embeddings": model.embedding.tie,
  }


def values_of_bloom(model: Decoder) -> dict[str, Any]:
  """The inverse of `trunk_of_bloom` and `head`."""
  need(isinstance(model.stack.position, Alibi),
       f"has ALiBi, not {type(model.stack.position).__name__}")
  return common_values(model)


def values_of_falcon(model: Decoder) -> dict[str, Any]:
  """The inverse of `trunk_of_falcon` and `head`."""
  stack, block, attention = model.stack, model.stack.block, model.stack.block.attention
  position, is_all = rope.of(stack.position), attention.kv_heads == attention.num_heads
  is_new = block.parallel == "own_norms" or attention.kv_heads > 1 and not is_all
  return common_values(model) | {
      "ffn_hidden_size": block.ffn.dim,
      "activation": activation_name(block.ffn.activation),
      "bias": bool(attention.biases),
      "multi_query": not is_all or is_new,
      "parallel_attn": block.parallel != "none" or is_new,
      "new_decoder_architecture": is_new,
      "num_kv_heads": attention.kv_heads,
      "num_ln_in_parallel_attn": (2 if block.parallel == "own_norms" else 1) if is_new else None,
      "alibi": False,
      "rope_parameters": rope.parameters(position.base, position.scaling),
  }


LAYER, OURS = "transformer.h.{i}", "decoder/{layers}"
ROWS: tuple[Row, ...] = (
    *table("transformer.word_embeddings.weight", "embed/embedding"),
    *norm("transformer.word_embeddings_layernorm", "embed_norm"),
    *norm(f"{LAYER}.input_layernorm", f"{OURS}/attention_norm"),
    *norm(f"{LAYER}.post_attention_layernorm", f"{OURS}/ffn_norm"),
    *dense(f"{LAYER}.self_attention.query_key_value",
           *(f"{OURS}/attention/{part}" for part in ("query", "key", "value")), by_head=True),
    *dense(f"{LAYER}.self_attention.dense", f"{OURS}/attention/out", num_in=2),
    *dense(f"{LAYER}.mlp.dense_h_to_4h", f"{OURS}/ffn/in"),
    *dense(f"{LAYER}.mlp.dense_4h_to_h", f"{OURS}/ffn/out"),
    *norm("transformer.ln_f", "decoder/final_norm"),
)
HEADS = {"lm": dense("lm_head", "output"), "classes": dense("score", "task_head/output")}
TIED = {"lm_head.weight": "transformer.word_embeddings.weight"}
# Norms of parallel sub-layers that have one each.
OWN_NORMS = {"input_layernorm": "ln_attn", "post_attention_layernorm": "ln_mlp"}

BLOOM = Family(
    architectures={"BloomModel": frozenset(), "BloomForCausalLM": {"lm"},
                   "BloomForSequenceClassification": {"classes"}},
    attributes=Attributes(ATTRIBUTES, {"apply_residual_connection_post_layernorm": (False,)},
                          BLOOM_FREE, NAMES, written={
                              "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"}),
    names=Names(prefix="transformer", trunk=ROWS, heads=HEADS, tied=TIED),
    trunk=trunk_of_bloom, values=values_of_bloom, head=head, model="decoder", generates=True)
FALCON = Family(
    architectures={"FalconModel": frozenset(), "FalconForCausalLM": {"lm"},
                   "FalconForSequenceClassification": {"classes"}},
    # With ALiBi the authors' code rounds the bias to bfloat16 and scales it with the logits.
    attributes=Attributes(FALCON_ATTRIBUTES, {"alibi": (False,)},
                          frozenset({"apply_residual_connection_post_layernorm"}),
                          NAMES | {"n_head_kv": "num_kv_heads"}),
    names=Names(
        prefix="transformer", trunk=ROWS, heads=HEADS, tied=TIED,
        buffers=frozenset({f"{LAYER}.self_attention.rotary_emb.inv_freq"}),
        spellings={rf"\.{theirs}\.": f".{name}." for name, theirs in OWN_NORMS.items()},
        written=lambda model: {f".{name}.": f".{theirs}." for name, theirs in OWN_NORMS.items()
                               } if model.stack.block.parallel == "own_norms" else {}),
    trunk=trunk_of_falcon, values=values_of_falcon, head=head, model="decoder", generates=True)
