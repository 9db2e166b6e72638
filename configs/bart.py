"""BART (Lewis et al. 2020), base and large, pretrained from documents by denoising.

  python -m experiments.train --workdir=runs/bart \
    --config=configs/bart.py:bart_base,corpus=jsonl:train.jsonl,val=jsonl:val.jsonl

Arguments: a size, of SIZES; `corpus` and `val`, sources of documents (docs/data.md); `vocab`, a
tokenizer with a mask, without which one is trained on the corpus; `language`, by which documents
are split into sentences; tiny. Without a corpus it is the English Wikipedia of TFDS; a corpus
without `val` is not evaluated.

The paper trains 500,000 steps of 8,000 rows of up to 512 tokens; the learning rate is that of
RoBERTa, whose data and budget it has. Dropout is not turned off for the last tenth. Not reproduced
here. `sweep_noise` is the paper's table 1.
"""

from jtx.interop.presets import ENCDECS

from . import arguments, common, published

SIZES = {name: name for name in ENCDECS if name.startswith("bart")}
PRESETS = ("", "tiny", "bart_large,corpus=documents:.,val=blank_lines:val.txt,vocab=vocab.txt,"
           "language=de")


def get_config(arg: str = ""):
  args = arguments.parse_args(arg, size="bart_base", corpus="", val="", vocab="", language="en",
                              tiny=False)
  name, c = arguments.choose(SIZES, args.size, "size"), common.get_config()
  c.model = published.encoder_decoder(name)
  c.objective = common.objective("seq2seq", label_smoothing=0.0)
  c.optim.optimizer = common.optimizer("adamw", b2=0.98, eps=1e-6, weight_decay=0.01)
  c.optim.schedule = common.schedule("linear", warmup=30_000.0)
  c.optim.lr, c.optim.clip_norm = 4e-4 if name == "bart_large" else 6e-4, 1.0
  c.batch_size, c.steps = 8000, 500_000
  c.tokenizer.kind = common.tokenizer("byte_bpe", vocab_size=50_265, mask=True)
  if args.vocab:
    c.tokenizer.kind = common.tokenizer("file", path=args.vocab)
  train, val = arguments.or_wikipedia(args)
  c.data.train = (train,)
  c.data.ops = (
      common.op("split_sentences", language=args.language), common.op("encode_sentences"),
      common.op("denoise"), common.op("pack", lengths=(512, 512)))
  c.data.window = 8192  # documents
  if val:
    c.evals.val = common.evaluator("loss", source=(val,), every=10_000)
  if args.tiny:
    shrink(c)
  return c


def shrink(c) -> None:
  """Makes the config run in seconds, on embedded data."""
  common.apply(c, {"model.encoder": common.TINY_STACK, "model.decoder": common.TINY_STACK})
  c.steps, c.batch_size, c.log_every = 4, 8, 2
  c.optim.schedule.warmup = 2.0
  c.checkpoint.every = c.checkpoint.keep = 2
  if c.tokenizer.kind.name != "file":
    c.tokenizer.kind = common.tokenizer("byte_bpe", vocab_size=520, mask=True)
  c.data.train = c.evals.val.source = ("embedded:pydocs:val",)
  c.data.ops[-1].lengths = (64, 64)
  c.decode.max_source_length = c.decode.max_target_length = 32


def sweep_noise():
  """Lewis et al. 2020, table 1."""
  alone = {"data.ops[2].permute": 0.0}
  yield alone | {"data.ops[2].noise": "mask", "data.ops[2].rate": 0.15}
  yield alone | {"data.ops[2].noise": "delete", "data.ops[2].rate": 0.15}
  yield alone
  yield alone | {"data.ops[2].noise": "none", "data.ops[2].rotate": 1.0}
  yield {"data.ops[2].noise": "none"}
  yield {"data.ops[2].permute": 1.0}
