"""A small GPT from scratch on a shelf of books: an hour on two CPU cores, and then its fine-tuning.

  python -m experiments.train \
    --config=configs/gpt_books.py:corpus=documents:BOOKS --workdir=runs/gpt_books

BOOKS is a folder, or a zip archive of one, with a folder for each author that holds the books as
.txt or .md files; without `val` the last twentieth of the authors is held out. It is GPT-1 in small
(Radford et al. 2018): 5 M parameters, 4 layers of 256, on running text in rows of 256 lower-cased
tokens. Unlike GPT-1 it has its norms before its layers and RoPE, as GPT-NeoX, with which a short
run gets further, and it learns by Muon; `position=learned` makes it a GPT-2. There is no dropout,
since it passes over its data hardly more than once.

Arguments: corpus, val, vocab and tiny as in gpt.py, and position. What pretraining is worth, with
and without the next tokens' loss beside the task's, is `sweep_ablation` of classify.py, glue.py and
choose.py, with init=runs/gpt_books,lm=0.5: see docs/classification.md.
"""

from jtx.nn.positions import POSITIONS

from . import arguments, common, gpt

PRESETS = ("", "tiny", "corpus=documents:books.zip,vocab=vocab.txt,position=learned",
           "corpus=documents:train,val=documents:val")
LENGTH = 256  # tokens of a row


def get_config(arg: str = ""):
  args = arguments.parse_args(arg, position="rope", **gpt.CORPUS_ARGS)
  arguments.choose(POSITIONS, args.position, "position")
  arguments.hold_out_folders(args)
  c = common.get_config()
  gpt.pretrain(c, args, "gpt2", LENGTH,
               common.tokenizer("bpe", vocab_size=8192, lowercase=True))
  learned = dict(max_length=2 * LENGTH) if args.position == "learned" else {}
  common.apply(c, {"model.stack": dict(
      width=256, num_layers=4, unroll=-1, position=common.position(args.position, **learned),
      block=dict(attention=dict(num_heads=4, dropout=0.0), ffn=dict(dim=1024), dropout=0.0,
                 residual=dict(init_std=0.02 / 8**0.5)))})
  c.optim.optimizer = common.optimizer("muon", b2=0.98)
  c.optim.schedule = common.schedule("cosine", warmup=0.05, end=0.1)
  c.optim.lr, c.batch_size, c.steps = 4e-3, 16, 3000
  c.log_every, c.checkpoint.every = 50, 250
  c.evals.val.every, c.evals.val.stride = 1000, LENGTH
  if args.tiny:
    gpt.shrink(c)
  return c
