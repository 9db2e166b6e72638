"""T5, its v1.1 and ByT5 (one model type), mT5 and UMT5.

`...ForConditionalGeneration`, `...ForSequenceClassification` and `...ForQuestionAnswering`; and of
the encoder alone, which files of the whole model may be opened as, `...EncoderModel` and
`...ForTokenClassification`.
Raffel et al. 2020; Xue et al. 2021, 2022; Chung et al. 2023. `dropout_rate` is that of all places.
The first version multiplies the decoder's output by width^-0.5, and its output weights are the
embedding. Whether a model does the former is said by `scale_decoder_outputs`, or before that key by
`tie_word_embeddings`. Recent files say that the output is tied whatever they hold: a table of it
that is there is used (`resolved`).
"""

from typing import Any, Callable, Mapping

from jtx.config import section
from jtx.interop.attributes import ACTIVATIONS, activation_name, need
from jtx.interop.family import Attributes, Family, Heads, Names, stored, task_of
from jtx.interop.tables import dense, norm, table
from jtx.models.encdec import EncDec
from jtx.models.encoder import Encoder
from jtx.nn.block import BlockConfig
from jtx.nn.positions import POSITIONS
from jtx.nn.relative import T5Bias
from jtx.nn.shift import LAST
from jtx.nn.stack import StackConfig

ATTRIBUTES = {
    "vocab_size": ("size", 32128),
    "d_model": ("size", 512),
    "d_kv": ("size", 64),
    "d_ff": ("size", 2048),
    "num_layers": ("size", 6),
    "num_decoder_layers": ("size", None),
    "num_heads": ("size", 8),
    "relative_attention_num_buckets": ("size", 32),
    "relative_attention_max_distance": ("size", 128),
    "dropout_rate": ("rate", 0.1),
    "layer_norm_epsilon": ("positive", 1e-6),
    "initializer_factor": ("positive", 1.0),
    "feed_forward_proj": ("feed_forward", "relu"),
    "is_gated_act": ("flag", None),  # what is derived from it, which must not say otherwise
    "dense_act_fn": ("activation", None),
    "tie_word_embeddings": ("flag", True),
    "scale_decoder_outputs": ("flag", None),
    "classifier_dropout": ("rate", 0.0),
    "decoder_start_token_id": ("id", None),  # of a head
}
M_ATTRIBUTES = ATTRIBUTES | {
    "vocab_size": ("size", 250112),
    "d_ff": ("size", 1024),
    "num_layers": ("size", 8),
    "num_heads": ("size", 6),
    "feed_forward_proj": ("feed_forward", "gated-gelu"),
}
FREE = frozenset({"dense_act_fn", "is_gated_act", "n_positions", "output_past"})
START = 0  # the padding
OUTPUT, SHARED = "lm_head.weight", "shared.weight"


def feed_forward(name: str) -> tuple[bool, str]:
  """Whether it is gated, and our activation: "gated-gelu" is tanh's, and "gelu" is not."""
  gated, act = name.startswith("gated-"), name.removeprefix("gated-")
  return gated, "gelu_tanh" if name == "gated-gelu" else ACTIVATIONS[act]


def feed_forward_name(block: BlockConfig) -> str:
  """The inverse of `feed_forward`."""
  if block.ffn.gated and block.ffn.activation == "gelu_tanh":
    return "gated-gelu"
  name = activation_name(block.ffn.activation)
  need((block.ffn.gated, name) != (True, "gelu"), "has no gated exact GELU")
  return f"gated-{name}" if block.ffn.gated else name


def resolved(config: Mapping[str, Any], same: Callable[[str, str], bool | None]) -> dict[str, Any]:
  """A config.json whose attributes are those of the files beside it.

  Args:
    config: its content.
    same: whether two tensors of the files are equal; None where the first is absent.
  """
  ties = config["tie_word_embeddings"] if "tie_word_embeddings" in config else True
  scales = config["scale_decoder_outputs"] if "scale_decoder_outputs" in config else None
  found = same(OUTPUT, SHARED)
  if ties and found is False:
    ties, scales = False, ties if scales is None else scales
  return {**config, "tie_word_embeddings": ties, "scale_decoder_outputs": scales}


