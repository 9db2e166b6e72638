"""Handwritten digits of 8 x 8 pixels: a vision transformer in minutes on two cores.

  python -m experiments.train --config=configs/vit_digits.py --workdir=runs/vit_digits

The 1,797 images come with scikit-learn, so nothing is downloaded; a fifth of each class is held
out. Other small grey images, such as MNIST's, by `train` and `val`, their size `res` and `patch`:

  --config=configs/vit_digits.py:res=28,patch=4,train=npz:mnist.npz:rows[:50000],val=npz:...

With `teacher`, a Hugging Face folder or a workdir of a model of the same classes, half of the loss
is against its scores. Arguments: these, and those of vit.py's ARGS.
"""

from . import arguments, common, images, vit

PRESETS = ("", "tiny", "teacher=runs/teacher", "tiny,batch=4,epochs=1,lr=0.1,freeze=1,decay=0.9",
           "res=28,patch=4,train=npz:a.npz:rows[:90%],val=npz:a.npz:rows[90%:]")


def get_config(arg: str = ""):
  args = arguments.parse_args(arg, res=8, patch=2, teacher="", **vit.ARGS)
  c = common.get_config()
  vit.build(c, args, "ti", args.patch, args.res, channels=1, pool="mean")
  common.apply(c, {"model.stack": dict(
      width=64, num_layers=4, unroll=-1, position=dict(init="sincos"),
      block=dict(attention=dict(num_heads=4), ffn=dict(dim=128)))})
  c.objective = common.objective("classify", label_smoothing=0.1)
  if args.teacher:
    c.objective = common.objective("distill_classes", label_smoothing=0.1, kind="soft",
                                   teacher=args.teacher)
  decode, _, layout = images.ops("none", args.res, channels=1)
  c.data.ops = (decode, common.op("pad_crop", size=args.res, padding=args.res // 8), layout)
  vit.recipe(c, args, batch=128, epochs=250.0, lr=4e-3, weight_decay=0.5, warmup=0.1)
  c.optim.ema = 0.99
  c.checkpoint.every = 500
  if args.tiny:
    images.shrink(c, args)
  return c
