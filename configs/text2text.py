"""Every task as text (Raffel et al. 2020): an encoder-decoder fine-tuned on one task or on several.

  python -m experiments.train --config=configs/text2text.py:tasks.json,init=FOLDER \
    --config.data.path=DATA --workdir=runs/tasks

FOLDER is a T5 of Hugging Face or the workdir of an encoder-decoder; without `init` a small T5 with
fresh parameters is trained, or `model`, a key of ENCDECS in jtx/interop/presets.py. Tasks are
joined by +, each of GLUE (cola, sst2, mrpc, qqp, stsb, mnli, qnli, rte, wnli), from TFDS or with
`files` from GLUE's own files in DATA, or all of a JSON file, an object of them by name:

  {"sick": {"train": "sick_train.tsv", "dev": "sick_dev.tsv",
            "input": "sick premise: {sentence_A} hypothesis: {sentence_B}",
            "target": "{entailment_label}", "scores": ["accuracy"],
            "labels": ["CONTRADICTION", "NEUTRAL", "ENTAILMENT"]}}

Templates are those of the op `template` (docs/data.md), scores those of jtx/evals/text_scores.py.
Of tables (.tsv) the first line names the columns. `references` names the key of an example's right
texts, where there are several. tasks.json/sick is this task of the file alone. Several tasks are
mixed by their size^(1/temperature), where a size counts as `limit` at most (section 3.5.2 of the
paper: 2^19 and 2 to 3). Other arguments: length and target, tokens at most; batch, rows in which
several examples have room; lr, 0 for 0.001 with `init` and 0.02 without; epochs, of all tasks;
beam; vocab, of fresh parameters; tiny.
"""

import dataclasses
import json
from typing import Any, Collection, Iterator, Mapping

from jtx import hub
from jtx.data.ops.template import parts_of
from jtx.data.sources.specs import spec_of
from jtx.errors import ConfigError, nearest
from jtx.interop.presets import ENCDECS
from jtx.saved import speaking
from jtx.saved.folder import open_saved

from . import arguments, common, glue, published

PRESETS = ("", "tiny", "cola+stsb,files,temperature=2.0,limit=1000,length=64,batch=8,lr=1e-4",
           "mnli,model=t5_small,epochs=1,beam=4,target=32,vocab=500")

SENTENCES = dict(train="embedded:sentences:train", dev="embedded:sentences:val")
VOCAB = 8000  # pieces of a fresh tokenizer
ORDERS = {"mnli": ("hypothesis", "premise")}  # of the texts in the paper, where they differ


@dataclasses.dataclass(frozen=True)
class Task:
  """A task by its sources and templates."""
  train: str
  dev: str | tuple[str, ...]
  input: str
  target: str
  scores: tuple[str, ...] = ("exact_match",)
  labels: tuple[str, ...] = ()
  references: str = ""


def get_config(arg: str = ""):
  args = arguments.parse_args(
      arg, tasks="sst2", init="", model="", files=False, limit=0, temperature=1.0, length=512,
      target=64, batch=16, lr=0.0, epochs=3.0, beam=1, vocab=VOCAB, tiny=False)
  c = common.get_config()
  begin, start = open_model(c, args)
  c.objective = common.objective("seq2seq", label_smoothing=0.0)
  set_rates(c, args)
  c.batch_size, c.epochs, c.log_every = args.batch, args.epochs, 50
  c.data.smoothing = None if args.temperature == 1.0 else 1 / args.temperature
  c.data.size_limit = args.limit
  c.data.ops = (common.op("template"),
                common.op("tokenize", begin=begin, start=start, lengths=(args.length, args.target)),
                common.op("pack", lengths=(args.length, args.target)))
  c.data.window = 0  # so that every epoch has every example
  c.decode.method = common.method("beam", beam=args.beam)
  c.decode.max_source_length, c.decode.max_target_length = args.length, args.target
  if args.tiny:
    shrink(c)
  else:
    fill(c, dict(found(args.tasks, args.files)))
  return c


