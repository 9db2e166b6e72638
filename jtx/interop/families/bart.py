"""BART, mBART, Marian and Pegasus: `...ForConditionalGeneration`, and `MarianMTModel`.

BART and mBART have `...ForSequenceClassification` and `...ForQuestionAnswering`, too. A text of
mBART's ends with </s> and its language; the decoder begins with the language, and what is pooled is
the state of </s>.
Lewis et al. 2020; Liu et al. 2020; Junczys-Dowmunt et al. 2018; Zhang et al. 2020. They differ in
positions, in where their norms are, and in what is shared. The positions of Marian and Pegasus are
sinusoids, which some files hold and none needs. `final_logits_bias`, a constant there, is a
parameter here. `activation_dropout` is block.ffn.dropout.
"""

import dataclasses
from typing import Any, Mapping

from jtx.config import section
from jtx.interop.attributes import ACTIVATIONS, activation_name, need
from jtx.interop.families.t5 import HEADS, architectures, head, start_of, values_of_head
from jtx.interop.family import Attributes, Family, Heads, Names
from jtx.interop.tables import Layout, Row, dense, norm, table
from jtx.models.encdec import EncDec
from jtx.nn.attention import PROJECTIONS
from jtx.nn.positions import POSITIONS, Learned, Sinusoidal
from jtx.nn.shift import LAST
from jtx.nn.stack import StackConfig

OFFSET = 2  # of learned positions
ATTRIBUTES = {
    "vocab_size": ("size", 50265),
    "d_model": ("size", 1024),
    "encoder_layers": ("size", 12),
    "encoder_ffn_dim": ("size", 4096),
    "encoder_attention_heads": ("size", 16),
    "decoder_layers": ("size", 12),
    "decoder_ffn_dim": ("size", 4096),
    "decoder_attention_heads": ("size", 16),
    "activation_function": ("activation", "gelu"),
    "dropout": ("rate", 0.1),
    "attention_dropout": ("rate", 0.0),
    "activation_dropout": ("rate", 0.0),
    "init_std": ("positive", 0.02),
    "scale_embedding": ("flag", False),
}
START = 2  # the end token
FREE = frozenset({
    "encoder_layerdrop", "decoder_layerdrop", "classif_dropout",
    "num_hidden_layers", "force_bos_token_to_be_generated", "max_length", "add_bias_logits",
    "num_beams"})
# [1, V] in the file, [V] here.
BIAS = Layout(lambda s: (1, *s), lambda x, s: x.reshape(s), lambda x: x[None])


def rows_of(stack: str) -> tuple[Row, ...]:
  base, layer, ours = f"model.{stack}", f"model.{stack}.layers.{{i}}", f"{stack}/{{layers}}"
  kinds = [("self_attn", "attention")]
  if stack == "decoder":
    kinds.append(("encoder_attn", "cross_attention"))
  rows = []
  for theirs, name in kinds:
    for part, their_part in (("query", "q"), ("key", "k"), ("value", "v")):
      rows += dense(f"{layer}.{theirs}.{their_part}_proj", f"{ours}/{name}/{part}")
    rows += dense(f"{layer}.{theirs}.out_proj", f"{ours}/{name}/out", num_in=2)
    rows += norm(f"{layer}.{theirs}_layer_norm", f"{ours}/{name}_norm")
  return (
      *rows,
      *dense(f"{layer}.fc1", f"{ours}/ffn/in"),
      *dense(f"{layer}.fc2", f"{ours}/ffn/out"),
      *norm(f"{layer}.final_layer_norm", f"{ours}/ffn_norm"),
      *norm(f"{base}.layer_norm", f"{stack}/final_norm"))


