"""XLNet (Yang et al. 2019): `XLNetModel` and the classes with a head.

`dropout` is that of layers, of attention and inside the feed-forward sub-layers, all three. Dropout
of the sinusoids and of the last layer's output is not ours. The memory of earlier segments is an
argument of a call, here as there, so what says how much of it is kept changes nothing.
"""

from typing import Any, Mapping

from jtx.config import section
from jtx.interop.attributes import ACTIVATIONS, activation_name, init_std, need
from jtx.interop.family import Attributes, Family, Heads, Names
from jtx.interop.tables import TABLE, VECTOR, Layout, Row, dense, norm, table
from jtx.models.xlnet import Xlnet
from jtx.nn.positions import POSITIONS
from jtx.nn.transformer_xl import TransformerXl

ATTRIBUTES = {
    "vocab_size": ("size", 32000),
    "d_model": ("size", 1024),
    "n_layer": ("size", 24),
    "n_head": ("size", 16),
    "d_inner": ("size", 4096),
    "d_head": ("size", None),
    "ff_activation": ("activation", "gelu"),
    "dropout": ("rate", 0.1),
    "clamp_len": ("size_or_minus_1", -1),
    "initializer_range": ("positive", 0.02),
    "layer_norm_eps": ("positive", 1e-12),
    "summary_last_dropout": ("rate", 0.1),
}
# With `bi_data` half of the rows are read backwards; `attn_type="uni"` is a causal Transformer-XL.
FIXED = {"attn_type": ("bi",), "bi_data": (False,), "same_length": (False,), "untie_r": (True,),
         "summary_type": ("last",), "summary_use_proj": (True,), "summary_activation": ("tanh",)}
FREE = frozenset({"mem_len", "reuse_len", "use_mems", "use_mems_eval", "use_mems_train",
                  "start_n_top", "end_n_top"})
ALIASES = {"n_token": "vocab_size", "hidden_size": "d_model", "num_attention_heads": "n_head",
           "num_hidden_layers": "n_layer"}


def trunk(values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
  width, number, rate = values["d_model"], values["n_head"], values["dropout"]
  need(values["d_head"] in (None, width // number),
       f"d_head={values['d_head']} must be d_model={width} / n_head={number}")
  std = values["initializer_range"]
  return {
      "vocab_size": values["vocab_size"],
      "plm": "plm" in heads,
      "stack": {
          "width": width,
          "num_layers": values["n_layer"],
          "position": section(POSITIONS, "transformer_xl", clamp=max(values["clamp_len"], 0),
                              init_std=std),
          "block": {
              "attention": {"num_heads": number, "dropout": rate},
              "ffn": {"dim": values["d_inner"], "dropout": rate,
                      "activation": ACTIVATIONS[values["ff_activation"]]},
              "norm": {"position": "post", "eps": values["layer_norm_eps"]},
              "dropout": rate,
              "init_std": std,
          },
      },
  }


def head(values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
  """A dense layer with tanh behind the last token, of classes and choices alone."""
  if heads & {"tags", "span"}:
    return {"pool": "none", "dropout": 0.0}
  return {"pool": "last", "transform": "tanh", "dropout": values["summary_last_dropout"]}


def values(model: Xlnet) -> dict[str, Any]:
  """The inverse of `trunk` and `head`."""
  stack, block, head = model.stack, model.stack.block, model.head
  position, width = stack.position, stack.width
  need(isinstance(position, TransformerXl),
       f"has positions of Transformer-XL, not {type(position).__name__}")
  pooled = head.task in ("classes", "multi_label", "choice")
  return {
      "vocab_size": model.vocab_size,
      "d_model": width,
      "n_layer": stack.num_layers,
      "n_head": block.attention.num_heads,
      "d_inner": block.ffn.dim,
      "d_head": width // block.attention.num_heads,
      "ff_activation": activation_name(block.ffn.activation),
      "dropout": block.dropout,
      "clamp_len": position.clamp or -1,
      "initializer_range": init_std(block),
      "layer_norm_eps": block.norm.eps,
      "summary_last_dropout": head.dropout if pooled else 0.1,
  }


# [D, N, H] in the file, [N, H, D] here.
OUT = Layout(lambda s: (s[2], s[0], s[1]), lambda x, s: x.transpose(1, 2, 0),
             lambda x: x.transpose(2, 0, 1))
# [1, 1, D] in the file.
MASK = Layout(lambda s: (1, 1, *s), lambda x, s: x.reshape(s), lambda x: x[None, None])
LAYER, OURS = "transformer.layer.{i}", "encoder/{layers}"
ATTENTION = f"{OURS}/attention"
ROWS = (
    *table("transformer.word_embedding.weight", "embed/embedding"),
    Row("transformer.mask_emb", ("mask_embedding",), MASK),
    *(Row(f"{LAYER}.rel_attn.{name}", (f"{ATTENTION}/{path}",), TABLE) for name, path in (
        ("q", "query/kernel"), ("k", "key/kernel"), ("v", "value/kernel"), ("r", "position_key"),
        ("r_w_bias", "position_content_bias"), ("r_r_bias", "position_distance_bias"),
        ("r_s_bias", "position_type_bias"), ("seg_embed", "position_type"))),
    Row(f"{LAYER}.rel_attn.o", (f"{ATTENTION}/out/kernel",), OUT),
    *norm(f"{LAYER}.rel_attn.layer_norm", f"{OURS}/attention_norm"),
    *dense(f"{LAYER}.ff.layer_1", f"{OURS}/ffn/in"),
    *dense(f"{LAYER}.ff.layer_2", f"{OURS}/ffn/out"),
    *norm(f"{LAYER}.ff.layer_norm", f"{OURS}/ffn_norm"),
)
POOLED = (*dense("sequence_summary.summary", "task_head/transform/dense"),
          *dense("logits_proj", "task_head/output"))

FAMILY = Family(
    architectures={
        "XLNetModel": frozenset(),
        "XLNetLMHeadModel": {"plm"},
        "XLNetForSequenceClassification": {"classes"},
        "XLNetForTokenClassification": {"tags"},
        "XLNetForQuestionAnsweringSimple": {"span"},
        "XLNetForMultipleChoice": {"choice"},
    },
    attributes=Attributes(ATTRIBUTES, FIXED, FREE, ALIASES),
    names=Names(
        prefix="transformer",
        trunk=ROWS,
        heads={"plm": (Row("lm_loss.bias", ("plm_bias",), VECTOR),), "classes": POOLED,
               "tags": dense("classifier", "task_head/output"),
               "span": dense("qa_outputs", "task_head/output"), "choice": POOLED},
        tied={"lm_loss.weight": "transformer.word_embedding.weight"},
        modules={r"\.rel_attn\.[qkvor]$": ()},
    ),
    trunk=trunk,
    values=values,
    head=head,
    model="xlnet",
    pads_left=True,
)
