"""ModernBERT (Warner et al. 2024): rotary positions, local layers, gated feed-forward, no biases.

Dropout: `attention_dropout` is block.attention.dropout (ModernBERT also has it on the output
of attention), `embedding_dropout` is block.dropout (ours is also on the sub-layers' outputs),
`mlp_dropout` is block.ffn.dropout. All are 0 in the published models.
"""

from typing import Any, Mapping

from jtx.config import section
from jtx.errors import ConfigError
from jtx.interop.attributes import ACTIVATIONS, activation_name, init_std, need
from jtx.interop.families import bert
from jtx.interop.family import Attributes, Family, Heads, Names
from jtx.interop.layers import FULL, KINDS, SLIDING, check_types, cycle, types_of
from jtx.interop.tables import dense, norm, table
from jtx.models.encoder import Encoder
from jtx.nn.attention import PROJECTIONS
from jtx.nn.positions import POSITIONS
from jtx.nn.rope import Rope

POOLINGS = {"cls": "first", "mean": "mean"}
THETAS = {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"}

ATTRIBUTES = {
    "vocab_size": ("size", 50368),
    "hidden_size": ("size", 768),
    "intermediate_size": ("size", 1152),
    "num_hidden_layers": ("size", 22),
    "num_attention_heads": ("size", 12),
    "hidden_activation": ("activation", "gelu"),
    "initializer_range": ("positive", 0.02),
    "norm_eps": ("positive", 1e-5),
    "norm_bias": ("flag", False),
    "attention_bias": ("flag", False),
    "mlp_bias": ("flag", False),
    "attention_dropout": ("rate", 0.0),
    "embedding_dropout": ("rate", 0.0),
    "mlp_dropout": ("rate", 0.0),
    "local_attention": ("size", 128),
    "layer_types": ("layers", None),
    "global_attn_every_n_layers": ("size", 3),  # the old spelling of layer_types
    "rope_parameters": ("rope", None),
    "global_rope_theta": ("positive", 160_000.0),  # old spellings of rope_parameters
    "local_rope_theta": ("positive", 10_000.0),
    "classifier_pooling": ("pooling", "cls"),
    "classifier_dropout": ("rate", 0.0),
    "classifier_bias": ("flag", False),
    "classifier_activation": ("activation", "gelu"),
}
FREE = frozenset({
    "max_position_embeddings",  # RoPE reaches any length
    "layer_norm_eps", "position_embedding_type",  # of BERT's config, not read
    "initializer_cutoff_factor", "deterministic_flash_attn", "reference_compile",
    "sparse_prediction", "sparse_pred_ignore_index", "repad_logits_with_grad",
})


def layer_types(values: Mapping[str, Any]) -> list[str]:
  """The kind of each layer, full_attention or sliding_attention."""
  types, number = values["layer_types"], values["num_hidden_layers"]
  if types is None:
    every = values["global_attn_every_n_layers"]
    return [SLIDING if i % every else FULL for i in range(number)]
  return check_types(types, number)


def thetas(values: Mapping[str, Any]) -> dict[str, float]:
  """The base of RoPE by layer type."""
  given = values["rope_parameters"] or {}
  result = {}
  for kind in given:
    need(kind in KINDS, f"rope_parameters has {kind!r}; valid are: {', '.join(KINDS)}")
  for kind, old_name in THETAS.items():
    rope = (given[kind] if kind in given else None) or {}
    need(isinstance(rope, dict), f"rope_parameters.{kind}={rope!r} is not an object")
    for key, value in rope.items():
      need(key in ("rope_type", "rope_theta"),
           f"rope_parameters.{kind}.{key}={value!r} is not known to jtx and might change the"
           " computation")
    if "rope_type" in rope and rope["rope_type"] != "default":
      raise ConfigError(f"rope_parameters.{kind}.rope_type={rope['rope_type']!r} is not what jtx"
                        " computes, which is 'default'")
    theta = rope["rope_theta"] if "rope_theta" in rope else values[old_name]
    need(isinstance(theta, (int, float)) and theta > 0,
         f"rope_parameters.{kind}.rope_theta={theta!r} is not a number above 0")
    result[kind] = float(theta)
  return result


def trunk(values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
  if "mlm" in heads:
    need(values["classifier_bias"] == values["mlp_bias"]
         and values["classifier_activation"] == values["hidden_activation"],
         f"classifier_bias={values['classifier_bias']} and"
         f" classifier_activation={values['classifier_activation']!r}: in the head of a masked"
         " language model jtx has those of the layers, mlp_bias and hidden_activation")
  kinds = [KINDS[kind] for kind in layer_types(values)]
  local = "local" in kinds
  theta = thetas(values)
  rope = {"base": theta["full_attention"]}
  if local:
    need(values["local_attention"] >= 2,
         f"local_attention={values['local_attention']} is no window: it counts both sides")
    rope["local_base"] = theta["sliding_attention"]
  return {
      "vocab_size": values["vocab_size"],
      "mlm": "mlm" in heads,
      "embedding": {"types": 0},
      "stack": {
          "width": values["hidden_size"],
          "num_layers": values["num_hidden_layers"],
          "position": section(POSITIONS, "rope", **rope),
          "pattern": cycle(kinds),
          "window": values["local_attention"] // 2 if local else 0,
          "block": {
              "attention": {"num_heads": values["num_attention_heads"],
                            "biases": PROJECTIONS if values["attention_bias"] else (),
                            "dropout": values["attention_dropout"]},
              "ffn": {"dim": values["intermediate_size"],
                      "activation": ACTIVATIONS[values["hidden_activation"]], "gated": True,
                      "bias": values["mlp_bias"], "dropout": values["mlp_dropout"]},
              "norm": {"position": "pre", "eps": values["norm_eps"], "bias": values["norm_bias"],
                       "attention": False},
              "dropout": values["embedding_dropout"],
              "init_std": values["initializer_range"],
          },
      },
  }


def head(values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
  pool = "none" if heads & {"tags", "span"} else POOLINGS[values["classifier_pooling"]]
  return {"pool": pool, "transform": ACTIVATIONS[values["classifier_activation"]], "norm": True,
          "use_bias": values["classifier_bias"], "dropout": values["classifier_dropout"]}


def values(model: Encoder) -> dict[str, Any]:
  """The inverse of `trunk` and `head`, in the new spelling."""
  stack, head = model.stack, model.head
  block, rope = stack.block, stack.position
  need(isinstance(rope, Rope), f"has RoPE, not {type(rope).__name__}")
  local_base = rope.base if rope.local_base is None else rope.local_base
  theta = {"full_attention": rope.base, "sliding_attention": local_base}
  of_head = {"classifier_bias": block.ffn.bias, "classifier_activation": block.ffn.activation,
             "classifier_pooling": "cls", "classifier_dropout": 0.0}
  if head.task != "none":
    of_head = {"classifier_bias": head.use_bias, "classifier_activation": head.transform,
               "classifier_pooling": "mean" if head.pool == "mean" else "cls",
               "classifier_dropout": head.dropout}
  of_head["classifier_activation"] = activation_name(of_head["classifier_activation"])
  return {
      "vocab_size": model.vocab_size,
      "hidden_size": stack.width,
      "intermediate_size": block.ffn.dim,
      "num_hidden_layers": stack.num_layers,
      "num_attention_heads": block.attention.num_heads,
      "hidden_activation": activation_name(block.ffn.activation),
      "initializer_range": init_std(block),
      "norm_eps": block.norm.eps,
      "norm_bias": block.norm.bias,
      "attention_bias": bool(block.attention.biases),
      "mlp_bias": block.ffn.bias,
      "attention_dropout": block.attention.dropout,
      "embedding_dropout": block.dropout,
      "mlp_dropout": block.ffn.dropout,
      "local_attention": 2 * stack.window if stack.window else 128,
      "layer_types": types_of(stack),
      "rope_parameters": {k: {"rope_type": "default", "rope_theta": t} for k, t in theta.items()},
      **of_head,
  }


LAYER, OURS = "model.layers.{i}", "encoder/{layers}"
HEAD = (*dense("head.dense", "task_head/transform/dense"),
        *norm("head.norm", "task_head/transform/norm"), *bert.CLASSIFIER)

FAMILY = Family(
    architectures={
        "ModernBertModel": frozenset(),
        "ModernBertForMaskedLM": {"mlm"},
        "ModernBertForSequenceClassification": {"classes"},
        "ModernBertForTokenClassification": {"tags"},
        "ModernBertForQuestionAnswering": {"span"},
        "ModernBertForMultipleChoice": {"choice"},
    },
    attributes=Attributes(ATTRIBUTES, {"decoder_bias": (True,)}, FREE),
    names=Names(
        prefix="model",
        trunk=(
            *table("model.embeddings.tok_embeddings.weight", "embed/embedding"),
            *norm("model.embeddings.norm", "embed_norm"),
            *norm(f"{LAYER}.attn_norm", f"{OURS}/attention_norm"),
            *dense(f"{LAYER}.attn.Wqkv",
                   *(f"{OURS}/attention/{n}" for n in ("query", "key", "value"))),
            *dense(f"{LAYER}.attn.Wo", f"{OURS}/attention/out", num_in=2),
            *norm(f"{LAYER}.mlp_norm", f"{OURS}/ffn_norm"),
            # The activated half first.
            *dense(f"{LAYER}.mlp.Wi", f"{OURS}/ffn/gate", f"{OURS}/ffn/in"),
            *dense(f"{LAYER}.mlp.Wo", f"{OURS}/ffn/out"),
            *norm("model.final_norm", "encoder/final_norm"),
        ),
        heads={
            "mlm": (
                *dense("head.dense", "mlm_head/transform/dense"),
                *norm("head.norm", "mlm_head/transform/norm"),
                *table("decoder.bias", "mlm_head/bias"),
            ),
            **dict.fromkeys(("classes", "tags", "span", "choice"), HEAD),
        },
        tied={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
    ),
    trunk=trunk,
    values=values,
    head=head,
)
