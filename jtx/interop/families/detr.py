"""DETR: config.json, preprocessor_config.json and the names of its tensors.

The backbone is described in one of two ways, and named by one of two libraries: "resnet" of
`transformers`, or "timm_backbone". Both are read; the first is written, which needs no other
package.
"""

import functools
from typing import Any, Mapping

from jtx.interop import preprocessor
from jtx.interop.attributes import ACTIVATIONS, activation_name, need
from jtx.interop.families.vit import CONVOLUTION, as_channels, split_preprocessor
from jtx.interop.family import Attributes, Family, Heads, Names, SideFiles
from jtx.interop.preprocessor import PIXELS
from jtx.interop.tables import VECTOR, Layout, Row, dense, norm, table
from jtx.models.detr import IMAGENET, Detr
from jtx.nn.attention import PROJECTIONS

BODY = "backbone_config"
ATTRIBUTES = {
    "d_model": ("size", 256),
    "num_channels": ("size", 3),
    "num_queries": ("size", 100),
    **{f"{stack}_{key}": (kind, default) for stack in ("encoder", "decoder")
       for key, kind, default in (("layers", "size", 6), ("ffn_dim", "size", 2048),
                                  ("attention_heads", "size", 8))},
    "activation_function": ("activation", "relu"),
    "dropout": ("rate", 0.1),
    "attention_dropout": ("rate", 0.0),
    "activation_dropout": ("rate", 0.0),
    "position_embedding_type": ("image_position", "sine"),
    "auxiliary_loss": ("flag", False),
    "image_mean": ("pixels", None),
    "image_std": ("pixels", None),
    "use_timm_backbone": ("flag", True),
    "backbone": ("name", None),
    f"{BODY}.model_type": ("name", None),
    f"{BODY}.backbone": ("name", None),
    f"{BODY}.num_channels": ("size", None),
    f"{BODY}.out_features": ("layers", None),
    f"{BODY}.out_indices": ("sizes", None),
    f"{BODY}.embedding_size": ("size", 64),
    f"{BODY}.hidden_sizes": ("sizes", [256, 512, 1024, 2048]),
    f"{BODY}.depths": ("sizes", [3, 4, 6, 3]),
    f"{BODY}.layer_type": ("name", "bottleneck"),
    f"{BODY}.hidden_act": ("name", "relu"),
}
FIXED = {
    "is_encoder_decoder": (True,),
    "encoder_layerdrop": (0.0,),
    "decoder_layerdrop": (0.0,),
    "dilation": (False,),
    "scale_embedding": (False,),
    f"{BODY}.is_encoder_decoder": (False,),
    f"{BODY}.downsample_in_first_stage": (False,),
    f"{BODY}.downsample_in_bottleneck": (False,),
    f"{BODY}.output_stride": (None,),
    f"{BODY}.features_only": (True,),
}
FREE = frozenset({  # of the loss, of first values, and of what is read once
    "class_cost", "bbox_cost", "giou_cost", "mask_loss_coefficient",
    "dice_loss_coefficient", "bbox_loss_coefficient", "giou_loss_coefficient", "eos_coefficient",
    "init_std", "init_xavier_std", "classifier_dropout", "max_position_embeddings",
    "use_pretrained_backbone", f"{BODY}.use_pretrained_backbone", f"{BODY}.freeze_batch_norm_2d",
    f"{BODY}.stage_names", f"{BODY}.in_chans"})
# Names of timm -> blocks of each stage, and their kind.
TIMM = {"resnet18": ((2, 2, 2, 2), "basic"), "resnet34": ((3, 4, 6, 3), "basic"),
        "resnet50": ((3, 4, 6, 3), "bottleneck"), "resnet101": ((3, 4, 23, 3), "bottleneck"),
        "resnet152": ((3, 8, 36, 3), "bottleneck")}
MAX_SIDE = 50  # rows and columns that have a learned position


# ------------------------------------------------------------------------- fields and attributes


