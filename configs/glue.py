"""GLUE (Wang et al. 2019): fine-tuning an encoder on one of its tasks.

  python -m experiments.train --config=configs/glue.py:sst2,init=FOLDER --workdir=runs/sst2

FOLDER is a Hugging Face model or the workdir of a run; without `init` a small BERT with fresh
parameters is trained, which shows that things run. The data comes through TFDS, or with `files`
from GLUE's own files in --config.data.path=FOLDER (SST-2/train.tsv and so on). Arguments: the task
(cola, sst2, mrpc, qqp, stsb, mnli, qnli, rte, wnli); files; and those of FINETUNE_ARGS in
finetuning.py.

Devlin et al. 2019 report on the test sets for BERT-Base: MNLI 84.6/83.4, QQP 71.2, QNLI 90.5,
SST-2 93.5, CoLA 52.1, STS-B 85.8, MRPC 88.9, RTE 66.4.
"""

from typing import NamedTuple

from . import arguments, common, finetuning


class Task(NamedTuple):
  texts: tuple[str, ...]  # features of TFDS
  names: tuple[str, ...]  # classes, in the order of TFDS; () is a number
  scores: tuple[str, ...]
  folder: str  # of GLUE's files
  columns: tuple[str, ...]  # of the texts, then of the label
  splits: tuple[str, ...] = ("validation",)  # of TFDS, to evaluate
  files: tuple[str, ...] = ("dev",)


PAIR = ("sentence1", "sentence2")
SIMILAR = ("not_equivalent", "equivalent")
ENTAILS = ("entailment", "not_entailment")
TASKS = {
    "cola": Task(("sentence",), ("unacceptable", "acceptable"), ("matthews", "accuracy"), "CoLA",
                 ("3", "1")),
    "sst2": Task(("sentence",), ("negative", "positive"), ("accuracy",), "SST-2",
                 ("sentence", "label")),
    "mrpc": Task(PAIR, SIMILAR, ("f1", "accuracy"), "MRPC", ("#1 String", "#2 String", "Quality")),
    "qqp": Task(("question1", "question2"), ("not_duplicate", "duplicate"), ("f1", "accuracy"),
                "QQP", ("question1", "question2", "is_duplicate")),
    "stsb": Task(PAIR, (), ("pearson", "spearman"), "STS-B", (*PAIR, "score")),
    "mnli": Task(("premise", "hypothesis"), ("entailment", "neutral", "contradiction"),
                 ("accuracy",), "MNLI", (*PAIR, "gold_label"),
                 ("validation_matched", "validation_mismatched"),
                 ("dev_matched", "dev_mismatched")),
    "qnli": Task(("question", "sentence"), ENTAILS, ("accuracy",), "QNLI",
                 ("question", "sentence", "label")),
    "rte": Task(PAIR, ENTAILS, ("accuracy",), "RTE", (*PAIR, "label")),
    "wnli": Task(PAIR, ("not_entailment", "entailment"), ("accuracy",), "WNLI", (*PAIR, "label")),
}

PRESETS = ("", "tiny", "cola,files,features=last", "stsb,tiny,pack=2", "mnli,model=albert_base",
           "tiny,model=gpt1,lm=0.5", "stsb,model=gpt2,lm=0.5",
           "rte,max_length=64,batch=16,lr=2e-5,epochs=4,freeze=1,decay=0.9,group")


def get_config(arg: str = ""):
  args = arguments.parse_args(arg, task="sst2", files=False, **finetuning.FINETUNE_ARGS)
  task = arguments.choose(TASKS, args.task, "task")
  c = common.get_config()
  finetuning.finetune(c, args, "classes")
  c.objective = common.objective("classify", lm_weight=args.lm, loss="cross_entropy"
                                 if task.names else "squared_error")
  if not task.names:
    c.model.head.outputs = 1
  if args.files:
    kind = "tsv" if args.task == "cola" else "table"  # CoLA's has no header
    source = lambda split: (f"{kind}:{task.folder}/{split}.tsv",)
    train, splits, (*texts, label) = "train", dict(zip(task.files, task.files)), task.columns
  else:
    source = lambda split: (f"tfds:glue/{args.task}:{split}",)
    train, splits, (*texts, label) = "train", dict(zip(task.splits, task.splits)), (
        *task.texts, "label")
  if args.tiny:
    texts, label = ("text",), "label"
  names = task.names
  # In the files of three tasks classes have names, in the others numbers.
  if names and (args.tiny or args.files and args.task not in ("mnli", "qnli", "rte")):
    names = ("0", "1")
  # Neither of two similar texts is the first, so a decoder reads them in both orders.
  both_orders = c.model.name == "decoder" and args.task in ("mrpc", "qqp", "stsb") and not args.tiny
  to_label = common.op("label", key=label, names=names) if names else common.op("number", key=label)
  c.data.train = source(train)
  c.data.ops = (
      common.op("encode", texts=tuple(texts), max_length=args.max_length, both_orders=both_orders),
      to_label,
      finetuning.rows(args, "text", *["swapped"] * both_orders),
  )
  for name, split in splits.items():
    c.evals[name] = common.evaluator("classification", source=source(split), scores=task.scores)
  if args.tiny:
    finetuning.shrink(c)
  return c


def sweep_ablation():
  """What pretraining and the next tokens' loss do for a decoder: with init and lm=0.5."""
  yield from finetuning.ablation()


def sweep_grid():
  """The grid of Devlin et al. 2019, appendix A.3."""
  for batch_size in (16, 32):
    for lr in (5e-5, 3e-5, 2e-5):
      for epochs in (2.0, 3.0, 4.0):
        yield {"batch_size": batch_size, "optim.lr": lr, "epochs": epochs}
