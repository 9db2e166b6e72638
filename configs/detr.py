"""DETR: objects in images, found as a set (Carion et al. 2020).

  python -m experiments.train --workdir=runs/detr --config=configs/detr.py:init=detr-resnet-50

  python -m experiments.train --workdir=runs/digits --config.data.path=mnist \
    --config=configs/detr.py:digits,train=scattered:train.npz,val=scattered:test.npz

  python -m experiments.train --workdir=runs/cells \
    --config=configs/detr.py:blood_cells,train=voc:BCCD.zip:train,val=voc:BCCD.zip:val

The recipe is the first argument. "resnet50" and "resnet101" are the paper's, on COCO 2017 in a
folder coco: AdamW of 1e-4, and 1e-5 for the backbone, 300 epochs of which the last 100 have a tenth
of it; published AP 42.0 and 43.5 after 500. Not yet reproduced here. Their batch norms are
constants, so they start from `init`, a Hugging Face folder or a workdir of a Detr with a trained
backbone. "digits" is a small model from scratch, for one to four digits on 64 x 64 pixels, or on
32 x 32 of those that come with scikit-learn: with MNIST's, 12 epochs take 45 minutes on one core,
and AP at an IoU of 0.5 is 0.93 after 5,000 updates and 0.97 after 10,000. "blood_cells" is for a
few hundred photographs, from `init`, or from scratch with group norms. "blood_cells_small" has the
same ones at 192 pixels, in an hour on one core: white cells then have an AP at 0.5 of 0.90, red
ones 0.09, and platelets, of a few pixels, none.

Arguments: recipe; train and val, sources of images with boxes; init; queries; res, pixels of the
longer side of an image; batch, epochs and lr, of which 0 is the recipe's; tiny, for seconds.

`sweep_positions` is the paper's table 3: positions of kinds, and where they are added.
"""

from typing import Any

from jtx import hub
from jtx.errors import ConfigError
from jtx.saved.folder import open_saved

from . import arguments, common

PRESETS = ("", "tiny", "resnet101,queries=50,res=640,batch=8,epochs=1,lr=0.001", "digits",
           "digits,train=scattered:a.npz,val=scattered:b.npz,res=64", "digits,tiny",
           "blood_cells,train=voc:a.zip:train,val=voc:a.zip:val", "blood_cells_small")

# Of the paper: 4 images on each of 16 GPUs.
PAPER = dict(queries=100, res=1333, batch=64, epochs=300.0, lr=1e-4, most=100)
RECIPES: dict[str, dict[str, Any]] = {
    "resnet50": PAPER | dict(stages=(3, 4, 6, 3)),
    "resnet101": PAPER | dict(stages=(3, 4, 23, 3)),
    "digits": dict(queries=10, res=0, batch=32, epochs=0.0, lr=1e-3, most=4),
    "blood_cells": dict(queries=60, res=320, batch=8, epochs=300.0, lr=2e-4, most=60),
    "blood_cells_small": dict(queries=60, res=192, batch=8, epochs=97.56, lr=2e-3, most=60),
}
COCO = tuple(f"coco:coco/annotations/instances_{split}2017.json:images[coco/{split}2017]"
             for split in ("train", "val"))


def get_config(arg: str = ""):
  args = arguments.parse_args(arg, recipe="resnet50", train="", val="", init="", queries=0, res=0,
                              batch=0, epochs=0.0, lr=0.0, tiny=False)
  recipe = arguments.choose(RECIPES, args.recipe, "recipe")
  for key in ("queries", "res", "batch", "epochs", "lr"):
    args[key] = args[key] or recipe[key]
  c = common.get_config()
  recipe = recipe | {"most": min(recipe["most"], args.queries)}  # a query for each box
  c.model = common.model("detr", num_queries=args.queries)
  c.objective = common.objective("detection")
  c.batch_size, c.epochs, c.optim.lr = args.batch, args.epochs, args.lr
  of_name = {"digits": digits, "blood_cells": blood_cells, "blood_cells_small": blood_cells_small}
  of_name.get(args.recipe, paper)(c, args, recipe)
  if args.init:
    from_trained(c, args)
  c.evals.val = common.evaluator("detection", source=(args.val,), every=5000, pictures=6)
  c.data.train, c.data.window = (args.train,), 0  # so that every epoch has every image
  if args.tiny:
    shrink(c)
  return c


def paper(c, args, recipe: dict[str, Any]) -> None:
  """Section 4 and appendix A.4."""
  if not args.train:
    args.train, args.val = COCO
  c.model.backbone.stages = recipe["stages"]
  share = args.res / 1333
  sides = tuple(round(side * share) for side in range(480, 801, 32))
  c.data.ops = ops(args.res, recipe["most"], (
      common.op("flip"),
      common.op("random_size_crop", shortest=tuple(round(s * share) for s in (400, 500, 600)),
                least=round(384 * share), most=round(600 * share), keep="part"),
      common.op("resize_shortest", shortest=sides, longest=args.res)), sides[-1])
  c.optim.optimizer = common.optimizer("adamw", weight_decay=1e-4)
  c.optim.schedule = common.schedule("step", drops=(2 / 3,))
  c.optim.clip_norm = 0.1
  c.optim.lr_mults = (("^backbone/(stem|stage_0)", 0.0), ("^backbone/", 0.1))


