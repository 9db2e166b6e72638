"""CoAtNet: stages of convolutions, then of attention (Dai et al. 2021).

  python -m experiments.train --config=configs/coatnet.py:0 --workdir=runs/coatnet_0
  python -m experiments.train --workdir=runs/cifar10 \
    --config=configs/coatnet.py:cifar10,train=images:DIR:each[:4500],val=images:DIR:each[4500:]

Sizes 0 to 3 are table 3's, of 25.6, 42.7, 75.6 and 169.1 million parameters (25, 42, 75 and 168 in
the paper), with its recipe for ImageNet-1k: 300 epochs in batches of 4,096. Published there, at 224
pixels: 81.6, 83.3, 84.1 and 84.5 %. Not reproduced here. `imagenet2012` of TFDS must be prepared
by hand. `cifar10` is small, for images of 32 x 32 and an hour on two cores; a folder or zip archive
with a folder a class is read by `train` and `val`, and without them `cifar10` of TFDS.

Arguments: size (0, 1, 2, 3, or cifar10), kinds, a letter a stage in place of CCTT (C is
convolutions, T attention), res in pixels, optimizer (adamw or lion), train, val, batch, epochs, lr;
tiny, which takes seconds.

`sweep_layouts` is table 5's comparison of where attention begins, `sweep_budgets` three sizes for
images of 32 x 32.
"""

from jtx.errors import ConfigError

from . import arguments, common, images

# Layers and channels of each stage, channels of the stem, and the rate of stochastic depth.
WIDTHS = (96, 192, 384, 768)
SIZES = {
    "0": ((2, 3, 5, 2), WIDTHS, 64, 0.2),
    "1": ((2, 6, 14, 2), WIDTHS, 64, 0.3),
    "2": ((2, 6, 14, 2), (128, 256, 512, 1024), 128, 0.5),
    "3": ((2, 6, 14, 2), (192, 384, 768, 1536), 192, 0.7),
    "cifar10": ((1, 2, 2, 1), (32, 64, 128, 256), 32, 0.0),
}
LAYOUTS = ("CCCC", "CCCT", "CCTT", "CTTT", "TTTT")
OPTIMIZERS = ("adamw", "lion")

PRESETS = ("", "1", "2,optimizer=lion", "3,res=384,kinds=CTTT", "cifar10",
           "tiny,optimizer=lion", "cifar10,tiny,kinds=CCCT,batch=4,epochs=1,lr=0.01",
           "cifar10,train=images:a,val=images:b")


def get_config(arg: str = ""):
  args = arguments.parse_args(
      arg, size="0", kinds="CCTT", res=0, optimizer="adamw", train="", val="", batch=0, epochs=0.0,
      lr=0.0, tiny=False)
  small = args.size == "cifar10"
  number, widths, stem, drop_path = arguments.choose(SIZES, args.size, "size")
  if args.optimizer not in OPTIMIZERS:
    raise ConfigError(f"config argument optimizer={args.optimizer!r}: valid are"
                      f" {', '.join(OPTIMIZERS)}")
  if not args.train:
    dataset, held_out = ("cifar10", "test") if small else ("imagenet2012", "validation")
    args.train, args.val = f"tfds:{dataset}:train", args.val or f"tfds:{dataset}:{held_out}"
  c, res = common.get_config(), args.res or (32 if small else 224)
  c.model = common.model(
      "coatnet", image={"size": res, **images.IMAGENET}, stem=dict(width=stem),
      stages=dict(kinds=args.kinds, num_layers=number, widths=widths), drop_path=drop_path,
      head=dict(task="classes", pool="mean", zero=True))
  images.add_data(c, args)
  (cifar10 if small else imagenet)(c, args, res)
  if args.tiny:
    common.apply(c, {"model": dict(
        stem=dict(width=8), attention=dict(head_dim=8),
        stages=dict(num_layers=(1, 1, 2, 1), widths=(8, 16, 16, 32), strides=(1, 2, 2, 1)))})
    images.on_digits(c)
  return c


def imagenet(c, args, res: int) -> None:
  """The recipe of appendix A.2, with the largest magnitude of RandAugment here, 10 and not 15."""
  c.objective = common.objective("classify", mixup=0.8, label_smoothing=0.1)
  c.data.ops = images.ops("inception", res, more=(
      common.op("randaugment", num_ops=2, magnitude=10.0),))
  recipe(c, args, batch=4096, epochs=300.0, lr=1e-3, weight_decay=0.05, warmup=10_000.0)
  c.optim.schedule.end = 0.01


def cifar10(c, args, res: int) -> None:
  """A smaller stride, and an hour on two cores."""
  common.apply(c, {"model": dict(
      image=dict(mean=(0.4914, 0.4822, 0.4465), std=(0.247, 0.2435, 0.2616)),
      stages=dict(strides=(1, 2, 2, 1)), attention=dict(unroll=-1))})
  c.objective = common.objective("classify", label_smoothing=0.1)
  c.data.ops = images.ops("pad", res)
  recipe(c, args, batch=128, epochs=18.0, lr=2e-3, weight_decay=0.05, warmup=0.1)


def recipe(c, args, *, batch: int, epochs: float, lr: float, weight_decay: float,
           warmup: float) -> None:
  """A cosine of the learning rate, which is for AdamW; Lion's is a tenth, its decay ten times."""
  c.batch_size, c.epochs = args.batch or batch, args.epochs or epochs
  factor = 10 if args.optimizer == "lion" else 1
  c.optim.optimizer = common.optimizer(args.optimizer, weight_decay=weight_decay * factor)
  c.optim.schedule = common.schedule("cosine", warmup=warmup)
  c.optim.lr, c.optim.clip_norm = args.lr or lr / factor * c.batch_size / batch, 1.0


def sweep_layouts():
  """Where attention begins: in no stage, the last one, two, three, or all behind the stem."""
  for kinds in LAYOUTS:
    yield {"model.stages.kinds": kinds}


def sweep_budgets():
  """Three sizes for images of 32 x 32, of about 15, 60 and 240 million FLOPs an image."""
  for widths in ((16, 32, 64, 128), (32, 64, 128, 256), (64, 128, 256, 512)):
    yield {"model.stages.widths": widths, "model.stem.width": widths[0]}
