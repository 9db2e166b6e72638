"""DINOv2, with and without registers: config.json and the names of their tensors.

Oquab et al. 2023; Darcet et al. 2023. The published models have positions for images of 518 pixels
and are run on smaller ones, for which the positions are interpolated: the size of images is that of
preprocessor_config.json.
"""

import functools
from typing import Any, Mapping, Sequence

from jtx.config import section
from jtx.interop import preprocessor
from jtx.interop.attributes import activation_name, need
from jtx.interop.families import vit
from jtx.interop.family import Attributes, Family, Heads, Names
from jtx.interop.tables import TABLE, VECTOR, Row, dense, norm
from jtx.models.vit import Vit
from jtx.nn.grid_positions import GRID_POSITIONS, LearnedGrid

SIDE = "side_of_images"  # of preprocessor_config.json
ATTRIBUTES = {key: value for key, value in vit.ATTRIBUTES.items() if key != "intermediate_size"} | {
    "layer_norm_eps": ("positive", 1e-6),
    "patch_size": ("square", 14),
    "mlp_ratio": ("size", 4),
    "layerscale_value": ("positive", 1.0),
    "drop_path_rate": ("rate", 0.0),
    "use_swiglu_ffn": ("flag", False),
    SIDE: ("size_or_null", None),
}
# Of classes that give feature maps alone.
FREE = frozenset({"out_features", "out_indices", "stage_names", "apply_layernorm",
                  "reshape_hidden_states"})


def gated_dim(hidden: int) -> int:
  """The hidden width of a gated layer: two thirds, which 8 divides."""
  return (int(hidden * 2 / 3) + 7) // 8 * 8