def trunk(values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
  del heads  # of objects or none
  need(not values["auxiliary_loss"], "auxiliary_loss=True norms what goes from one layer of the"
       " decoder to the next in `transformers`, which jtx and the paper's model do not; set it to"
       " false if the weights were trained without it (jtx has a loss of all layers in any case)")
  channels = values["num_channels"]
  mean, std = (default if values[key] is None else as_channels(values[key], channels)
               for key, default in zip(PIXELS, (IMAGENET.mean, IMAGENET.std)))
  position = values["position_embedding_type"]
  return {
      "image": {"channels": channels, "mean": mean, "std": std},
      "backbone": body(values),
      "encoder": stack(values, "encoder"),
      "decoder": stack(values, "decoder"),
      "places": {"kind": position} | ({"max_side": MAX_SIDE} if position == "learned" else {}),
      "num_queries": values["num_queries"],
  }


def stack(values: Mapping[str, Any], name: str) -> dict[str, Any]:
  return {
      "width": values["d_model"],
      "num_layers": values[f"{name}_layers"],
      "block": {
          "attention": {"num_heads": values[f"{name}_attention_heads"], "biases": PROJECTIONS,
                        "dropout": values["attention_dropout"]},
          "ffn": {"dim": values[f"{name}_ffn_dim"],
                  "activation": ACTIVATIONS[values["activation_function"]],
                  "dropout": values["activation_dropout"]},
          "norm": {"eps": 1e-5},
          "dropout": values["dropout"],
      },
  }


def body(values: Mapping[str, Any]) -> dict[str, Any]:
  """The fields of the backbone, of either description."""
  kind = values[f"{BODY}.model_type"] or (
      "timm_backbone" if values["use_timm_backbone"] else "resnet")
  need(kind in ("resnet", "timm_backbone"), f"{BODY}.model_type={kind!r} is not what jtx computes,"
       " which is 'resnet' or 'timm_backbone'")
  channels = values[f"{BODY}.num_channels"]
  need(channels in (None, values["num_channels"]), f"{BODY}.num_channels={channels} is not"
       f" num_channels={values['num_channels']}")
  if kind == "timm_backbone":
    name = values[f"{BODY}.backbone"] or values["backbone"] or "resnet50"
    known = name.partition(".")[0]  # behind it are the weights that it was trained to
    need(known in TIMM, f"backbone={name!r} is not known to jtx; valid are {', '.join(TIMM)}")
    stages, block = TIMM[known]
    return checked(values, {"stages": stages, "kind": block})
  width, sizes = values[f"{BODY}.embedding_size"], values[f"{BODY}.hidden_sizes"]
  block, depths = values[f"{BODY}.layer_type"], values[f"{BODY}.depths"]
  need(block in ("bottleneck", "basic"), f"{BODY}.layer_type={block!r} is not 'bottleneck' or"
       " 'basic'")
  need(values[f"{BODY}.hidden_act"] == "relu", f"{BODY}.hidden_act={values[f'{BODY}.hidden_act']!r}"
       " is not what jtx computes, which is 'relu'")
  expected = hidden_sizes(width, len(depths), block)
  need(sizes == expected, f"{BODY}.hidden_sizes={sizes} is not what jtx computes, which is"
       f" {expected} for {BODY}.embedding_size={width}")
  return checked(values, {"stages": tuple(depths), "kind": block, "width": width})


def hidden_sizes(width: int, stages: int, block: str) -> list[int]:
  """Channels of each stage's output."""
  return [width * 2**s * (4 if block == "bottleneck" else 1) for s in range(stages)]


def checked(values: Mapping[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
  """The fields of the backbone, whose last stage must be what the encoder reads."""
  last, features = len(fields["stages"]), values[f"{BODY}.out_features"]
  need(features is None or features[-1:] == [f"stage{last}"], f"{BODY}.out_features={features} ends"
       f" with another than the last stage, 'stage{last}'")
  indices = values[f"{BODY}.out_indices"]
  need(features is not None or indices is None or indices[-1] == last,
       f"{BODY}.out_indices={indices} ends with another than the last stage, {last}")
  return fields


def head(values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
  del values, heads  # there is one kind
  return {}


def values(model: Detr) -> dict[str, Any]:
  """The inverse of `trunk`."""
  encoder, decoder, backbone, image = model.encoder, model.decoder, model.backbone, model.image
  block, stages = encoder.block, len(backbone.stages)
  wide = lambda numbers: list(numbers) * (image.channels if len(numbers) == 1 else 1)
  need(model.places.kind in ("sine", "learned"), "has positions of kind 'sine' or 'learned'")
  result = {
      "d_model": encoder.width,
      "num_channels": image.channels,
      "num_queries": model.num_queries,
      "activation_function": activation_name(block.ffn.activation),
      "dropout": block.dropout,
      "attention_dropout": block.attention.dropout,
      "activation_dropout": block.ffn.dropout,
      "position_embedding_type": model.places.kind,
      "image_mean": wide(image.mean),
      "image_std": wide(image.std),
      "use_timm_backbone": False,
      f"{BODY}.model_type": "resnet",
      f"{BODY}.num_channels": image.channels,
      f"{BODY}.out_features": [f"stage{stages}"],
      f"{BODY}.out_indices": [stages],
      f"{BODY}.embedding_size": backbone.width,
      f"{BODY}.hidden_sizes": hidden_sizes(backbone.width, stages, backbone.kind),
      f"{BODY}.depths": list(backbone.stages),
      f"{BODY}.layer_type": backbone.kind,
  }
  for name, own in (("encoder", encoder), ("decoder", decoder)):
    result |= {f"{name}_layers": own.num_layers, f"{name}_ffn_dim": own.block.ffn.dim,
               f"{name}_attention_heads": own.block.attention.num_heads}
  return result


# ------------------------------------------------------------------------------------ tensors

# [D, F, 1, 1] in the file, [F, D] here.
POINT = Layout(lambda s: (s[1], s[0], 1, 1), lambda x, s: x[:, :, 0, 0].T,
               lambda x: x.T[:, :, None, None])
FEATURES = "model.backbone.conv_encoder.model"
STATISTICS = (("weight", "scale"), ("bias", "bias"), ("running_mean", "mean"),
              ("running_var", "variance"))


def convolution(name: str, path: str) -> tuple[Row, ...]:
  """A convolution without bias and the constants of its batch norm."""
  return (Row(f"{name}.convolution.weight", (f"{path}/kernel",), CONVOLUTION),
          *(Row(f"{name}.normalization.{theirs}", (f"{path}/norm/{ours}",), VECTOR)
            for theirs, ours in STATISTICS))


def backbone_rows() -> tuple[Row, ...]:
  stage, path = f"{FEATURES}.encoder.stages.{{s}}.layers.{{b}}", "backbone/stage_{s}_{b}"
  return (*convolution(f"{FEATURES}.embedder.embedder", "backbone/stem"),
          *convolution(f"{stage}.shortcut", f"{path}/projection"),
          *(row for i in range(3)
            for row in convolution(f"{stage}.layer.{i}", f"{path}/conv_{i + 1}")))


def attention(theirs: str, ours: str) -> tuple[Row, ...]:
  return (*dense(f"{theirs}.q_proj", f"{ours}/query"), *dense(f"{theirs}.k_proj", f"{ours}/key"),
          *dense(f"{theirs}.v_proj", f"{ours}/value"),
          *dense(f"{theirs}.out_proj", f"{ours}/out", num_in=2))


def layer(theirs: str, ours: str) -> tuple[Row, ...]:
  return (*attention(f"{theirs}.self_attn", f"{ours}/attention"),
          *norm(f"{theirs}.self_attn_layer_norm", f"{ours}/attention_norm"),
          *attention(f"{theirs}.encoder_attn", f"{ours}/cross_attention"),
          *norm(f"{theirs}.encoder_attn_layer_norm", f"{ours}/cross_attention_norm"),
          *dense(f"{theirs}.fc1", f"{ours}/ffn/in"), *dense(f"{theirs}.fc2", f"{ours}/ffn/out"),
          *norm(f"{theirs}.final_layer_norm", f"{ours}/ffn_norm"))


def timm_spellings() -> dict[str, str]:
  """The names of timm, as regular expressions -> those of `transformers`."""
  features, block = r"(backbone\.conv_encoder\.model\.)", r"(stages\.\d+\.layers\.\d+\.)"
  names = {f"{features}conv1\\.": r"\1embedder.embedder.convolution.",
           f"{features}bn1\\.": r"\1embedder.embedder.normalization."}
  names |= {f"{features}layer{s + 1}\\.": rf"\1encoder.stages.{s}.layers." for s in range(4)}
  for i in range(3):
    names |= {f"{block}conv{i + 1}\\.": rf"\1layer.{i}.convolution.",
              f"{block}bn{i + 1}\\.": rf"\1layer.{i}.normalization."}
  return names | {f"{block}downsample\\.0\\.": r"\1shortcut.convolution.",
                  f"{block}downsample\\.1\\.": r"\1shortcut.normalization."}


ROWS = backbone_rows()

FAMILY = Family(
    architectures={
        "DetrModel": frozenset(),
        "DetrForObjectDetection": {"boxes"},
    },
    attributes=Attributes(
        ATTRIBUTES, FIXED, FREE, sections={BODY: "backbone_kwargs"},
        aliases={"hidden_size": "d_model", "num_hidden_layers": "encoder_layers",
                 "num_attention_heads": "encoder_attention_heads"}),
    names=Names(
        prefix="model",
        trunk=(
            *ROWS,
            Row("model.input_projection.weight", ("projection/kernel",), POINT),
            Row("model.input_projection.bias", ("projection/bias",), VECTOR),
            *table("model.query_position_embeddings.weight", "query_embedding"),
            *table("model.position_embedding.row_embeddings.weight", "row_embedding"),
            *table("model.position_embedding.column_embeddings.weight", "column_embedding"),
            *layer("model.encoder.layers.{i}", "encoder/{layers}"),
            *layer("model.decoder.layers.{i}", "decoder/{layers}"),
            *norm("model.decoder.layernorm", "decoder_norm"),
        ),
        heads={"boxes": (
            *dense("class_labels_classifier", "task_head/output"),
            *(row for i in range(3)
              for row in dense(f"bbox_predictor.layers.{i}", f"task_head/box_{i}")),
        )},
        buffers=frozenset(
            row.name.replace("running_mean", "num_batches_tracked") for row in ROWS
            if row.name.endswith("running_mean")),
        spellings=timm_spellings(),
        modules={r"\.conv_encoder\.": ".", r"\.out_proj\.": ".o_proj.",
                 r"(\.\d+)\.(fc[12])\.": r"\1.mlp.\2."},
    ),
    trunk=trunk,
    values=values,
    head=head,
    model="detr",
    side_files=SideFiles(preprocessor.read_pixels, split_preprocessor,
                         functools.partial(preprocessor.read_ops, kind="Detr")),
)
