"""GPT-1 (Radford et al. 2018) and GPT-2 (Radford et al. 2019), whose kernels are [inputs, outputs].

Dropout: `resid_pdrop` is block.dropout, which is that of the embeddings too; what comes before the
scores of a choice is `summary_first_dropout`.
"""

from typing import Any, Mapping

from jtx.config import section
from jtx.interop.attributes import ACTIVATIONS, activation_name, init_std, need
from jtx.interop.family import Attributes, Family, Heads, Names
from jtx.interop.tables import dense, norm, table
from jtx.models.decoder import Decoder
from jtx.nn.attention import PROJECTIONS
from jtx.nn.positions import POSITIONS, Learned

ATTRIBUTES = {
    "vocab_size": ("size", 50257),
    "n_positions": ("size", 1024),
    "n_embd": ("size", 768),
    "n_layer": ("size", 12),
    "n_head": ("size", 12),
    "resid_pdrop": ("rate", 0.1),
    "attn_pdrop": ("rate", 0.1),
    "layer_norm_epsilon": ("positive", 1e-5),
    "initializer_range": ("positive", 0.02),
    "summary_first_dropout": ("rate", 0.1),
}
GPT2_ATTRIBUTES = ATTRIBUTES | {"n_inner": ("size", None),
                                "activation_function": ("activation", "gelu_new")}
GPT1_ATTRIBUTES = ATTRIBUTES | {"vocab_size": ("size", 40478), "n_positions": ("size", 512),
                                "afn": ("activation", "gelu")}
ALIASES = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
           "max_position_embeddings": "n_positions"}
# The head of a choice takes the last token, and has one linear layer.
FIXED = {"summary_type": ("cls_index",), "summary_use_proj": (True,),
         "summary_proj_to_labels": (True,), "summary_activation": (None,),
         "scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False,)}
FREE = frozenset({"embd_pdrop", "n_ctx", "n_special", "predict_special_tokens",
                  "reorder_and_upcast_attn"})
GPT1_ACTIVATIONS = ACTIVATIONS | {"gelu": "gelu_tanh"}  # which its code means by the name


def trunk(values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
  is_first, std = "afn" in values, values["initializer_range"]
  residual = {} if is_first else {"init_std": std / (2 * values["n_layer"]) ** 0.5}
  return {
      "vocab_size": values["vocab_size"],
      "lm": "lm" in heads,
      "stack": {
          "width": values["n_embd"],
          "num_layers": values["n_layer"],
          "position": section(POSITIONS, "learned", max_length=values["n_positions"],
                              init_std=std),
          "block": {
              "attention": {"num_heads": values["n_head"], "biases": PROJECTIONS,
                            "dropout": values["attn_pdrop"]},
              "ffn": {"dim": 4 * values["n_embd"] if is_first or values["n_inner"] is None
                             else values["n_inner"],
                      "activation": GPT1_ACTIVATIONS[values["afn"]] if is_first
                                    else ACTIVATIONS[values["activation_function"]]},
              "norm": {"position": "post" if is_first else "pre",
                       "eps": values["layer_norm_epsilon"]},
              "residual": residual,
              "dropout": values["resid_pdrop"],
              "init_std": std,
          },
      },
  }


def head(values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
  if "choice" in heads:
    return {"pool": "last", "dropout": values["summary_first_dropout"]}
  return {"pool": "last", "output_bias": False, "dropout": 0.0}


def values_of_gpt1(model: Decoder) -> dict[str, Any]:
  """The inverse of `trunk` and `head`."""
  stack, block = model.stack, model.stack.block
  need(isinstance(stack.position, Learned),
       f"has learned positions, not {type(stack.position).__name__}")
  return {
      "vocab_size": model.vocab_size,
      "n_positions": stack.position.max_length,
      "n_embd": stack.width,
      "n_layer": stack.num_layers,
      "n_head": block.attention.num_heads,
      "resid_pdrop": block.dropout,
      "embd_pdrop": block.dropout,
      "attn_pdrop": block.attention.dropout,
      "layer_norm_epsilon": block.norm.eps,
      "initializer_range": init_std(block),
      "summary_first_dropout": model.head.dropout if model.head.task == "choice" else 0.1,
      "afn": next((theirs for theirs, ours in GPT1_ACTIVATIONS.items()
                   if ours == block.ffn.activation), "gelu"),
  }


def values_of_gpt2(model: Decoder) -> dict[str, Any]:
  values, ffn = values_of_gpt1(model), model.stack.block.ffn
  del values["afn"]
  return values | {"n_inner": None if ffn.dim == 4 * model.stack.width else ffn.dim,
                   "activation_function": activation_name(ffn.activation)}


def family(name: str, attributes: Mapping[str, Any], embedding: str, position: str,
           values: Any) -> Family:
  layer, ours = "transformer.h.{i}", "decoder/{layers}"
  qkv = (f"{ours}/attention/{part}" for part in ("query", "key", "value"))
  linear = lambda theirs, *paths, **more: dense(theirs, *paths, transposed=False, **more)
  return Family(
      architectures={
          f"{name}Model": frozenset(),
          f"{name}LMHeadModel": {"lm"},
          f"{name}DoubleHeadsModel": {"lm", "choice"},
          f"{name}ForSequenceClassification": {"classes"},
      },
      attributes=Attributes(attributes, FIXED, FREE, ALIASES),
      names=Names(
          prefix="transformer",
          trunk=(
              *table(f"transformer.{embedding}.weight", "embed/embedding"),
              *table(f"transformer.{position}.weight", "position_embedding"),
              *norm(f"{layer}.ln_1", f"{ours}/attention_norm"),
              *linear(f"{layer}.attn.c_attn", *qkv),
              *linear(f"{layer}.attn.c_proj", f"{ours}/attention/out", num_in=2),
              *norm(f"{layer}.ln_2", f"{ours}/ffn_norm"),
              *linear(f"{layer}.mlp.c_fc", f"{ours}/ffn/in"),
              *linear(f"{layer}.mlp.c_proj", f"{ours}/ffn/out"),
              *norm("transformer.ln_f", "decoder/final_norm"),
          ),
          heads={"lm": (), "classes": dense("score", "task_head/output"),
                 "choice": dense("multiple_choice_head.summary", "task_head/output")},
          tied={"lm_head.weight": f"transformer.{embedding}.weight"},
          buffers=frozenset({f"{layer}.attn.bias", f"{layer}.attn.masked_bias",
                             "transformer.position_ids"}),
      ),
      trunk=trunk, values=values, head=head, model="decoder", generates=True)


GPT1 = family("OpenAIGPT", GPT1_ATTRIBUTES, "tokens_embed", "positions_embed", values_of_gpt1)
GPT2 = family("GPT2", GPT2_ATTRIBUTES, "wte", "wpe", values_of_gpt2)
