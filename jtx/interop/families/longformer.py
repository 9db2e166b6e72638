"""Longformer (Beltagy et al. 2020): RoBERTa with a sliding window and global tokens.

`attention_window` counts both sides, of all layers or of each. Global queries, and the keys and
values that they see, have projections of their own. Which tokens are global follows from the class:
the first one for classes, the question for answers, the second text for multiple choice, and none
for others, to which a caller may give `global_attention_mask`, here `text_global` of a batch.
"""

from typing import Any, Mapping

from jtx.interop.attributes import need
from jtx.interop.families import bert, roberta
from jtx.interop.family import Attributes, Family, Heads, Names, task_of
from jtx.interop.layers import cycle
from jtx.interop.tables import dense, renamed
from jtx.models.encoder import Encoder
from jtx.models.global_tokens import OF_TEXTS, tokens_for
from jtx.nn.kinds import kind_of

# The class's defaults; the published longformer-base-4096 has 4098 positions, 1 type and 1e-5.
ATTRIBUTES = {
    **{name: kind for name, kind in roberta.ATTRIBUTES.items() if name != "classifier_dropout"},
    "attention_window": ("windows", 512),
    "sep_token_id": ("id", 2),
}
KIND = "global_tokens"


def trunk(values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
  given, number = values["attention_window"], values["num_hidden_layers"]
  windows = given if isinstance(given, list) else [given] * number
  need(len(windows) == number,
       f"attention_window has {len(windows)} entries, and num_hidden_layers={number}")
  fields = roberta.trunk(values, heads)
  stack = fields["stack"]
  stack["block"]["attention"]["global_projections"] = True
  if len(set(windows)) == 1:
    stack |= {"pattern": (KIND,), "window": windows[0] // 2}
  else:
    stack["pattern"] = cycle([f"{KIND}:{window // 2}" for window in windows])
  tokens = tokens_for(task_of(heads))
  separator = {"separator": values["sep_token_id"]} if tokens in OF_TEXTS else {}
  return fields | {"globals": {"tokens": tokens, **separator}}


def head(values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
  return bert.head({**values, "classifier_dropout": None}, heads)


def values(model: Encoder) -> dict[str, Any]:
  """The inverse of `trunk` and `head`."""
  stack = model.stack
  need(stack.block.attention.global_projections, "has attention.global_projections=True")
  found = roberta.values(model)
  del found["classifier_dropout"]
  own = [kind_of(stack.pattern[i % len(stack.pattern)])[1] for i in range(stack.num_layers)]
  windows = [2 * (stack.window if width is None else width) for width in own]
  result = {**found, "attention_window": windows[0] if len(set(windows)) == 1 else windows}
  if model.globals.tokens in OF_TEXTS:
    result["sep_token_id"] = model.globals.separator
  return result


LAYER, OURS = "longformer.encoder.layer.{i}.attention.self", "encoder/{layers}/attention"
FAMILY = Family(
    architectures={
        "LongformerModel": {"embedding"},
        "LongformerForMaskedLM": {"mlm"},
        "LongformerForSequenceClassification": {"classes"},
        "LongformerForTokenClassification": {"tags"},
        "LongformerForQuestionAnswering": {"span"},
        "LongformerForMultipleChoice": {"choice"},
    },
    attributes=Attributes(ATTRIBUTES, free=frozenset({"onnx_export", "ignore_attention_mask"})),
    names=Names(
        prefix="longformer",
        trunk=(*renamed(bert.ROWS, "bert.", "longformer."),
               *(row for name in ("query", "key", "value")
                 for row in dense(f"{LAYER}.{name}_global", f"{OURS}/global_{name}"))),
        heads={name: tuple(row._replace(name=row.name.replace("roberta.", "longformer."))
                           for row in rows) for name, rows in roberta.NAMES.heads.items()},
        tied={"lm_head.decoder.weight": "longformer.embeddings.word_embeddings.weight",
              "lm_head.decoder.bias": "lm_head.bias"},
        buffers=frozenset({"longformer.embeddings.position_ids"}),
    ),
    trunk=trunk,
    values=values,
    head=head,
)
