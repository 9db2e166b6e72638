"""A small T5 from scratch on a shelf of books, by span corruption.

  python -m experiments.train \
    --config=configs/t5_books.py:corpus=documents:BOOKS --workdir=runs/t5_books

BOOKS is as in bert_books.py. It is T5 in small: two layers of 256 on each side, embeddings of 8,192
pieces, 5 M parameters, and no dropout, since it passes over its data hardly more than once. Spans
of 3 tokens are hidden; documents of a window run on behind one another, and inputs have 64 tokens.

With T5's first values its decoder reads nothing of the encoder for thousands of updates: a target
has to find its sentinel, and a sentinel its neighbours. So keys of the cross-attention begin as
queries (`block.aligned`), by which a sentinel finds itself, and biases of distances begin large, by
which some heads see neighbours. With both it reads from some hundred updates on; with one of them
alone it did not by then.

In 50 minutes of one CPU core it is 1.54 nats below the tokens' frequencies (RESULTS.md).
`targets` is the loss of target tokens that are no sentinels, beside that of their frequencies.
Arguments: corpus, val, vocab and tiny as in t5.py.
"""

from jtx.data.ops.spans import span_lengths

from . import arguments, common, t5

PRESETS = ("", "tiny", "corpus=documents:books.zip,vocab=vocab.txt",
           "corpus=documents:train,val=documents:val")
LENGTH = 64  # tokens of a row's input
SPAN = 3.0  # mean tokens of a hidden span


def get_config(arg: str = ""):
  args = arguments.parse_args(arg, **t5.CORPUS_ARGS)
  arguments.hold_out_folders(args)
  c = common.get_config()
  t5.pretrain(c, args, "t5_small")
  stack = dict(width=256, num_layers=2, unroll=-1, block=dict(
      attention=dict(num_heads=4, head_dim=64, dropout=0.0), ffn=dict(dim=768, dropout=0.0),
      dropout=0.0))
  common.apply(c, {"model.encoder": stack, "model.decoder": stack})
  for stack in (c.model.encoder, c.model.decoder):
    stack.position.init_std = 2.0
  c.model.decoder.block.aligned = ("cross_attention",)
  if not args.vocab:
    c.tokenizer.kind = common.tokenizer("unigram", vocab_size=8192, sentinels=100, lowercase=True)
  c.data.ops[1].running = True
  c.data.ops[-1].lengths = (LENGTH, span_lengths(LENGTH, 0.15, SPAN)[1])
  c.optim.optimizer = common.optimizer("adamw", b2=0.98, weight_decay=0.0, scale_by_rms=True)
  c.optim.schedule = common.schedule("cosine", warmup=0.05, end=0.1)
  c.optim.lr, c.optim.clip_norm = 0.01, 1.0
  c.batch_size, c.steps = 16, 12_000
  c.log_every, c.checkpoint.every = 100, 500
  c.evals.val.every = 3000
  c.evals.targets = common.evaluator("targets", source=(args.val,))
  if args.tiny:
    t5.shrink(c)
    c.evals.targets.source = c.evals.val.source
  return c
