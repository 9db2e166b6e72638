"""Vision transformers as the library timm publishes them: read, not written.

Its config.json names an architecture, such as vit_base_patch16_224 or deit3_small_patch16_384,
whose sizes are known by that name; `model_args` may change a few.
"""

import os
import re
from typing import Any, Mapping, Sequence

from jtx.config import section
from jtx.data.ops.image import CenterCrop, InceptionCrop, Resize
from jtx.errors import ConfigError
from jtx.interop import preprocessor
from jtx.interop.families.vit import IMAGENET, SIDE_FILES, as_channels, convolution, leading
from jtx.interop.family import Attributes, Family, Heads, Names
from jtx.interop.files import read_config
from jtx.interop.tables import VECTOR, Row, dense, matrix, norm
from jtx.models.patches import ImageConfig
from jtx.nn.attention import PROJECTIONS
from jtx.nn.grid_positions import GRID_POSITIONS

SIZES = {"tiny": (192, 12, 3), "small": (384, 12, 6), "base": (768, 12, 12),
         "large": (1024, 24, 16), "huge": (1280, 32, 16)}  # width, layers, heads
NAME = re.compile(r"(vit|deit|deit3)_(tiny|small|base|large|huge)_(distilled_)?patch(\d+)_(\d+)")
# Keys of model_args that can be read; others may change the computation.
ARGS = {"img_size": "image_size", "patch_size": "patch_size", "embed_dim": "width",
        "depth": "num_layers", "num_heads": "num_heads", "in_chans": "channels",
        "num_classes": "num_labels", "no_embed_class": "no_embed_class",
        "init_values": "layer_scale"}


# Of evaluation, where the file does not say it.
CROP = {"crop_pct": 0.875, "crop_mode": "center", "interpolation": "bicubic"}


def is_timm(config: Mapping[str, Any]) -> bool:
  return "model_type" not in config and "architecture" in config


def translated(config: Mapping[str, Any], path: str) -> dict[str, Any]:
  """A config.json of timm in the words of `FAMILY`.

  Raises:
    ConfigError: an architecture or argument that is not known.
  """
  name = config["architecture"]
  found = NAME.fullmatch(str(name))
  if not found:
    raise ConfigError(f"{path}: architecture={name!r} is none that jtx has; valid are names like"
                      " vit_base_patch16_224, deit_small_distilled_patch16_224 and"
                      " deit3_large_patch16_384")
  kind, size, distilled, patch, image = found.groups()
  width, num_layers, num_heads = SIZES[size]
  result = {
      "model_type": "timm", "width": width, "num_layers": num_layers, "num_heads": num_heads,
      "patch_size": int(patch), "image_size": int(image),
      "layer_scale": 1e-6 if kind == "deit3" else None, "no_embed_class": kind == "deit3",
      "distilled": bool(distilled),
      "architectures": ["VisionTransformerDistilled" if distilled else "VisionTransformer"]}
  if "num_classes" in config:
    result["num_labels"] = config["num_classes"]
  if "global_pool" in config and config["global_pool"] != "token":
    raise ConfigError(f"{path}: global_pool={config['global_pool']!r} is not what jtx reads, which"
                      " is 'token'")
  pretrained, args = (config[key] if key in config else {}
                      for key in ("pretrained_cfg", "model_args"))
  result |= {ours: list(pretrained[theirs]) for ours, theirs in (
      ("image_mean", "mean"), ("image_std", "std")) if theirs in pretrained}
  for key, value in args.items():
    if key not in ARGS:
      raise ConfigError(f"{path}: model_args has {key!r}={value!r}, which is not known to jtx and"
                        " might change the computation")
    result[ARGS[key]] = value
  return result


ATTRIBUTES = {
    "width": ("size", None), "num_layers": ("size", None), "num_heads": ("size", None),
    "patch_size": ("square", None), "image_size": ("square", None), "channels": ("size", 3),
    "layer_scale": ("positive", None), "no_embed_class": ("flag", False),
    "distilled": ("flag", False), "image_mean": ("pixels", None), "image_std": ("pixels", None),
}


