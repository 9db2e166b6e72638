"""DeBERTa (He et al. 2020), and versions 2 and 3 (He et al. 2021), which are one model type.

`hidden_dropout_prob` is block.dropout; the table of distances has none here. Dropout before a
pooler is not ours. The enhanced mask decoder, `masked.positions`, is not in these classes.
"""

from typing import Any, Mapping

from jtx.config import section
from jtx.interop.attributes import ACTIVATIONS, activation_name, need
from jtx.interop.families import bert
from jtx.interop.family import Attributes, Family, Heads, Names
from jtx.interop.tables import (
    TABLE, VECTOR, Layout, Row, dense, matrix, norm, renamed, table)
from jtx.models.encoder import Encoder
from jtx.nn.disentangled import TERMS, Disentangled
from jtx.nn.positions import POSITIONS

ATTRIBUTES = {
    **{name: row for name, row in bert.ATTRIBUTES.items() if name != "classifier_dropout"},
    "vocab_size": ("size", 50265),
    "type_vocab_size": ("id", 0),
    "layer_norm_eps": ("positive", 1e-7),
    "relative_attention": ("flag", False),
    "position_biased_input": ("flag", True),
    "max_relative_positions": ("size_or_minus_1", -1),  # -1 is max_position_embeddings
    "pos_att_type": ("words", ""),
    "embedding_size": ("size", None),
    "pooler_hidden_size": ("size", None),
    "pooler_hidden_act": ("activation", "gelu"),
    "cls_dropout": ("rate", None),
}
V2_ATTRIBUTES = ATTRIBUTES | {
    "vocab_size": ("size", 128100),
    "hidden_size": ("size", 1536),
    "num_hidden_layers": ("size", 24),
    "num_attention_heads": ("size", 24),
    "intermediate_size": ("size", 6144),
    "attention_head_size": ("size", None),
    "share_att_key": ("flag", False),
    "position_buckets": ("size_or_minus_1", -1),
    "norm_rel_ebd": ("words", "none"),
    "conv_kernel_size": ("id", 0),
    "conv_groups": ("size", 1),
    "conv_act": ("activation", "tanh"),
}
FIXED = {"pooler_dropout": (0, 0.0), "talking_head": (False,)}
# `legacy` tells the names of the head of masked tokens, which are read whatever they are.
FREE = frozenset({"padding_idx", "pooler_size", "legacy"})


def words(value: Any) -> list[str]:
  """Those of a list, or of a text in which they are joined by "|"."""
  given = value.lower().split("|") if isinstance(value, str) else value or ()
  return [word.strip() for word in given if word.strip()]


def position(values: Mapping[str, Any]) -> dict[str, Any]:
  """What the positions of both have."""
  width, terms = values["hidden_size"], words(values["pos_att_type"])
  need(values["relative_attention"] and not values["position_biased_input"],
       f"relative_attention={values['relative_attention']} and position_biased_input="
       f"{values['position_biased_input']} are not what jtx computes, which are True and False")
  need(bool(terms) and set(terms) <= set(TERMS),
       f"pos_att_type={values['pos_att_type']!r} must have c2p, p2c or both, and nothing else")
  for name in ("embedding_size", "pooler_hidden_size"):
    need(values[name] in (None, width), f"{name}={values[name]} must be hidden_size={width}")
  reach = values["max_relative_positions"]
  return {"span": values["max_position_embeddings"] if reach == -1 else reach,
          "terms": tuple(term for term in TERMS if term in terms),
          "norm_eps": values["layer_norm_eps"], "init_std": values["initializer_range"]}


