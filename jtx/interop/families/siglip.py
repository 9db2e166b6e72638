"""SigLIP: config.json and the names of the tensors that CLIP does not have."""

import functools
from typing import Any, Mapping

from jtx.interop import preprocessor
from jtx.interop.attributes import need
from jtx.interop.families import clip
from jtx.interop.families.clip import TEXT, VISION
from jtx.interop.families.vit import HALF, LEADING
from jtx.interop.family import Family, Heads, Names, SideFiles
from jtx.interop.tables import VECTOR, Row, dense, matrix, norm
from jtx.models.two_towers import TwoTowers

ATTRIBUTES = clip.attributes(
    {f"{VISION}.vision_use_head": ("flag", True), f"{TEXT}.pad_token_id": ("id", 1)},
    text={"vocab_size": 32000, "max_position_embeddings": 64, "projection_size": None},
    vision={"num_channels": 3, "image_size": 224, "patch_size": 16},
    shared={"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
            "num_attention_heads": 12, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6,
            "attention_dropout": 0.0},
    free=())


def trunk(values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
  del heads  # there is one kind
  need(values[f"{VISION}.vision_use_head"],
       f"{VISION}.vision_use_head=False: jtx has it with a head that pools by attention")
  width, of_text = values[f"{VISION}.hidden_size"], f"{TEXT}.projection_size"
  text_width = values[of_text] or values[f"{TEXT}.hidden_size"]
  need(text_width == width, f"{of_text}={text_width} is not {VISION}.hidden_size={width}")
  return {
      **clip.towers(values, causal=False, pixels=HALF),
      "tower": {"cls": False, "pool": "attention", "embed_norm": False, "patch_bias": True},
      "projection": {"width": width, "image": False, "bias": True},
      "pad_id": values[f"{TEXT}.pad_token_id"],
      "similarity": {"log_scale": 2.302585092994046, "biased": True, "bias": -10.0},
  }


def values(model: TwoTowers) -> dict[str, Any]:
  need(model.pad_id is not None, "fills rows of texts with the token pad_id")
  return clip.tower_values(model, std=False) | {
      f"{VISION}.vision_use_head": True, f"{TEXT}.projection_size": model.projection.width,
      f"{TEXT}.pad_token_id": model.pad_id}


# A number is [1] in the file.
SCALAR = VECTOR._replace(read=lambda x, s: x.reshape(()), write=lambda x: x.reshape(1))
POOL, HEAD = "image_tower/task_head/pool", "vision_model.head"
QUERY_KEY_VALUE = tuple(f"{POOL}/attention/{name}" for name in ("query", "key", "value"))
JOINED = f"{HEAD}.attention.in_proj"

FAMILY = Family(
    architectures={"SiglipModel": {"image_text"}},
    attributes=ATTRIBUTES,
    names=Names(
        prefix="",
        trunk=(
            *clip.text_rows(),
            *clip.image_rows(),
            Row(f"{HEAD}.probe", (f"{POOL}/probe",), LEADING),
            Row(f"{JOINED}_weight", tuple(f"{p}/kernel" for p in QUERY_KEY_VALUE), matrix(1)),
            Row(f"{JOINED}_bias", tuple(f"{p}/bias" for p in QUERY_KEY_VALUE), VECTOR),
            *dense(f"{HEAD}.attention.out_proj", f"{POOL}/attention/out", num_in=2),
            *norm(f"{HEAD}.layernorm", f"{POOL}/norm"),
            *dense(f"{HEAD}.mlp.fc1", f"{POOL}/ffn/in"),
            *dense(f"{HEAD}.mlp.fc2", f"{POOL}/ffn/out"),
        ),
        heads={"image_text": (
            *dense("text_model.head", "text_projection"),
            Row("logit_scale", ("logit_scale",), SCALAR),
            Row("logit_bias", ("logit_bias",), SCALAR),
        )},
        buffers=clip.BUFFERS,
        # PyTorch's own attention takes the arrays of its layers and does not call these.
        modules={r"^vision_model\.head\.attention\.": ()},
    ),
    trunk=trunk,
    values=values,
    model="two_towers",
    side_files=SideFiles(preprocessor.read_pixels, clip.split_preprocessor,
                         functools.partial(preprocessor.read_ops, kind="Siglip")),
)
