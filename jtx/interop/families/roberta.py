"""RoBERTa (Liu et al. 2019): BERT whose positions are counted from `pad_token_id` + 1.

XLM-R (Conneau et al. 2020) and CamemBERT (Martin et al. 2020) are the same. XLM-R XL and XXL (Goyal
et al. 2021) have norms before sub-layers and none of the embeddings. The head of classes has
a dense layer of its own instead of the pooler, and the masked language model's is always of gelu.
Dropout before that dense layer is not ours.
"""

import dataclasses
from typing import Any, Mapping

from jtx.interop.attributes import need
from jtx.interop.families import bert
from jtx.interop.family import Attributes, Family, Heads, Names
from jtx.interop.tables import dense, norm, renamed, table
from jtx.models.encoder import Encoder

# The class's defaults; the published roberta-base has 514 positions, 1 type and 1e-5.
ATTRIBUTES = {**bert.ATTRIBUTES, "pad_token_id": ("id", 1)}


def trunk(values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
  need("mlm" not in heads or values["hidden_act"] == "gelu",
       f"hidden_act={values['hidden_act']!r}: the masked language model's head of RoBERTa has gelu"
       " whatever this says, and jtx the same in both")
  fields = bert.trunk(values, heads)
  fields["stack"]["position"].first_position = values["pad_token_id"] + 1
  return fields


def head(values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
  fields = bert.head(values, heads)
  if "choice" in heads:  # `classifier_dropout` does not reach it
    fields["dropout"] = values["hidden_dropout_prob"]
  return fields


def values(model: Encoder) -> dict[str, Any]:
  """The inverse of `trunk` and `head`."""
  result = bert.values(model)
  first = model.stack.position.first_position
  need(first > 0, "has position.first_position of 1 or more")
  if model.head.task == "choice":
    result["classifier_dropout"] = None
  return result | {"pad_token_id": first - 1}


LAYER, OURS = "roberta.encoder.layer.{i}", bert.OURS
POOLER = dense("roberta.pooler.dense", "task_head/transform/dense")


def trunk_of_xl(values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
  fields = trunk(values, heads)
  fields["embedding"]["norm"] = False
  fields["stack"]["block"]["norm"]["position"] = "pre"
  return fields


def family(name: str, vocab_size: int) -> Family:
  """The family of the classes whose names begin with `name`, and their default vocabulary."""
  return Family(
      architectures={
          f"{name}Model": {"embedding"},
          f"{name}ForMaskedLM": {"mlm"},
          f"{name}ForSequenceClassification": {"classes"},
          f"{name}ForTokenClassification": {"tags"},
          f"{name}ForQuestionAnswering": {"span"},
          f"{name}ForMultipleChoice": {"choice"},
      },
      attributes=Attributes({**ATTRIBUTES, "vocab_size": ("size", vocab_size)}),
      names=NAMES,
      trunk=trunk,
      values=values,
      head=head,
  )


NAMES = Names(
    prefix="roberta",
    trunk=renamed(bert.ROWS, "bert.", "roberta."),
    heads={
        "mlm": (
            *dense("lm_head.dense", "mlm_head/transform/dense"),
            *norm("lm_head.layer_norm", "mlm_head/transform/norm"),
            *table("lm_head.bias", "mlm_head/bias"),
        ),
        "embedding": POOLER,
        "classes": (*dense("classifier.dense", "task_head/transform/dense"),
                    *dense("classifier.out_proj", "task_head/output")),
        "tags": bert.CLASSIFIER,
        "span": bert.SPAN,
        "choice": POOLER + bert.CLASSIFIER,
    },
    tied={"lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
          "lm_head.decoder.bias": "lm_head.bias"},
    buffers=frozenset({"roberta.embeddings.position_ids"}),
)
FAMILY = family("Roberta", 50265)
XLM = family("XLMRoberta", 30522)
XLM_XL = dataclasses.replace(
    family("XLMRobertaXL", 250880),
    attributes=Attributes({
        **ATTRIBUTES, "vocab_size": ("size", 250880), "hidden_size": ("size", 2560),
        "num_hidden_layers": ("size", 36), "num_attention_heads": ("size", 32),
        "intermediate_size": ("size", 10240), "max_position_embeddings": ("size", 514),
        "type_vocab_size": ("size", 1), "layer_norm_eps": ("positive", 1e-5)}),
    names=dataclasses.replace(NAMES, trunk=(
        *(row for row in NAMES.trunk if not row.name.startswith("roberta.embeddings.LayerNorm")
          and ".output.LayerNorm" not in row.name),
        *norm(f"{LAYER}.attention.self_attn_layer_norm", f"{OURS}/attention_norm"),
        *norm(f"{LAYER}.LayerNorm", f"{OURS}/ffn_norm"),
        *norm("roberta.encoder.LayerNorm", "encoder/final_norm"))),
    trunk=trunk_of_xl)
CAMEMBERT = family("Camembert", 30522)
