"""GPT-NeoX (Black et al. 2022) and Pythia: queries, keys and values fused by head, rotary shares.

Dropout: `hidden_dropout` is block.dropout.
"""

from typing import Any, Mapping

from jtx.config import section
from jtx.interop import rope
from jtx.interop.attributes import ACTIVATIONS, activation_name, init_std
from jtx.interop.family import Attributes, Family, Heads, Names
from jtx.interop.families.llama import head
from jtx.interop.tables import dense, norm, table
from jtx.models.decoder import Decoder
from jtx.nn.attention import PROJECTIONS
from jtx.nn.positions import POSITIONS

ATTRIBUTES = {
    "vocab_size": ("size", 50432),
    "hidden_size": ("size", 6144),
    "num_hidden_layers": ("size", 44),
    "num_attention_heads": ("size", 64),
    "intermediate_size": ("size", 24576),
    "hidden_act": ("activation", "gelu"),
    "hidden_dropout": ("rate", 0.0),
    "attention_dropout": ("rate", 0.0),
    "layer_norm_eps": ("positive", 1e-5),
    "initializer_range": ("positive", 0.02),
    "use_parallel_residual": ("flag", True),
    "attention_bias": ("flag", True),
    "tie_word_embeddings": ("flag", False),
    "max_position_embeddings": ("size", 2048),
    **rope.ATTRIBUTES,
    "rotary_pct": ("positive", 0.25),  # an old spelling
}


def trunk(values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
  turned = rope.fields(rope.given(values), values["max_position_embeddings"], values["rotary_pct"])
  return {
      "vocab_size": values["vocab_size"],
      "lm": "lm" in heads,
      "embedding": {"tie": values["tie_word_embeddings"]},
      "stack": {
          "width": values["hidden_size"],
          "num_layers": values["num_hidden_layers"],
          "position": section(POSITIONS, "rope", **turned),
          "block": {
              "attention": {"num_heads": values["num_attention_heads"],
                            "biases": PROJECTIONS if values["attention_bias"] else (),
                            "dropout": values["attention_dropout"]},
              "ffn": {"dim": values["intermediate_size"],
                      "activation": ACTIVATIONS[values["hidden_act"]]},
              "norm": {"position": "pre", "eps": values["layer_norm_eps"]},
              "parallel": "own_norms" if values["use_parallel_residual"] else "none",
              "dropout": values["hidden_dropout"],
              "init_std": values["initializer_range"],
          },
      },
  }


def values(model: Decoder) -> dict[str, Any]:
  """The inverse of `trunk` and `head`, in the new spelling of RoPE."""
  stack, block = model.stack, model.stack.block
  position = rope.of(stack.position)
  return {
      "vocab_size": model.vocab_size,
      "hidden_size": stack.width,
      "num_hidden_layers": stack.num_layers,
      "num_attention_heads": block.attention.num_heads,
      "intermediate_size": block.ffn.dim,
      "hidden_act": activation_name(block.ffn.activation),
      "hidden_dropout": block.dropout,
      "attention_dropout": block.attention.dropout,
      "layer_norm_eps": block.norm.eps,
      "initializer_range": init_std(block),
      "use_parallel_residual": block.parallel != "none",
      "attention_bias": bool(block.attention.biases),
      "tie_word_embeddings": model.embedding.tie,
      "rope_parameters": rope.parameters(position.base, position.scaling, position.fraction),
  }


LAYER, OURS = "gpt_neox.layers.{i}", "decoder/{layers}"
FAMILY = Family(
    architectures={
        "GPTNeoXModel": frozenset(),
        "GPTNeoXForCausalLM": {"lm"},
        "GPTNeoXForSequenceClassification": {"classes"},
    },
    attributes=Attributes(ATTRIBUTES, free=frozenset({"classifier_dropout"}),
                          aliases={"rotary_emb_base": "rope_theta"}),
    names=Names(
        prefix="gpt_neox",
        trunk=(
            *table("gpt_neox.embed_in.weight", "embed/embedding"),
            *norm(f"{LAYER}.input_layernorm", f"{OURS}/attention_norm"),
            *norm(f"{LAYER}.post_attention_layernorm", f"{OURS}/ffn_norm"),
            *dense(f"{LAYER}.attention.query_key_value",
                   *(f"{OURS}/attention/{part}" for part in ("query", "key", "value")),
                   by_head=True),
            *dense(f"{LAYER}.attention.dense", f"{OURS}/attention/out", num_in=2),
            *dense(f"{LAYER}.mlp.dense_h_to_4h", f"{OURS}/ffn/in"),
            *dense(f"{LAYER}.mlp.dense_4h_to_h", f"{OURS}/ffn/out"),
            *norm("gpt_neox.final_layer_norm", "decoder/final_norm"),
        ),
        heads={"lm": dense("embed_out", "output"), "classes": dense("score", "task_head/output")},
        tied={"embed_out.weight": "gpt_neox.embed_in.weight"},
        buffers=frozenset(f"{LAYER}.attention.{name}" for name in (
            "bias", "masked_bias", "rotary_emb.inv_freq")),
        spellings={r"^lm_head\.": "embed_out."},
        modules={r"^embed_out\.": "lm_head."},
    ),
    trunk=trunk, values=values, head=head, model="decoder", generates=True)
