"""Llama (Touvron et al. 2023) and its kin: Mistral, Mixtral, Qwen 2 and 3, Gemma 1 to 3, OLMo 2.

RMSNorm, RoPE, a gated feed-forward, keys and values of few heads. What a model type has of its own
is a `Kin`. Files have the halves of a head's width that RoPE pairs one after the other.
"""

import dataclasses
from typing import Any, Mapping

from jtx.config import section
from jtx.interop import layers, rope
from jtx.interop.attributes import ACTIVATIONS, activation_name, init_std, need
from jtx.interop.family import Attributes, Family, Heads, Names
from jtx.interop.tables import Row, dense, matrix, norm, table
from jtx.models.decoder import Decoder
from jtx.nn.attention import PROJECTIONS
from jtx.nn.positions import POSITIONS

ATTRIBUTES = {
    "vocab_size": ("size", 32000),
    "hidden_size": ("size", 4096),
    "intermediate_size": ("size", 11008),
    "num_hidden_layers": ("size", 32),
    "num_attention_heads": ("size", 32),
    "num_key_value_heads": ("size", None),
    "hidden_act": ("activation", "silu"),
    "rms_norm_eps": ("positive", 1e-6),
    "initializer_range": ("positive", 0.02),
    "attention_dropout": ("rate", 0.0),
    "tie_word_embeddings": ("flag", False),
    **rope.ATTRIBUTES,
    "max_position_embeddings": ("size", 2048),  # the original length of a scaling without one
}
BIAS = {"attention_bias": ("flag", False)}
HEAD_DIM = {"head_dim": ("size", None)}
OF_QWEN = {
    "vocab_size": ("size", 151936),
    "num_key_value_heads": ("size", 32),
    "intermediate_size": ("size", 22016),
    "max_position_embeddings": ("size", 32768),
    "use_sliding_window": ("flag", False),
    "sliding_window": ("size_or_null", None),
    "max_window_layers": ("id", 28),
    "layer_types": ("layers", None),
}
OF_GEMMA = BIAS | {
    "vocab_size": ("size", 256000),
    "hidden_size": ("size", 3072),
    "intermediate_size": ("size", 24576),
    "num_hidden_layers": ("size", 28),
    "num_attention_heads": ("size", 16),
    "num_key_value_heads": ("size", 16),
    "head_dim": ("size", 256),
    "hidden_act": ("activation", "gelu_pytorch_tanh"),
    "max_position_embeddings": ("size", 8192),
    "tie_word_embeddings": ("flag", True),
}
OF_GEMMA2 = OF_GEMMA | {
    "hidden_size": ("size", 2304),
    "intermediate_size": ("size", 9216),
    "num_hidden_layers": ("size", 26),
    "num_attention_heads": ("size", 8),
    "num_key_value_heads": ("size", 4),
    "query_pre_attn_scalar": ("positive", 256.0),
    "sliding_window": ("size", 4096),
    "sliding_window_pattern": ("size", 2),
    "layer_types": ("layers", None),
    "attn_logit_softcapping": ("positive_or_null", 50.0),
    "final_logit_softcapping": ("positive_or_null", 30.0),
}
OF_GEMMA3 = {k: v for k, v in OF_GEMMA2.items() if k != "attn_logit_softcapping"} | {
    "vocab_size": ("size", 262208),
    "sliding_window_pattern": ("size", 6),
    "max_position_embeddings": ("size", 131072),
    "final_logit_softcapping": ("positive_or_null", None),
    "rope_theta": ("positive", 1_000_000.0),
    "rope_local_base_freq": ("positive", 10_000.0),  # the old spelling of local layers' base
}
OF_MISTRAL = HEAD_DIM | {
    "num_key_value_heads": ("size", 8),
    "intermediate_size": ("size", 14336),
    "max_position_embeddings": ("size", 131072),
    "sliding_window": ("size_or_null", 4096),
}
OF_MIXTRAL = OF_MISTRAL | {
    "rms_norm_eps": ("positive", 1e-5),
    "rope_theta": ("positive", 1_000_000.0),
    "sliding_window": ("size_or_null", None),
    "num_local_experts": ("size", 8),
    "num_experts_per_tok": ("size", 2),
    "router_aux_loss_coef": ("rate", 0.001),
}
# Of a layer, by their position.
NORMS = {
    "pre": {"input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm"},
    "sandwich": {"input_layernorm": "attention_norm",
                 "post_attention_layernorm": "attention_norm_out",
                 "pre_feedforward_layernorm": "ffn_norm",
                 "post_feedforward_layernorm": "ffn_norm_out"},
    "output": {"post_attention_layernorm": "attention_norm_out",
               "post_feedforward_layernorm": "ffn_norm_out"},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kin:
  """What a model type has of its own."""
  name: str  # of its classes
  attributes: Mapping[str, Any]  # beside ATTRIBUTES
  biases: tuple[str, ...] = ()  # of `PROJECTIONS`, where no attribute says it
  qk_norm: str = "none"
  norm: str = "pre"
  gemma: bool = False  # norms are of 1 + weight, embeddings times sqrt(D)
  text: str = ""  # in names of classes of layers without and with another head
  aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)  # of attributes
  older_gelu: bool = False  # "gelu" is the tanh's, which older files call so

  def trunk(self, values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
    has, number = values.__contains__, values["num_attention_heads"]
    types = layers.given_types(values)
    biases = self.biases
    if has("attention_bias"):
      biases = PROJECTIONS if values["attention_bias"] else ()
    head_dim = values["head_dim"] if has("head_dim") else None
    attention = {
        "num_heads": number, "head_dim": head_dim, "biases": biases, "qk_norm": self.qk_norm,
        "num_kv_heads": values["num_key_value_heads"], "dropout": values["attention_dropout"]}
    embedding = {"tie": values["tie_word_embeddings"], "scale": self.gemma}
    if has("query_pre_attn_scalar"):
      scalar = values["query_pre_attn_scalar"]
      attention["scale"] = None if scalar == head_dim else scalar**-0.5
      if has("attn_logit_softcapping"):
        attention["soft_cap"] = values["attn_logit_softcapping"]
      embedding["soft_cap"] = values["final_logit_softcapping"]
    return {
        "vocab_size": values["vocab_size"],
        "lm": "lm" in heads,
        "embedding": embedding,
        "stack": {
            "width": values["hidden_size"],
            "num_layers": values["num_hidden_layers"],
            "position": section(POSITIONS, "rope", **rope_fields(values, types)),
            **layers.causal_fields(
                types, values["sliding_window"] if has("sliding_window") else None),
            "block": {
                "attention": attention,
                "ffn": {"dim": values["intermediate_size"], "gated": True,
                        "activation": self.activation(values["hidden_act"]),
                        "bias": has("mlp_bias") and values["mlp_bias"],
                        **experts_fields(values)},
                "norm": {"kind": "rmsnorm", "position": self.norm, "unit_offset": self.gemma,
                         "eps": values["rms_norm_eps"]},
                "dropout": 0.0,
                "init_std": values["initializer_range"],
            },
        },
    }

  def activation(self, theirs: str) -> str:
    return "gelu_tanh" if self.older_gelu and theirs == "gelu" else ACTIVATIONS[theirs]

  def values(self, model: Decoder) -> dict[str, Any]:
    """The inverse of `trunk` and `head`, in the new spelling of RoPE."""
    stack, block, attention = model.stack, model.stack.block, model.stack.block.attention
    types, window = layers.types_of(stack), layers.causal_window(stack)
    head_dim = attention.head_dim or stack.width // attention.num_heads
    scale = head_dim if attention.scale is None else round(attention.scale**-2, 6)
    experts, act = block.ffn.experts, activation_name(block.ffn.activation)
    found = {
        "vocab_size": model.vocab_size,
        "hidden_size": stack.width,
        "intermediate_size": block.ffn.dim,
        "num_hidden_layers": stack.num_layers,
        "num_attention_heads": attention.num_heads,
        "num_key_value_heads": attention.kv_heads,
        "head_dim": head_dim,
        "hidden_act": act if self.activation(act) == block.ffn.activation else "gelu_python",
        "rms_norm_eps": block.norm.eps,
        "initializer_range": init_std(block),
        "attention_dropout": attention.dropout,
        "attention_bias": bool(attention.biases),
        "mlp_bias": block.ffn.bias,
        "tie_word_embeddings": model.embedding.tie,
        "rope_parameters": rope_parameters(stack.position, "rope_local_base_freq" in
                                           self.attributes),
        "layer_types": types,
        "sliding_window": window,
        "use_sliding_window": window is not None,
        "max_window_layers": stack.num_layers,
        "query_pre_attn_scalar": int(scale) if scale == int(scale) else scale,
        "attn_logit_softcapping": attention.soft_cap,
        "final_logit_softcapping": model.embedding.soft_cap,
        "num_local_experts": experts.number,
        "num_experts_per_tok": experts.active,
        "router_aux_loss_coef": experts.balance,
    }
    own = ATTRIBUTES | self.attributes
    if "sliding_window_pattern" in own and window is None:
      del found["sliding_window"]  # has no null
    return {key: value for key, value in found.items() if key in own}

  def family(self) -> Family:
    layer, ours = "model.layers.{i}", "decoder/{layers}"
    text, moe = f"{self.name}{self.text}", f"{layer}.block_sparse_moe"
    return Family(
        architectures={
            f"{text}Model": frozenset(),
            f"{self.name}ForCausalLM": {"lm"},
            f"{text}ForSequenceClassification": {"classes"},
        },
        attributes=Attributes(
            ATTRIBUTES | self.attributes, FIXED, FREE, self.aliases,
            written={"hidden_act": "hidden_activation"} if self.norm == "sandwich" else {}),
        names=Names(
            prefix="model",
            trunk=(
                *table("model.embed_tokens.weight", "embed/embedding"),
                *(row for theirs, name in NORMS[self.norm].items()
                  for row in norm(f"{layer}.{theirs}", f"{ours}/{name}")),
                *(row for theirs, name in (("q", "query"), ("k", "key"), ("v", "value"))
                  for row in dense(f"{layer}.self_attn.{theirs}_proj", f"{ours}/attention/{name}")),
                *dense(f"{layer}.self_attn.o_proj", f"{ours}/attention/out", num_in=2),
                *norm(f"{layer}.self_attn.q_norm", f"{ours}/attention/query_norm"),
                *norm(f"{layer}.self_attn.k_norm", f"{ours}/attention/key_norm"),
                *dense(f"{layer}.mlp.gate_proj", f"{ours}/ffn/gate"),
                *dense(f"{layer}.mlp.up_proj", f"{ours}/ffn/in"),
                *dense(f"{layer}.mlp.down_proj", f"{ours}/ffn/out"),
                *dense(f"{moe}.gate", f"{ours}/ffn/router"),
                *(Row(f"{moe}.experts.{{e}}.{theirs}.weight", (f"{ours}/ffn/{name}_kernel",),
                      matrix(1)) for theirs, name in (("w1", "gate"), ("w3", "in"), ("w2", "out"))),
                *norm("model.norm", "decoder/final_norm"),
            ),
            heads={"lm": dense("lm_head", "output"),
                   "classes": dense("score", "task_head/output")},
            tied={"lm_head.weight": "model.embed_tokens.weight"},
            buffers=frozenset({f"{layer}.self_attn.rotary_emb.inv_freq",
                               "model.rotary_emb.inv_freq"}),
            modules={r"\.block_sparse_moe\.": ()},  # arrays of all experts, and the router's own
        ),
        trunk=self.trunk, values=self.values, head=head, model="decoder", generates=True)


# `pretraining_tp` is how products are cut, which changes rounding alone.
# Gemma 3's attention has no soft cap whatever the attribute says.
FIXED = {"use_bidirectional_attention": (None, False), "attn_logit_softcapping": (None,),
         "router_jitter_noise": (0.0, 0)}
FREE = frozenset({"pretraining_tp", "cache_implementation", "output_router_logits",
                  "hidden_activation"})
# Gemma 1 computes with hidden_act, 2 and 3 with hidden_activation; each leaves the other alone.
SWAPPED = {"hidden_activation": "hidden_act", "hidden_act": "hidden_activation"}


def head(values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
  del values, heads
  return {"pool": "last", "output_bias": False, "dropout": 0.0}


def experts_fields(values: Mapping[str, Any]) -> dict[str, Any]:
  """Of a mixture, whose router has no z-loss; a model type without one has none."""
  if "num_local_experts" not in values:
    return {}
  return {"experts": {"number": values["num_local_experts"],
                      "active": values["num_experts_per_tok"],
                      "balance": values["router_aux_loss_coef"], "z_loss": 0.0}}


def rope_fields(values: Mapping[str, Any], types: list[str]) -> dict[str, Any]:
  """The fields of `Rope`; Gemma 3's local layers have parameters of their own."""
  longest = values["max_position_embeddings"]
  if "rope_local_base_freq" not in values:
    return rope.fields(rope.given(values), longest)
  new = values["rope_parameters"]
  of_global = dict(values["rope_scaling"] or {})
  of_local: dict[str, Any] = {}
  if new is not None:
    for key in new:
      need(key in layers.KINDS,
           f"rope_parameters has {key!r}; valid are: {', '.join(layers.KINDS)}")
    of_local, found = (dict((new[k] if k in new else None) or {})
                       for k in (layers.SLIDING, layers.FULL))
    of_global = found | of_global
  of_global = rope.fields({"rope_theta": values["rope_theta"], **of_global}, longest)
  if layers.SLIDING not in types:
    return of_global
  of_local = rope.fields({"rope_theta": values["rope_local_base_freq"], **of_local}, longest)
  return of_global | {"local_base": of_local["base"], "local_scaling": of_local["scaling"]}


def rope_parameters(position: Any, by_type: bool) -> dict[str, Any]:
  """The inverse."""
  found = rope.of(position)
  of_global = rope.parameters(found.base, found.scaling)
  if not by_type:
    return of_global
  local = rope.parameters(found.base if found.local_base is None else found.local_base,
                          found.scaling if found.local_scaling is None else found.local_scaling)
  return {layers.FULL: of_global, layers.SLIDING: local}


LLAMA = Kin(name="Llama",
            attributes=BIAS | HEAD_DIM | {"mlp_bias": ("flag", False)}).family()
MISTRAL = Kin(name="Mistral", attributes=OF_MISTRAL).family()
MIXTRAL = Kin(name="Mixtral", attributes=OF_MIXTRAL).family()
QWEN2 = Kin(name="Qwen2", attributes=OF_QWEN, biases=("query", "key", "value")).family()
QWEN3 = Kin(name="Qwen3", attributes=OF_QWEN | BIAS | {"head_dim": ("size", 128)},
            qk_norm="head").family()
GEMMA = Kin(name="Gemma", attributes=OF_GEMMA, gemma=True, older_gelu=True).family()
GEMMA2 = Kin(name="Gemma2", attributes=OF_GEMMA2, norm="sandwich", gemma=True,
             aliases=SWAPPED).family()
GEMMA3 = Kin(name="Gemma3", attributes=OF_GEMMA3, norm="sandwich", gemma=True, qk_norm="head",
             text="Text",
             aliases=SWAPPED | {"_sliding_window_pattern": "sliding_window_pattern"}).family()
OLMO2 = Kin(name="Olmo2", attributes=BIAS | {
    "vocab_size": ("size", 50304), "rms_norm_eps": ("positive", 1e-5)}, norm="output",
            qk_norm="width").family()
