"""Images for vision transformers: sources, augmentation, and encoders that are trained before."""

from typing import Any

from jtx import hub
from jtx.errors import ConfigError
from jtx.saved.folder import open_saved

from . import arguments, common

IMAGENET = dict(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
CROPS = ("inception", "pad", "none")
# What arguments of a model's size are for, by keys of the model.
SIZED_BY = {"size": ("stack.width", "stack.num_layers", "stack.block.attention.num_heads"),
            "patch": ("patch_size",), "channels": ("image.channels",)}


def from_trained(c, args) -> None:
  """The encoder of a Hugging Face folder or a workdir, at the config's size of images.

  Where a `pool` may be given and is not, it is that of the folder's own classifier.

  Raises:
    ConfigError: arguments that were given are for another model.
  """
  saved, asked = open_saved(args.init), c.model.copy_and_resolve_references()
  fields = saved.trunk_fields("vit")
  fields["image"] = {**fields["image"], "size": c.model.image.size}
  common.apply(c, {"model": fields})
  arguments.check_brought(args, asked, c.model, SIZED_BY)
  if "trained" in c.model.stack.position:
    c.model.stack.position.trained = True  # MAE's are not, while it pretrains
  if "pool" in args and "pool" not in args.given:
    common.apply(c, {"model.head": classifier_of(saved)})
  c.init_from = hub.place(args.init)


def classifier_of(saved) -> dict[str, Any]:
  """How a folder's own classifier pools; nothing where it has none, as MAE."""
  try:
    head = saved.finetuned_fields("classes")[1]["head"]
  except ConfigError:
    return {}
  return {key: head[key] for key in ("pool", "norm") if key in head}


def add_data(c, args) -> None:
  if not args.train:
    args.train, args.val = "embedded:digits:train", args.val or "embedded:digits:test"
  c.data.train = (args.train,)
  if args.val:
    c.evals.val = common.evaluator("images", source=(args.val,), every=1000)
  c.data.window = 0  # so that every epoch has every image


def add_scores(c, args) -> None:
  """Any number of labels an image with `multi`, and `scores` beside those of every run."""
  scores = {"scores": tuple(args.scores.split("+"))} if args.scores else {}
  if args.multi:
    c.model.head.task, c.data.ops[0].multi_label = "multi_label", True
    c.objective = common.objective("multi_label")
    if args.val:
      c.evals.val = common.evaluator("multi_label", source=(args.val,), report=True, **scores)
  elif scores:
    c.evals.classes = common.evaluator("classification", source=(args.val,), report=True, **scores)


def ops(crop: str, res: int, channels: int = 3, more: tuple = ()) -> tuple:
  """Decoding, a crop, a flip, what a recipe draws beside, and the layout."""
  if crop not in CROPS:
    raise ConfigError(f"config argument crop={crop!r}: valid are {', '.join(CROPS)}")
  crops = {
      "inception": (common.op("inception_crop", size=res, eval_resize=res * 8 // 7),
                    common.op("flip")),
      "pad": (common.op("pad_crop", size=res), common.op("flip")),
      "none": (common.op("resize", size=res),),
  }
  return (common.op("decode_image", channels=channels), *crops[crop], *more,
          common.op("images", size=res, channels=channels))


def layer_mults(L: int, args) -> tuple[tuple[str, float], ...]:
  """`optim.lr_mults` by depth: decay^(L - i) for layer i of L, 0 for the first `freeze` ones.

  The stem, the prefix and the positions are below layer 0 (Bao et al. 2021, BEiT).
  """
  arguments.check_depth(args, L)
  freeze, decay = args.freeze, args.decay
  below = "^(patches|resnet|cls_token|distillation_token|registers|position_embedding)"
  mults = {below: 0.0 if freeze else decay**(L + 1)}
  mults |= {f"^encoder/layers/{i}/": 0.0 if i < freeze else decay**(L - i) for i in range(L)}
  return tuple((path, mult) for path, mult in mults.items() if mult != 1)


def shrink(c, args) -> None:
  """Makes a config of a vision transformer run in seconds, on digits of 8 x 8."""
  common.apply(c, {"model": dict(patch_size=2, stack=common.TINY_STACK)})
  if c.model.decoder.num_layers:
    common.apply(c, {"model.decoder": dict(num_layers=1, width=32, num_heads=2, ffn_dim=64)})
  if c.model.stem.stages:
    common.apply(c, {"model": dict(patch_size=1, stem=dict(stages=(1,), width=8, groups=4))})
  c.optim.lr_mults = layer_mults(c.model.stack.num_layers, args)
  on_digits(c)


def on_digits(c) -> None:
  """A few steps on digits of 8 x 8 in shades of grey."""
  common.apply(c, {"model.image": dict(size=8, channels=1, mean=(0.5,), std=(0.5,))})
  c.steps, c.epochs, c.batch_size, c.log_every = 4, None, 8, 2
  c.checkpoint.every = c.checkpoint.keep = 2
  for op in c.data.ops:
    for key, value in (("size", 8), ("channels", 1), ("eval_resize", 9), ("padding", 1)):
      if key in op:
        op[key] = value
  c.data.train, c.data.window = ("embedded:digits:train",), 256
  for evaluator in c.evals.values():
    if "source" in evaluator:
      evaluator.source, evaluator.every = ("embedded:digits:test",), 0
    if "train" in evaluator:
      evaluator.train = ("embedded:digits:train",)
