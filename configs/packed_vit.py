"""Images of any shape by a vision transformer, several in a row (NaViT; Dehghani et al. 2023).

  python -m experiments.train \
    --config=configs/packed_vit.py:train=images:photos/train,val=images:photos/val \
    --workdir=runs/photos

Nothing is cut off or squeezed: an image has as many patches as its shape asks for, up to `most`,
and rows of `length` patches hold what fits. Sources are those of vit.py; without one it is
scikit-learn's digits, which are all of one shape. Published: the paper's models were trained on
4 billion images that are not public. Not reproduced here.

Arguments: size (ti, s, b, l, h); patch in pixels, most, length and channels, which are 16, 256,
1024 and 3 if not given, and of the digits, which are small and grey, 2, 16, 64 and 1; grow, with
which small images are scaled up to `most` patches, too (SigLIP 2's NaFlex); train, val; batch, rows
of a batch; epochs, lr; tiny, which takes seconds. 64 rows of 1,024 want an accelerator's fused
attention; a CPU takes smaller ones, such as batch=8,length=256.
"""

from . import arguments, common, images, vit

PRESETS = ("", "tiny", "tiny,grow=true,epochs=1,batch=4,lr=0.01",
           "ti,patch=8,most=64,length=256,channels=1,train=images:a,val=images:b")


def get_config(arg: str = ""):
  args = arguments.parse_args(arg, size="s", patch=0, most=0, length=0, channels=0, grow=False,
                              train="", val="", batch=0, epochs=0.0, lr=0.0, tiny=False)
  width, num_layers, heads = arguments.choose(vit.SIZES, args.size, "size")
  given = (args.patch, args.most, args.length, args.channels)
  defaults = (16, 256, 1024, 3) if args.train else (2, 16, 64, 1)
  patch, most, length, channels = (a or b for a, b in zip(given, defaults))
  c = common.get_config()
  c.model = common.model(
      "packed_vit", patch_size=patch, image=dict(channels=channels),
      stack=dict(width=width, num_layers=num_layers,
                 block=dict(attention=dict(num_heads=heads), ffn=dict(dim=4 * width))),
      head=dict(task="classes", dropout=0.0))
  if channels == 1:
    common.apply(c, {"model.image": dict(mean=(0.5,), std=(0.5,))})
  c.objective = common.objective("classify", label_smoothing=0.1)
  images.add_data(c, args)
  c.data.window = 1024  # images, whose sizes are read before they are decoded
  flip = (common.op("flip"),) if channels == 3 else ()  # not of digits
  c.data.ops = (common.op("decode_image", channels=channels), *flip, common.op(
      "patches", size=patch, most=most, length=length, grow=args.grow, channels=channels))
  c.batch_size, c.epochs = args.batch or 64, args.epochs or 100.0
  c.optim.optimizer = common.optimizer("adamw", weight_decay=0.05)
  c.optim.schedule = common.schedule("cosine", warmup=0.05)
  c.optim.lr, c.optim.clip_norm = args.lr or 1e-3 * (c.batch_size / 64)**0.5, 1.0
  if args.tiny:
    shrink(c)
  return c


def shrink(c) -> None:
  """Makes a config run in seconds, on digits of 8 x 8."""
  common.apply(c, {"model": dict(patch_size=2, stack=common.TINY_STACK,
                                 image=dict(channels=1, mean=(0.5,), std=(0.5,)))})
  c.data.ops = c.data.ops[:1] + c.data.ops[-1:]
  decode, layout = c.data.ops
  decode.channels = layout.channels = 1
  layout.size, layout.most, layout.length, layout.max_segments = 2, 24, 50, 3
  c.steps, c.epochs, c.batch_size, c.log_every, c.data.window = 4, None, 8, 2, 256
  c.checkpoint.every = c.checkpoint.keep = 2
  c.evals.val.every = 0

