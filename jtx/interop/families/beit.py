"""BEiT: config.json and the names of its tensors (Bao et al. 2021).

A ViT with relative positions, layer scale, and no bias of keys. In its files the offset of a pair
is that from the key to the query, here that from the query to the key.
"""

import functools
from typing import Any, Mapping

import numpy as np

from jtx.config import section
from jtx.interop import preprocessor
from jtx.interop.attributes import need
from jtx.interop.families import vit
from jtx.interop.family import Attributes, Family, Heads, Names
from jtx.interop.tables import TABLE, VECTOR, Row, dense, norm
from jtx.models.vit import Vit
from jtx.nn.grid_kinds import RelativeBias
from jtx.nn.grid_positions import GRID_POSITIONS, GridPosition, LearnedGrid

# The attribute of a kind of positions -> its fields, by name
POSITIONS = {
    "use_absolute_position_embeddings": ("learned", {}),
    "use_relative_position_bias": ("relative", {"per_layer": True}),
    "use_shared_relative_position_bias": ("relative", {}),
}
ATTRIBUTES = vit.ATTRIBUTES | {name: ("flag", False) for name in POSITIONS} | {
    "use_mask_token": ("flag", False),
    "use_mean_pooling": ("flag", True),
    "layer_scale_init_value": ("not_negative", 0.1),
    "drop_path_rate": ("rate", 0.1),
}
# Of classes that jtx does not have: visual tokens, segmentation and feature maps.
FREE = frozenset({
    "vocab_size", "pool_scales", "use_auxiliary_head", "auxiliary_loss_weight",
    "auxiliary_channels", "auxiliary_num_convs", "auxiliary_concat_input", "add_fpn",
    "semantic_loss_ignore_index", "out_features", "out_indices", "stage_names",
    "reshape_hidden_states"})
BIASES = ("query", "value", "out")


def trunk(values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
  fields = vit.trunk(values, heads)
  named = [name for name in POSITIONS if values[name]]
  need(len(named) < 2, f"{' and '.join(named)}: jtx has one kind of positions at a time")
  stack, std = fields["stack"], values["initializer_range"]
  stack["position"] = section(GRID_POSITIONS, "none")
  if named:
    name, more = POSITIONS[named[0]]
    stack["position"] = section(GRID_POSITIONS, name, init_std=std, **more)
  stack["block"]["attention"]["biases"] = BIASES
  stack["block"]["residual"] = {"layer_scale": values["layer_scale_init_value"] or None,
                                "drop_path": values["drop_path_rate"]}
  return {**fields, "mask_token": values["use_mask_token"]}


def head(values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
  """What is pooled by a mean is normed behind it, and [CLS] with the last layer's output."""
  del heads
  mean = values["use_mean_pooling"]
  return {"pool": "mean" if mean else "first", "norm": mean}


def named(position: GridPosition) -> str | None:
  """The attribute of a kind of positions; None is none."""
  if isinstance(position, LearnedGrid):
    return "use_absolute_position_embeddings"
  if isinstance(position, RelativeBias):
    return f"use_{'' if position.per_layer else 'shared_'}relative_position_bias"
  need(type(position) is GridPosition,
       f"has learned or relative positions or none, not {type(position).__name__}")
  return None


def values(model: Vit) -> dict[str, Any]:
  """The inverse of `trunk` and `head`."""
  residual, position = model.stack.block.residual, named(model.stack.position)
  return vit.plain_values(model) | {name: name == position for name in POSITIONS} | {
      "use_mask_token": model.mask_token,
      "use_mean_pooling": model.head.pool == "mean",
      "layer_scale_init_value": residual.layer_scale or 0.0,
      "drop_path_rate": residual.drop_path,
  }


# ------------------------------------------------------------------------------------ tensors


def turned(table: np.ndarray) -> np.ndarray:
  """A table [offsets + 3, N] with its offsets in the other order."""
  return np.concatenate([table[-4::-1], table[-3:]])


OFFSETS = TABLE._replace(read=lambda x, s: turned(x), write=turned)
BIAS = "relative_position_bias.relative_position_bias_table"
INDEX = "relative_position_bias.relative_position_index"
LAYER = "beit.encoder.layer.{i}"


def rows() -> tuple[Row, ...]:
  ours = "encoder/{layers}"
  return (
      *vit.leading("beit.embeddings.cls_token", "cls_token"),
      *vit.leading("beit.embeddings.mask_token", "mask_token"),
      *vit.leading("beit.embeddings.position_embeddings", "position_embedding"),
      *vit.convolution("beit.embeddings.patch_embeddings.projection", "patches"),
      *vit.layer(LAYER, ours),
      Row(f"{LAYER}.attention.attention.{BIAS}", (f"{ours}/attention/position_bias",), OFFSETS),
      Row(f"{LAYER}.lambda_1", (f"{ours}/attention_scale",), VECTOR),
      Row(f"{LAYER}.lambda_2", (f"{ours}/ffn_scale",), VECTOR),
      Row(f"beit.encoder.{BIAS}", ("encoder/position_bias",), OFFSETS),
      *norm("beit.layernorm", "encoder/final_norm"),
  )


POOLER = norm("beit.pooler.layernorm", "task_head/norm")

FAMILY = Family(
    architectures={"BeitModel": {"embedding"}, "BeitForImageClassification": {"classes"}},
    attributes=Attributes(ATTRIBUTES, free=FREE),
    names=Names(
        prefix="beit", trunk=rows(),
        heads={"embedding": POOLER, "classes": (*POOLER, *dense("classifier", "task_head/output"))},
        buffers=frozenset({f"beit.encoder.{INDEX}", f"{LAYER}.attention.attention.{INDEX}"}),
        modules=vit.MODULES),
    trunk=trunk,
    values=values,
    head=head,
    model="vit",
    side_files=vit.SIDE_FILES._replace(
        image_ops=functools.partial(preprocessor.read_ops, kind="Beit")),
)
