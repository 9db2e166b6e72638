"""ViT on ImageNet, as plain as it trains well (Beyer et al. 2022, "Better plain ViT baselines").

  python -m experiments.train --config=configs/vit_b16.py:s --workdir=runs/vit_s16

90 epochs of ImageNet-1k: batches of 1,024, sines for positions, average pooling, RandAugment and
mixup. Published: 76.5 % for S/16, 74.6 % for B/16 in 90 epochs (79.8 % in 300), on TPU v3-8 in 6.5
hours for S/16. Not yet reproduced here. `imagenet2012` of TFDS must be prepared by hand.

Arguments: size (b), data: in1k; in21k, the paper's pretraining (Dosovitskiy et al. 2020, table 3:
[CLS], learned positions, 90 epochs of batches of 4,096, dropout 0.1, weight decay 0.03); or
finetune, from what that gave (`init`), at 384 pixels by SGD (table 4). And those of vit.py's ARGS.
"""

from jtx.errors import ConfigError

from . import arguments, common, images, vit

DATA = ("in1k", "in21k", "finetune")

PRESETS = ("tiny", "l", "data=in21k,tiny", "data=finetune,tiny,freeze=1",
           "batch=512,epochs=300,lr=2e-3,decay=0.9,train=images:a,val=images:b")


def get_config(arg: str = ""):
  args = arguments.parse_args(arg, size="b", data="in1k", **vit.ARGS)
  if args.data not in DATA:
    raise ConfigError(f"config argument data={args.data!r}: valid are {', '.join(DATA)}")
  if not args.train and args.data == "in21k":
    args.train = "tfds:imagenet21k_resized:train"
    args.val = args.val or "tfds:imagenet21k_resized:validation"
  elif not args.train:
    args.train, args.val = "tfds:imagenet2012:train", args.val or "tfds:imagenet2012:validation"
  c = common.get_config()
  res = 384 if args.data == "finetune" else 224
  vit.build(c, args, args.size, 16, res, pool="mean" if args.data == "in1k" else "first")
  {"in1k": in1k, "in21k": in21k, "finetune": finetune}[args.data](c, args, res)
  if args.tiny:
    images.shrink(c, args)
  return c


def in1k(c, args, res: int) -> None:
  c.model.stack.position = common.grid_position("sincos_2d")
  c.model.prefix.cls = False
  c.objective = common.objective("classify", mixup=0.2)
  c.data.ops = images.ops("inception", res, more=(
      common.op("randaugment", num_ops=2, magnitude=10.0),))
  vit.recipe(c, args, batch=1024, epochs=90.0, lr=1e-3, weight_decay=0.1, warmup=10_000.0)


def in21k(c, args, res: int) -> None:
  common.apply(c, {"model": dict(stack=dict(block=dict(dropout=0.1)), head=dict(transform="tanh"))})
  c.objective = common.objective("classify", loss="sigmoid")
  c.data.ops = images.ops("inception", res)
  vit.recipe(c, args, batch=4096, epochs=90.0, lr=1e-3, weight_decay=0.03, warmup=10_000.0)
  c.optim.schedule = common.schedule("linear", warmup=10_000.0)


def finetune(c, args, res: int) -> None:
  c.data.ops = images.ops("inception", res)
  vit.recipe(c, args, batch=512, epochs=8.0, lr=0.03, weight_decay=0.0, warmup=500.0)
  c.optim.optimizer = common.optimizer("sgd", momentum=0.9)
