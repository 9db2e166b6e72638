"""OPT (Zhang et al. 2022) and XGLM (Lin et al. 2022), which differ in their positions alone.

Dropout: `dropout` is block.dropout, XGLM's `activation_dropout` block.ffn.dropout.
"""

from typing import Any, Mapping

from jtx.config import section
from jtx.interop.attributes import ACTIVATIONS, activation_name, init_std, need
from jtx.interop.family import Attributes, Family, Heads, Names
from jtx.interop.families.llama import head
from jtx.interop.tables import dense, norm, table
from jtx.models.decoder import Decoder
from jtx.nn.attention import PROJECTIONS
from jtx.nn.positions import POSITIONS, Learned, Sinusoidal

OFFSET = 2  # of positions
ATTRIBUTES = {
    "vocab_size": ("size", 50272),
    "hidden_size": ("size", 768),
    "num_hidden_layers": ("size", 12),
    "num_attention_heads": ("size", 12),
    "ffn_dim": ("size", 3072),
    "activation_function": ("activation", "relu"),
    "dropout": ("rate", 0.1),
    "attention_dropout": ("rate", 0.0),
    "init_std": ("positive", 0.02),
    "tie_word_embeddings": ("flag", True),
}
OPT_ATTRIBUTES = ATTRIBUTES | {
    "max_position_embeddings": ("size", 2048),
    "word_embed_proj_dim": ("size", None),  # of embeddings and output
    "do_layer_norm_before": ("flag", True),
    "_remove_final_layer_norm": ("flag", False),
    "enable_bias": ("flag", True),
}
XGLM_ATTRIBUTES = ATTRIBUTES | {
    "vocab_size": ("size", 256008),
    "hidden_size": ("size", 1024),
    "num_hidden_layers": ("size", 24),
    "num_attention_heads": ("size", 16),
    "ffn_dim": ("size", 4096),
    "activation_function": ("activation", "gelu"),
    "attention_dropout": ("rate", 0.1),
    "activation_dropout": ("rate", 0.0),
    "scale_embedding": ("flag", True),
}
XGLM_NAMES = {"d_model": "hidden_size", "num_layers": "num_hidden_layers",
              "attention_heads": "num_attention_heads"}


