"""XLNet (Yang et al. 2019): an encoder that predicts tokens in random orders.

  python -m experiments.train --config=configs/xlnet.py:base --workdir=runs/xlnet

Arguments: a size (mini, base, large); form, how examples are made of documents (see bert.py); those
of CORPUS_ARGS in bert.py, which says what data is taken. The paper trains large for 500,000 steps
of 8,192 rows of 512 tokens (5.5 days on 512 TPU v3 chips), and reports accuracies of 90.8 on MNLI's
and 97.0 on SST-2's development set. Base has BERT's data; its 85.6, 93.4, and F1 of 81.0 on SQuAD
2.0 are those of predicting a sixth of the tokens, as here. Not yet reproduced here. Each row is on
its own: in training nothing is remembered of rows before it. See glue.py for scores of a run.
"""

from . import arguments, bert, common

# The model, rows a batch, steps, learning rate, warm-up.
SIZES = {
    "mini": ("xlnet_base", 256, 1_000_000, 1e-4, 10_000.0),
    "base": ("xlnet_base", 256, 1_000_000, 1e-4, 10_000.0),
    "large": ("xlnet_large", 8192, 500_000, 4e-4, 40_000.0),
}
MINI = dict(width=256, num_layers=4, block=dict(attention=dict(num_heads=4), ffn=dict(dim=1024)))
PRESETS = ("", "tiny", "large,form=full_sentences",
           "mini,corpus=jsonl:a,val=jsonl:b,vocab=tokenizer.json,language=de,position=rope")


def get_config(arg: str = ""):
  args = arguments.parse_args(arg, size="base", form="segment_pair", **bert.CORPUS_ARGS)
  arguments.choose(dict.fromkeys(bert.FORMS), args.form, "form")
  preset, batch, steps, lr, warmup = arguments.choose(SIZES, args.size, "size")
  c = common.get_config()
  bert.pretrain(c, args, preset, "XLNetLMHeadModel", common.op(args.form),
                phases=((1.0, 512, batch),),
                tokenizer=common.tokenizer("unigram", vocab_size=32_000))
  if args.size == "mini":
    common.apply(c, {"model.stack": MINI})
  permute(c)
  c.optim.lr, c.optim.clip_norm = lr, 1.0
  c.optim.optimizer = common.optimizer("adamw", eps=1e-6, weight_decay=0.01)
  c.optim.schedule = common.schedule("linear", warmup=warmup)
  c.steps = steps
  if args.tiny:
    bert.shrink(c)
  return c


def permute(c) -> None:
  """Makes a config of masked tokens one of tokens in random orders."""
  c.objective = common.objective("plm")
  c.data.ops = (*c.data.ops[:-1], common.op("permute"))


def sweep_prediction():
  """What is predicted: a seventh of the tokens, or tokens one by one (section 3.1 has spans)."""
  yield {"data.ops[4].rate": 1 / 7}
  yield {"data.ops[4].max_span": 0}
