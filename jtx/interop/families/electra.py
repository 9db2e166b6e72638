"""ELECTRA (Clark et al. 2020): BERT with an embedding that may be narrower, taught by a generator.

The discriminator says of every token whether it was replaced (`ElectraForPreTraining`); the
generator is a masked language model, whose head is always of gelu, as is that of classes. Dropout
before the dense layer of a head is not ours.
"""

from typing import Any, Mapping

from jtx.interop.attributes import ACTIVATIONS, need
from jtx.interop.families import bert
from jtx.interop.family import Attributes, Family, Heads, Names
from jtx.interop.tables import dense, norm, renamed, table
from jtx.models.encoder import Encoder

ATTRIBUTES = {
    **bert.ATTRIBUTES,
    "embedding_size": ("size", 128),
    "hidden_size": ("size", 256),
    "num_attention_heads": ("size", 4),
    "intermediate_size": ("size", 1024),
    "summary_last_dropout": ("rate", 0.1),  # of multiple choice
}
FIXED = {"summary_type": ("first",), "summary_use_proj": (True,), "summary_activation": ("gelu",),
         "summary_first_dropout": (0, 0.0), "summary_proj_to_labels": (False,)}
# Of the authors' code, which trains both at once.
FREE = frozenset({"generator_size", "generator_layers", "generator_hidden_size"})


def trunk(values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
  need("mlm" not in heads or values["hidden_act"] == "gelu",
       f"hidden_act={values['hidden_act']!r}: the masked language model's head of ELECTRA has gelu"
       " whatever this says, and jtx the same in both")
  fields = bert.trunk(values, heads)
  fields["embedding"]["width"] = values["embedding_size"]
  return fields


def head(values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
  if "replaced" in heads:
    return {"pool": "none", "transform": ACTIVATIONS[values["hidden_act"]], "dropout": 0.0}
  fields = bert.head(values, heads)
  if "choice" in heads:
    fields["dropout"] = values["summary_last_dropout"]
  return fields | ({"transform": "gelu"} if fields["pool"] == "first" else {})


def values(model: Encoder) -> dict[str, Any]:
  """The inverse of `trunk` and `head`."""
  result, head = bert.values(model), model.head
  choice = head.task == "choice"
  return result | {
      "embedding_size": model.embedding.width or model.stack.width,
      "classifier_dropout": None if choice else result["classifier_dropout"],
      "summary_last_dropout": head.dropout if choice else 0.1,
  }


FAMILY = Family(
    architectures={
        "ElectraModel": frozenset(),
        "ElectraForPreTraining": {"replaced"},
        "ElectraForMaskedLM": {"mlm"},
        "ElectraForSequenceClassification": {"classes"},
        "ElectraForTokenClassification": {"tags"},
        "ElectraForQuestionAnswering": {"span"},
        "ElectraForMultipleChoice": {"choice"},
    },
    attributes=Attributes(ATTRIBUTES, FIXED, FREE),
    names=Names(
        prefix="electra",
        trunk=(*renamed(bert.ROWS, "bert.", "electra."),
               *dense("electra.embeddings_project", "embed_projection")),
        heads={
            "mlm": (
                *dense("generator_predictions.dense", "mlm_head/transform/dense"),
                *norm("generator_predictions.LayerNorm", "mlm_head/transform/norm"),
                *table("generator_lm_head.bias", "mlm_head/bias"),
            ),
            "replaced": (
                *dense("discriminator_predictions.dense", "task_head/transform/dense"),
                *dense("discriminator_predictions.dense_prediction", "task_head/output"),
            ),
            "classes": (*dense("classifier.dense", "task_head/transform/dense"),
                        *dense("classifier.out_proj", "task_head/output")),
            "tags": bert.CLASSIFIER,
            "span": bert.SPAN,
            "choice": (*dense("sequence_summary.summary", "task_head/transform/dense"),
                       *bert.CLASSIFIER),
        },
        tied={"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"},
        buffers=frozenset({"electra.embeddings.position_ids"}),
    ),
    trunk=trunk,
    values=values,
    head=head,
)
