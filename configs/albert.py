"""ALBERT (Lan et al. 2020): a narrow embedding, one layer for all, sentence order.

  python -m experiments.train --config=configs/albert.py:base --workdir=runs/albert

Arguments: a size (base, large, xlarge); those of CORPUS_ARGS in bert.py, which says what data
is taken. The paper trains 125,000 steps of 4,096 rows of 512 with LAMB and hides spans of up to
three tokens; here it is tokens. Not yet reproduced here.
"""

from . import arguments, bert, common

SIZES = {"base": "albert_base", "large": "albert_large", "xlarge": "albert_xlarge"}
PRESETS = ("", "tiny", "large",
           "corpus=jsonl:a,val=jsonl:b,vocab=tokenizer.json,language=de,position=alibi")


def get_config(arg: str = ""):
  args = arguments.parse_args(arg, size="base", **bert.CORPUS_ARGS)
  c = common.get_config()
  bert.pretrain(c, args, arguments.choose(SIZES, args.size, "size"), "AlbertForPreTraining",
                common.op("segment_pair", order=True), phases=((1.0, 512, 4096),),
                tokenizer=common.tokenizer("unigram", vocab_size=30_000, lowercase=True, mask=True))
  c.optim.lr, c.optim.clip_norm, c.optim.accumulate = 1.76e-3, 1.0, 8
  c.optim.optimizer = common.optimizer("lamb", weight_decay=0.01)
  c.optim.schedule = common.schedule("linear", warmup=3125.0)
  c.steps = 125_000
  if args.tiny:
    bert.shrink(c)
  return c
