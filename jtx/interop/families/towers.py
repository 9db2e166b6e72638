"""The encoders of CLIP and SigLIP alone: `CLIPVisionModel`, `SiglipTextModel` and so on.

With a projection an encoder's vector is that which `CLIPModel` compares, before it is scaled to
length 1.
"""

import functools
from typing import Any, Mapping, Sequence

from jtx.config import section
from jtx.interop import preprocessor
from jtx.interop.attributes import need
from jtx.interop.families import clip, siglip
from jtx.interop.families.clip import TEXT, VISION
from jtx.interop.families.vit import HALF, SIDE_FILES, pixels_of, wide
from jtx.interop.family import Attributes, Family, Heads, Names
from jtx.interop.preprocessor import PIXELS
from jtx.interop.tables import Row, dense
from jtx.models.encoder import Encoder
from jtx.models.vit import Vit
from jtx.nn.grid_positions import GRID_POSITIONS, LearnedGrid
from jtx.nn.positions import POSITIONS, Learned

PROJECTED = frozenset({"embedding", "projected"})


def attributes(of_both: Attributes, of: str, more: Mapping[str, tuple[str, Any]]) -> Attributes:
  """Those of one section, and of more."""
  inside = lambda names: {name.removeprefix(f"{of}."): name for name in names
                          if name.startswith(f"{of}.")}
  read = {key: of_both.read[name] for key, name in inside(of_both.read).items()}
  free = {*inside(of_both.free), "initializer_factor"} - more.keys()
  return Attributes(read | more, free=frozenset(free))


def rows_of(rows: Sequence[Row], tower: str) -> tuple[Row, ...]:
  """Rows of one encoder, whose parameters are then the model's own."""
  own = (row for row in rows if row.paths[0].startswith(f"{tower}/"))
  return tuple(row._replace(paths=tuple(p.removeprefix(f"{tower}/") for p in row.paths))
               for row in own)


def in_section(values: Mapping[str, Any], of: str) -> dict[str, Any]:
  return {f"{of}.{key}": value for key, value in values.items()}


def out_of_section(values: Mapping[str, Any], of: str) -> dict[str, Any]:
  return {key.removeprefix(f"{of}."): value for key, value in values.items()}


# ----------------------------------------------------------------------------------- images


def image_trunk(values: Mapping[str, Any], heads: Heads, *, pixels: Any,
                tower: Mapping[str, Any]) -> dict[str, Any]:
  del heads
  need(values.get("vision_use_head", True),
       "vision_use_head=False: jtx has it with a head that pools by attention")
  stack = clip.stack(in_section(values, VISION), VISION, section(GRID_POSITIONS, "learned"))
  return {"image": pixels_of(values, pixels), "patch_size": values["patch_size"], "stack": stack,
          **tower}


def image_values(model: Vit, std: bool, more: Mapping[str, Any]) -> dict[str, Any]:
  """The inverse; `std` is whether the class has an initializer_range."""
  need(isinstance(model.stack.position, LearnedGrid),
       f"has learned positions, not {type(model.stack.position).__name__}")
  own = {"projection_dim": model.head.projection} if model.head.projection else {}
  return {**out_of_section(clip.stack_values(model.stack, VISION, std), VISION),
          "image_size": model.image.size, "patch_size": model.patch_size,
          "num_channels": model.image.channels, "image_mean": wide(model.image.mean, model.image),
          "image_std": wide(model.image.std, model.image), **more, **own}


def head(values: Mapping[str, Any], heads: Heads, *, pool: str,
         bias: Mapping[str, bool] = {}) -> dict[str, Any]:
  """The pooled vector, and its projection where there is one; `bias` is then of that."""
  if "projected" not in heads:
    return {"pool": pool}
  return {"pool": pool, "projection": values["projection_dim"], **bias}


