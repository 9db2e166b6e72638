"""Classes, or a number, of your own texts: tab-separated files train.tsv and dev.tsv.

  python -m experiments.train --config=configs/classify.py:init=FOLDER,names=no+yes \
    --config.data.path=DATA --workdir=runs/mine

FOLDER is a Hugging Face model or the workdir of a run; without `init` a small BERT with fresh
parameters is trained. Arguments: text, and second for pairs, the columns of the texts; label, that
of the class (numbers from 0, or names of columns with `header`); names, the classes joined by "+",
"" for a number to be predicted; multi, for any number of labels a text; weights, a number a class
joined by "+", or balanced; focal, the gamma of the focal loss; scores, joined by "+", such as
accuracy+macro_f1+auc, or of numbers pearson+spearman (docs/classification.md has all); train and
dev, the files; others, more files to evaluate, joined by "+", such as the texts in other languages;
and those of FINETUNE_ARGS in finetuning.py.
"""

from . import arguments, common, finetuning

PRESETS = ("", "tiny", "tiny,names=,scores=pearson+spearman,features=last",
           "tiny,multi,weights=balanced", "tiny,weights=1+3,scores=f1+auc",
           "text=a,second=b,label=c,header,names=x+y+z,scores=matthews,train=t,dev=d,others=de.tsv",
           "max_length=64,batch=16,lr=2e-5,model=bert_small,epochs=4,freeze=1,decay=0.9,group,"
           "focal=2")


def get_config(arg: str = ""):
  args = arguments.parse_args(
      arg, text="0", second="", label="1", header=False, names="0+1", multi=False, weights="",
      focal=0.0, scores="accuracy", **finetuning.FILE_ARGS)
  c = common.get_config()
  finetuning.finetune(c, args, "multi_label" if args.multi else "classes")
  names = tuple(filter(None, args.names.split("+")))
  weights = tuple(w if w == "balanced" else float(w) for w in args.weights.split("+") if w)
  if args.multi:
    c.objective = common.objective("multi_label", pos_weight=weights, focal_gamma=args.focal)
  else:
    c.objective = common.objective("classify", loss="cross_entropy" if names else "squared_error",
                                   class_weights=weights, focal_gamma=args.focal)
  if not names:
    c.model.head.outputs = 1
  source = lambda file: (f"{'table' if args.header else 'tsv'}:{file}",)
  texts, label = tuple(filter(None, (args.text, args.second))), args.label
  if args.tiny:
    texts, label = ("text",), "label"
  to_label = common.op("label", key=label, names=names) if names else common.op("number", key=label)
  if args.multi:
    to_label = common.op("multi_label", key=label, names=names if args.names != "0+1" else ())
  c.data.train = source(args.train)
  c.data.ops = (
      common.op("encode", texts=texts, max_length=args.max_length),
      to_label,
      finetuning.padded(args, "text"),
  )
  finetuning.add_evals(c, args, lambda file: common.evaluator(
      "multi_label" if args.multi else "classification", source=source(file),
      scores=tuple(args.scores.split("+")), report=bool(names)))
  if args.tiny:
    finetuning.shrink_encoder(c)
  return c


def sweep_attention():
  """The tokens that a token attends to: all, a window, a window and [CLS], or those before it.

  In the last the first text of a pair is a prefix that all tokens see (Raffel et al. 2020).
  """
  yield {"model.stack.pattern": ("global",)}
  yield {"model.stack.pattern": ("local",), "model.stack.window": 16}
  yield {"model.stack.pattern": ("global_tokens",), "model.stack.window": 16}
  yield {"model.stack.pattern": ("prefix",), "model.stack.causal": True}
