"""CLIP: config.json with a section for each tower, and the names of their tensors.

What SigLIP has in the same way is here, too.
"""

import functools
from typing import Any, Mapping, Sequence

from jtx.config import section
from jtx.interop import preprocessor
from jtx.interop.attributes import ACTIVATIONS, activation_name, init_std, need
from jtx.interop.families.vit import CONVOLUTION, pixels_of, wide
from jtx.interop.family import Attributes, Family, Heads, Names, SideFiles
from jtx.interop.preprocessor import PIXELS, PREPROCESSOR
from jtx.interop.tables import TABLE, VECTOR, Row, dense, norm, table
from jtx.models.two_towers import TwoTowers
from jtx.nn.attention import PROJECTIONS
from jtx.nn.grid_positions import GRID_POSITIONS, LearnedGrid
from jtx.nn.positions import POSITIONS, Learned
from jtx.nn.stack import StackConfig

SECTIONS = {"text_config": "text_config_dict", "vision_config": "vision_config_dict"}
TEXT, VISION = SECTIONS
# Mean and standard deviation of pixels, where no file tells them.
WEB = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))


def attributes(own: Mapping[str, tuple[str, Any]], text: Mapping[str, Any],
               vision: Mapping[str, Any], shared: Mapping[str, Any],
               free: Sequence[str]) -> Attributes:
  """The attributes of two towers.

  Args:
    own: of both together, as in `Attributes.read`.
    text: defaults of the section of texts, by name.
    vision: of that of images.
    shared: of either.
    free: that change nothing, of either section.
  """
  kinds = {"hidden_act": "activation", "layer_norm_eps": "positive", "attention_dropout": "rate",
           "initializer_range": "positive", "image_size": "square", "patch_size": "square",
           "projection_size": "size_or_null"}
  read = {f"{name}.{key}": (kinds[key] if key in kinds else "size", default)
          for name, values in ((TEXT, shared | text), (VISION, shared | vision))
          for key, default in values.items()}
  pixels = {key: ("pixels", None) for key in PIXELS}
  # The width of a tower's projection counts in classes of one tower; factors are of first values.
  names = ("initializer_factor", *(f"{name}.{key}" for name in SECTIONS for key in free))
  return Attributes({**own, **read, **pixels}, free=frozenset(names), sections=SECTIONS)


ATTRIBUTES = attributes(
    {"projection_dim": ("size", 512), "logit_scale_init_value": ("positive", 2.6592)},
    text={"vocab_size": 49408, "hidden_size": 512, "intermediate_size": 2048,
          "num_attention_heads": 8, "max_position_embeddings": 77},
    vision={"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12,
            "num_channels": 3, "image_size": 224, "patch_size": 32},
    shared={"num_hidden_layers": 12, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5,
            "attention_dropout": 0.0, "initializer_range": 0.02},
    free=("projection_dim", "initializer_factor", "dropout"))


# ------------------------------------------------------------------------- fields and attributes


def stack(values: Mapping[str, Any], of: str, position: Any, **more: Any) -> dict[str, Any]:
  """The fields of a tower's layers; `of` is its section."""
  get = lambda key, default=None: values[f"{of}.{key}"] if f"{of}.{key}" in values else default
  return {
      "width": get("hidden_size"),
      "num_layers": get("num_hidden_layers"),
      "position": position,
      "block": {
          "attention": {"num_heads": get("num_attention_heads"), "biases": PROJECTIONS,
                        "dropout": get("attention_dropout")},
          "ffn": {"dim": get("intermediate_size"), "activation": ACTIVATIONS[get("hidden_act")]},
          "norm": {"position": "pre", "eps": get("layer_norm_eps")},
          "dropout": 0.0,
          "init_std": get("initializer_range", 0.02),
      },
      **more,
  }


def towers(values: Mapping[str, Any], causal: bool, pixels: Sequence[Any]) -> dict[str, Any]:
  """The fields of both towers; `pixels` are the mean and deviation that stand for unset ones."""
  image = {key.removeprefix(f"{VISION}."): value for key, value in values.items()
           if key.startswith(f"{VISION}.")}
  return {
      "vocab_size": values[f"{TEXT}.vocab_size"],
      "image": pixels_of(image | {key: values[key] for key in PIXELS}, pixels),
      "patch_size": image["patch_size"],
      "image_stack": stack(values, VISION, section(GRID_POSITIONS, "learned")),
      "text_stack": stack(values, TEXT, section(
          POSITIONS, "learned", max_length=values[f"{TEXT}.max_position_embeddings"]),
                          causal=causal),
  }


