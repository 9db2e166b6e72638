"""Sentence embeddings of your own texts: pairs, hard negatives, scored pairs, or SimCSE.

  python -m experiments.train --config=configs/embed.py:init=FOLDER,train=pairs.csv,dev=dev.csv \
    --config.data.path=DATA --workdir=runs/mine

FOLDER is a Hugging Face model or the workdir of a run; without `init` a small BERT with fresh
parameters is trained. Each text is to find its pair among all pairs of a batch. Arguments: text and
second, the columns of a text and its pair: names ("text" and "second" without them), or in a .tsv,
which has no header unless `header` says so, numbers ("0" and "1"); negatives, the columns of hard
negatives joined by "+"; score, the column of a score, which times `scale` the cosine of the pair is
to be, in place of finding it; simcse, for texts alone, each its own pair through another dropout
mask; gold, the column of scores in dev, by which it is evaluated in place of retrieval ("" is
score); pool, mean, first or last ("" is mean, and last of a decoder); late, for a vector a token,
by which texts are compared token by token (Khattab and Zaharia 2020, ColBERT); query_length, tokens
that the first text is cut to, and with late filled up to with masks (0 is max_length, and no
masks); temperature (0 is 0.05, and 1 with late); symmetric, to find the text by its pair, too;
bm25, to evaluate retrieval by words beside it; train and dev, the files, whose endings say what
they are, or sources (docs/data.md); others, more files to evaluate, joined by "+"; and those of
FINETUNE_ARGS in finetuning.py but features, lm, teacher and losses.

Reimers and Gurevych 2019; Gao et al. 2021, who report for BERT-Base without labels (simcse,
batch=64, lr=3e-5, epochs=1, max_length=32, pool=first) Spearman 76.3, the mean of seven sets of
similarity.
"""

from jtx.data.sources.specs import spec_of
from jtx.errors import ConfigError

from . import arguments, common, finetuning

# Arguments that are of tasks with labels, or leave nothing to train.
OTHERS = dict(features="", lm=0.0, teacher="", losses="")
# The head of ColBERT, section 3.2. Its authors' code marks queries and texts by a token each, and
# leaves out marks of punctuation; here neither is done.
COLBERT = dict(task="token_embeddings", pool="none", projection=128, output_bias=False)
ARGS = {k: v for k, v in finetuning.FILE_ARGS.items() if k not in OTHERS}
PRESETS = ("", "tiny", "tiny,score=label,gold=label,pool=first", "model=gpt1,symmetric",
           "text=a,second=b,negatives=c+d,header,temperature=0.1,train=t,dev=d,others=e.csv",
           "simcse,text=s,second=t,gold=g,train=t.csv,dev=d.csv,model=bert_small,batch=64",
           "simcse,train=t.txt,dev=d.txt,max_length=32,lr=3e-5,epochs=1,freeze=1,decay=0.9,group",
           "score=2,scale=0.2", "late,query_length=32,bm25", "late,tiny,pack=2")


def get_config(arg: str = ""):
  args = arguments.parse_args(
      arg, text="", second="", negatives="", score="", scale=1.0, gold="", simcse=False, pool="",
      late=False, query_length=0, temperature=0.0, symmetric=False, bm25=False, header=False,
      **ARGS)
  check(args)
  args.update(OTHERS)
  c = common.get_config()
  finetuning.finetune(c, args, "embedding")
  if args.late:
    common.apply(c, {"model.head": COLBERT})
  fill = args.late and args.query_length > 0
  if fill and not args.init:
    c.tokenizer.kind.mask = True
  c.objective = objective(args)
  source = lambda file: (spec_of(file, "table" if args.header else "tsv"),)
  first, second = columns(args, *source(args.train))
  texts = (first, first if args.simcse else second, *filter(None, args.negatives.split("+")))
  number = common.op("number", key=args.score, scale=args.scale, limit=1.0)  # as cosines are
  to_label = (number,) if args.score else ()
  c.data.train = source(args.train)
  c.data.ops = (
      common.op("encode_each", texts=texts, max_length=args.max_length,
                query_length=args.query_length, fill=fill),
      *to_label,
      finetuning.rows(args, *(f"each_{i}" for i in range(len(texts)))),
  )
  if args.query_length:
    c.data.ops[-1].lengths = (args.query_length, *c.data.ops[-1].lengths[1:])
  if args.bm25:
    c.evals.bm25 = common.evaluator("bm25", source=source(args.dev), texts=(first, second))
  finetuning.add_evals(c, args, lambda file: evaluator(args, source(file), (first, second)))
  if args.tiny:
    finetuning.shrink(c)
  return c


def objective(args):
  """By scores, or in the batch."""
  if args.score:
    return common.objective("cosine")
  name, temperature = ("late_interaction", 1.0) if args.late else ("contrastive", 0.05)
  return common.objective(name, temperature=args.temperature or temperature,
                          symmetric=args.symmetric)


def evaluator(args, source: tuple[str, ...], texts: tuple[str, str]):
  """Similarity by the scores of dev, or retrieval; of texts alone the loss without dropout."""
  if gold := args.gold or args.score:
    return common.evaluator("similarity", source=source, texts=texts, gold=gold)
  if args.simcse:
    return common.evaluator("loss", source=source, every=0)
  return common.evaluator("late_interaction" if args.late else "retrieval", source=source,
                          texts=texts)


def columns(args, train: str) -> tuple[str, str]:
  """The columns of a text and its pair."""
  if args.tiny:
    return "prompt", "text"
  if args.header and not train.startswith("table:"):
    raise ConfigError(f"config argument header is for files of tabs, and the source is {train}")
  numbered = train.startswith("tsv:") or train.startswith("csv:") and ":header[no]" in train
  first, second = ("0", "1") if numbered else ("text", "second")
  return args.text or first, args.second or second


def check(args) -> None:
  """Raises ConfigError where arguments exclude each other."""
  by_score = args.score or args.gold
  if args.score and (args.simcse or args.negatives or args.symmetric or args.temperature):
    raise ConfigError(f"config argument score={args.score!r} is of pairs with a score: simcse,"
                      " negatives, symmetric and temperature are of pairs without")
  if by_score and (args.late or args.bm25):
    raise ConfigError(f"config argument {'late' if args.late else 'bm25'} is of retrieval, and the"
                      f" scores {by_score!r} are of similarity: leave score and gold unset")
  if args.late and args.pool:
    raise ConfigError(f"config argument pool={args.pool!r} makes a vector of a text, and late one"
                      " of each token")
  if args.query_length > args.max_length:
    raise ConfigError(f"config argument query_length={args.query_length} must not be more than"
                      f" max_length={args.max_length}")
  if args.simcse and (args.bm25 or args.query_length):
    raise ConfigError(f"config argument {'bm25' if args.bm25 else 'query_length'} is of pairs, and"
                      " simcse of texts alone")
  if args.scale != 1 and not args.score:
    raise ConfigError(f"config argument scale={args.scale} goes with score")
  if args.simcse and args.negatives:
    raise ConfigError("config argument simcse is of texts alone, which have no negatives")


def sweep_pool():
  """The vector of a text: the mean of its tokens, or that of the first (Reimers 2019, table 6)."""
  yield {"model.head.pool": "mean"}
  yield {"model.head.pool": "first"}