def trunk(values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
  del heads
  channels = values["channels"]
  pixels = {ours: as_channels(values[theirs] or list(default[:channels]), channels)
            for ours, theirs, default in (("mean", "image_mean", IMAGENET[0]),
                                          ("std", "image_std", IMAGENET[1]))}
  return {
      "image": {"size": values["image_size"], "channels": channels, **pixels},
      "patch_size": values["patch_size"],
      "prefix": {"distillation": values["distilled"]},
      "stack": {
          "width": values["width"],
          "num_layers": values["num_layers"],
          "position": section(GRID_POSITIONS, "learned", of_prefix=not values["no_embed_class"]),
          "block": {
              "attention": {"num_heads": values["num_heads"], "biases": PROJECTIONS},
              "ffn": {"dim": 4 * values["width"], "activation": "gelu"},
              "norm": {"position": "pre", "eps": 1e-6},
              "dropout": 0.0,
              "residual": {"layer_scale": values["layer_scale"]},
          },
      },
  }


def image_ops(directory: str, image: ImageConfig) -> Sequence[Any]:
  """As timm evaluates: the middle of the image, after the shorter side became size / crop_pct.

  Raises:
    ConfigError: a crop or an interpolation that jtx does not have.
  """
  if os.path.exists(os.path.join(directory, preprocessor.PREPROCESSOR)):
    return preprocessor.read_ops(directory, image)
  config = read_config(directory)
  config |= config["pretrained_cfg"] if "pretrained_cfg" in config else {}
  found = CROP | {key: config[key] for key in CROP if key in config}
  resize = int(image.size / found["crop_pct"])
  if found["crop_mode"] not in ("center", "squash"):
    raise ConfigError(f"{directory}: crop_mode={found['crop_mode']!r} is not known to jtx; valid"
                      " are center and squash")
  if found["crop_mode"] == "squash":
    return preprocessor.placed(
        image, Resize(size=resize, interpolation=found["interpolation"]),
        CenterCrop(size=image.size))
  return preprocessor.placed(image, InceptionCrop(
      size=image.size, eval_resize=resize, interpolation=found["interpolation"]))


def head(values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
  return {"task": "classes", "pool": "first", "distilled": "distilled" in heads}


def values(model: Any) -> dict[str, Any]:
  raise ConfigError("is read only")


def layer(theirs: str, ours: str) -> tuple[Row, ...]:
  attention = tuple(f"{ours}/attention/{name}" for name in ("query", "key", "value"))
  return (
      *norm(f"{theirs}.norm1", f"{ours}/attention_norm"),
      Row(f"{theirs}.attn.qkv.weight", tuple(f"{p}/kernel" for p in attention), matrix(1)),
      Row(f"{theirs}.attn.qkv.bias", tuple(f"{p}/bias" for p in attention), VECTOR),
      *dense(f"{theirs}.attn.proj", f"{ours}/attention/out", num_in=2),
      # In the files it is `gamma`, an old spelling of `weight` in others.
      Row(f"{theirs}.ls1.weight", (f"{ours}/attention_scale",), VECTOR),
      *norm(f"{theirs}.norm2", f"{ours}/ffn_norm"),
      *dense(f"{theirs}.mlp.fc1", f"{ours}/ffn/in"),
      *dense(f"{theirs}.mlp.fc2", f"{ours}/ffn/out"),
      Row(f"{theirs}.ls2.weight", (f"{ours}/ffn_scale",), VECTOR),
  )


HEAD = dense("head", "task_head/output")

FAMILY = Family(
    architectures={"VisionTransformer": {"classes"},
                   "VisionTransformerDistilled": {"classes", "distilled"}},
    attributes=Attributes(ATTRIBUTES),
    names=Names(
        prefix="",
        trunk=(
            *leading("cls_token", "cls_token"),
            *leading("dist_token", "distillation_token"),
            *leading("pos_embed", "position_embedding"),
            *convolution("patch_embed.proj", "patches"),
            *layer("blocks.{i}", "encoder/{layers}"),
            *norm("norm", "encoder/final_norm"),
        ),
        heads={"classes": HEAD, "distilled": (
            *HEAD, *dense("head_dist", "task_head/distillation_output"))},
    ),
    trunk=trunk,
    values=values,
    head=head,
    model="vit",
    side_files=SIDE_FILES._replace(image_ops=image_ops),
)
