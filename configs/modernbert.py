"""ModernBERT (Warner et al. 2024): RoPE, local and global layers, 30 % masked, packed rows.

  python -m experiments.train --config=configs/modernbert.py:base --workdir=runs/modernbert

Arguments: a size (base, large); those of CORPUS_ARGS in bert.py, which says what data is taken.
The paper trains on 1.72 trillion tokens in rows of 1,024 and 300 billion in rows of 8,192, with
StableAdamW, a batch that grows, and half of the second stretch at a falling rate; here it is
AdamW with clipping and one batch size a phase. Not yet reproduced here.
"""

from . import arguments, bert, common

SIZES = {"base": ("modernbert_base", 8e-4), "large": ("modernbert_large", 5e-4)}
PRESETS = ("", "tiny", "large",
           "corpus=jsonl:a,val=jsonl:b,vocab=tokenizer.json,language=de,position=alibi")


def get_config(arg: str = ""):
  args = arguments.parse_args(arg, size="base", **bert.CORPUS_ARGS)
  preset, lr = arguments.choose(SIZES, args.size, "size")
  c = common.get_config()
  bert.pretrain(c, args, preset, "ModernBertForMaskedLM", common.op("doc_sentences"),
                phases=((0.85, 1024, 4608), (0.15, 8192, 576)),
                tokenizer=common.tokenizer("byte_bpe", vocab_size=50_368, mask=True))
  c.data.ops[-1].rate = 0.3
  c.optim.lr, c.optim.clip_norm, c.optim.accumulate = lr, 1.0, 9
  c.optim.optimizer = common.optimizer("adamw", b2=0.98, eps=1e-6, weight_decay=1e-5)
  c.optim.schedule = common.schedule("wsd", warmup=640.0, decay=0.025)
  c.steps = 428_000
  if args.tiny:
    bert.shrink(c)
  return c
