"""BERT (Devlin et al. 2019): `BertModel` and the classes with a head.

`hidden_dropout_prob` is block.dropout. The pooler is the transform of a head.
"""

from typing import Any, Mapping

from jtx.config import section
from jtx.interop.attributes import ACTIVATIONS, activation_name, init_std, need
from jtx.interop.family import Attributes, Family, Heads, Names
from jtx.interop.tables import dense, norm, table
from jtx.models.encoder import Encoder
from jtx.nn.attention import PROJECTIONS
from jtx.nn.positions import POSITIONS, Learned

ATTRIBUTES = {
    "vocab_size": ("size", 30522),
    "hidden_size": ("size", 768),
    "num_hidden_layers": ("size", 12),
    "num_attention_heads": ("size", 12),
    "intermediate_size": ("size", 3072),
    "hidden_act": ("activation", "gelu"),
    "hidden_dropout_prob": ("rate", 0.1),
    "attention_probs_dropout_prob": ("rate", 0.1),
    "max_position_embeddings": ("size", 512),
    "type_vocab_size": ("size", 2),
    "initializer_range": ("positive", 0.02),
    "layer_norm_eps": ("positive", 1e-12),
    "classifier_dropout": ("rate", None),
}

# The authors' multilingual files have these; the pooler has but one kind.
FIXED = {"directionality": ("bidi",), "pooler_type": ("first_token_transform",)}
FREE = frozenset({"pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers",
                  "pooler_size_per_head"})


def trunk(values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
  std = values["initializer_range"]
  return {
      "vocab_size": values["vocab_size"],
      "mlm": "mlm" in heads,
      "embedding": {"types": values["type_vocab_size"]},
      "stack": {
          "width": values["hidden_size"],
          "num_layers": values["num_hidden_layers"],
          "position": section(POSITIONS, "learned", max_length=values["max_position_embeddings"],
                              init_std=std),
          "block": {
              "attention": {"num_heads": values["num_attention_heads"], "biases": PROJECTIONS,
                            "dropout": values["attention_probs_dropout_prob"]},
              "ffn": {"dim": values["intermediate_size"],
                      "activation": ACTIVATIONS[values["hidden_act"]]},
              "norm": {"position": "post", "eps": values["layer_norm_eps"]},
              "dropout": values["hidden_dropout_prob"],
              "init_std": std,
          },
      },
  }


def head_dropout(values: Mapping[str, Any]) -> float:
  rate = values["classifier_dropout"]
  return values["hidden_dropout_prob"] if rate is None else rate


def head(values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
  """The pooler where a text is pooled; dropout where `classifier_dropout` speaks of it."""
  dropout = head_dropout(values) if heads & {"classes", "tags", "choice"} else 0.0
  if heads & {"tags", "span"}:
    return {"pool": "none", "dropout": dropout}
  return {"pool": "first", "transform": "tanh", "dropout": dropout}


def values_of_layers(model: Encoder) -> dict[str, Any]:
  """The inverse of `trunk`, without positions."""
  stack, block = model.stack, model.stack.block
  return {
      "vocab_size": model.vocab_size,
      "hidden_size": stack.width,
      "num_hidden_layers": stack.num_layers,
      "num_attention_heads": block.attention.num_heads,
      "intermediate_size": block.ffn.dim,
      "hidden_act": activation_name(block.ffn.activation),
      "hidden_dropout_prob": block.dropout,
      "attention_probs_dropout_prob": block.attention.dropout,
      "type_vocab_size": model.embedding.types,
      "initializer_range": init_std(block),
      "layer_norm_eps": block.norm.eps,
  }


def values(model: Encoder) -> dict[str, Any]:
  """The inverse of `trunk` and `head`."""
  position, head = model.stack.position, model.head
  need(isinstance(position, Learned), f"has learned positions, not {type(position).__name__}")
  need(model.embedding.types > 0, "has token types, and embedding.types=0")
  has_rate = head.task in ("classes", "tags", "choice")
  return values_of_layers(model) | {
      "max_position_embeddings": position.max_length,
      "classifier_dropout": head.dropout if has_rate else None,
  }


EMBEDDING_ROWS = (
    *table("bert.embeddings.word_embeddings.weight", "embed/embedding"),
    *table("bert.embeddings.position_embeddings.weight", "position_embedding"),
    *table("bert.embeddings.token_type_embeddings.weight", "type_embedding"),
    *norm("bert.embeddings.LayerNorm", "embed_norm"),
)
LAYER, OURS = "bert.encoder.layer.{i}", "encoder/{layers}"
LAYER_ROWS = (
    *dense(f"{LAYER}.attention.self.query", f"{OURS}/attention/query"),
    *dense(f"{LAYER}.attention.self.key", f"{OURS}/attention/key"),
    *dense(f"{LAYER}.attention.self.value", f"{OURS}/attention/value"),
    *dense(f"{LAYER}.attention.output.dense", f"{OURS}/attention/out", num_in=2),
    *norm(f"{LAYER}.attention.output.LayerNorm", f"{OURS}/attention_norm"),
    *dense(f"{LAYER}.intermediate.dense", f"{OURS}/ffn/in"),
    *dense(f"{LAYER}.output.dense", f"{OURS}/ffn/out"),
    *norm(f"{LAYER}.output.LayerNorm", f"{OURS}/ffn_norm"),
)
ROWS = EMBEDDING_ROWS + LAYER_ROWS
MLM_ROWS = (
    *dense("cls.predictions.transform.dense", "mlm_head/transform/dense"),
    *norm("cls.predictions.transform.LayerNorm", "mlm_head/transform/norm"),
    *table("cls.predictions.bias", "mlm_head/bias"),
)
POOLER = dense("bert.pooler.dense", "task_head/transform/dense")
CLASSIFIER = dense("classifier", "task_head/output")
SPAN = dense("qa_outputs", "task_head/output")

FAMILY = Family(
    architectures={
        "BertModel": {"embedding"},
        "BertForPreTraining": {"mlm", "next_sentence"},
        "BertForMaskedLM": {"mlm"},
        "BertForNextSentencePrediction": {"next_sentence"},
        "BertForSequenceClassification": {"classes"},
        "BertForTokenClassification": {"tags"},
        "BertForQuestionAnswering": {"span"},
        "BertForMultipleChoice": {"choice"},
    },
    attributes=Attributes(ATTRIBUTES, FIXED, FREE),
    names=Names(
        prefix="bert",
        trunk=ROWS,
        heads={
            "mlm": MLM_ROWS,
            "embedding": POOLER,
            "next_sentence": POOLER + dense("cls.seq_relationship", "task_head/output"),
            "classes": POOLER + CLASSIFIER,
            "tags": CLASSIFIER,
            "span": SPAN,
            "choice": POOLER + CLASSIFIER,
        },
        tied={"cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
              "cls.predictions.decoder.bias": "cls.predictions.bias"},
        buffers=frozenset({"bert.embeddings.position_ids"}),
    ),
    trunk=trunk,
    values=values,
    head=head,
)
