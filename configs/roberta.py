"""RoBERTa (Liu et al. 2019): BERT's network, full sentences, no second task, large batches.

  python -m experiments.train --config=configs/roberta.py:base --workdir=runs/roberta

Arguments: a size (base, large); form; those of CORPUS_ARGS in bert.py, which says what data
is taken. The paper trains 500,000 steps of 8,192 rows of 512 on 160 GB of text, a day on 1,024
V100 for 100,000 of them. Not yet reproduced here.
"""

from . import arguments, bert, common

SIZES = {"base": ("roberta_base", 6e-4, 24_000.0), "large": ("roberta_large", 4e-4, 30_000.0)}
PRESETS = ("", "tiny", "large,form=doc_sentences",
           "corpus=jsonl:a,val=jsonl:b,vocab=tokenizer.json,language=de,position=alibi")


def get_config(arg: str = ""):
  args = arguments.parse_args(arg, size="base", form="full_sentences", **bert.CORPUS_ARGS)
  preset, lr, warmup = arguments.choose(SIZES, args.size, "size")
  arguments.choose(dict.fromkeys(bert.FORMS[2:]), args.form, "form")
  c = common.get_config()
  bert.pretrain(c, args, preset, "RobertaForMaskedLM", common.op(args.form),
                phases=((1.0, 512, 8192),),
                tokenizer=common.tokenizer("byte_bpe", vocab_size=50_265, mask=True))
  optimise(c, lr, warmup)
  c.steps = 500_000
  if args.tiny:
    bert.shrink(c)
  return c


def optimise(c, lr: float, warmup: float) -> None:
  """Sets the optimiser of large batches (section 3.1)."""
  c.optim.lr, c.optim.accumulate = lr, 16
  c.optim.optimizer = common.optimizer("adamw", b2=0.98, eps=1e-6, weight_decay=0.01)
  c.optim.schedule = common.schedule("linear", warmup=warmup)
