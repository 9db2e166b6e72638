"""Longformer (Beltagy et al. 2020): a sliding window and global tokens, for texts of 4,096 tokens.

  python -m experiments.train --config=configs/longformer.py:base --workdir=runs/longformer

Arguments: a size (base, large); init, a folder to go on from; length, of rows, in tokens; those of
CORPUS_ARGS in bert.py, which says what data is taken. The paper begins with RoBERTa, whose
positions are repeated and whose projections are those of global tokens, too:

  python -m experiments.extend --init=roberta-base --max_length=4096 --window=512 --to_hf=long
  python -m experiments.train --config=configs/longformer.py:init=long --workdir=runs/longformer

It trains for 65,000 steps of 64 rows of 4,096, with 500 of warm-up, no global tokens, and a rate
that falls with the third power of what is left; here it falls in a line. It reports BPC 1.705 on
its corpus for base, and 1.846 for RoBERTa at 512 tokens; accuracy 75.0 on WikiHop's dev set and F1
75.2 on TriviaQA's. Not yet reproduced here.
"""

from . import adapt, arguments, bert, common

SIZES = {"base": "longformer_base", "large": "longformer_large"}
PRESETS = ("", "tiny", "large,length=2048,corpus=jsonl:a,val=jsonl:b,vocab=tokenizer.json,"
           "language=de,position=rope")


def get_config(arg: str = ""):
  args = arguments.parse_args(arg, size="base", init="", length=4096, **bert.CORPUS_ARGS)
  preset = arguments.choose(SIZES, args.size, "size")
  c = common.get_config()
  bert.pretrain(c, args, preset, "LongformerForMaskedLM", common.op("doc_sentences"),
                phases=((1.0, args.length, 64),),
                tokenizer=common.tokenizer("byte_bpe", vocab_size=50_265, mask=True))
  if args.init:
    adapt.go_on(c, args.init)
    c.model.globals.tokens = "none"
  c.optim.lr, c.optim.clip_norm = 3e-5, 1.0
  c.optim.optimizer = common.optimizer("adamw", b2=0.98, eps=1e-6, weight_decay=0.01)
  c.optim.schedule = common.schedule("linear", warmup=500.0)
  c.steps = 65_000
  if args.tiny:
    bert.shrink(c)
  return c


def sweep_window():
  """Places to each side that a token sees (window 512 is the paper's)."""
  for side in (64, 128, 256):
    yield {"model.stack.window": side}
