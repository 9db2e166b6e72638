"""Multiple choice: the right ending of a text, as in SWAG and CODAH, from your own files.

  python -m experiments.train --config=configs/choose.py:init=FOLDER \
    --config.data.path=DATA --workdir=runs/codah

FOLDER is a Hugging Face model or the workdir of a run; without `init` a small BERT with fresh
parameters is trained. DATA holds train.tsv and dev.tsv. Arguments: prompt, the column of the text
(from 0); first and choices, the column of the first ending and how many there are; label, that of
the right ending's number, from 0; train and dev, the files; others, more files to evaluate, joined
by "+"; and those of FINETUNE_ARGS in finetuning.py. The defaults are CODAH's columns. Files that
end in .csv, .jsonl, .parquet or .arrow have names of columns:
prompt=sent1,choices=ending0+ending1+ending2+ending3,label=label.

Devlin et al. 2019 report an accuracy of 81.6 on dev of SWAG for BERT-Base.
"""

from jtx.data.sources.specs import spec_of
from jtx.errors import ConfigError

from . import arguments, common, finetuning

PRESETS = ("", "tiny,model=roberta_base,pack=2",
           "prompt=0,first=1,choices=3,label=4,train=t.tsv,dev=d.tsv,others=x.tsv,features=last",
           "prompt=p,choices=a+b,label=c,train=t.csv,dev=d.csv",
           "tiny,model=gpt1,lm=0.5",
           "max_length=64,batch=16,lr=2e-5,epochs=4,freeze=1,decay=0.9,group")


def get_config(arg: str = ""):
  args = arguments.parse_args(arg, prompt="1", first=2, choices="4", label="6",
                              **finetuning.FILE_ARGS)
  c = common.get_config()
  finetuning.finetune(c, args, "choice")
  c.objective = common.objective("multiple_choice", lm_weight=args.lm)
  prompt, label, choices = args.prompt, args.label, tuple(args.choices.split("+"))
  if args.choices.isdecimal():
    choices = tuple(str(args.first + i) for i in range(int(args.choices)))
  if len(choices) < 2:
    raise ConfigError(f"config argument choices={args.choices!r}: must be the number of columns, 2"
                      " or more, or their names, joined by +")
  if args.tiny:
    prompt, choices, label = "prompt", ("ending_0", "ending_1"), "answer"
  fields = [f"choice_{i}" for i in range(len(choices))]
  c.data.train = (spec_of(args.train, "tsv"),)
  c.data.ops = (
      common.op("encode_choices", prompt=prompt, choices=choices, label=label,
                max_length=args.max_length),
      finetuning.rows(args, *fields),
  )
  finetuning.add_evals(
      c, args, lambda file: common.evaluator("loss", source=(spec_of(file, "tsv"),), every=0))
  if args.tiny:
    finetuning.shrink(c)
  return c


def sweep_ablation():
  """What pretraining and the next tokens' loss do for a decoder: with init and lm=0.5."""
  yield from finetuning.ablation()