def trunk(values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
  del heads  # there is one kind
  return {
      **towers(values, causal=True, pixels=WEB),
      "projection": {"width": values["projection_dim"]},
      "similarity": {"log_scale": values["logit_scale_init_value"]},
  }


def stack_values(stack: StackConfig, of: str, std: bool = True) -> dict[str, Any]:
  """The inverse of `stack`; `std` is whether the class has an initializer_range."""
  block = stack.block
  found = {
      "hidden_size": stack.width,
      "num_hidden_layers": stack.num_layers,
      "num_attention_heads": block.attention.num_heads,
      "intermediate_size": block.ffn.dim,
      "hidden_act": activation_name(block.ffn.activation),
      "layer_norm_eps": block.norm.eps,
      "attention_dropout": block.attention.dropout,
      **({"initializer_range": init_std(block)} if std else {}),
  }
  return {f"{of}.{key}": value for key, value in found.items()}


def tower_values(model: TwoTowers, std: bool = True) -> dict[str, Any]:
  """The inverse of `towers`."""
  image, positions = model.image, model.text_stack.position
  need(isinstance(positions, Learned) and isinstance(model.image_stack.position, LearnedGrid),
       "has learned positions in both towers, not"
       f" {type(positions).__name__} and {type(model.image_stack.position).__name__}")
  return {
      **stack_values(model.text_stack, TEXT, std),
      f"{TEXT}.vocab_size": model.vocab_size,
      f"{TEXT}.max_position_embeddings": positions.max_length,
      **stack_values(model.image_stack, VISION, std),
      f"{VISION}.image_size": image.size,
      f"{VISION}.patch_size": model.patch_size,
      f"{VISION}.num_channels": image.channels,
      "image_mean": wide(image.mean, image),
      "image_std": wide(image.std, image),
  }


def values(model: TwoTowers) -> dict[str, Any]:
  """The inverse of `trunk`."""
  width = model.projection.width
  return {
      **tower_values(model),
      f"{TEXT}.projection_dim": width,  # which the classes of one tower read
      f"{VISION}.projection_dim": width,
      "projection_dim": width,
      "logit_scale_init_value": model.similarity.log_scale,
  }


def check_ids(ids: Mapping[str, int | None]) -> None:
  need(ids["eos_token_id"] != 2,
       "the tokenizer's end token has the id 2, by which transformers knows old files of CLIP: it"
       " would take the token of the largest id for the end of a text. A tokenizer with another id"
       " for it, such as CLIP's own, can be saved, and a SigLIP with any")


def split_preprocessor(config: Mapping[str, Any], image_ops: Sequence[Any],
                       ) -> tuple[dict[str, Any], dict[str, Any]]:
  """The content of config.json, and of preprocessor_config.json by its name."""
  known = config | {"num_channels": config[VISION]["num_channels"]}
  return ({key: value for key, value in config.items() if key not in PIXELS},
          {PREPROCESSOR: preprocessor.content(image_ops, known)})


# ------------------------------------------------------------------------------------ tensors


def layer(theirs: str, ours: str) -> tuple[Row, ...]:
  return (
      *norm(f"{theirs}.layer_norm1", f"{ours}/attention_norm"),
      *dense(f"{theirs}.self_attn.q_proj", f"{ours}/attention/query"),
      *dense(f"{theirs}.self_attn.k_proj", f"{ours}/attention/key"),
      *dense(f"{theirs}.self_attn.v_proj", f"{ours}/attention/value"),
      *dense(f"{theirs}.self_attn.out_proj", f"{ours}/attention/out", num_in=2),
      *norm(f"{theirs}.layer_norm2", f"{ours}/ffn_norm"),
      *dense(f"{theirs}.mlp.fc1", f"{ours}/ffn/in"),
      *dense(f"{theirs}.mlp.fc2", f"{ours}/ffn/out"),
  )


def text_rows() -> tuple[Row, ...]:
  return (
      *table("text_model.embeddings.token_embedding.weight", "text_tower/embed/embedding"),
      *table("text_model.embeddings.position_embedding.weight", "text_tower/position_embedding"),
      *layer("text_model.encoder.layers.{i}", "text_tower/encoder/{layers}"),
      *norm("text_model.final_layer_norm", "text_tower/encoder/final_norm"),
  )


def image_rows() -> tuple[Row, ...]:
  weight, bias = dense("vision_model.embeddings.patch_embedding", "image_tower/patches")
  return (
      weight._replace(layout=CONVOLUTION), bias,
      *table("vision_model.embeddings.position_embedding.weight", "image_tower/position_embedding"),
      *layer("vision_model.encoder.layers.{i}", "image_tower/encoder/{layers}"),
      *norm("vision_model.post_layernorm", "image_tower/encoder/final_norm"),
  )


BUFFERS = frozenset({"text_model.embeddings.position_ids", "vision_model.embeddings.position_ids"})

FAMILY = Family(
    architectures={"CLIPModel": {"image_text"}},
    attributes=ATTRIBUTES,
    names=Names(
        prefix="",
        trunk=(
            *text_rows(),
            *image_rows(),
            Row("vision_model.embeddings.class_embedding", ("image_tower/cls_token",), VECTOR),
            *norm("vision_model.pre_layrnorm", "image_tower/input_norm"),
        ),
        heads={"image_text": (
            *dense("visual_projection", "image_projection"),
            *dense("text_projection", "text_projection"),
            Row("logit_scale", ("logit_scale",), TABLE),
        )},
        buffers=BUFFERS,
    ),
    trunk=trunk,
    values=values,
    check_ids=check_ids,
    model="two_towers",
    side_files=SideFiles(preprocessor.read_pixels, split_preprocessor,
                         functools.partial(preprocessor.read_ops, kind="CLIP")),
)