def set_rates(c, args) -> None:
  """T5's fine-tuning (Raffel et al. 2020, section 3.1.3), or what fresh parameters need."""
  if args.init:
    c.optim.optimizer = common.optimizer("adafactor")
    c.optim.schedule = common.schedule("constant")
  else:
    c.optim.optimizer = common.optimizer("adamw", b2=0.98, weight_decay=0.0, scale_by_rms=True)
    c.optim.schedule = common.schedule("cosine", warmup=0.05, end=0.1)
  c.optim.lr = args.lr or (1e-3 if args.init else 2e-2)


def fill(c, tasks: Mapping[str, Task]) -> None:
  """Sets the sources, templates and evaluators of tasks."""
  c.data.train = tuple(source(task.train, name, task, tasks) for name, task in tasks.items())
  c.data.ops[0].tasks = tuple((name, task.input, task.target) for name, task in tasks.items())
  c.data.ops[0].keep = tuple(sorted({task.references for task in tasks.values()} - {""}))
  for name, task in tasks.items():
    dev = [task.dev] if isinstance(task.dev, str) else task.dev
    c.evals[name] = common.evaluator(
        "texts", source=tuple(source(file, name, task, tasks) for file in dev), samples=3,
        scores=task.scores, labels=task.labels, references=task.references)


def open_model(c, args) -> tuple[bool, str]:
  """The model and the tokenizer: those of `args.init`, or fresh ones; `begin` and `start` of texts.
  """
  if args.init:
    if args.model:
      raise ConfigError("config arguments init and model exclude each other: init brings its model")
    if args.vocab != VOCAB:
      raise ConfigError(
          "config arguments init and vocab exclude each other: init brings its tokenizer")
    c.init_from = hub.place(args.init)
    saved = open_saved(args.init)
    c.model = common.model("encdec", **saved.trunk_fields("encdec"))
    c.tokenizer.kind = common.tokenizer("file", path=c.init_from)
    return speaking.around_texts(saved)
  name = args.model or "t5_small"
  arguments.choose(ENCDECS, name, "model")
  c.model = published.encoder_decoder(name)
  if not args.model:
    for stack in (c.model.encoder, c.model.decoder):
      common.apply(stack, {"width": 256, "num_layers": 4, "unroll": -1,
                           "block.attention.num_heads": 4, "block.ffn.dim": 1024})
  c.tokenizer.kind = common.tokenizer("unigram", vocab_size=args.vocab, sentinels=100)
  return False, "begin"


# ------------------------------------------------------------------------------- tasks


def found(names: str, files: bool) -> Iterator[tuple[str, Task]]:
  """The tasks of "cola+tasks.json", or of "tasks.json/sick", by name.

  Raises:
    ConfigError: an unknown name, a file that has no tasks, or a name twice.
  """
  seen = set()
  for name in names.split("+"):
    file, _, only = name.rpartition("/")
    if name.endswith(".json"):
      tasks = of_file(name)
    elif file.endswith(".json"):
      tasks = of_file(file)
      if only not in tasks:
        raise ConfigError(f"{file}: task {only!r}: {nearest(only, tasks)}")
      tasks = {only: tasks[only]}
    elif name in glue.TASKS:
      tasks = {name: of_glue(name, files)}
    else:
      raise ConfigError(f"config argument tasks={names!r}: {nearest(name, glue.TASKS)}, or a file"
                        " that ends in .json, or such a file/task")
    for key in tasks:
      if key in seen:
        raise ConfigError(f"config argument tasks={names!r}: two tasks have the name {key!r}")
    seen |= set(tasks)
    yield from tasks.items()


def of_file(path: str) -> dict[str, Task]:
  """The tasks of a JSON file."""
  try:
    with open(path, encoding="utf-8") as f:
      content = json.load(f)
  except (OSError, ValueError) as e:
    raise ConfigError(f"{path}: can't be read as JSON: {e}") from e
  if not isinstance(content, dict) or not content:
    raise ConfigError(f"{path}: has no object of tasks by name")
  return {name: of_json(f"{path}: task {name!r}", task) for name, task in content.items()}


