"""ALBERT (Lan et al. 2020): one layer's parameters for all, and a narrow embedding.

Dropout: `hidden_dropout_prob` is block.dropout, and what comes before every output but
those of a span is `classifier_dropout_prob`.
"""

from typing import Any, Mapping

from jtx.interop.attributes import need
from jtx.interop.families import bert
from jtx.interop.family import Attributes, Family, Heads, Names
from jtx.interop.tables import dense, norm, renamed, table
from jtx.models.encoder import Encoder

ATTRIBUTES = {
    **{name: row for name, row in bert.ATTRIBUTES.items() if name != "classifier_dropout"},
    "vocab_size": ("size", 30000),
    "embedding_size": ("size", 128),
    "hidden_size": ("size", 4096),
    "num_attention_heads": ("size", 64),
    "intermediate_size": ("size", 16384),
    "hidden_act": ("activation", "gelu_new"),
    "hidden_dropout_prob": ("rate", 0.0),
    "attention_probs_dropout_prob": ("rate", 0.0),
    "classifier_dropout_prob": ("rate", 0.1),
}

# The last four are of the authors' code, which the published files still name.
FIXED = {"num_hidden_groups": (1,), "inner_group_num": (1,), "down_scale_factor": (1,),
         "gap_size": (0,), "net_structure_type": (0,), "num_memory_blocks": (0,)}


def trunk(values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
  need(values["embedding_size"] != values["hidden_size"],
       f"embedding_size={values['embedding_size']} is hidden_size: ALBERT has a projection between"
       " them even then, and jtx has none")
  fields = bert.trunk(values, heads)
  fields["embedding"]["width"], fields["stack"]["share"] = values["embedding_size"], True
  return fields


def head(values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
  fields = bert.head({**values, "classifier_dropout": None}, heads)
  return fields | {"dropout": 0.0 if "span" in heads else values["classifier_dropout_prob"]}


def values(model: Encoder) -> dict[str, Any]:
  """The inverse of `trunk` and `head`."""
  need(model.stack.share, "has stack.share=True")
  width = model.embedding.width
  need(width not in (None, model.stack.width), "has embedding.width below stack.width")
  result = bert.values(model)
  del result["classifier_dropout"]
  rate = 0.1 if model.head.task in ("none", "span") else model.head.dropout
  return result | {"embedding_size": width, "num_hidden_groups": 1,
                   "inner_group_num": 1, "classifier_dropout_prob": rate}


LAYER, OURS = "albert.encoder.albert_layer_groups.0.albert_layers.0", "encoder/layers"
POOLER = dense("albert.pooler", "task_head/transform/dense")

FAMILY = Family(
    architectures={
        "AlbertModel": {"embedding"},
        "AlbertForPreTraining": {"mlm", "sentence_order"},
        "AlbertForMaskedLM": {"mlm"},
        "AlbertForSequenceClassification": {"classes"},
        "AlbertForTokenClassification": {"tags"},
        "AlbertForQuestionAnswering": {"span"},
        "AlbertForMultipleChoice": {"choice"},
    },
    attributes=Attributes(ATTRIBUTES, FIXED),
    names=Names(
        prefix="albert",
        trunk=(
            *renamed(bert.EMBEDDING_ROWS, "bert.", "albert."),
            *dense("albert.encoder.embedding_hidden_mapping_in", "embed_projection"),
            *dense(f"{LAYER}.attention.query", f"{OURS}/attention/query"),
            *dense(f"{LAYER}.attention.key", f"{OURS}/attention/key"),
            *dense(f"{LAYER}.attention.value", f"{OURS}/attention/value"),
            *dense(f"{LAYER}.attention.dense", f"{OURS}/attention/out", num_in=2),
            *norm(f"{LAYER}.attention.LayerNorm", f"{OURS}/attention_norm"),
            *dense(f"{LAYER}.ffn", f"{OURS}/ffn/in"),
            *dense(f"{LAYER}.ffn_output", f"{OURS}/ffn/out"),
            *norm(f"{LAYER}.full_layer_layer_norm", f"{OURS}/ffn_norm"),
        ),
        heads={
            "mlm": (
                *dense("predictions.dense", "mlm_head/transform/dense"),
                *norm("predictions.LayerNorm", "mlm_head/transform/norm"),
                *table("predictions.bias", "mlm_head/bias"),
            ),
            "embedding": POOLER,
            "sentence_order": POOLER + dense("sop_classifier.classifier", "task_head/output"),
            "classes": POOLER + bert.CLASSIFIER,
            "tags": bert.CLASSIFIER,
            "span": bert.SPAN,
            "choice": POOLER + bert.CLASSIFIER,
        },
        tied={"predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
              "predictions.decoder.bias": "predictions.bias"},
        buffers=frozenset({"albert.embeddings.position_ids"}),
    ),
    trunk=trunk,
    values=values,
    head=head,
)