def image_family(both: Family, name: str, projected: bool, kind: str, **of: Any) -> Family:
  """The encoder of images.

  Args:
    both: the family of both encoders.
    name: what the names of its classes begin with.
    projected: there is a class with a projection.
    kind: of the image processor.
    **of: `pixels`, `tower`, `pool`, `std` and `values`.
  """
  pool_rows = rows_of(both.names.trunk, "image_tower/task_head")
  architectures = {f"{name}VisionModel": {"embedding"}}
  heads = {"embedding": tuple(
      row._replace(paths=tuple(f"task_head/{p}" for p in row.paths)) for row in pool_rows)}
  more: dict[str, Any] = {key: ("pixels", None) for key in PIXELS}
  if projected:
    architectures[f"{name}VisionModelWithProjection"] = PROJECTED
    heads["projected"] = dense("visual_projection", "task_head/projection")
    more["projection_dim"] = ("size", 512)
  taken = {row.name for row in pool_rows}
  trunk = tuple(row for row in rows_of(both.names.trunk, "image_tower") if row.name not in taken)
  return Family(
      architectures=architectures, attributes=attributes(both.attributes, VISION, more),
      names=Names(prefix="vision_model", trunk=trunk, heads=heads, buffers=clip.BUFFERS),
      trunk=functools.partial(image_trunk, pixels=of["pixels"], tower=of["tower"]),
      values=functools.partial(image_values, std=of["std"], more=of["values"]),
      head=functools.partial(head, pool=of["pool"]), model="vit",
      side_files=SIDE_FILES._replace(
          image_ops=functools.partial(preprocessor.read_ops, kind=kind)))


CLIP_IMAGES = image_family(
    clip.FAMILY, "CLIP", True, "CLIP", pixels=clip.WEB, pool="first", std=True, values={},
    tower={"patch_bias": False, "embed_norm": True})
SIGLIP_IMAGES = image_family(
    siglip.FAMILY, "Siglip", False, "Siglip", pixels=HALF, pool="attention", std=False,
    values={"vision_use_head": True}, tower={"prefix": {"cls": False}})


# ------------------------------------------------------------------------------------ texts


def text_trunk(values: Mapping[str, Any], heads: Heads = frozenset(),
               causal: bool = True) -> dict[str, Any]:
  del heads
  position = section(POSITIONS, "learned", max_length=values["max_position_embeddings"])
  return {"vocab_size": values["vocab_size"], "embedding": {"types": 0, "norm": False},
          "mlm": False,
          "stack": clip.stack(in_section(values, TEXT), TEXT, position, causal=causal)}


def text_values(model: Encoder) -> dict[str, Any]:
  position = model.stack.position
  need(isinstance(position, Learned), f"has learned positions, not {type(position).__name__}")
  own = {"projection_dim": model.head.projection} if model.head.projection else {}
  need(model.embedding.pad_id is None, "does not fill rows: embedding.pad_id is to be None")
  return {**out_of_section(clip.stack_values(model.stack, TEXT), TEXT),
          "vocab_size": model.vocab_size, "max_position_embeddings": position.max_length, **own}


def filled_trunk(values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
  """Of SigLIP."""
  del heads
  fields = text_trunk(values, causal=False)
  return {**fields, "embedding": {**fields["embedding"], "pad_id": values["pad_token_id"]}}


def filled_values(model: Encoder) -> dict[str, Any]:
  position, width = model.stack.position, model.head.projection
  need(isinstance(position, Learned), f"has learned positions, not {type(position).__name__}")
  need(model.embedding.pad_id is not None, "fills rows of texts with the token embedding.pad_id")
  need(model.head.output_bias, "has a projection with a bias")
  return {**out_of_section(clip.stack_values(model.stack, TEXT, std=False), TEXT),
          "vocab_size": model.vocab_size, "max_position_embeddings": position.max_length,
          "projection_size": width, "pad_token_id": model.embedding.pad_id}


def filled_head(values: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
  del heads  # every vector is projected
  return {"pool": "last", "projection": values["projection_size"] or values["hidden_size"]}


CLIP_TEXTS = Family(
    architectures={"CLIPTextModel": {"embedding"}, "CLIPTextModelWithProjection": PROJECTED},
    attributes=attributes(clip.ATTRIBUTES, TEXT, {"projection_dim": ("size", 512)}),
    names=Names(
        prefix="text_model", trunk=rows_of(clip.FAMILY.names.trunk, "text_tower"),
        heads={"embedding": (), "projected": dense("text_projection", "task_head/projection")},
        buffers=clip.BUFFERS),
    trunk=text_trunk,
    values=text_values,
    head=functools.partial(head, pool="last", bias={"output_bias": False}),
    check_ids=clip.check_ids,
)
SIGLIP_TEXTS = Family(
    architectures={"SiglipTextModel": PROJECTED},
    attributes=attributes(siglip.ATTRIBUTES, TEXT, {}),
    names=Names(
        prefix="text_model", trunk=rows_of(siglip.FAMILY.names.trunk, "text_tower"),
        heads={"embedding": (), "projected": dense("text_model.head", "task_head/projection")},
        base=PROJECTED, buffers=clip.BUFFERS),
    trunk=filled_trunk,
    values=filled_values,
    head=filled_head,
)
