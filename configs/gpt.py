"""GPT-1, GPT-2 and GPT-3 (Radford et al. 2018, 2019; Brown et al. 2020), pretrained from documents.

  python -m experiments.train --workdir=runs/gpt2 \
    --config=configs/gpt.py:gpt2,corpus=jsonl:train.jsonl,val=jsonl:val.jsonl

Arguments: a size, of SIZES; `corpus` and `val`, sources of documents (docs/data.md); `vocab`, a
tokenizer, without which one is trained on the corpus; tiny. Without a corpus it is the English
Wikipedia of TFDS, as WebText and GPT-3's mixture are not distributed; a corpus without `val` is not
evaluated. Documents run on behind one another, each with an end token;
`--config.data.ops[1].running=False` keeps them apart.

Learning rates and batches of GPT-2 and GPT-3 are those of Brown et al. 2020, table 2.1, those of
GPT-1 its own (section 4.1). 300 billion tokens are 600,000 steps of gpt2. Not reproduced here.
"""

from jtx.interop import huggingface
from jtx.interop.presets import DECODERS

from . import arguments, common

# Arguments that `pretrain` reads; a config adds its own.
CORPUS_ARGS = dict(corpus="", val="", vocab="", tiny=False)
# Learning rate, rows of a batch, and steps.
SIZES = {
    "gpt1": (2.5e-4, 64, 2_400_000),
    "gpt2": (6e-4, 512, 600_000),
    "gpt2_medium": (3e-4, 512, 600_000),
    "gpt2_large": (2.5e-4, 512, 600_000),
    "gpt2_xl": (2e-4, 1024, 300_000),
    "gpt3_small": (6e-4, 256, 600_000),
    "gpt3_medium": (3e-4, 256, 600_000),
    "gpt3_large": (2.5e-4, 256, 600_000),
    "gpt3_2.7b": (1.6e-4, 512, 300_000),
    "gpt3_6.7b": (1.2e-4, 1024, 150_000),
    "gpt3": (0.6e-4, 1600, 94_000),
}
PRESETS = ("", "tiny", "gpt1,corpus=documents:.,val=blank_lines:val.txt,vocab=vocab.txt",
           "gpt1,tiny", "gpt3")


def get_config(arg: str = ""):
  args = arguments.parse_args(arg, size="gpt2", **CORPUS_ARGS)
  lr, rows, steps = arguments.choose(SIZES, args.size, "size")
  c, is_first = common.get_config(), args.size == "gpt1"
  length = 512 if is_first else 2048 if args.size.startswith("gpt3") else 1024
  pretrain(c, args, args.size, length, common.tokenizer("bpe", vocab_size=40_478) if is_first else
           common.tokenizer("byte_bpe", vocab_size=50_257))
  c.optim.lr, c.batch_size, c.steps = lr, rows, steps
  if is_first:
    c.optim.optimizer = common.optimizer("adamw", weight_decay=0.01)
    c.optim.schedule = common.schedule("cosine", warmup=2000.0)
  else:
    common.apply(c, {"model.stack.block.dropout": 0.0, "model.stack.block.attention.dropout": 0.0})
  if args.tiny:
    shrink(c)
  return c


def pretrain(c, args, name: str, length: int, tokenizer) -> None:
  """Makes a config pretrain a decoder (Brown et al. 2020, appendix B).

  Args:
    c: to edit.
    args: of CORPUS_ARGS.
    name: of DECODERS.
    length: tokens of a row.
    tokenizer: the kind that is trained where `args.vocab` names none.
  """
  c.model = common.model("decoder", **huggingface.fields_for(DECODERS[name], {"lm"}, name))
  c.model.vocab_size = None  # the tokenizer's
  c.objective = common.objective("lm")
  c.optim.optimizer = common.optimizer("adamw", b2=0.95, weight_decay=0.1)
  c.optim.schedule = common.schedule("cosine", warmup=2000.0, end=0.1)
  c.optim.clip_norm = 1.0
  c.tokenizer.kind = tokenizer
  if args.vocab:
    c.tokenizer.kind = common.tokenizer("file", path=args.vocab)
  train, val = arguments.or_wikipedia(args)
  c.data.train = (train,)
  c.data.ops = (common.op("tokenize", fields=("text",)), common.op("documents", running=True),
                common.op("pack", fields=("text",), lengths=(length,)))
  c.data.window = 8192  # documents
  if val:
    c.evals.val = common.evaluator("perplexity", source=(val,), context=length, stride=length // 2,
                                   every=10_000)


def shrink(c) -> None:
  """Makes a pretraining config run in seconds, on embedded data."""
  common.apply(c, {"model.stack": common.TINY_STACK})
  if c.model.stack.block.attention.num_kv_heads:
    c.model.stack.block.attention.num_kv_heads = 1
  c.steps, c.batch_size, c.log_every = 4, 8, 2
  c.optim.schedule.warmup = 2.0
  c.checkpoint.every = c.checkpoint.keep = 2
  if c.tokenizer.kind.name != "file":
    c.tokenizer.kind = common.tokenizer(c.tokenizer.kind.name, vocab_size=500)
  c.data.train = c.evals.val.source = ("embedded:pydocs:val",)
  c.data.ops[-1].lengths = (64,)
  c.evals.val.context, c.evals.val.stride = 64, 32
