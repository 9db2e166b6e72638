"""Answers to questions as spans of a text: SQuAD 1.1 and 2.0, or your own data of that form.

  python -m experiments.train --config=configs/squad.py:init=FOLDER \
    --config.data.path=DATA --workdir=runs/squad

FOLDER is a Hugging Face model or the workdir of a run; without `init` a small BERT with fresh
parameters is trained. DATA holds train-v1.1.json and dev-v1.1.json. Arguments: v2, for questions
without an answer (train-v2.0.json, dev-v2.0.json); train and dev, other files of that form, or rows
of `datasets` (.jsonl, .parquet, .arrow) with context, question and answers, an object of the lists
text and answer_start; holdout, the percentage of the training file's titles, or of its rows, that
are kept for evaluation in place of a dev file; others, more files to evaluate, joined by "+", such
as XQuAD's in other languages; stride, tokens that windows of a long text share; and those of
FINETUNE_ARGS in finetuning.py.

Devlin et al. 2019 report EM 80.8 and F1 88.5 on dev of 1.1 for BERT-Base.
"""

from jtx.data.sources.specs import spec_of
from jtx.errors import ConfigError

from . import arguments, common, finetuning

PRESETS = ("", "v2,model=modernbert_base", "tiny,stride=4,pack=2", "tiny,model=gpt1,lm=0.5",
           "train=own.json,holdout=20,others=xquad.en.json+xquad.de.json",
           "dev=other.json,features=second_to_last",
           "max_length=256,batch=16,lr=3e-5,epochs=2,freeze=1,decay=0.9,group")


def get_config(arg: str = ""):
  args = arguments.parse_args(arg, v2=False, holdout=0, stride=128, **{
      **finetuning.FILE_ARGS, "train": "", "dev": "", "max_length": 384})
  version = "v2.0" if args.v2 else "v1.1"
  c = common.get_config()
  finetuning.finetune(c, args, "span")
  if not args.init and "max_length" in c.model.stack.position:
    position = c.model.stack.position
    position.max_length = max(args.max_length, position.max_length)
  c.objective = common.objective("span", lm_weight=args.lm)
  given = args.dev
  train, args.dev = args.train or f"train-{version}.json", args.dev or f"dev-{version}.json"
  arguments.check_range("holdout", args.holdout, 0, 99, " percent")
  if args.holdout:
    if given:
      raise ConfigError(f"config arguments holdout and dev={given} exclude each other: what is held"
                        " out of the training file is evaluated")
    split, part = 100 - args.holdout, "titles"
    if not spec_of(train, "squad").startswith("squad:"):
      part = "rows"
    train, args.dev = f"{train}:{part}[:{split}%]", f"{train}:{part}[{split}%:]"
  c.data.train = (spec_of(train, "squad"),)
  c.data.ops = (
      common.op("encode_windows", max_length=args.max_length, stride=args.stride),
      finetuning.rows(args, "text"),
  )
  finetuning.add_evals(c, args, lambda file: common.evaluator(
      "answers", source=(spec_of(file, "squad"),), no_answer=args.v2))
  if args.tiny:
    finetuning.shrink(c)
    c.data.ops[0].max_question, c.data.ops[0].stride = 8, min(args.stride, 8)
  return c
