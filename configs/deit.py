"""DeiT: a ViT that learns from ImageNet-1k alone, and from a teacher (Touvron et al. 2020).

  python -m experiments.train --config=configs/deit.py:b,teacher=runs/teacher --workdir=runs/deit_b

The recipe of table 9: 300 epochs, RandAugment, mixup and CutMix, random erasing, stochastic depth,
label smoothing. With `teacher`, a Hugging Face folder or a workdir of a model of the same classes,
a distillation token learns the teacher's answers (hard labels); published for B/16 at 224: 81.8 %
without, 83.4 % with a RegNetY-16GF. Not yet reproduced here; repeated augmentation is left out.
Arguments: size (ti, s, b), teacher, kind (hard or soft), and those of vit.py's ARGS.
"""

from . import arguments, common, images, vit

PRESETS = ("", "tiny", "ti,tiny,batch=4,epochs=1,lr=0.1,freeze=1,decay=0.9",
           "kind=soft,train=images:a,val=images:b")


def get_config(arg: str = ""):
  args = arguments.parse_args(arg, size="s", teacher="", kind="hard", **vit.ARGS)
  if not args.train:
    args.train, args.val = "tfds:imagenet2012:train", args.val or "tfds:imagenet2012:validation"
  c = common.get_config()
  vit.build(c, args, args.size, 16, 224)
  common.apply(c, {"model": dict(image=images.IMAGENET, stack=dict(block=dict(
      init_std=0.02, residual=dict(drop_path=0.1))))})
  mixing = dict(mixup=0.8, cutmix=1.0, label_smoothing=0.1)
  c.objective = common.objective("classify", **mixing)
  if args.teacher:
    common.apply(c, {"model": dict(prefix=dict(distillation=True), head=dict(distilled=True))})
    c.objective = common.objective("distill_classes", teacher=args.teacher, kind=args.kind,
                                   **mixing)
  c.data.ops = images.ops("inception", 224, more=(
      common.op("randaugment", num_ops=2, magnitude=9.0), common.op("random_erasing")))
  c.data.ops[1].interpolation = "bicubic"
  vit.recipe(c, args, batch=1024, epochs=300.0, lr=1e-3, weight_decay=0.05, warmup=5 / 300)
  if args.tiny:
    images.shrink(c, args)
  return c
