"""Fine-tuning one encoder on many tasks: jtx beside `transformers` on PyTorch.

Both start from the same parameters, the fresh head included, and are given the same batches in
the same order, learning-rate schedule, weight decay and clipping; dropout differs, so scores are
compared as pairs over seeds. The peer computes with its own classes and optimiser (its loss of
answers lets padding compete, which ours leaves out), and its outputs are scored by the evaluators
that score ours, since what is compared is training. Finished runs are kept in the workdir, so that
the command can be ended and called again.

Batches are of similar length (`grouped`), or of any, as a peer's `Trainer` makes them (`drawn`);
then jtx lays the examples of a batch into rows, four to one.
"""

import itertools
import json
import os
import shutil
import statistics
import time
from typing import Any, Mapping, NamedTuple, Sequence

import numpy as np

from benchmarks import harness


class Task(NamedTuple):
  config: str  # file of configs/, and its arguments
  folder: str  # of the data
  peer: str  # class of `transformers`
  scores: tuple[str, ...]


BATCHES = {"grouped": "group", "drawn": "pack=4"}  # jtx's argument; the batches are the peer's, too
SYSTEMS = ("jtx", "transformers")
TASKS = {
    "sst2": Task("classify.py:max_length=64,epochs=2", "sst2", "SequenceClassification",
                 ("dev/accuracy",)),
    "sick": Task("classify.py:max_length=64,header,text=sentence_A,second=sentence_B,"
                 "label=relatedness_score,names=,scores=pearson+spearman,train=train.txt,"
                 "dev=dev.txt,epochs=2", "sick", "SequenceClassification",
                 ("dev/pearson", "dev/spearman")),
    "sick_entailment": Task(
        "classify.py:max_length=64,header,text=sentence_A,second=sentence_B,"
        "label=entailment_judgment,names=CONTRADICTION+ENTAILMENT+NEUTRAL,train=train.txt,"
        "dev=dev.txt,epochs=2", "sick", "SequenceClassification", ("dev/accuracy",)),
    "cola": Task("classify.py:max_length=64,text=3,label=1,scores=matthews+accuracy,epochs=2",
                 "cola", "SequenceClassification", ("dev/matthews", "dev/accuracy")),
    "codah": Task("choose.py:max_length=64,batch=16,epochs=2", "codah", "MultipleChoice",
                  ("dev/accuracy",)),
    "wnut17": Task("tag.py:max_length=64,entities,batch=16,epochs=2", "wnut17",
                   "TokenClassification", ("dev/f1", "dev/accuracy")),
    "ud_ewt": Task("tag.py:max_length=96,format=conllu,train=train.conllu.gz,dev=dev.conllu.gz,"
                   "epochs=0.5", "ud_ewt", "TokenClassification", ("dev/accuracy",)),
    "policyqa": Task("squad.py:max_length=128,stride=32,batch=16,lr=1e-4,epochs=1,"
                     "train=squad_format.json,holdout=20,"
                     "others=../xquad/xquad.en.json+../xquad/xquad.de.json",
                     "policyqa", "QuestionAnswering",
                     tuple(f"{split}/{score}" for split in ("dev", "xquad_en", "xquad_de")
                           for score in ("exact_match", "f1"))),
    "policyqa_long": Task("squad.py:max_length=384,stride=128,batch=16,lr=1e-4,epochs=1,"
                          "train=squad_format.json,holdout=20", "policyqa", "QuestionAnswering",
                          ("dev/exact_match", "dev/f1")),
}


def make_config(task: str, data: str, init: str, seed: int, args: str = "group"):
  """The config of a task, its encoder from the folder `init`, with further arguments."""
  from experiments import cli
  folder = os.path.join(os.path.abspath(data), TASKS[task].folder)
  c = cli.config_of([f"--config=configs/{TASKS[task].config},init={init},{args}",
                     f"--config.seed={seed}", f"--config.data.path={folder}"])
  with c.unlocked():
    c.checkpoint.every, c.checkpoint.keep = 1_000_000, 1  # the last only
  return c


def write_start(task: str, data: str, init: str, seed: int,
                workdir: str) -> dict[str, float]:
  """Writes the folder that both systems start from: `init` with a head that the seed draws."""
  import torch
  import transformers

  from jtx.data.dataset import Dataset
  config = make_config(task, data, init, seed)
  peer = TASKS[task].peer
  by_class = peer in ("SequenceClassification", "TokenClassification")
  labels = Dataset(config.data, config.tokenizer).labels if by_class else ()
  torch.manual_seed(seed)
  model = getattr(transformers, f"AutoModelFor{peer}").from_pretrained(
      init, **({"num_labels": max(len(labels), 1)} if by_class else {}))
  model.save_pretrained(workdir)
  for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
    if os.path.exists(os.path.join(init, name)):
      shutil.copy(os.path.join(init, name), workdir)
  return {}


def finetune_jtx(workdir: str, **kwargs: Any) -> dict[str, float]:
  from jtx.parallel import processes
  from jtx.train import loop
  processes.initialize()  # as the command does, which keeps compiled programs
  return loop.run(make_config(**kwargs), workdir)


