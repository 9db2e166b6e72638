"""NomicBERT (Nussbaum et al. 2024): BERT with RoPE, SwiGLU and no biases in its layers.

`hidden_dropout_prob` is block.dropout. The pooler is the transform of the head of classes.
"""

from typing import Any, Mapping

from jtx.config import section
from jtx.interop import rope
from jtx.interop.attributes import need
from jtx.interop.families import bert
from jtx.interop.family import Attributes, Family, Heads, Names
from jtx.interop.tables import dense, norm, table
from jtx.models.encoder import Encoder
from jtx.nn.positions import POSITIONS

ATTRIBUTES = {
    **bert.ATTRIBUTES,
    **rope.ATTRIBUTES,
    "vocab_size": ("size", 30528),
    "hidden_act": ("activation", "silu"),
    "hidden_dropout_prob": ("rate", 0.0),
    "attention_probs_dropout_prob": ("rate", 0.0),
    "max_position_embeddings": ("size", 2048),  # an original length of scalings, and no limit
    "head_dim": ("size", None),
    "pad_token_id": ("id", 0),  # the tokenizer's, which must be a number
    "rope_theta": ("positive", 1000.0),
}


def trunk(values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
  fields = bert.trunk(values, heads)
  stack = fields["stack"]
  stack["position"] = section(POSITIONS, "rope", **rope.fields(
      rope.given(values), values["max_position_embeddings"]))
  stack["block"]["attention"] |= {"biases": (), "head_dim": values["head_dim"]}
  stack["block"]["ffn"] |= {"gated": True, "bias": False}
  return fields | ({"masked": {"use_bias": True}} if "mlm" in heads else {})


def values(model: Encoder) -> dict[str, Any]:
  """The inverse of `trunk` and `head`."""
  position, head, attention = rope.of(model.stack.position), model.head, (
      model.stack.block.attention)
  need(model.embedding.types > 0, "has token types, and embedding.types=0")
  sizes = attention.sizes(model.stack.width)
  return bert.values_of_layers(model) | {
      "rope_parameters": rope.parameters(position.base, position.scaling),
      "head_dim": sizes.head_dim,
      "classifier_dropout": head.dropout if head.task in ("classes", "tags") else None,
  }


LAYER, OURS = "nomic_bert.encoder.layers.{i}", "encoder/{layers}"
POOLER = dense("nomic_bert.pooler.dense", "task_head/transform/dense")
FAMILY = Family(
    architectures={
        "NomicBertModel": frozenset(),
        "NomicBertForMaskedLM": {"mlm"},
        "NomicBertForSequenceClassification": {"classes"},
        "NomicBertForTokenClassification": {"tags"},
    },
    attributes=Attributes(ATTRIBUTES),
    names=Names(
        prefix="nomic_bert",
        trunk=(
            *table("nomic_bert.embeddings.word_embeddings.weight", "embed/embedding"),
            *table("nomic_bert.embeddings.token_type_embeddings.weight", "type_embedding"),
            *norm("nomic_bert.emb_ln", "embed_norm"),
            *dense(f"{LAYER}.attn.Wqkv",
                   *(f"{OURS}/attention/{name}" for name in ("query", "key", "value"))),
            *dense(f"{LAYER}.attn.out_proj", f"{OURS}/attention/out", num_in=2),
            *norm(f"{LAYER}.norm1", f"{OURS}/attention_norm"),
            *dense(f"{LAYER}.mlp.fc11", f"{OURS}/ffn/in"),
            *dense(f"{LAYER}.mlp.fc12", f"{OURS}/ffn/gate"),
            *dense(f"{LAYER}.mlp.fc2", f"{OURS}/ffn/out"),
            *norm(f"{LAYER}.norm2", f"{OURS}/ffn_norm"),
        ),
        heads={
            "mlm": (
                *dense("cls.predictions.transform.dense", "mlm_head/transform/dense"),
                *norm("cls.predictions.transform.layer_norm", "mlm_head/transform/norm"),
                *table("cls.predictions.bias", "mlm_head/bias"),
            ),
            "classes": POOLER + bert.CLASSIFIER,
            "tags": bert.CLASSIFIER,
        },
        tied={"cls.predictions.decoder.weight": "nomic_bert.embeddings.word_embeddings.weight",
              "cls.predictions.decoder.bias": "cls.predictions.bias"},
        modules={
            r"\bencoder\.layers\.": "layers.",
            r"\bemb_ln\.": "embeddings.LayerNorm.",
            r"\.attn\.Wqkv\.": tuple(f".self_attn.{x}_proj." for x in "qkv"),
            r"\.attn\.out_proj\.": ".self_attn.o_proj.",
            r"\.norm1\.": ".post_attention_layernorm.",
            r"\.norm2\.": ".post_mlp_layernorm.",
            r"\.fc11\.": ".up_proj.", r"\.fc12\.": ".gate_proj.", r"\.fc2\.": ".down_proj.",
        },
    ),
    trunk=trunk,
    values=values,
    head=bert.head,
)