def of_json(where: str, task: Any) -> Task:
  kinds = {field.name: field for field in dataclasses.fields(Task)}
  needed = [name for name, field in kinds.items() if field.default is dataclasses.MISSING]
  if not isinstance(task, dict) or not set(needed) <= set(task):
    raise ConfigError(f"{where}: needs {', '.join(needed)}")
  for key, value in task.items():
    if key not in kinds:
      raise ConfigError(f"{where}: {nearest(key, kinds)}")
    is_list = isinstance(value, list) and value and all(isinstance(v, str) for v in value)
    many, one = key in ("scores", "labels", "dev"), key not in ("scores", "labels")
    if not (many and is_list or one and isinstance(value, str) and value):
      kind = " or ".join(["a text"] * one + ["a list of texts"] * many)
      raise ConfigError(f"{where}: {key} is {value!r}, and not {kind}")
  return Task(**{key: tuple(value) if isinstance(value, list) else value
                 for key, value in task.items()})


def of_glue(name: str, files: bool) -> Task:
  """A task of GLUE with the paper's templates (appendix D)."""
  task = glue.TASKS[name]
  *columns, label = task.columns if files else (*task.texts, "label")
  places = dict(zip(task.texts, columns))
  texts = ORDERS.get(name, task.texts)
  if task.names:  # in the files of three tasks classes have their names, in others numbers
    words = "|".join([*(f"{i}={word}" for i, word in enumerate(task.names)),
                      *(f"{word}={word}" for word in task.names)])
  else:
    words = "/0.2"
  if files:
    kind = "tsv" if name == "cola" else "table"  # CoLA's has no header
    train, *dev = (f"{kind}:{task.folder}/{split}.tsv" for split in ("train", *task.files))
  else:
    train, *dev = (f"tfds:glue/{name}:{split}" for split in ("train", *task.splits))
  return Task(train=train, dev=tuple(dev), target=f"{{{label}:{words}}}", scores=task.scores,
              labels=task.names, input=" ".join([name, *(f"{text}: {{{places[text]}}}"
                                                         for text in texts)]))


def source(file: str, name: str, task: Task, tasks: Collection[str]) -> str:
  """The spec of a task's file, whose examples say of which task they are if there are several."""
  spec = spec_of(file, "table")
  if len(tasks) == 1:
    return spec
  parts = [*parts_of(task.input, name), *parts_of(task.target, name)]
  columns = [part.path.partition(".")[0] for part in parts if part.path]
  columns += [task.references] * bool(task.references)
  return f"{spec}:columns[task='{name}'+{'+'.join(dict.fromkeys(columns))}]"


def shrink(c) -> None:
  """Makes the config run in seconds, on embedded data: two tasks of the same texts."""
  for stack in (c.model.encoder, c.model.decoder):
    common.apply(stack, {"width": 32, "num_layers": 2, "block.attention.num_heads": 2,
                         "block.attention.head_dim": 16, "block.ffn.dim": 64})
  c.steps, c.epochs, c.batch_size, c.log_every = 4, None, 8, 2
  c.checkpoint.every = c.checkpoint.keep = 2
  c.tokenizer.kind = common.tokenizer("unigram", vocab_size=400, sentinels=20)
  tasks = {
      "sea": Task(**SENTENCES, input="sea sentence: {text}", target="{label:0=inland|1=sea}",
                  scores=("accuracy", "f1"), labels=("inland", "sea")),
      "town": Task(**SENTENCES, input="question: {question} context: {context}",
                   target="{answers.0.text}", scores=("squad",), references="answers")}
  fill(c, tasks)
  c.data.ops[1].lengths = c.data.ops[2].lengths = (32, 32)
  c.decode.max_source_length = c.decode.max_target_length = 32