def finetune_transformers(task: str, workdir: str, **kwargs: Any) -> dict[str, float]:
  """Trains a model of `transformers`; it leaves nothing in the workdir."""
  del workdir
  from jtx.data.dataset import Dataset
  config = make_config(task, **kwargs)
  dataset = Dataset(config.data, config.tokenizer)
  return evaluate_peer(train_peer(config, dataset, TASKS[task].peer), config, dataset)


def train_peer(config, dataset, peer: str):
  """A model of the class AutoModelFor`peer`, trained as the config says."""
  import torch
  import transformers

  from jtx.config import build
  from jtx.train import phases, schedules
  torch.manual_seed(config.seed)
  config = phases.with_steps(config, dataset)
  model = getattr(transformers, f"AutoModelFor{peer}").from_pretrained(config.init_from)
  adam = config.optim.optimizer

  # As the Trainer of `transformers` does it: biases and norms do not decay.
  plain = lambda name: name.endswith("bias") or "LayerNorm" in name
  groups = [{"params": [p for n, p in model.named_parameters() if plain(n) == is_plain],
             "weight_decay": 0.0 if is_plain else adam.weight_decay}
            for is_plain in (False, True)]
  optimizer = torch.optim.AdamW(groups, lr=config.optim.lr, betas=(adam.b1, adam.b2),
                                eps=adam.eps)
  # Ours counts the first update as 1, where get_linear_schedule_with_warmup begins with 0.
  rate = build(schedules.SCHEDULES, config.optim.schedule, config.optim.lr, config.steps)
  schedule = torch.optim.lr_scheduler.LambdaLR(
      optimizer, lambda step: float(rate(step)) / config.optim.lr)
  stream = dataset.train_stream(config.seed, config.batch_size, range(config.batch_size))
  model.train()
  for step in range(config.steps):
    loss = model(**inputs(stream.batch(step), dataset.recipe.layout.fields)).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), config.optim.clip_norm)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad(set_to_none=True)
    if step % config.log_every == 0:
      print(f"transformers step {step}/{config.steps} loss {loss.item():.4f}", flush=True)
  return model.eval()


def evaluate_peer(model, config, dataset) -> dict[str, float]:
  """The config's evaluators on the outputs of a model of `transformers`."""
  from jtx.evals.run import make_evaluators
  results = {}
  for split, evaluator in make_evaluators(config).items():
    examples = dataset.encoded(tuple(evaluator.source))
    logits = predict(model, examples, dataset.recipe.layout.fields)
    if len(dataset.recipe.layout.fields) > 1:  # choices, of which there is no evaluator of outputs
      right = [int(scores.argmax()) == e["label"] for scores, e in zip(logits, examples)]
      results[f"{split}/accuracy"] = sum(right) / len(right)
    else:
      results |= {f"{split}/{name}": value
                  for name, value in evaluator.score(examples, logits, dataset.labels)}
  return results


def inputs(batch: Mapping[str, np.ndarray], fields: Sequence[str]) -> dict[str, Any]:
  """Arguments of a model of `transformers` for a batch with one example a row."""
  import torch
  longest = max(int((batch[f"{f}_segment_ids"] > 0).sum(1).max()) for f in fields)
  tensor = lambda x: torch.from_numpy(np.ascontiguousarray(x))
  column = lambda suffix: np.stack([batch[f + suffix][:, :longest] for f in fields], 1)
  result = {"input_ids": column(""), "attention_mask": column("_segment_ids"),
            "token_type_ids": column("_types")}
  if len(fields) == 1:
    result = {name: x[:, 0] for name, x in result.items()}
  result = {name: tensor(x.astype(np.int64)) for name, x in result.items()}
  if "start" in batch:
    return result | {"start_positions": tensor(batch["start"][:, 0].astype(np.int64)),
                     "end_positions": tensor(batch["end"][:, 0].astype(np.int64))}
  if "tags" in batch:
    tags = batch["tags"][:, :longest].astype(np.int64)
    none = (tags < 0) | (batch["text_segment_ids"][:, :longest] == 0)
    return result | {"labels": tensor(np.where(none, -100, tags))}
  label = batch["label"][:, 0]
  return result | {"labels": tensor(label.astype(np.float32 if label.dtype.kind == "f"
                                                 else np.int64))}