def trunk(values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
  hidden, gated = values["hidden_size"] * values["mlp_ratio"], values["use_swiglu_ffn"]
  fields = vit.trunk({**values, "intermediate_size": hidden}, heads, vit.IMAGENET)
  seen, size = values[SIDE] or values["image_size"], values["image_size"]
  fields["image"]["size"] = seen
  stack, registers = fields["stack"], values["num_register_tokens"]
  stack["position"] = section(
      GRID_POSITIONS, "learned", init_std=values["initializer_range"],
      of_registers=not registers, antialias=bool(registers),
      side=0 if seen == size else size // values["patch_size"])
  rate = values["drop_path_rate"]
  stack["block"]["residual"] = {"layer_scale": values["layerscale_value"], "drop_path": rate,
                                "uniform": rate > 0}
  if gated:
    stack["block"]["ffn"] = {"dim": gated_dim(hidden), "gated": True, "activation": "silu"}
  return {**fields, "prefix": {"registers": registers},
          "mask_token": values["use_mask_token"]}


def head(values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
  """[CLS] and the mean of the patches have the classes' scores; an embedding is [CLS]."""
  del values
  return {"pool": "first" if "embedding" in heads else "first_mean"}


def values(model: Vit, registers: bool) -> dict[str, Any]:
  """The inverse of `trunk`."""
  stack, ffn = model.stack, model.stack.block.ffn
  residual, position = stack.block.residual, stack.position
  need(residual.layer_scale is not None and residual.layer_scale > 0,
       f"has block.residual.layer_scale above 0, not {residual.layer_scale}")
  need(bool(model.prefix.registers) == registers, "has registers" if registers else
       "has prefix.registers=0")
  ratio = round(ffn.dim * (1.5 if ffn.gated else 1) / stack.width)
  hidden = ratio * stack.width
  need(ffn.dim == (gated_dim(hidden) if ffn.gated else hidden),
       f"has a multiple of width={stack.width} for ffn.dim, or two thirds of one where"
       f" ffn.gated=True, not {ffn.dim}")
  result = vit.plain_values(model)
  need(isinstance(position, LearnedGrid),
       f"has learned positions, not {type(position).__name__}")
  side = position.side
  act = "gelu" if ffn.gated else activation_name(ffn.activation)
  own = {"mlp_ratio": ratio, "use_swiglu_ffn": ffn.gated, "hidden_act": act,
         "layerscale_value": residual.layer_scale, "drop_path_rate": residual.drop_path,
         SIDE: model.image.size if side else None,
         "image_size": side * model.patch_size if side else model.image.size,
         **({"num_register_tokens": model.prefix.registers} if registers
            else {"use_mask_token": model.mask_token})}
  del result["intermediate_size"]
  return result | own


# ------------------------------------------------------------------------------------ files


def read(directory: str) -> dict[str, Any]:
  """The pixels' mean and deviation, and the size of images that the ops make."""
  side = preprocessor.read_side(directory, "Bit")
  return preprocessor.read_pixels(directory) | ({SIDE: side} if side else {})


def split(config: Mapping[str, Any], image_ops: Sequence[Any],
          ) -> tuple[dict[str, Any], dict[str, Any]]:
  return vit.split_preprocessor({k: v for k, v in config.items() if k != SIDE}, image_ops)


def rows(prefix: str) -> tuple[Row, ...]:
  layer, ours = f"{prefix}.encoder.layer.{{i}}", "encoder/{layers}"
  embeddings = f"{prefix}.embeddings"
  return (
      *vit.leading(f"{embeddings}.cls_token", "cls_token"),
      Row(f"{embeddings}.mask_token", ("mask_token",), TABLE),
      *vit.leading(f"{embeddings}.register_tokens", "registers"),
      *vit.leading(f"{embeddings}.position_embeddings", "position_embedding"),
      *vit.convolution(f"{embeddings}.patch_embeddings.projection", "patches"),
      *norm(f"{layer}.norm1", f"{ours}/attention_norm"),
      *vit.attention(layer, ours),
      Row(f"{layer}.layer_scale1.lambda1", (f"{ours}/attention_scale",), VECTOR),
      *norm(f"{layer}.norm2", f"{ours}/ffn_norm"),
      *dense(f"{layer}.mlp.fc1", f"{ours}/ffn/in"),
      *dense(f"{layer}.mlp.weights_in", f"{ours}/ffn/gate", f"{ours}/ffn/in"),
      *dense(f"{layer}.mlp.fc2", f"{ours}/ffn/out"),
      Row(f"{layer}.layer_scale2.lambda1", (f"{ours}/ffn_scale",), VECTOR),
      *norm(f"{prefix}.layernorm", "encoder/final_norm"),
  )


def family(kind: str, name: str, more: Mapping[str, tuple[str, Any]],
           given: Mapping[str, Any]) -> Family:
  """One of the two kinds.

  Args:
    kind: its model type.
    name: what the names of its classes begin with.
    more: attributes that it alone has.
    given: the values of those that the other has.
  """
  return Family(
      architectures={f"{name}Model": {"embedding"}, f"{name}ForImageClassification": {"classes"}},
      attributes=Attributes(ATTRIBUTES | more, vit.FIXED, FREE),
      names=Names(
          prefix=kind, trunk=rows(kind),
          heads={"embedding": (), "classes": vit.CLASSIFIER},
          spellings={r"\.mlp\.weights_out\.": ".mlp.fc2."},
          written=lambda model: {".mlp.fc2.": ".mlp.weights_out."} if model.stack.block.ffn.gated
          else {},
          modules=vit.ATTENTION_MODULES | {
              r"\.weights_in\.": (".gate_proj.", ".up_proj."),
              r"\.weights_out\.": ".down_proj."}),
      trunk=lambda values, heads: trunk({**given, **values}, heads),
      values=functools.partial(values, registers="num_register_tokens" in more),
      head=head, model="vit",
      side_files=vit.SIDE_FILES._replace(
          read=read, split=split,
          image_ops=functools.partial(preprocessor.read_ops, kind="Bit")))


FAMILY = family("dinov2", "Dinov2", {"use_mask_token": ("flag", True)},
                {"num_register_tokens": 0})
WITH_REGISTERS = family("dinov2_with_registers", "Dinov2WithRegisters",
                        {"num_register_tokens": ("size", 4), "patch_size": ("square", 16)},
                        {"use_mask_token": True})
