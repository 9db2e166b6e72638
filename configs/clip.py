"""CLIP and SigLIP: images and the texts that tell them (Radford et al. 2021; Zhai et al. 2023).

  python -m experiments.train --config=configs/clip.py --workdir=runs/scenes
  python -m experiments.train --workdir=runs/photos \
    --config=configs/clip.py:clip_b32,train=captions:photos/train.tsv,val=captions:photos/val.tsv

Without data of your own it is scenes of one or two handwritten digits, told as "a seven above a
two", on which `small` trains for minutes on two cores. Pairs of the evaluation are in no training
scene. A table of captions has columns "image", a file beside it, and "text"; other sources of both
are parquet:, arrow: and jsonl: ones.

Published: CLIP after 32 epochs of 400 million pairs in batches of 32,768, zero-shot on ImageNet:
B/32 63.2 %, L/14 75.3 % (12 days on 256 V100s). Not reproduced here.

Arguments: model (small, small_siglip, or a key of TOWERS in jtx/interop/presets.py), loss (softmax
or sigmoid; that of the model if not given), chunk (pairs that are compared at a time), train, val,
classes, a source of images with classes for zero-shot classification by `templates`, which "+"
joins; vocab, a folder or file of a tokenizer, in place of one that is trained; init, a trained
model of the same sizes, with its tokenizer; length, tokens that texts are cut to, as many as the
model has positions (77 of CLIP) if not given; pack, pairs of a row at most, whose texts share its
`length` tokens: 4 captions of a dozen tokens then cost as much as one, and have the same vectors;
batch (pairs), epochs, lr; tiny, which takes seconds.
"""

from jtx import hub
from jtx.errors import ConfigError
from jtx.interop import huggingface
from jtx.interop.presets import TOWERS
from jtx.saved.folder import open_saved

from . import arguments, common

SIZE, SCENES = 24, "embedded:scenes"  # pixels of the embedded scenes

PRESETS = ("tiny", "small_siglip,tiny,loss=softmax,chunk=4", "tiny,pack=2",
           "siglip_b16,train=captions:a.tsv,val=captions:b.tsv,classes=images:c,templates=a {}.,"
           "batch=4096,epochs=5,lr=1e-3,length=32,vocab=bpe.json,chunk=4096")


def get_config(arg: str = ""):
  args = arguments.parse_args(
      arg, model="small", loss="", chunk=0, train="", val="", classes="",
      templates="a photo of a {}.", vocab="", init="", length=0, pack=1, batch=0,
      epochs=0.0, lr=0.0, tiny=False)
  c = common.get_config()
  small, sigmoid = args.model.startswith("small"), "siglip" in args.model
  c.model = small_model(sigmoid) if small else published(args.model)
  kind = dict(vocab_size=512) if small else dict(vocab_size=16_000)
  c.tokenizer.kind = common.tokenizer("bpe", lowercase=True, **kind)
  if args.vocab:
    c.tokenizer.kind = common.tokenizer("file", path=args.vocab)
  if args.init:
    from_trained(c, hub.place(args.init))
  c.objective = common.objective("image_text", chunk=args.chunk,
                                 loss=args.loss or ("sigmoid" if sigmoid else "softmax"))
  if c.objective.loss == "sigmoid" and not c.model.similarity.biased:
    common.apply(c, {"model.similarity": SIGLIP["similarity"]})
  add_data(c, args, small)
  recipe(c, args, small, sigmoid)
  if args.tiny:
    shrink(c, trained=bool(args.init), pack=args.pack)
  return c


# What SigLIP has in another way than CLIP.
SIGLIP = dict(
    tower=dict(cls=False, pool="attention", embed_norm=False, patch_bias=True),
    similarity=dict(log_scale=2.302585092994046, biased=True, bias=-10.0))


def small_model(siglip: bool):
  """A model of the embedded scenes, in shades of grey, and short texts."""
  stack = dict(width=64, num_layers=3, unroll=-1, block=dict(
      attention=dict(num_heads=4), ffn=dict(dim=256, activation="gelu_sigmoid")))
  text = {**stack, "num_layers": 2, "position": common.position("learned", max_length=12)}
  model = common.model(
      "two_towers", patch_size=4, image=dict(size=SIZE, channels=1, mean=(0.5,), std=(0.5,)),
      image_stack=stack, text_stack=text, projection=dict(width=64))
  if siglip:
    common.apply(model, SIGLIP | dict(
        pad_id=0, text_stack=dict(causal=False), projection=dict(image=False, bias=True)))
  return model


