"""CIFAR-10 from scratch with 6 million parameters.

  python -m experiments.train --workdir=runs/cifar10 \
    --config=configs/vit_cifar10.py:train=images:DIR:each[:4500],val=images:DIR:each[4500:]

7 layers of 384 whose feed-forward layers are as narrow, on patches of 4 x 4; RandAugment, label
smoothing, 200 epochs. A folder or zip archive with a folder a class is read by `train` and `val`;
without them, `cifar10` of TFDS. Arguments: those of vit.py's ARGS.
"""

from . import arguments, common, images, vit

PRESETS = ("", "tiny", "tiny,batch=4,epochs=1,lr=0.1,freeze=1,decay=0.9",
           "train=images:a,val=images:b")


def get_config(arg: str = ""):
  args = arguments.parse_args(arg, **vit.ARGS)
  if not args.train:
    args.train, args.val = "tfds:cifar10:train", args.val or "tfds:cifar10:test"
  c = common.get_config()
  vit.build(c, args, "s", 4, 32, pool="mean")
  common.apply(c, {"model": dict(
      stack=dict(num_layers=7, unroll=-1, position=dict(init="sincos"), block=dict(
          attention=dict(num_heads=12), ffn=dict(dim=384), init_std=0.02)),
      image=dict(mean=(0.4914, 0.4822, 0.4465), std=(0.247, 0.2435, 0.2616)))})
  c.objective = common.objective("classify", label_smoothing=0.1)
  c.data.ops = images.ops("pad", 32, more=(common.op("randaugment", num_ops=2, magnitude=3.0),))
  vit.recipe(c, args, batch=128, epochs=200.0, lr=5e-4, weight_decay=0.05, warmup=0.025)
  if args.tiny:
    images.shrink(c, args)
  return c
