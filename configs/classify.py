"""Classes, or a number, of your own texts: train.tsv and dev.tsv, or CSV, JSONL, Parquet, Arrow.

  python -m experiments.train --config=configs/classify.py:init=FOLDER,train=train.csv,dev=dev.csv \
    --config.data.path=DATA --workdir=runs/mine

FOLDER is a Hugging Face model or the workdir of a run; without `init` a small BERT with fresh
parameters is trained, or what `model` names, such as bilstm, or lstm_2048, the recurrent network
that GPT is compared with (Radford et al. 2018, table 5). Arguments: text, and second for pairs, the
columns of the texts, and label, that of the class: names ("text" and "label" without them), or in a
.tsv, which has no header unless `header` says so, numbers ("0" and "1"); names, the classes joined
by "+", in order, which else are those of the training data, and "" for a number to be predicted;
multi, for any number of labels a text; both_orders, for pairs of which neither text is the first,
then read in either order; weights, a number a class joined by "+", or balanced; focal, the gamma of
the focal loss; scores, joined by "+", such as accuracy+macro_f1+auc, or of numbers pearson+spearman
(docs/classification.md has all); train and dev, the files, whose endings say what they are, or
sources (docs/data.md); others, more files to evaluate, joined by "+", such as the texts in other
languages; and those of FINETUNE_ARGS in finetuning.py.
"""

from jtx.data.sources.specs import spec_of
from jtx.errors import ConfigError

from . import arguments, common, finetuning

COLLECTED = "*"  # names of classes that are those of the training data
PRESETS = ("", "tiny", "tiny,names=,scores=pearson+spearman,features=last",
           "tiny,multi,weights=balanced,pack=2", "tiny,names=0+1,weights=1+3,scores=f1+auc",
           "text=a,second=b,label=c,header,names=x+y+z,scores=matthews,train=t,dev=d,others=de.tsv",
           "max_length=64,batch=16,lr=2e-5,model=bert_small,epochs=4,freeze=1,decay=0.9,group,"
           "focal=2", "tiny,model=gpt1,lm=0.5",
           "second=b,both_orders,names=,scores=pearson,model=gpt2,lm=0.5",
           "tiny,model=bilstm", "model=lstm_2048,lm=0.5")


def get_config(arg: str = ""):
  args = arguments.parse_args(
      arg, text="", second="", label="", header=False, names=COLLECTED, multi=False, weights="",
      both_orders=False, focal=0.0, scores="accuracy", **finetuning.FILE_ARGS)
  c = common.get_config()
  finetuning.finetune(c, args, "multi_label" if args.multi else "classes")
  weights = tuple(w if w == "balanced" else float(w) for w in args.weights.split("+") if w)
  if args.multi:
    c.objective = common.objective("multi_label", pos_weight=weights, focal_gamma=args.focal,
                                   lm_weight=args.lm)
  else:
    c.objective = common.objective("classify", class_weights=weights, focal_gamma=args.focal,
                                   lm_weight=args.lm, loss="cross_entropy" if args.names
                                   else "squared_error")
  if not args.names:
    c.model.head.outputs = 1
  source = lambda file: (spec_of(file, "table" if args.header else "tsv"),)
  texts, label = columns(args, *source(args.train))
  names = () if args.names == COLLECTED else tuple(filter(None, args.names.split("+")))
  to_label = (common.op("label", key=label, names=names) if args.names else
              common.op("number", key=label))
  if args.multi:
    to_label = common.op("multi_label", key=label, names=names)
  c.data.train = source(args.train)
  c.data.ops = (
      common.op("encode", texts=texts, max_length=args.max_length, both_orders=args.both_orders),
      to_label,
      finetuning.rows(args, "text", *["swapped"] * args.both_orders),
  )
  finetuning.add_evals(c, args, lambda file: common.evaluator(
      "multi_label" if args.multi else "classification", source=source(file),
      scores=tuple(args.scores.split("+")), report=bool(args.names)))
  if args.tiny:
    finetuning.shrink(c)
  return c


def columns(args, train: str) -> tuple[tuple[str, ...], str]:
  """The columns of the texts, and that of the label, of the training source."""
  if args.tiny:
    return ("text",), "label"
  if args.header and not train.startswith("table:"):
    raise ConfigError(f"config argument header is for files of tabs, and the source is {train}")
  numbered = train.startswith("tsv:") or train.startswith("csv:") and ":header[no]" in train
  text, label = ("0", "1") if numbered else ("text", "label")
  return (args.text or text, *filter(None, [args.second])), args.label or label


def sweep_ablation():
  """What pretraining and the next tokens' loss do for a decoder: with init and lm=0.5."""
  yield from finetuning.ablation()


def sweep_attention():
  """The tokens that a token attends to: all, a window, a window and [CLS], or those before it.

  In the last the first text of a pair is a prefix that all tokens see (Raffel et al. 2020).
  """
  yield {"model.stack.pattern": ("global",)}
  yield {"model.stack.pattern": ("local",), "model.stack.window": 16}
  yield {"model.stack.pattern": ("global_tokens",), "model.stack.window": 16}
  yield {"model.stack.pattern": ("prefix",), "model.stack.causal": True}
