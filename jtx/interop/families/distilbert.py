"""DistilBERT (Sanh et al. 2019): BERT without token types and pooler.

`dropout` is block.dropout and comes before tags; `seq_classif_dropout` comes before classes
and choices, `qa_dropout` before spans. DistilBERT's attention has none on its output.
"""

from typing import Any, Mapping

from jtx.config import section
from jtx.interop.attributes import ACTIVATIONS, activation_name, init_std, need
from jtx.interop.families import bert
from jtx.interop.family import Attributes, Family, Heads, Names
from jtx.interop.tables import dense, norm, table
from jtx.models.encoder import Encoder
from jtx.nn.attention import PROJECTIONS
from jtx.nn.positions import POSITIONS, Learned

NORM_EPS = 1e-12  # no attribute changes it
ATTRIBUTES = {
    "vocab_size": ("size", 30522),
    "max_position_embeddings": ("size", 512),
    "n_layers": ("size", 6),
    "n_heads": ("size", 12),
    "dim": ("size", 768),
    "hidden_dim": ("size", 3072),
    "dropout": ("rate", 0.1),
    "attention_dropout": ("rate", 0.1),
    "activation": ("activation", "gelu"),
    "initializer_range": ("positive", 0.02),
    "qa_dropout": ("rate", 0.1),
    "seq_classif_dropout": ("rate", 0.2),
}


def trunk(values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
  std = values["initializer_range"]
  return {
      "vocab_size": values["vocab_size"],
      "mlm": "mlm" in heads,
      "embedding": {"types": 0},
      "stack": {
          "width": values["dim"],
          "num_layers": values["n_layers"],
          "position": section(POSITIONS, "learned", max_length=values["max_position_embeddings"],
                              init_std=std),
          "block": {
              "attention": {"num_heads": values["n_heads"], "biases": PROJECTIONS,
                            "dropout": values["attention_dropout"]},
              "ffn": {"dim": values["hidden_dim"],
                      "activation": ACTIVATIONS[values["activation"]]},
              "norm": {"position": "post", "eps": NORM_EPS},
              "dropout": values["dropout"],
              "init_std": std,
          },
      },
  }


def head(values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
  if heads & {"tags", "span"}:
    return {"pool": "none", "dropout": values["dropout" if "tags" in heads else "qa_dropout"]}
  return {"pool": "first", "transform": "relu", "dropout": values["seq_classif_dropout"]}


def values(model: Encoder) -> dict[str, Any]:
  """The inverse of `trunk` and `head`."""
  stack, block, head = model.stack, model.stack.block, model.head
  need(isinstance(stack.position, Learned),
       f"has learned positions, not {type(stack.position).__name__}")
  return {
      "vocab_size": model.vocab_size,
      "max_position_embeddings": stack.position.max_length,
      "n_layers": stack.num_layers,
      "n_heads": block.attention.num_heads,
      "dim": stack.width,
      "hidden_dim": block.ffn.dim,
      "dropout": block.dropout,
      "attention_dropout": block.attention.dropout,
      "activation": activation_name(block.ffn.activation),
      "initializer_range": init_std(block),
      "qa_dropout": head.dropout if head.task == "span" else 0.1,
      "seq_classif_dropout": head.dropout if head.task in ("classes", "choice") else 0.2,
  }


LAYER, OURS = "distilbert.transformer.layer.{i}", "encoder/{layers}"
POOLED = dense("pre_classifier", "task_head/transform/dense") + bert.CLASSIFIER

FAMILY = Family(
    architectures={
        "DistilBertModel": frozenset(),
        "DistilBertForMaskedLM": {"mlm"},
        "DistilBertForSequenceClassification": {"classes"},
        "DistilBertForTokenClassification": {"tags"},
        "DistilBertForQuestionAnswering": {"span"},
        "DistilBertForMultipleChoice": {"choice"},
    },
    # Sinusoids or not, the table of positions is in the files.
    attributes=Attributes(ATTRIBUTES, free=frozenset({"sinusoidal_pos_embds"})),
    names=Names(
        prefix="distilbert",
        trunk=(
            *table("distilbert.embeddings.word_embeddings.weight", "embed/embedding"),
            *table("distilbert.embeddings.position_embeddings.weight", "position_embedding"),
            *norm("distilbert.embeddings.LayerNorm", "embed_norm"),
            *dense(f"{LAYER}.attention.q_lin", f"{OURS}/attention/query"),
            *dense(f"{LAYER}.attention.k_lin", f"{OURS}/attention/key"),
            *dense(f"{LAYER}.attention.v_lin", f"{OURS}/attention/value"),
            *dense(f"{LAYER}.attention.out_lin", f"{OURS}/attention/out", num_in=2),
            *norm(f"{LAYER}.sa_layer_norm", f"{OURS}/attention_norm"),
            *dense(f"{LAYER}.ffn.lin1", f"{OURS}/ffn/in"),
            *dense(f"{LAYER}.ffn.lin2", f"{OURS}/ffn/out"),
            *norm(f"{LAYER}.output_layer_norm", f"{OURS}/ffn_norm"),
        ),
        heads={
            "mlm": (
                *dense("vocab_transform", "mlm_head/transform/dense"),
                *norm("vocab_layer_norm", "mlm_head/transform/norm"),
                *table("vocab_projector.bias", "mlm_head/bias"),
            ),
            "classes": POOLED, "tags": bert.CLASSIFIER, "span": bert.SPAN, "choice": POOLED,
        },
        tied={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
        buffers=frozenset({"distilbert.embeddings.position_ids"}),
    ),
    trunk=trunk,
    values=values,
    head=head,
)
