"""Vision transformers (Dosovitskiy et al. 2020) on your own images.

  python -m experiments.train \
    --config=configs/vit.py:s,train=images:photos/train,val=images:photos/val --workdir=runs/photos

A source is a folder or zip archive with a folder for each class (images:PATH), arrays (npz:FILE),
or a dataset of TFDS (tfds:cifar10:train); parts are written images:photos.zip:each[:90%]. With
`init` the encoder is a trained one, of Hugging Face or a workdir; its positions are interpolated to
`res` and its head is new (section 3.2). Arguments: size (ti, s, b, l, h), patch and res in pixels,
channels (1 for grey), crop (inception, pad: for small images, or none), and those of ARGS.

`sweep_positions` is the ablation of appendix D.4: no positions, 1-D, 2-D and relative ones; at the
stem, or in every layer, each its own or shared. Here it also has sines, and 2-D RoPE.
"""

from configs import arguments, common
from jtx import storage
from jtx.errors import ConfigError

# width, layers, heads
SIZES = {"ti": (192, 12, 3), "s": (384, 12, 6), "b": (768, 12, 12), "l": (1024, 24, 16),
         "h": (1280, 32, 16)}
IMAGENET = dict(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))

# What all configs of vision transformers take.
ARGS = dict(
    train="",  # a source; without one, scikit-learn's handwritten digits, which come with it
    val="",  # another, to evaluate on
    init="",  # a trained encoder; without one, fresh parameters
    batch=0,  # images; 0 is the recipe's
    epochs=0.0,  # 0 is the recipe's
    lr=0.0,  # 0 is the recipe's
    freeze=0,  # layers, from the first, that stay as they are, the stem with them
    decay=1.0,  # of the learning rate, from a layer to the one below
    tiny=False,  # seconds, on digits
)
CROPS = ("inception", "pad", "none")

PRESETS = ("", "tiny", "tiny,pool=mean,freeze=1,batch=4,epochs=2,lr=0.01",
           "s,patch=8,res=32,channels=1,crop=pad,decay=0.7,train=npz:a.npz:rows[:90%],"
           "val=npz:a.npz:rows[90%:]", "ti,crop=none,pool=attention")


def get_config(arg: str = ""):
  args = arguments.parse_args(arg, size="s", patch=16, res=224, channels=3, crop="inception",
                           pool="first", **ARGS)
  c = common.get_config()
  build(c, args, args.size, args.patch, args.res, args.channels, pool=args.pool)
  c.data.ops = ops(args.crop, args.res, args.channels)
  recipe(c, args, batch=256, epochs=100.0, lr=1e-3, weight_decay=0.05)
  if args.tiny:
    shrink(c, args)
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
    from_trained(c, storage.absolute(args.init))
  add_data(c, args)


def from_trained(c, path: str) -> None:
  """The encoder of a Hugging Face folder or a workdir, at the config's size of images."""
  from jtx.saved.folder import open_saved
  fields = open_saved(path).trunk_fields("vit")
  fields["image"] = {**fields["image"], "size": c.model.image.size}
  common.apply(c, {"model": fields})
  if "trained" in c.model.stack.position:
    c.model.stack.position.trained = True  # MAE's are not, while it pretrains
  c.init_from = path


def add_data(c, args) -> None:
  if not args.train:
    args.train, args.val = "embedded:digits:train", args.val or "embedded:digits:test"
  c.data.train = (args.train,)
  if args.val:
    c.evals.val = common.evaluator("images", source=(args.val,), every=1000)
  c.data.window = 0  # so that every epoch has every image


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
  c.optim.lr_mults = layer_mults(c.model.stack.num_layers, args.freeze, args.decay)


def layer_mults(L: int, freeze: int, decay: float) -> tuple[tuple[str, float], ...]:
  """`optim.lr_mults` by depth: decay^(L - i) for layer i of L, 0 for the first `freeze` ones.

  The stem, the prefix and the positions are below layer 0 (Bao et al. 2021, BEiT).
  """
  below = "^(patches|resnet|cls_token|distillation_token|registers|position_embedding)"
  mults = {below: 0.0 if freeze else decay**(L + 1)}
  mults |= {f"^encoder/layers/{i}/": 0.0 if i < freeze else decay**(L - i) for i in range(L)}
  return tuple((path, mult) for path, mult in mults.items() if mult != 1)


def shrink(c, args) -> None:
  """Makes a config run in seconds, on digits of 8 x 8 in shades of grey."""
  common.apply(c, {"model": dict(patch_size=2, stack=common.TINY_STACK,
                                 image=dict(size=8, channels=1, mean=(0.5,), std=(0.5,)))})
  if c.model.decoder.num_layers:
    common.apply(c, {"model.decoder": dict(num_layers=1, width=32, num_heads=2, ffn_dim=64)})
  if c.model.stem.stages:
    common.apply(c, {"model": dict(patch_size=1, stem=dict(stages=(1,), width=8, groups=4))})
  c.optim.lr_mults = layer_mults(c.model.stack.num_layers, args.freeze, args.decay)
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


def sweep_positions():
  """Appendix D.4: positions of all kinds, and where they are added."""
  for name in ("none", "learned", "learned_2d", "sincos_2d"):
    for at in ("stem", "layers", "shared")[:1 if name == "none" else 3]:
      yield {"model.stack.position": common.grid_position(name), "model.stack.position_at": at}
  for name in ("relative", "rope_2d"):  # these act in every layer anyway
    yield {"model.stack.position": common.grid_position(name)}