def stack_of(values: Mapping[str, Any], per_layer: bool) -> dict[str, Any]:
  """The fields of the encoder's stack; every layer has a table of biases where `per_layer`."""
  gated, activation = feed_forward(values["feed_forward_proj"])
  for key, ours, read in (("is_gated_act", gated, bool),
                          ("dense_act_fn", activation, ACTIVATIONS.get)):
    value = values[key]
    need(value is None or read(value) == ours,
         f"{key}={value!r} contradicts feed_forward_proj={values['feed_forward_proj']!r}; remove"
         f" {key}, or set feed_forward_proj to what the model computes")
  return {
      "width": values["d_model"],
      "num_layers": values["num_layers"],
      "position": section(POSITIONS, "t5", per_layer=per_layer,
                          init_std=values["initializer_factor"] * values["d_model"]**-0.5,
                          num_buckets=values["relative_attention_num_buckets"],
                          max_distance=values["relative_attention_max_distance"]),
      "block": {
          "attention": {"num_heads": values["num_heads"], "head_dim": values["d_kv"],
                        "scale": 1.0, "biases": (),
                        "dropout": values["dropout_rate"]},
          "ffn": {"dim": values["d_ff"], "gated": gated, "activation": activation, "bias": False,
                  "dropout": values["dropout_rate"]},
          "norm": {"kind": "rmsnorm", "position": "pre", "eps": values["layer_norm_epsilon"]},
          "dropout": values["dropout_rate"],
      },
  }