@dataclasses.dataclass(frozen=True)
class Kin:
  """How a model type differs from the others."""
  architecture: str
  learned: bool = True  # positions; otherwise sinusoids
  norm_first: bool = False
  embedding_norm: bool = True
  two_vocabularies: bool = False  # it may have them
  head_start: int | None = None  # of a text, where there are heads for texts
  fixed: Mapping[str, tuple] = dataclasses.field(default_factory=dict)

  @property
  def attributes(self) -> dict[str, tuple[str, Any]]:
    own = {"max_position_embeddings": ("size", 1024)} if self.learned else {}
    if self.two_vocabularies:
      own |= {"vocab_size": ("size", 58101), "decoder_vocab_size": ("size", None),
              "share_encoder_decoder_embeddings": ("flag", True)}
    if self.with_heads:
      own["classifier_dropout"] = ("rate", 0.0)
    if self.with_heads and self.head_start != LAST:
      own["decoder_start_token_id"] = ("id", None)
    return ATTRIBUTES | own

  @property
  def with_heads(self) -> bool:
    return self.head_start is not None

  def trunk(self, values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
    std, sizes, shares = values["init_std"], {"vocab_size": values["vocab_size"]}, True
    if self.two_vocabularies:
      shares, target = values["share_encoder_decoder_embeddings"], values["decoder_vocab_size"]
      need(not shares or target in (None, values["vocab_size"]),
           f"share_encoder_decoder_embeddings goes with one vocabulary, and vocab_size="
           f"{values['vocab_size']} and decoder_vocab_size={target} are two")
      sizes = {"vocab_size": target or values["vocab_size"], "src_vocab_size": values["vocab_size"]}
    position = section(POSITIONS, "sinusoidal", layout="concatenated")
    if self.learned:
      position = section(POSITIONS, "learned", first_position=OFFSET, init_std=std,
                         max_length=values["max_position_embeddings"] + OFFSET)
    stack = lambda name: {
        "width": values["d_model"],
        "num_layers": values[f"{name}_layers"],
        "position": position,
        "block": {
            "attention": {"num_heads": values[f"{name}_attention_heads"], "biases": PROJECTIONS,
                          "dropout": values["attention_dropout"]},
            "ffn": {"dim": values[f"{name}_ffn_dim"],
                    "activation": ACTIVATIONS[values["activation_function"]],
                    "dropout": values["activation_dropout"]},
            "norm": {"position": "pre" if self.norm_first else "post", "eps": 1e-5},
            "dropout": values["dropout"],
            "init_std": std,
        },
    }
    return sizes | {
        "embedding": {"tie": ("source", "output") if shares else ("output",),
                      "scale": values["scale_embedding"], "norm": self.embedding_norm,
                      "output_bias": True, "init_std": std},
        "encoder": stack("encoder"),
        "decoder": stack("decoder"),
        "seq2seq": "seq2seq" in heads,
        "head_start": start_of(values, heads, self.head_start),
    }

  def values(self, model: EncDec) -> dict[str, Any]:
    """The inverse of `trunk`."""
    block, embedding = model.decoder.block, model.embedding
    stacks: dict[str, StackConfig] = model.stacks
    kind = Learned if self.learned else Sinusoidal
    for stack in stacks.values():
      need(isinstance(stack.position, kind),
           f"has {kind.__name__.lower()} positions, not {type(stack.position).__name__}")
    result = {
        "vocab_size": model.src_vocab_size or model.vocab_size,
        "d_model": model.decoder.width,
        "activation_function": activation_name(block.ffn.activation),
        "dropout": block.dropout,
        "attention_dropout": block.attention.dropout,
        "activation_dropout": block.ffn.dropout,
        "init_std": block.init_std or 0.02,
        "scale_embedding": embedding.scale,
    }
    for name, stack in stacks.items():
      result |= {f"{name}_layers": stack.num_layers, f"{name}_ffn_dim": stack.block.ffn.dim,
                 f"{name}_attention_heads": stack.block.attention.num_heads}
    if self.two_vocabularies:
      result |= {"decoder_vocab_size": model.vocab_size,
                 "share_encoder_decoder_embeddings": "source" in embedding.tie}
    if self.learned:
      length = model.decoder.position.max_length
      need(length > OFFSET, f"has learned positions for more than {OFFSET} tokens")
      result["max_position_embeddings"] = length - OFFSET
    return result | values_of_head(model)

  @property
  def names(self) -> Names:
    places = ()
    buffers = {f"model.{stack}.embed_positions.weight" for stack in ("encoder", "decoder")}
    if self.learned:
      buffers = {"model.encoder.version", "model.decoder.version"}
      places = tuple(row for stack, prefix in (("encoder", "src"), ("decoder", "tgt"))
                     for row in (*table(f"model.{stack}.embed_positions.weight",
                                        f"{prefix}_position_embedding"),
                                 *norm(f"model.{stack}.layernorm_embedding", f"{prefix}_norm")))
    shared, target = "model.shared.weight", "model.decoder.embed_tokens.weight"
    source = "model.encoder.embed_tokens.weight"
    return Names(
        prefix="model",
        trunk=(*table(shared, "tgt_embed/embedding"), *table(source, "src_embed/embedding"),
               *places, *rows_of("encoder"), *rows_of("decoder")),
        heads={"seq2seq": (Row("final_logits_bias", ("output_bias",), BIAS),),
               **(HEADS if self.with_heads else {})},
        # The last one that is there stands for one that is not.
        copies={source: shared, "lm_head.weight": shared, target: shared},
        buffers=frozenset(buffers),
        # Without a source that shares it, the target's embedding goes by its own name.
        written=lambda model: {} if "source" in model.embedding.tie else {shared: target})

  @property
  def family(self) -> Family:
    fixed = {"is_encoder_decoder": (True,), "normalize_before": (self.norm_first,),
             "normalize_embedding": (self.embedding_norm,),
             "add_final_layer_norm": (self.norm_first,),
             "static_position_embeddings": (not self.learned,), "extra_pos_embeddings": (OFFSET,)}
    free = FREE if self.learned else FREE | {"max_position_embeddings", "extra_pos_embeddings"}
    free = free if self.with_heads else free | {"classifier_dropout"}
    own = {self.architecture: frozenset({"seq2seq"})}
    return Family(
        architectures=architectures(self.name) if self.with_heads else own,
        attributes=Attributes(self.attributes, fixed, free),
        names=self.names, trunk=self.trunk, values=self.values, model="encdec", generates=True,
        head=self.head if self.with_heads else None)

  def head(self, values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
    fields = head(values, heads)
    swap = self.head_start == LAST and fields["pool"] == "last"
    return {**fields, "pool": "before_last"} if swap else fields

  @property
  def name(self) -> str:
    return self.architecture.removesuffix("ForConditionalGeneration")


BART = Kin("BartForConditionalGeneration", head_start=START).family
MBART = Kin("MBartForConditionalGeneration", norm_first=True, head_start=LAST).family
MARIAN = Kin("MarianMTModel", learned=False, embedding_norm=False, two_vocabularies=True).family
PEGASUS = Kin("PegasusForConditionalGeneration", learned=False, norm_first=True,
              embedding_norm=False).family