def predict(model, examples: Sequence[Mapping[str, Any]], fields: Sequence[str],
            batch_size: int = 32) -> list[np.ndarray]:
  """Outputs of each example: [outputs], [T, outputs] for tokens, [C] for choices."""
  import torch
  lengths = [max(len(e[f]) for f in fields) for e in examples]
  order = np.argsort(lengths, kind="stable")
  results: list[Any] = [None] * len(examples)
  for start in range(0, len(order), batch_size):
    group = order[start:start + batch_size]
    size = (len(group), len(fields), lengths[group[-1]])
    ids, mask, types = (np.zeros(size, np.int64) for _ in range(3))
    for row, i in enumerate(group):
      for place, field in enumerate(fields):
        own = slice(len(examples[i][field]))
        ids[row, place, own] = examples[i][field]
        types[row, place, own] = examples[i][f"{field}_types"]
        mask[row, place, own] = 1
    if len(fields) == 1:
      ids, mask, types = ids[:, 0], mask[:, 0], types[:, 0]
    with torch.no_grad():
      out = model(input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(mask),
                  token_type_ids=torch.from_numpy(types))
    if hasattr(out, "start_logits"):
      values = torch.stack([out.start_logits, out.end_logits], -1).numpy()
    else:
      values = out.logits.numpy()
    for i, value in zip(group, values):
      by_token = len(fields) == 1 and value.ndim == 2
      results[i] = value[:lengths[i]] if by_token else value
  return results


class System:
  """One fine-tuning, or the writing of its start, in a process of its own."""

  def __init__(self, name: str):
    self.function = {"start": write_start, "jtx": finetune_jtx,
                     "transformers": finetune_transformers}[name]

  def run(self, kwargs: dict[str, Any]) -> dict[str, float]:
    start = time.perf_counter()
    results = self.function(**kwargs)
    return {k: v for k, v in results.items() if isinstance(v, (int, float))} | {
        "seconds": time.perf_counter() - start, "peak_memory_bytes": harness.peak_memory()}


def run_once(system: str, path: str, **kwargs: Any) -> dict[str, float]:
  """Results of one run, read from `path`.json when it finished earlier."""
  if not os.path.exists(path + ".json"):
    worker = harness.Worker(System, name=system)
    result = worker.call("run", dict(workdir=path, **kwargs))
    worker.close()
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".json", "w", encoding="utf-8") as f:
      json.dump(result, f)
    shutil.rmtree(os.path.join(path, "checkpoints"), ignore_errors=True)
  with open(path + ".json", encoding="utf-8") as f:
    return json.load(f)


def run(workdir: str, data: str, init: str, tasks: Sequence[str], seeds: Sequence[int],
        batches: str = "grouped", epochs: float = 0.0) -> dict[str, Any]:
  """Measures, and returns values for JSON.

  Args:
    workdir: of all runs.
    data: folder that has the folders of `TASKS`.
    init: Hugging Face folder of the encoder.
    tasks: keys of `TASKS`.
    seeds: of the runs.
    batches: of `BATCHES`.
    epochs: of every task; 0 is its own number.
  """
  results = {}
  more = [f"epochs={epochs}"] * bool(epochs)
  args = {"jtx": ",".join([BATCHES[batches], *more]),
          "transformers": ",".join(["group"] * (batches == "grouped") + more)}
  kind = [batches] * (batches != "grouped") + [f"{epochs}"] * bool(epochs)  # in folders' names
  for task, seed in itertools.product(tasks, seeds):
    path = lambda system, *kind: os.path.join(workdir, "-".join([task, str(seed), system, *kind]))
    run_once("start", path("start"), task=task, data=data, init=init, seed=seed)
    for system in SYSTEMS:
      result = run_once(system, path(system, *kind), task=task, data=data, init=path("start"),
                        seed=seed, args=args[system])
      results[task, seed, system] = result
      told = " ".join(f"{k}={result[k]:.4f}" for k in TASKS[task].scores)
      print(f"{task} seed {seed} {system}: {told} in {result['seconds']:.0f} s", flush=True)

  table = {}
  for task in tasks:
    values = lambda name, system: [results[task, s, system][name] for s in seeds]
    table[task] = {name: compare({system: values(name, system) for system in SYSTEMS})
                   for name in TASKS[task].scores}
    for name, row in table[task].items():
      print("| " + " | ".join([task, name, *(
          " ± ".join(f"{x:.4f}" for x in row[key]) for key in (*SYSTEMS, "difference"))]) + " |",
            flush=True)
    seconds = {system: values("seconds", system) for system in SYSTEMS}
    print("| " + " | ".join([task, "seconds", *(f"{statistics.mean(s):.0f}"
                                                for s in seconds.values())]) + " |", flush=True)
    table[task]["seconds"] = seconds
    table[task]["peak_memory_bytes"] = {system: max(values("peak_memory_bytes", system))
                                        for system in SYSTEMS}
  return {"suite": "finetune", "seeds": list(seeds), "machine": harness.machine(), "tasks": table}


def compare(values: Mapping[str, Sequence[float]]) -> dict[str, Any]:
  """Each system's mean with the standard deviation over seeds.

  Of jtx and `transformers` also the paired difference with its standard error.
  """
  pairs = [a - b for a, b in zip(values["jtx"], values["transformers"])]
  spread = lambda x: statistics.stdev(x) if len(x) > 1 else float("nan")
  rows = {system: (statistics.mean(x), spread(x)) for system, x in values.items()}
  return rows | {"difference": (statistics.mean(pairs), spread(pairs) / len(pairs)**0.5),
                 "all": {system: list(x) for system, x in values.items()}}
