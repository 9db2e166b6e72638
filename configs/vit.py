"""Vision transformers (Dosovitskiy et al. 2020) on your own images.

  python -m experiments.train \
    --config=configs/vit.py:s,train=images:photos/train,val=images:photos/val --workdir=runs/photos

A source is a folder or zip archive with a folder for each class (images:PATH), arrays (npz:FILE),
or a dataset of TFDS (tfds:cifar10:train); parts are written images:photos.zip:each[:90%]. With
`init` the encoder is a trained one, of Hugging Face or a workdir; its positions are interpolated to
`res` and its head is new (section 3.2). Arguments: size (ti, s, b, l, h), patch and res in pixels,
channels (1 for grey), crop (inception, pad: for small images, or none), pool (first, mean,
first_mean or attention; if not given that of the classifier that `init` has, and else first),
scores of `val`, joined by "+" (docs/classification.md has all), multi, for any number of labels an
image, and those of ARGS.

`sweep_positions` is the ablation of appendix D.4: no positions, 1-D, 2-D and relative ones; at the
stem, or in every layer, each its own or shared. Here it also has sines, and 2-D RoPE.
"""

from . import arguments, common, images

# width, layers, heads
SIZES = {"ti": (192, 12, 3), "s": (384, 12, 6), "b": (768, 12, 12), "l": (1024, 24, 16),
         "h": (1280, 32, 16)}

# Arguments of all configs of vision transformers.
ARGS = dict(
    train="",  # a source; without one, scikit-learn's handwritten digits, which come with it
    val="",  # another, to evaluate on
    init="",  # a trained encoder; without one, fresh parameters
    batch=0,  # images; 0 is the recipe's
    epochs=0.0,  # 0 is the recipe's
    lr=0.0,  # 0 is the recipe's
    freeze=0,  # layers, from the first, that stay as they are, the stem with them
    decay=1.0,  # of the learning rate, from a layer to the one below
    lora=0,  # rank of adapters, which with the head are all that is trained; of a trained encoder
    tiny=False,  # seconds, on digits
)

PRESETS = ("", "tiny", "tiny,pool=mean,freeze=1,batch=4,epochs=2,lr=0.01",
           "s,patch=8,res=32,channels=1,crop=pad,decay=0.7,train=npz:a.npz:rows[:90%],"
           "val=npz:a.npz:rows[90%:],scores=macro_f1", "ti,crop=none,pool=attention",
           "tiny,multi")


def get_config(arg: str = ""):
  args = arguments.parse_args(arg, size="s", patch=16, res=224, channels=3, crop="inception",
                              pool="first", scores="", multi=False, **ARGS)
  c = common.get_config()
  build(c, args, args.size, args.patch, args.res, args.channels, pool=args.pool)
  c.data.ops = images.ops(args.crop, args.res, args.channels)
  recipe(c, args, batch=256, epochs=100.0, lr=1e-3, weight_decay=0.05)
  images.add_scores(c, args)
  if args.tiny:
    images.shrink(c, args)
  return c


def build(c, args, size: str, patch: int, res: int, channels: int = 3, pool: str = "first") -> None:
  """The model, its data and evaluation."""
  width, num_layers, heads = arguments.choose(SIZES, size, "size")
  c.model = common.model(
      "vit", patch_size=patch, image=dict(size=res, channels=channels),
      stack=dict(width=width, num_layers=num_layers,
                 block=dict(attention=dict(num_heads=heads), ffn=dict(dim=4 * width))),
      head=dict(task="classes", pool=pool, zero=True))
  if channels != 3:
    common.apply(c, {"model.image": dict(mean=(0.5,), std=(0.5,))})
  c.objective = common.objective("classify")
  if args.init:
    images.from_trained(c, args)
  images.add_data(c, args)


def recipe(c, args, *, batch: int, epochs: float, lr: float, weight_decay: float,
           warmup: float = 0.05, **optimizer) -> None:
  """AdamW with a cosine schedule. What `args` sets wins.

  Args:
    c: to edit.
    args: of ARGS.
    batch: images of a batch.
    epochs: passes over the data.
    lr: for `batch` images; in proportion for another number.
    weight_decay: of the optimiser.
    warmup: updates, or a share of the run.
    **optimizer: further fields of it.
  """
  c.batch_size, c.epochs = args.batch or batch, args.epochs or epochs
  c.optim.optimizer = common.optimizer("adamw", weight_decay=weight_decay, **optimizer)
  c.optim.schedule = common.schedule("cosine", warmup=warmup)
  c.optim.lr, c.optim.clip_norm = args.lr or lr * c.batch_size / batch, 1.0
  c.optim.lr_mults = images.layer_mults(c.model.stack.num_layers, args)
  arguments.adapt(c, args)


def sweep_positions():
  """Appendix D.4: positions of all kinds, and where they are added."""
  for name in ("none", "learned", "learned_2d", "sincos_2d"):
    for at in ("stem", "layers", "shared")[:1 if name == "none" else 3]:
      yield {"model.stack.position": common.grid_position(name), "model.stack.position_at": at}
  for name in ("relative", "rope_2d"):  # these act in every layer anyway
    yield {"model.stack.position": common.grid_position(name)}
