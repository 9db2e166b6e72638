"""ViT, DeiT and ViTMAE: config.json, preprocessor_config.json and the names of their tensors.

The names are those in files, which `transformers` changes as it loads them. The mean and standard
deviation of pixels are read from preprocessor_config.json and written there.
"""

import functools
from typing import Any, Mapping, Sequence

import numpy as np

from jtx.config import section
from jtx.interop import preprocessor
from jtx.interop.attributes import ACTIVATIONS, activation_name, init_std, need
from jtx.interop.family import Attributes, Family, Heads, Names, SideFiles
from jtx.interop.preprocessor import PIXELS, PREPROCESSOR
from jtx.interop.tables import Layout, Row, dense, norm
from jtx.models.patches import ImageConfig
from jtx.models.vit import Vit
from jtx.nn.attention import PROJECTIONS
from jtx.nn.grid_positions import GRID_POSITIONS, LearnedGrid

# Mean and standard deviation of pixels, where no file tells them.
HALF = (0.5,), (0.5,)
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

ATTRIBUTES = {
    "hidden_size": ("size", 768),
    "num_hidden_layers": ("size", 12),
    "num_attention_heads": ("size", 12),
    "intermediate_size": ("size", 3072),
    "hidden_act": ("activation", "gelu"),
    "hidden_dropout_prob": ("rate", 0.0),
    "attention_probs_dropout_prob": ("rate", 0.0),
    "initializer_range": ("positive", 0.02),
    "layer_norm_eps": ("positive", 1e-12),
    "image_size": ("square", 224),
    "patch_size": ("square", 16),
    "num_channels": ("size", 3),
    "image_mean": ("pixels", None),
    "image_std": ("pixels", None),
}
POOLER = {"pooler_output_size": ("size", None), "pooler_act": ("activation", "tanh")}
DECODER = {
    "decoder_num_attention_heads": ("size", 16),
    "decoder_hidden_size": ("size", 512),
    "decoder_num_hidden_layers": ("size", 8),
    "decoder_intermediate_size": ("size", 2048),
    "mask_ratio": ("rate", 0.75),
    "norm_pix_loss": ("flag", False),
}
FIXED = {"qkv_bias": (True,)}
FREE = frozenset({"encoder_stride"})  # of a head that jtx doesn't have


def split_preprocessor(config: Mapping[str, Any], image_ops: Sequence[Any],
                       ) -> tuple[dict[str, Any], dict[str, Any]]:
  """The content of config.json, and of preprocessor_config.json by its name."""
  return ({key: value for key, value in config.items() if key not in PIXELS},
          {PREPROCESSOR: preprocessor.content(image_ops, config)})


# ------------------------------------------------------------------------- fields and attributes


def trunk(values: Mapping[str, Any], heads: Heads, pixels=HALF) -> dict[str, Any]:
  del heads  # no head of pretraining but MAE's
  std = values["initializer_range"]
  return {
      "image": pixels_of(values, pixels),
      "patch_size": values["patch_size"],
      "stack": {
          "width": values["hidden_size"],
          "num_layers": values["num_hidden_layers"],
          "position": section(GRID_POSITIONS, "learned", init_std=std),
          "block": {
              "attention": {"num_heads": values["num_attention_heads"], "biases": PROJECTIONS,
                            "dropout": values["attention_probs_dropout_prob"]},
              "ffn": {"dim": values["intermediate_size"],
                      "activation": ACTIVATIONS[values["hidden_act"]]},
              "norm": {"position": "pre", "eps": values["layer_norm_eps"]},
              "dropout": values["hidden_dropout_prob"],
              "init_std": std,
          },
      },
  }


def pixels_of(values: Mapping[str, Any], pixels: Any) -> dict[str, Any]:
  """The fields of a model's images; `pixels` are the mean and deviation where no file has them."""
  channels = values["num_channels"]
  if len(pixels[0]) not in (1, channels):
    pixels = HALF
  mean, deviation = (default if values[key] is None else as_channels(values[key], channels)
                     for key, default in zip(PIXELS, pixels))
  return {"size": values["image_size"], "channels": channels, "mean": mean, "std": deviation}


def wide(numbers: Sequence[float], image: ImageConfig) -> list[float]:
  """A number for each channel."""
  return list(numbers) * (image.channels if len(numbers) == 1 else 1)


def as_channels(numbers: list[float], channels: int) -> tuple[float, ...]:
  """One number a channel; equal ones stand for any number of channels."""
  if len(numbers) != channels and len(set(numbers)) == 1:
    numbers = numbers[:1]
  return tuple(float(x) for x in numbers)