def trunk_of_v1(values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
  fields, own = bert.trunk(values, heads), position(values)
  del own["norm_eps"]
  fields["stack"]["position"] = section(POSITIONS, "disentangled", **own, max_distance=0,
                                        shared=False, norm=False)
  fields["stack"]["block"]["attention"]["biases"] = ("query", "value", "out")
  return fields


def trunk_of_v2(values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
  fields, own = bert.trunk(values, heads), position(values)
  width, number, buckets = (values[name] for name in (
      "hidden_size", "num_attention_heads", "position_buckets"))
  need(values["share_att_key"], "share_att_key=False: jtx has projections of distances that are"
       " those of tokens in this model type")
  need(values["attention_head_size"] in (None, width // number),
       f"attention_head_size={values['attention_head_size']} must be hidden_size={width} /"
       f" num_attention_heads={number}")
  norms = set(words(values["norm_rel_ebd"])) - {"none"}
  need(norms <= {"layer_norm"}, f"norm_rel_ebd={values['norm_rel_ebd']!r}: valid are 'none' and"
       " 'layer_norm'")
  reach, size, groups = own["span"], values["conv_kernel_size"], values["conv_groups"]
  need(buckets == -1 or buckets % 2 == 0 and reach >= buckets // 2 + 2,
       f"position_buckets={buckets} must be even, and max_relative_positions={reach} at least half"
       " of it and 2")
  need(size == 0 or size % 2 == 1 and width % groups == 0,
       f"conv_kernel_size={size} must be odd, and conv_groups={groups} divide hidden_size={width}")
  if not norms:
    del own["norm_eps"]
  fields["stack"]["position"] = section(POSITIONS, "disentangled", **own | {
      "span": reach if buckets == -1 else buckets,
      "max_distance": 0 if buckets == -1 else reach, "norm": bool(norms)})
  if size:
    fields["stack"]["block"]["convolution"] = {
        "size": size, "groups": groups, "activation": ACTIVATIONS[values["conv_act"]]}
  return fields


def head(values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
  """A pooler of every class with one; dropout before all outputs but those of a span."""
  if heads & {"tags", "span"}:
    return {"pool": "none", "dropout": values["hidden_dropout_prob"] if "tags" in heads else 0.0}
  rate = values["cls_dropout"]
  return {"pool": "first", "transform": ACTIVATIONS[values["pooler_hidden_act"]],
          "dropout": values["hidden_dropout_prob"] if rate is None else rate}


def values_of_both(model: Encoder) -> dict[str, Any]:
  """The inverse of `position` and `head`, with what BERT has."""
  stack, block, head = model.stack, model.stack.block, model.head
  own = stack.position
  need(isinstance(own, Disentangled), f"has disentangled attention, not {type(own).__name__}")
  pooled = head.task in ("classes", "multi_label", "choice")
  return bert.values_of_layers(model) | {
      "type_vocab_size": model.embedding.types,
      "max_position_embeddings": own.max_distance or own.span,
      "max_relative_positions": -1,
      "relative_attention": True,
      "position_biased_input": False,
      "pos_att_type": list(own.terms),
      "pooler_hidden_size": stack.width,
      "pooler_hidden_act": activation_name(head.transform) if pooled else "gelu",
      "pooler_dropout": 0,
      "cls_dropout": head.dropout if pooled else None,
      "legacy": True,
  }


def values_of_v2(model: Encoder) -> dict[str, Any]:
  """The inverse of `trunk_of_v2` and `head`."""
  result, own, convolution = values_of_both(model), model.stack.position, (
      model.stack.block.convolution)
  return result | {
      "share_att_key": True,
      "position_buckets": own.span if own.max_distance else -1,
      "norm_rel_ebd": "layer_norm" if own.norm else "none",
      "conv_kernel_size": convolution.size,
      "conv_groups": convolution.groups,
      "conv_act": activation_name(convolution.activation),
  }


# [outputs, inputs of a group, places] in the file, and here the other way round.
CONVOLUTION = Layout(lambda s: s[::-1], lambda x, s: x.T, lambda x: x.T)
LAYER, OURS = "deberta.encoder.layer.{i}", "encoder/{layers}"
SELF, ATTENTION = f"{LAYER}.attention.self", f"{OURS}/attention"
ROWS = (
    *table("deberta.embeddings.word_embeddings.weight", "embed/embedding"),
    *table("deberta.embeddings.token_type_embeddings.weight", "type_embedding"),
    *norm("deberta.embeddings.LayerNorm", "embed_norm"),
    *table("deberta.encoder.rel_embeddings.weight", "encoder/distances"),
    *(row for row in renamed(bert.LAYER_ROWS, "bert.", "deberta.") if ".self." not in row.name),
)
V1_ROWS = (
    *ROWS,
    *dense(f"{SELF}.in_proj", *(f"{ATTENTION}/{part}" for part in ("query", "key", "value")),
           by_head=True)[:1],
    Row(f"{SELF}.q_bias", (f"{ATTENTION}/query/bias",), VECTOR),
    Row(f"{SELF}.v_bias", (f"{ATTENTION}/value/bias",), VECTOR),
    Row(f"{SELF}.pos_proj.weight", (f"{ATTENTION}/position_key",), matrix(1)),
    Row(f"{SELF}.pos_q_proj.weight", (f"{ATTENTION}/position_query",), matrix(1)),
    Row(f"{SELF}.pos_q_proj.bias", (f"{ATTENTION}/position_query_bias",), VECTOR),
)
V2_ROWS = (
    *ROWS,
    *(row for part in ("query", "key", "value")
      for row in dense(f"{SELF}.{part}_proj", f"{ATTENTION}/{part}")),
    Row("deberta.encoder.LayerNorm.weight", ("encoder/distances_norm_scale",), TABLE),
    Row("deberta.encoder.LayerNorm.bias", ("encoder/distances_norm_bias",), TABLE),
    dense("deberta.encoder.conv.conv", f"{OURS}/convolution")[0]._replace(layout=CONVOLUTION),
    dense("deberta.encoder.conv.conv", f"{OURS}/convolution")[1],
    *norm("deberta.encoder.conv.LayerNorm", f"{OURS}/convolution_norm"),
)
POOLED = dense("pooler.dense", "task_head/transform/dense") + bert.CLASSIFIER
# Files of the authors have the head of masked tokens by other names, positions of the enhanced mask
# decoder, and version 3 a head of replaced tokens.
SPELLINGS = {r"^lm_predictions\.lm_head\.(dense|LayerNorm)\.": r"cls.predictions.transform.\1.",
             r"^lm_predictions\.lm_head\.bias$": "cls.predictions.bias"}
BUFFERS = frozenset({"deberta.embeddings.position_ids",
                     "deberta.embeddings.position_embeddings.weight"} | {
    f"mask_predictions.{part}.{kind}" for part in ("dense", "LayerNorm", "classifier")
    for kind in ("weight", "bias")})


def family(name: str, rows: tuple[Row, ...], attributes: Mapping[str, tuple[str, Any]],
           trunk: Any, values: Any, choice: bool) -> Family:
  """The family whose classes begin with `name`."""
  architectures = {"Model": frozenset(), "ForMaskedLM": {"mlm"},
                   "ForSequenceClassification": {"classes"}, "ForTokenClassification": {"tags"},
                   "ForQuestionAnswering": {"span"}}
  if choice:
    architectures["ForMultipleChoice"] = {"choice"}
  return Family(
      architectures={f"{name}{suffix}": heads for suffix, heads in architectures.items()},
      attributes=Attributes(attributes, FIXED, FREE),
      names=Names(
          prefix="deberta",
          trunk=rows,
          heads={"mlm": bert.MLM_ROWS, "classes": POOLED, "tags": bert.CLASSIFIER,
                 "span": bert.SPAN, "choice": POOLED},
          tied={"cls.predictions.decoder.weight": "deberta.embeddings.word_embeddings.weight",
                "cls.predictions.decoder.bias": "cls.predictions.bias"},
          buffers=BUFFERS,
          spellings=SPELLINGS,
      ),
      trunk=trunk, values=values, head=head)


V1 = family("Deberta", V1_ROWS, ATTRIBUTES, trunk_of_v1, values_of_both, choice=False)
V2 = family("DebertaV2", V2_ROWS, V2_ATTRIBUTES, trunk_of_v2, values_of_v2, choice=True)
