"""A small BERT from scratch on a shelf of books: an evening on two CPU cores.

  python -m experiments.train \
    --config=configs/bert_books.py:corpus=documents:BOOKS,vocab=vocab.txt --workdir=runs/bert_books

BOOKS is a folder, or a zip archive of one, with a folder for each author that holds the books as
.txt or .md files; without `val` the last twentieth of the authors is held out. BERT Mini (4 layers
of 256) without the second task learns masked tokens in rows of 128 and then of 512 that stay
within one book. There is no dropout, since it passes over its data hardly more than once. What
counting alone would predict of the masked tokens is reported in the end (`counts`).

With RoPE it looks at neighbours, and does better than pairs of tokens, after some hundred steps;
with the learned positions of BERT, which `transformers` can read too, only after two thousand.

Arguments: objective, mlm, or one of BERT's relatives at the same size: electra, which finds tokens
that a generator of a quarter of its width replaced, or plm, XLNet's tokens in random orders, with
its positions; those of CORPUS_ARGS in bert.py. A student of what comes out: see distilbert.py.
"""

from . import arguments, bert, common, electra, xlnet

PRESETS = ("", "tiny", "corpus=documents:books.zip,vocab=vocab.txt",
           "corpus=documents:train,val=documents:val,language=de", "position=learned",
           "objective=electra,tiny", "objective=plm")
# The network and its positions.
OBJECTIVES = {
    "mlm": ("bert_mini", "BertForMaskedLM", "rope"),
    "electra": ("electra_small", "ElectraForPreTraining", "rope"),
    "plm": ("xlnet_base", "XLNetLMHeadModel", ""),
}


def get_config(arg: str = ""):
  args = arguments.parse_args(arg, objective="mlm", **bert.CORPUS_ARGS)
  arguments.hold_out_folders(args)
  preset, architecture, position = arguments.choose(OBJECTIVES, args.objective, "objective")
  args.position = args.position or position
  c = common.get_config()
  bert.pretrain(c, args, preset, architecture, common.op("doc_sentences"),
                phases=((0.9, 128, 32), (0.1, 512, 8)),
                tokenizer=common.tokenizer("wordpiece", vocab_size=8192, mask=True))
  if args.objective != "mlm":  # the size of BERT Mini
    common.apply(c, {"model.stack": xlnet.MINI, "model.embedding.width": None})
  no_dropout = dict(dropout=0.0, attention=dict(dropout=0.0), ffn=dict(dropout=0.0))
  common.apply(c, {"model.stack": dict(unroll=-1, block=no_dropout)})
  c.optim.lr, c.optim.clip_norm = 1e-3, 1.0
  c.optim.optimizer = common.optimizer("adamw", eps=1e-6, weight_decay=0.01)
  c.optim.schedule = common.schedule("linear", warmup=0.05)
  c.steps, c.log_every, c.checkpoint.every = 5000, 50, 250
  c.evals.val.every = 500
  if args.objective == "mlm":
    c.evals.counts = common.evaluator("ngrams", source=(args.val,))
  if args.tiny:
    bert.shrink(c)
  if args.objective == "electra":
    electra.find_replaced(c, masked=0.15, part=2 if args.tiny else 4)
  elif args.objective == "plm":
    xlnet.permute(c)
  return c