def published(name: str):
  config = arguments.choose(TOWERS, name, "model")
  model = common.model("two_towers", **huggingface.fields_for(config, {"image_text"}, name))
  model.vocab_size = None  # the tokenizer's
  if model.pad_id is not None:
    model.pad_id = 0  # of the tokenizers that jtx trains
  return model


def from_trained(c, path: str) -> None:
  """The model and tokenizer of a Hugging Face folder or a workdir."""
  c.model = common.model("two_towers", **open_saved(path).trunk_fields("two_towers"))
  c.tokenizer.kind = common.tokenizer("file", path=path)
  c.init_from = path


def add_data(c, args, small: bool) -> None:
  """Pairs for training, and evaluation on others by retrieval and by the names of classes."""
  image, most = c.model.image, c.model.text_stack.position.max_length
  if not 0 <= args.length <= most:
    raise ConfigError(f"config argument length={args.length}: must be 1 to {most}, the positions of"
                      " the model's texts")
  if args.pack > 1 and c.model.pad_id is not None:
    raise ConfigError(f"config argument pack={args.pack}: texts of {args.model} fill their rows, so"
                      " a row has one")
  crop = common.op("resize", size=image.size)
  if not small or args.train:  # nothing is mirrored: texts tell left from right
    crop = common.op("inception_crop", size=image.size, eval_resize=image.size, area=(0.5, 1.0),
                     interpolation="bicubic")
  c.data.ops = (common.op("decode_image", channels=image.channels, labelled=False), crop,
                common.op("caption", length=args.length or most),
                common.op("images", size=image.size, channels=image.channels,
                          max_segments=args.pack))
  templates = tuple(args.templates.split("+"))
  if not args.train:
    args.train, args.val = f"{SCENES}:train", args.val or f"{SCENES}/pairs:test"
    args.classes, templates = args.classes or f"{SCENES}/singles:test", ("a {}",)
  c.data.train, c.data.window = (args.train,), 0  # so that every epoch has every image
  if args.val:
    c.evals.val = common.evaluator("image_text", source=(args.val,), every=1000)
    c.evals.loss = common.evaluator("loss", source=(args.val,), every=1000)
  if args.classes:
    c.evals.classes = common.evaluator("zero_shot", source=(args.classes,), templates=templates)


def recipe(c, args, small: bool, sigmoid: bool) -> None:
  """Radford et al. 2021, tables 18 and 19; Zhai et al. 2023, section 4. What `args` sets wins.

  `small` learns in half as many updates of Muon as of AdamW.
  """
  batch, epochs, lr, decay, b2 = (16_384, 32.0, 1e-3, 1e-4, 0.95) if sigmoid else (
      32_768, 32.0, 5e-4, 0.2, 0.98)
  warmup = 2000.0
  optimizer = common.optimizer("adamw", weight_decay=decay, b2=b2, eps=1e-6)
  if small:
    batch, epochs, lr, warmup = 64, 6.0, 2e-3, 100.0
    optimizer = common.optimizer("muon", b2=0.98)
  pairs, c.epochs = args.batch or batch, args.epochs or epochs
  c.batch_size = arguments.packed_rows(pairs, args.pack)
  c.optim.optimizer = optimizer
  c.optim.schedule = common.schedule("cosine", warmup=warmup)
  c.optim.lr, c.optim.clip_norm = args.lr or lr * (pairs / batch)**0.5, 1.0
  c.checkpoint.every = 500 if small else 5000


def shrink(c, trained: bool, pack: int) -> None:
  """Makes a config run in seconds; a trained model keeps its sizes."""
  if not trained:
    stack = common.TINY_STACK | dict(unroll=1)
    common.apply(c, {"model": dict(image_stack=stack, text_stack=stack, projection=dict(width=32))})
    c.tokenizer.kind = common.tokenizer("bpe", vocab_size=100)
  c.steps, c.epochs, c.batch_size, c.log_every = 4, None, max(8 // pack, 1), 2
  c.checkpoint.every = c.checkpoint.keep = 2
  for evaluator in c.evals.values():
    evaluator.every = 0