def trunk(values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
  """What both have, with the positions of XGLM."""
  return {
      "vocab_size": values["vocab_size"],
      "lm": "lm" in heads,
      "embedding": {"tie": values["tie_word_embeddings"],
                    "scale": "scale_embedding" in values and values["scale_embedding"]},
      "stack": {
          "width": values["hidden_size"],
          "num_layers": values["num_hidden_layers"],
          "position": section(POSITIONS, "sinusoidal", layout="concatenated", inclusive=True,
                              first_position=OFFSET),
          "block": {
              "attention": {"num_heads": values["num_attention_heads"], "biases": PROJECTIONS,
                            "dropout": values["attention_dropout"]},
              "ffn": {"dim": values["ffn_dim"],
                      "activation": ACTIVATIONS[values["activation_function"]],
                      "dropout": values["activation_dropout"] if "activation_dropout" in values
                                 else 0.0},
              "norm": {"position": "pre", "eps": 1e-5},
              "dropout": values["dropout"],
              "init_std": values["init_std"],
          },
      },
  }


def trunk_of_opt(values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
  width = values["word_embed_proj_dim"]
  need("classes" not in heads or width in (None, values["hidden_size"]),
       f"word_embed_proj_dim={width}: jtx has scores of classes of hidden_size alone")
  fields, std = trunk(values, heads), values["init_std"]
  fields["embedding"]["width"] = width
  stack, first = fields["stack"], values["do_layer_norm_before"]
  stack["position"] = section(POSITIONS, "learned", first_position=OFFSET, init_std=std,
                              max_length=values["max_position_embeddings"] + OFFSET)
  stack["final_norm"] = not (first and values["_remove_final_layer_norm"])
  stack["block"]["norm"]["position"] = "pre" if first else "post"
  if not values["enable_bias"]:
    stack["block"]["attention"]["biases"] = ()
    stack["block"]["ffn"]["bias"] = False
  return fields


def common_values(model: Decoder) -> dict[str, Any]:
  stack, block = model.stack, model.stack.block
  return {
      "vocab_size": model.vocab_size,
      "hidden_size": stack.width,
      "num_hidden_layers": stack.num_layers,
      "num_attention_heads": block.attention.num_heads,
      "ffn_dim": block.ffn.dim,
      "activation_function": activation_name(block.ffn.activation),
      "dropout": block.dropout,
      "attention_dropout": block.attention.dropout,
      "init_std": init_std(block),
      "tie_word_embeddings": model.embedding.tie,
  }


def values_of_opt(model: Decoder) -> dict[str, Any]:
  """The inverse of `trunk_of_opt` and `head`."""
  stack, norm_first = model.stack, model.stack.block.norm.position == "pre"
  need(isinstance(stack.position, Learned) and stack.position.max_length > OFFSET,
       f"has learned positions, not {type(stack.position).__name__}")
  return common_values(model) | {
      "max_position_embeddings": stack.position.max_length - OFFSET,
      "word_embed_proj_dim": model.embedding.width or stack.width,
      "do_layer_norm_before": norm_first,
      "_remove_final_layer_norm": norm_first and not stack.final_norm,
      "enable_bias": bool(stack.block.attention.biases),
  }


def values_of_xglm(model: Decoder) -> dict[str, Any]:
  """The inverse of `trunk` and `head`."""
  need(isinstance(model.stack.position, Sinusoidal),
       f"has sinusoidal positions, not {type(model.stack.position).__name__}")
  return common_values(model) | {"activation_dropout": model.stack.block.ffn.dropout,
                                 "scale_embedding": model.embedding.scale}


def trunk_rows(base: str) -> tuple[Any, ...]:
  layer, ours = f"{base}.layers.{{i}}", "decoder/{layers}"
  return (
      *table(f"{base}.embed_tokens.weight", "embed/embedding"),
      *table(f"{base}.embed_positions.weight", "position_embedding"),
      *dense(f"{base}.project_in", "embed_projection"),
      *(row for theirs, name in (("q", "query"), ("k", "key"), ("v", "value"))
        for row in dense(f"{layer}.self_attn.{theirs}_proj", f"{ours}/attention/{name}")),
      *dense(f"{layer}.self_attn.out_proj", f"{ours}/attention/out", num_in=2),
      *norm(f"{layer}.self_attn_layer_norm", f"{ours}/attention_norm"),
      *dense(f"{layer}.fc1", f"{ours}/ffn/in"),
      *dense(f"{layer}.fc2", f"{ours}/ffn/out"),
      *norm(f"{layer}.final_layer_norm", f"{ours}/ffn_norm"),
  )


OPT = Family(
    architectures={"OPTModel": frozenset(), "OPTForCausalLM": {"lm"},
                   "OPTForSequenceClassification": {"classes"}},
    attributes=Attributes(OPT_ATTRIBUTES, {"layer_norm_elementwise_affine": (True,)},
                          frozenset({"layerdrop", "activation_dropout"})),
    names=Names(
        prefix="model",
        trunk=(*trunk_rows("model.decoder"),
               *norm("model.decoder.final_layer_norm", "decoder/final_norm")),
        heads={"lm": (*dense("model.decoder.project_out", "output_projection"),
                      *dense("lm_head", "output")),
               "classes": dense("score", "task_head/output")},
        tied={"lm_head.weight": "model.decoder.embed_tokens.weight"}),
    trunk=trunk_of_opt, values=values_of_opt, head=head, model="decoder", generates=True)
XGLM = Family(
    architectures={"XGLMModel": frozenset(), "XGLMForCausalLM": {"lm"}},
    attributes=Attributes(XGLM_ATTRIBUTES, {},
                          frozenset({"layerdrop", "max_position_embeddings"}), XGLM_NAMES,
                          written={ours: theirs for theirs, ours in XGLM_NAMES.items()}),
    names=Names(
        prefix="model",
        trunk=(*trunk_rows("model"), *norm("model.layer_norm", "decoder/final_norm")),
        heads={"lm": dense("lm_head", "output")},
        tied={"lm_head.weight": "model.embed_tokens.weight"},
        buffers=frozenset({"model.embed_positions.weights"})),
    trunk=trunk, values=values_of_xglm, head=head, model="decoder", generates=True)
