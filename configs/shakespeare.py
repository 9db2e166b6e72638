"""Characters of tiny Shakespeare, or of another text: a language model in an hour on two cores.

  python -m experiments.train --config=configs/shakespeare.py:text=input.txt --workdir=runs/chars

`text` is a file, whose first 90 % of characters are for training and whose last 10 % are evaluated:
all of it, every character once, from at least 192 characters before it (`perplexity`). With
`choose` the last tenth of the 90 % is held out in its place, by which to choose a recipe.
Without `text` it is the documentation of Python's library. Arguments: these, and tiny.
"""

from jtx.errors import ConfigError

from . import arguments, common

PRESETS = ("", "tiny", "text=input.txt,choose=true")


def get_config(arg: str = ""):
  args = arguments.parse_args(arg, text="", choose=False, tiny=False)
  c = common.get_config()
  c.model = common.model("decoder", stack=dict(
      width=192, num_layers=6, unroll=-1, position=common.position("rope"), block=dict(
          attention=dict(num_heads=3, dropout=0.0, biases=()),
          ffn=dict(dim=768, activation="relu2", bias=False),
          norm=dict(kind="rmsnorm", position="pre"), dropout=0.1)))
  c.objective = common.objective("lm")
  c.optim.optimizer = common.optimizer("muon", b2=0.98)
  c.optim.schedule = common.schedule("cosine", warmup=100.0)
  c.optim.lr, c.optim.clip_norm, c.optim.ema = 8e-3, 1.0, 0.99
  c.steps, c.batch_size, c.log_every = 2800, 16, 50
  c.checkpoint.every = 500
  c.tokenizer.kind = common.tokenizer("characters", unknown=True)
  train, val = sources(args)
  c.data.train = (train,)
  c.data.ops = (common.op("tokenize", fields=("text",), end=False),
                common.op("documents", running=True),
                common.op("pack", fields=("text",), lengths=(256,)))
  c.evals.val = common.evaluator("perplexity", source=(val,), context=256, stride=64)
  if args.tiny:
    shrink(c)
  return c


def sources(args) -> tuple[str, str]:
  """To train and to evaluate on."""
  if not args.text:
    if args.choose:
      raise ConfigError("config argument choose is for a file, so give text, too")
    return "embedded:pydocs:train", "embedded:pydocs:val"
  arguments.refuse_beside_tiny(args, "text")
  parts = ("[:81%]", "[81%:90%]") if args.choose else ("[:90%]", "[90%:]")
  return tuple(f"documents:{args.text}:characters{part}" for part in parts)


def shrink(c) -> None:
  """Makes the config run in seconds, on embedded data."""
  common.apply(c, {"model.stack": common.TINY_STACK})
  c.steps, c.batch_size, c.log_every = 4, 8, 2
  c.optim.schedule.warmup = 2.0
  c.checkpoint.every = c.checkpoint.keep = 2
  c.data.train = c.evals.val.source = ("embedded:pydocs:val",)
  c.data.ops[-1].lengths = (32,)
  c.evals.val.context, c.evals.val.stride = 32, 32
