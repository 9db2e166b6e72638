"""A translator of your own parallel text: files train.SRC, train.TGT, val.SRC, val.TGT.

  python -m experiments.train --config=configs/nmt_text.py:src=en,tgt=de \
    --config.data.path=FOLDER --workdir=runs/mine

A line of train.en and the same line of train.de are a pair. Arguments: src and tgt, the
endings of the files; train and val, tables of pairs in their place (.tsv, .csv, .jsonl, .parquet,
.arrow), of which src and tgt are columns, such as translation.en; length, the most tokens of a
sentence; tiny. The model is small
(about 7 M parameters) and the dropout strong, which suits tens of thousands of pairs;
with millions take --config.model.encoder.width=512 --config.model.encoder.block.ffn.dim=2048
--config.model.encoder.block.dropout=0.1; the decoder follows.
"""

from typing import Callable

from jtx.data.sources.specs import spec_of

from . import arguments, common, nmt_base

PRESETS = ("", "src=de,tgt=en,length=32", "tiny",
           "src=translation.en,tgt=translation.de,train=t.parquet,val=v.jsonl")


def get_config(arg: str = ""):
  args = arguments.parse_args(arg, src="en", tgt="de", train="", val="", length=128, tiny=False)

  def files(split):
    if table := args[split]:
      return (f"{spec_of(table, 'tsv')}:columns[src={args.src}+tgt={args.tgt}]",)
    return parallel(split, args.src, args.tgt)

  c = translator(args.length, files)
  if args.tiny:
    nmt_base.shrink(c)
  return c


def parallel(split: str, src: str, tgt: str) -> tuple[str, ...]:
  return (f"text:{split}.{src},{split}.{tgt}",)


def translator(length: int, files: Callable[[str], tuple[str, ...]]):
  """The config of a small model.

  Args:
    length: tokens of a sentence at most.
    files: the sources of "train" and of "val".
  """
  c = common.get_config()
  c.model = nmt_base.encoder_decoder(
      width=256, num_layers=4, unroll=4, block=dict(
          attention=dict(num_heads=4), ffn=dict(dim=512), norm=dict(position="pre"), dropout=0.3))
  c.objective = common.objective("seq2seq", label_smoothing=0.1, logits_chunk=512)
  c.optim.optimizer = common.optimizer("adamw", b1=0.9, b2=0.98, weight_decay=0.01)
  c.optim.schedule = common.schedule("cosine", warmup=500)
  c.optim.lr = 2e-3
  c.optim.clip_norm = 1.0
  c.steps = 5000
  c.batch_size = max(4096 // length, 1)  # about 4,096 source and as many target tokens
  c.tokenizer.kind = common.tokenizer("bpe", vocab_size=8000)
  c.data.train = files("train")
  c.data.ops = (
      common.op("clean"),
      common.op("tokenize"),
      common.op("filter_length", max_length=length),
      common.op("pack", lengths=(length, length)),
  )
  c.decode.max_source_length = c.decode.max_target_length = length
  c.checkpoint.every = 500
  c.checkpoint.keep = c.checkpoint.average = 5
  c.evals.val_loss = common.evaluator("loss", source=files("val"), every=500)
  c.evals.val = common.evaluator("translation", source=files("val"), samples=3)
  return c