def digits(c, args, recipe: dict[str, Any]) -> None:
  """A small model that is trained from scratch in minutes."""
  # Of 60,000 digits of 28 pixels, or of the 1,437 of 8 pixels that are embedded.
  res = args.res or (64 if args.train else 32)
  c.epochs = args.epochs or (12.0 if args.train else 400.0)
  if not args.train:
    args.train, args.val = "embedded:scattered:train", args.val or "embedded:scattered:test"
  stack = dict(width=64, num_layers=3, unroll=-1, block=dict(
      attention=dict(num_heads=4), ffn=dict(dim=128), dropout=0.0))
  common.apply(c, {"model": dict(
      backbone=dict(stages=(1, 1, 1), width=16, kind="basic", stem="strided", groups=4),
      encoder=stack | dict(num_layers=2), decoder=stack)})
  c.data.ops = ops(res, recipe["most"], ())
  from_scratch(c)


def blood_cells(c, args, recipe: dict[str, Any]) -> None:
  """Few photographs: a ResNet of 18 layers with group norms, or what `init` is."""
  if not args.train:
    args.train, args.val = "voc:BCCD.zip:train", "voc:BCCD.zip:val"
  stack = dict(num_layers=3, block=dict(ffn=dict(dim=1024)))
  common.apply(c, {"model": dict(
      backbone=dict(stages=(2, 2, 2, 2), kind="basic", groups=32), encoder=stack, decoder=stack)})
  c.data.ops = ops(args.res, recipe["most"], (
      common.op("scale_jitter", size=args.res, factor=(0.8, 1.25)), common.op("flip")))
  from_scratch(c)


def blood_cells_small(c, args, recipe: dict[str, Any]) -> None:
  """A network of a million parameters, trained by Muon: 2,500 updates in an hour of one core."""
  blood_cells(c, args, recipe)
  stack = dict(width=128, num_layers=2, unroll=-1, block=dict(
      attention=dict(num_heads=4), ffn=dict(dim=256), dropout=0.0))
  common.apply(c, {"model": dict(
      backbone=dict(stages=(1, 1, 1), width=32, stem="strided", groups=8),
      encoder=stack, decoder=stack | dict(num_layers=3))})
  c.optim.optimizer = common.optimizer("muon", b2=0.98)
  c.optim.clip_norm = 1.0


def from_scratch(c) -> None:
  c.optim.optimizer = common.optimizer("adamw", weight_decay=1e-4)
  c.optim.schedule = common.schedule("cosine", warmup=0.05)
  c.optim.clip_norm = 0.1


def ops(res: int, most: int, moves: tuple, shortest: int | None = None) -> tuple:
  """Decoding, what moves pixels and boxes, and an array as large as the longer side.

  Where the shorter side has `shortest` pixels at most, batches of images that lie, or stand, have
  arrays that do. At 800 to 1,333 pixels a square would have two thirds more of them.
  """
  up = lambda side: -(-side // 32) * 32  # that places of the backbone's last stage divide
  lying = (up(shortest or res), up(res))
  return (common.op("decode_image", boxes=True), *moves,
          common.op("images", size=up(res), pad=True, max_boxes=most,
                    shapes=(lying, lying[::-1]) if lying[0] < lying[1] else ()))


def from_trained(c, args) -> None:
  """The model of a Hugging Face folder or a workdir; its classes are those of the data."""
  path, asked = hub.place(args.init), c.model
  fields = open_saved(path).trunk_fields("detr")
  if fields["num_queries"] < c.data.ops[-1].max_boxes:
    raise ConfigError(f"config argument init={args.init!r}: its {fields['num_queries']} queries are"
                      f" fewer than the {c.data.ops[-1].max_boxes} boxes that an image may have")
  c.model, c.init_from = common.model("detr", **fields), path
  arguments.check_brought(args, asked, c.model, {"queries": ("num_queries",)})
  if not c.model.backbone.groups:
    c.optim.lr_mults = (("^backbone/(stem|stage_0)", 0.0), ("^backbone/", 0.1))


def shrink(c) -> None:
  """Makes a config run in seconds, on digits of 8 x 8."""
  stack = {key: value for key, value in common.TINY_STACK.items()}
  common.apply(c, {"model": dict(
      encoder=stack, decoder=stack, num_queries=6,
      backbone=dict(stages=(1, 1), width=8, kind="basic", stem="strided", groups=4))})
  c.data.ops = ops(32, 4, ())
  c.optim.lr_mults = ()
  c.steps, c.epochs, c.batch_size, c.log_every = 4, None, 8, 2
  c.checkpoint.every = c.checkpoint.keep = 2
  c.data.train, c.data.window = ("embedded:scattered:train",), 256
  c.evals.val.source, c.evals.val.every = ("embedded:scattered:test",), 0


def sweep_positions():
  """Table 3, by its rows; the last one is the default."""
  at_input = {"model.places.at": "input", "model.places.queries_at": "input"}
  yield {"model.places.kind": "none", "model.places.queries_at": "input"}
  yield at_input
  yield {"model.places.kind": "learned"}
  yield {"model.places.in_encoder": False}
  yield {}
