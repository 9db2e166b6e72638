"""Masked autoencoders: pretraining from images alone (He et al. 2021).

  python -m experiments.train --config=configs/mae.py:b --workdir=runs/mae_b
  python -m experiments.train --config=configs/vit.py:b,init=runs/mae_b,pool=mean,... --workdir=...

Three of four patches are hidden; the encoder sees the others, and a narrow decoder tells the
pixels of the hidden ones, normalised in each patch. Appendix A.1: 800 epochs of ImageNet-1k,
batches of 4,096. Published after 1,600 epochs and fine-tuning: B 83.6 %, L 85.9 %, H 86.9 %. Not
yet reproduced here. Arguments: size (ti, s, b, l, h), masked, and for other images than ImageNet's
patch, res, channels and crop as in vit.py; those of vit.py's ARGS.
"""

from . import arguments, common, images, vit

PRESETS = ("", "tiny", "l,masked=0.6", "ti,patch=4,res=28,channels=1,crop=none,train=npz:a.npz",
           "b,tiny,batch=4,epochs=1,lr=0.1,freeze=1,decay=0.9",
           "train=images:a,val=images:b")


def get_config(arg: str = ""):
  args = arguments.parse_args(arg, size="b", masked=0.75, patch=0, res=224, channels=3,
                              crop="inception", **vit.ARGS)
  if not args.train:
    args.train, args.val = "tfds:imagenet2012:train", args.val or "tfds:imagenet2012:validation"
  c = common.get_config()
  patch = args.patch or (14 if args.size == "h" else 16)
  vit.build(c, args, args.size, patch, args.res, args.channels)
  common.apply(c, {"model": dict(head=dict(task="none", zero=False),
                                 decoder=dict(num_layers=8, masked=args.masked))})
  if args.channels == 3:
    common.apply(c, {"model.image": images.IMAGENET})
  c.model.stack.position = common.grid_position("learned", init="sincos", trained=False)
  c.objective = common.objective("mae")
  c.data.ops = images.ops(args.crop, args.res, args.channels)
  if args.crop == "inception":
    common.apply(c, {"data.ops[1].area": (0.2, 1.0), "data.ops[1].interpolation": "bicubic"})
  vit.recipe(c, args, batch=4096, epochs=800.0, lr=2.4e-3, weight_decay=0.05, warmup=40 / 800,
             b2=0.95)
  if args.val:
    c.evals.val = common.evaluator("loss", source=(args.val,), every=5000)
  if args.tiny:
    images.shrink(c, args)
  return c