def trunk_of_deit(values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
  return {**trunk(values, heads, IMAGENET), "prefix": {"distillation": True}}


def trunk_of_mae(values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
  fixed = section(GRID_POSITIONS, "learned", init="sincos", trained=False)
  shown = decoder(values) if "mae" in heads else {"masked": values["mask_ratio"]}
  fields = {**trunk(values, heads, IMAGENET), "decoder": shown}
  fields["stack"]["position"] = fixed
  return fields


def decoder(values: Mapping[str, Any]) -> dict[str, Any]:
  return {
      "num_layers": values["decoder_num_hidden_layers"],
      "width": values["decoder_hidden_size"],
      "num_heads": values["decoder_num_attention_heads"],
      "ffn_dim": values["decoder_intermediate_size"],
      "masked": values["mask_ratio"],
      "normalize": values["norm_pix_loss"],
  }


def head(values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
  """The pooler is the transform of an embedding; [CLS] itself has the classes' scores."""
  if "embedding" not in heads:
    return {"pool": "first"}
  size = values["pooler_output_size"]
  need(size in (None, values["hidden_size"]),
       f"pooler_output_size={size}: jtx has a pooler of hidden_size={values['hidden_size']}")
  return {"pool": "first", "transform": ACTIVATIONS[values["pooler_act"]]}


def head_of_deit(values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
  if "distilled" in heads:
    return {"task": "classes", "pool": "first", "distilled": True}
  return head(values, heads)


def values(model: Vit) -> dict[str, Any]:
  """The inverse of `trunk` and `head`."""
  position, has_pooler = model.stack.position, model.head.task == "embedding"
  need(isinstance(position, LearnedGrid),
       f"has learned positions, not {type(position).__name__}")
  return plain_values(model) | {
      "pooler_output_size": model.stack.width,
      "pooler_act": activation_name(model.head.transform) if has_pooler else "tanh",
  }


def plain_values(model: Vit) -> dict[str, Any]:
  """The values of ATTRIBUTES."""
  stack, block, image = model.stack, model.stack.block, model.image
  return {
      "hidden_size": stack.width,
      "num_hidden_layers": stack.num_layers,
      "num_attention_heads": block.attention.num_heads,
      "intermediate_size": block.ffn.dim,
      "hidden_act": activation_name(block.ffn.activation),
      "hidden_dropout_prob": block.dropout,
      "attention_probs_dropout_prob": block.attention.dropout,
      "initializer_range": init_std(block),
      "layer_norm_eps": block.norm.eps,
      "image_size": image.size,
      "patch_size": model.patch_size,
      "num_channels": image.channels,
      "image_mean": wide(image.mean, image),
      "image_std": wide(image.std, image),
  }


def values_of_mae(model: Vit) -> dict[str, Any]:
  position = model.stack.position
  need(not position.trained if isinstance(position, LearnedGrid) else False,
       "has learned positions that are not trained")
  decoder = model.decoder
  result = {key: value for key, value in values(model).items() if key not in POOLER}
  result["mask_ratio"] = decoder.masked
  if decoder.num_layers:
    result |= {
        "decoder_num_hidden_layers": decoder.num_layers,
        "decoder_hidden_size": decoder.width,
        "decoder_num_attention_heads": decoder.num_heads,
        "decoder_intermediate_size": decoder.ffn_dim,
        "norm_pix_loss": decoder.normalize,
    }
  return result


# ------------------------------------------------------------------------------------ tensors

# A token [1, 1, D] in the file, [1, D] here; a table [1, T, D], [T, D] here.
LEADING = Layout(lambda s: (1, *s), lambda x, s: x.reshape(s), lambda x: x[None])
# [D, C, h, w] in the file, [h, w, C, D] here.
CONVOLUTION = Layout(lambda s: (s[3], s[2], s[0], s[1]), lambda x, s: x.transpose(2, 3, 1, 0),
                     lambda x: np.ascontiguousarray(x.transpose(3, 2, 0, 1)))


def leading(name: str, path: str) -> tuple[Row, ...]:
  return (Row(name, (path,), LEADING),)


def convolution(name: str, path: str) -> tuple[Row, ...]:
  weight, bias = dense(name, path)
  return weight._replace(layout=CONVOLUTION), bias


def attention(theirs: str, ours: str) -> tuple[Row, ...]:
  return (
      *dense(f"{theirs}.attention.attention.query", f"{ours}/attention/query"),
      *dense(f"{theirs}.attention.attention.key", f"{ours}/attention/key"),
      *dense(f"{theirs}.attention.attention.value", f"{ours}/attention/value"),
      *dense(f"{theirs}.attention.output.dense", f"{ours}/attention/out", num_in=2),
  )


def layer(theirs: str, ours: str) -> tuple[Row, ...]:
  return (
      *norm(f"{theirs}.layernorm_before", f"{ours}/attention_norm"),
      *attention(theirs, ours),
      *norm(f"{theirs}.layernorm_after", f"{ours}/ffn_norm"),
      *dense(f"{theirs}.intermediate.dense", f"{ours}/ffn/in"),
      *dense(f"{theirs}.output.dense", f"{ours}/ffn/out"),
  )


def trunk_rows(prefix: str) -> tuple[Row, ...]:
  return (
      *leading(f"{prefix}.embeddings.cls_token", "cls_token"),
      *leading(f"{prefix}.embeddings.distillation_token", "distillation_token"),
      *leading(f"{prefix}.embeddings.position_embeddings", "position_embedding"),
      *convolution(f"{prefix}.embeddings.patch_embeddings.projection", "patches"),
      *layer(f"{prefix}.encoder.layer.{{i}}", "encoder/{layers}"),
      *norm(f"{prefix}.layernorm", "encoder/final_norm"),
  )


CLASSIFIER = dense("classifier", "task_head/output")
# Modules have other names than files.
ATTENTION_MODULES = {r"\.attention\.attention\.([qkv])(uery|ey|alue)\.": r".attention.\1_proj.",
                     r"\.attention\.output\.dense\.": ".attention.o_proj."}
MODULES = ATTENTION_MODULES | {
    r"\bencoder\.layer\.": "layers.",
    r"\.intermediate\.dense\.": ".mlp.fc1.",
    r"(\.\d+)\.output\.dense\.": r"\1.mlp.fc2.",
}


def pooler(prefix: str) -> tuple[Row, ...]:
  return dense(f"{prefix}.pooler.dense", "task_head/transform")


SIDE_FILES = SideFiles(preprocessor.read_pixels, split_preprocessor, preprocessor.read_ops)

VIT = Family(
    architectures={
        "ViTModel": {"embedding"},
        "ViTForImageClassification": {"classes"},
    },
    attributes=Attributes(ATTRIBUTES | POOLER, FIXED, FREE),
    names=Names(
        prefix="vit",
        trunk=trunk_rows("vit"),
        heads={"embedding": pooler("vit"), "classes": CLASSIFIER},
        buffers=frozenset({"vit.embeddings.mask_token"}),
        modules=MODULES,
    ),
    trunk=trunk,
    values=values,
    head=head,
    model="vit",
    side_files=SIDE_FILES,
)

DEIT = Family(
    architectures={
        "DeiTModel": {"embedding"},
        "DeiTForImageClassification": {"classes"},
        "DeiTForImageClassificationWithTeacher": {"classes", "distilled"},
    },
    attributes=Attributes(ATTRIBUTES | POOLER, FIXED, FREE),
    names=Names(
        prefix="deit",
        trunk=trunk_rows("deit"),
        heads={
            "embedding": pooler("deit"),
            "classes": CLASSIFIER,
            "distilled": (*dense("cls_classifier", "task_head/output"),
                          *dense("distillation_classifier", "task_head/distillation_output")),
        },
        buffers=frozenset({"deit.embeddings.mask_token"}),
        modules=MODULES,
    ),
    trunk=trunk_of_deit,
    values=values,
    head=head_of_deit,
    model="vit",
    side_files=SIDE_FILES._replace(
        image_ops=functools.partial(preprocessor.read_ops, kind="DeiT")),
)

MAE = Family(
    architectures={
        "ViTMAEModel": frozenset(),
        "ViTMAEForPreTraining": {"mae"},
    },
    attributes=Attributes(ATTRIBUTES | DECODER, FIXED),
    names=Names(
        prefix="vit",
        trunk=trunk_rows("vit"),
        heads={"mae": (
            *dense("decoder.decoder_embed", "mae_decoder/embed"),
            *leading("decoder.mask_token", "mae_decoder/mask_token"),
            *leading("decoder.decoder_pos_embed", "mae_decoder/position_embedding"),
            *layer("decoder.decoder_layers.{i}", "mae_decoder/decoder/layers"),
            *norm("decoder.decoder_norm", "mae_decoder/decoder/final_norm"),
            *dense("decoder.decoder_pred", "mae_decoder/output"),
        )},
        spellings={r"^decoder\.decoder_encoder\.layer\.": "decoder.decoder_layers."},
        modules=MODULES,
    ),
    trunk=trunk_of_mae,
    values=values_of_mae,
    head=head,
    model="vit",
    side_files=SIDE_FILES,
)
