"""ELMo (Peters et al. 2018): language models of both directions, over words of characters.

  python -m experiments.train --config=configs/elmo.py:corpus=documents:BOOKS --workdir=runs/elmo

BOOKS is a folder of .txt or .md files, or a zip archive of one; without `val` the last twentieth of
its folders is held out, and without a corpus it is the documentation of Python's library. White
space parts words. The model is small: convolutions of 240 filters, two layers of LSTMs of 512 units
projected to 128 in each direction, which tell 8,000 words apart. size=original is the paper's, of
93,600,848 parameters beside the output, which was trained for 10 epochs on the 1 B Word Benchmark
to a perplexity of 39.7 on average of both directions (section 3.1); this was not reproduced here.

Its states as features of a tagger or classifier, the layers mixed by learnt weights (equation 1):

  python -m experiments.train --config=configs/tag.py:init=runs/elmo,features=mix ...

Arguments: size=small or original; corpus, val; tiny (seconds, for trying things out).
"""

from . import arguments, common

SIZES = {
    "small": dict(
        characters=dict(filters=((1, 16), (2, 32), (3, 64), (4, 128)), max_length=24),
        recurrent=dict(dim=512, cell=dict(projection=128))),
    "original": {},
    "tiny": dict(
        characters=dict(dim=4, filters=((1, 8), (3, 8)), max_length=12),
        recurrent=dict(dim=16, cell=dict(projection=8))),
}
WORDS = {"small": 8000, "original": 793_471, "tiny": 200}
PRESETS = ("", "original,corpus=documents:books.zip", "tiny", "corpus=documents:a,val=documents:b")
LENGTH = 256  # bytes of a row


def get_config(arg: str = ""):
  args = arguments.parse_args(arg, size="small", corpus="", val="", tiny=False)
  arguments.hold_out_folders(args)
  size = "tiny" if args.tiny else args.size
  words = 30
  c = common.get_config()
  c.model = common.model("elmo", **arguments.choose(SIZES, size, "size"), bilm=True,
                         max_words=words + 2)
  c.model.recurrent.num_layers = 2
  c.objective = common.objective("bilm", logits_chunk=512)
  c.tokenizer.kind = common.tokenizer("bytes")
  c.data.train = (args.corpus,)
  c.data.ops = (
      common.op("word_targets", max_words=words, max_length=LENGTH, vocab_size=WORDS[size]),
      common.op("pad", fields=("text",), lengths=(LENGTH,)),
  )
  c.optim.optimizer = common.optimizer("adamw", b2=0.98, weight_decay=0.01)
  c.optim.schedule = common.schedule("cosine", warmup=0.02, end=0.05)
  c.optim.lr, c.optim.clip_norm = 2e-3, 1.0
  c.batch_size, c.steps, c.log_every = 64, 6000, 50
  c.checkpoint.every = 500
  c.evals.val = common.evaluator("loss", source=(args.val,), every=1000)
  if args.tiny:
    c.steps, c.batch_size, c.log_every, c.checkpoint.every = 4, 8, 2, 2
  return c