def trunk_of(per_layer: bool, scales: bool) -> Callable[[Mapping[str, Any], Heads], dict[str, Any]]:
  """The fields of a model type.

  Args:
    per_layer: every layer has a table of biases.
    scales: it has models whose output is scaled.
  """
  def trunk(values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
    ties, scaled = values["tie_word_embeddings"], values["scale_decoder_outputs"]
    scaled = scales and (ties if scaled is None else scaled)
    stack, number = stack_of(values, per_layer), values["num_decoder_layers"]
    return {
        "vocab_size": values["vocab_size"],
        "embedding": {"tie": ("source", "output") if ties else ("source",), "scale": False,
                      "output_scale": values["d_model"]**-0.5 if scaled else 1.0,
                      "init_std": values["initializer_factor"], "final_dropout": True},
        "encoder": stack,
        "decoder": stack | {"num_layers": values["num_layers"] if number is None else number},
        "seq2seq": "seq2seq" in heads,
        "head_start": start_of(values, heads, START),
    }
  return trunk


def start_of(values: Mapping[str, Any], heads: Heads, default: int | None) -> int | None:
  """The field `head_start` of a model."""
  start = values.get("decoder_start_token_id")
  return None if task_of(heads) == "none" else default if start is None else start


def head(values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
  if "span" in heads:
    return {"pool": "none", "dropout": 0.0}
  return {"pool": "last", "transform": "tanh", "dropout": values["classifier_dropout"]}


def values_of_head(model: EncDec) -> dict[str, Any]:
  """The inverse of `start_of` and `head`."""
  if model.head.task == "none":
    return {}
  dropout = 0.0 if model.head.task == "span" else model.head.dropout
  start = {} if model.head_start == LAST else {"decoder_start_token_id": model.head_start}
  return {**start, "classifier_dropout": dropout}


# Of `...ForSequenceClassification` and `...ForQuestionAnswering`.
HEADS = {
    "classes": (*dense("classification_head.dense", "task_head/transform/dense"),
                *dense("classification_head.out_proj", "task_head/output")),
    "span": dense("qa_outputs", "task_head/output"),
}


def architectures(name: str) -> dict[str, Heads]:
  return {f"{name}ForConditionalGeneration": frozenset({"seq2seq"}),
          f"{name}ForSequenceClassification": frozenset({"classes"}),
          f"{name}ForQuestionAnswering": frozenset({"span"})}


def values(model: EncDec) -> dict[str, Any]:
  """The inverse of the functions that `trunk_of` gives."""
  return values_of(model.encoder) | values_of_head(model) | {
      "vocab_size": model.vocab_size,
      "num_decoder_layers": model.decoder.num_layers,
      "initializer_factor": model.embedding.init_std or 1.0,
      "tie_word_embeddings": "output" in model.embedding.tie,
      "scale_decoder_outputs": model.embedding.output_scale != 1.0,
  }


def values_of(stack: StackConfig) -> dict[str, Any]:
  """The inverse of `stack_of`."""
  block = stack.block
  need(isinstance(stack.position, T5Bias),
       f"has T5's biases as positions, not {type(stack.position).__name__}")
  return {
      "d_model": stack.width,
      "d_kv": block.attention.sizes(stack.width).head_dim,
      "d_ff": block.ffn.dim,
      "num_layers": stack.num_layers,
      "num_heads": block.attention.num_heads,
      "relative_attention_num_buckets": stack.position.num_buckets,
      "relative_attention_max_distance": stack.position.max_distance,
      "dropout_rate": block.dropout,
      "layer_norm_epsilon": block.norm.eps,
      "initializer_factor": stack.position.init_std * stack.width**0.5,
      "feed_forward_proj": feed_forward_name(block),
  }


def rows_of(stack: str, per_layer: bool) -> tuple[Any, ...]:
  """The rows of a stack: its layers have attention, in a decoder to the encoder, too, and FFN."""
  layer, ours = f"{stack}.block.{{i}}.layer", f"{stack}/{{layers}}"
  kinds = [("SelfAttention", "attention")]
  if stack == "decoder":
    kinds.append(("EncDecAttention", "cross_attention"))
  rows = []
  for i, (theirs, name) in enumerate(kinds):
    for letter, part in (("q", "query"), ("k", "key"), ("v", "value"), ("o", "out")):
      rows += dense(f"{layer}.{i}.{theirs}.{letter}", f"{ours}/{name}/{part}",
                    num_in=2 if letter == "o" else 1)
    rows += norm(f"{layer}.{i}.layer_norm", f"{ours}/{name}_norm")
  last, bias = len(kinds), "SelfAttention.relative_attention_bias.weight"
  for theirs, name in (("wi", "in"), ("wi_0", "gate"), ("wo", "out")):
    rows += dense(f"{layer}.{last}.DenseReluDense.{theirs}", f"{ours}/ffn/{name}")
  rows += norm(f"{layer}.{last}.layer_norm", f"{ours}/ffn_norm")
  if per_layer:
    rows += table(f"{layer}.0.{bias}", f"{ours}/attention/position_bias")
  else:
    rows += table(f"{stack}.block.0.layer.0.{bias}", f"{stack}/position_bias")
  return (*rows, *norm(f"{stack}.final_layer_norm", f"{stack}/final_norm"))


def written(model: EncDec | Encoder) -> dict[str, str]:
  """Parts of names: of a gated feed-forward, and of all but the head of a classifier."""
  parts = {".wi.": ".wi_1."} if model.stacks["encoder"].block.ffn.gated else {}
  if stored(model.heads) & {"classes", "tags"}:
    parts |= {part: f"transformer.{part}" for part in (
        SHARED, "encoder.block.", "encoder.final_", "decoder.block.", "decoder.final_")}
  return parts


def family(name: str, attributes: Mapping[str, tuple[str, Any]], *, per_layer: bool = False,
           scales: bool = True) -> Family:
  rows = (*table(SHARED, "tgt_embed/embedding"), *rows_of("encoder", per_layer),
          *rows_of("decoder", per_layer))
  copies = {f"{stack}.embed_tokens.weight": SHARED for stack in ("encoder", "decoder")}
  return Family(
      architectures=architectures(name),
      attributes=Attributes(attributes, {"is_encoder_decoder": (True,)}, FREE),
      names=Names(
          prefix="", trunk=rows, heads={"seq2seq": dense("lm_head", "output"), **HEADS},
          copies=copies,
          tied={OUTPUT: SHARED},
          spellings={r"\.wi_1\.": ".wi.", r"^transformer\.": ""}, written=written,
          buffers=frozenset(
              {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"})),
      trunk=trunk_of(per_layer, scales), values=values, head=head, model="encdec", generates=True,
      resolved=resolved)


def encoder_alone(name: str, attributes: Mapping[str, tuple[str, Any]],
                  per_layer: bool = False) -> Family:
  """The encoder without its decoder, of which files of the whole model have both."""
  def trunk(values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
    return {"vocab_size": values["vocab_size"], "mlm": False,
            "embedding": {"types": 0, "norm": False}, "stack": stack_of(values, per_layer)}

  def of_encoder(model: Encoder) -> dict[str, Any]:
    dropout = model.head.dropout if model.head.task != "none" else 0.0
    return values_of(model.stack) | {"vocab_size": model.vocab_size, "classifier_dropout": dropout}

  left = {row.name for rows in (rows_of("decoder", per_layer), *HEADS.values()) for row in rows}
  classifier = dense("classifier", "task_head/output")
  return Family(
      architectures={f"{name}EncoderModel": frozenset(),
                     f"{name}ForTokenClassification": frozenset({"tags"})},
      attributes=Attributes(attributes, {"is_encoder_decoder": (True, False)}, FREE),
      names=Names(
          prefix="", trunk=(*table(SHARED, "embed/embedding"), *rows_of("encoder", per_layer)),
          heads={"tags": classifier}, copies={"encoder.embed_tokens.weight": SHARED},
          spellings={r"\.wi_1\.": ".wi.", r"^transformer\.": ""}, written=written,
          buffers=frozenset({*left, OUTPUT, "decoder.embed_tokens.weight"})),
      trunk=trunk, values=of_encoder,
      head=lambda values, heads: {"pool": "none", "dropout": values["classifier_dropout"]})


T5 = family("T5", ATTRIBUTES)
MT5 = family("MT5", M_ATTRIBUTES, scales=False)
UMT5 = family("UMT5", M_ATTRIBUTES, per_layer=True)
T5_ENCODER = encoder_alone("T5", ATTRIBUTES)
MT5_ENCODER = encoder_alone("MT5", M_ATTRIBUTES)
UMT5_ENCODER = encoder_alone("UMT5", M_ATTRIBUTES, per_layer=True)
