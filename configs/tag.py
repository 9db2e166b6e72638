"""A tag for every word of your own text: entities in CoNLL's columns, or CoNLL-U's word classes.

  python -m experiments.train --config=configs/tag.py:init=FOLDER,entities \
    --config.data.path=DATA --workdir=runs/ner

FOLDER is a Hugging Face model or the workdir of a run; without `init` a small BERT with fresh
parameters is trained. The tags are collected from the training data. Arguments: format, conll (a
word and its tags a line) or conllu; entities, where tags are IOB and entities are scored; train and
dev, the files: those that end in .jsonl, .parquet or .arrow have lists "words" and "tags", of which
others are made by a source, parquet:train.parquet:columns[words=tokens+tags=ner_tags]; others, more
files to evaluate, joined by "+", such as those of other languages; and those of FINETUNE_ARGS in
finetuning.py.

Devlin et al. 2019 report F1 96.4 on dev and 92.4 on test of CoNLL-2003 for BERT-Base.
"""

from jtx.data.sources.specs import spec_of

from . import arguments, common, finetuning

FORMATS = {"conll": "conll", "conllu": "conllu"}
PRESETS = ("", "tiny,entities,pack=2", "tiny,model=gpt1,lm=0.5",
           "tiny,features=sum_all", "train=t.parquet,dev=d.jsonl",
           "features=concat_last_four,model=distilbert",
           "format=conllu,train=t.conllu.gz,dev=d.conllu.gz,others=de.conllu.gz",
           "max_length=64,batch=16,lr=2e-5,epochs=4,freeze=1,decay=0.9,group")


def get_config(arg: str = ""):
  args = arguments.parse_args(arg, format="conll", entities=False, **{
      **finetuning.FILE_ARGS, "train": "train.conll", "dev": "dev.conll"})
  kind = arguments.choose(FORMATS, args.format, "format")
  c = common.get_config()
  finetuning.finetune(c, args, "tags")
  c.objective = common.objective("tag", lm_weight=args.lm)
  c.data.train = (spec_of(args.train, kind),)
  c.data.ops = (
      common.op("encode_words", max_length=args.max_length),
      finetuning.rows(args, "text"),
  )
  finetuning.add_evals(c, args, lambda file: common.evaluator(
      "tagging", source=(spec_of(file, kind),), entities=args.entities))
  if args.tiny:
    finetuning.shrink(c)
  return c
