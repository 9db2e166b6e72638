"""DistilBERT (Sanh et al. 2019): half of BERT's layers, taught by BERT.

  python -m experiments.train --config=configs/distilbert.py:teacher=FOLDER \
    --workdir=runs/distilbert

FOLDER is a Hugging Face model with a head for masked tokens, such as BertForMaskedLM, or a
workdir; its tokenizer is the student's. Arguments: layers and width of the student, 6 and
768, with heads of 64 or, below that, one; those of CORPUS_ARGS in bert.py, which says what data is
taken. The paper trains on batches of up to 4,000 rows, 90 hours on 8 V100, without the second task,
and begins with every other layer of the teacher; here the student begins from fresh parameters. Not
yet reproduced here.
"""

from . import arguments, bert, common

PRESETS = ("", "tiny", "layers=2,width=256",
           "corpus=jsonl:a,val=jsonl:b,vocab=tokenizer.json,language=de,position=alibi")


def get_config(arg: str = ""):
  args = arguments.parse_args(arg, teacher="", layers=6, width=768, **bert.CORPUS_ARGS)
  args.vocab = args.vocab or args.teacher
  c = common.get_config()
  bert.pretrain(c, args, "distilbert", "DistilBertForMaskedLM", common.op("full_sentences"),
                phases=((1.0, 512, 4096),),
                tokenizer=common.tokenizer("wordpiece", vocab_size=30_522, mask=True))
  common.apply(c, {"model.stack": dict(num_layers=args.layers, width=args.width, block=dict(
      attention=dict(num_heads=max(args.width // 64, 1)), ffn=dict(dim=4 * args.width)))})
  c.objective = common.objective("distill", teacher=args.teacher)
  c.optim.lr, c.optim.clip_norm, c.optim.accumulate = 5e-4, 5.0, 8
  c.optim.optimizer = common.optimizer("adamw", b2=0.98, eps=1e-6, weight_decay=0.0)
  c.optim.schedule = common.schedule("linear", warmup=0.05)
  c.steps = 90_000
  if args.tiny:
    bert.shrink(c)
    if not args.teacher:  # without one, what is left of the objective
      c.objective = common.objective("mlm")
  return c
