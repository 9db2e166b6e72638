"""Runs the evaluators of a trained config. The last line is one JSON object of metrics.

  python -m experiments.evaluate --workdir=W [--step=best|newest|N] [--average=N]
    [--source=test.tsv] [--scores=macro_f1,accuracy] [--output=predictions.jsonl]

--source is the name of one of the config's evaluations, a source such as csv:test.csv, or of
translations text:test.en,test.de, or the name of a file alone, where the run is of labels, answers
or choices of texts: it is read as the run's own data is. Given several times, files are evaluated
together. --scores are what classification is scored by. --output gets an object of JSON for each
example: the number `id` of the example, what it was predicted of, `gold`, `prediction`, `scores`
and, where it is defined, whether it is `correct`. Nothing of the run is changed.
"""

import json
import math

from absl import flags

from . import cli

WORKDIR = flags.DEFINE_string("workdir", None, "Folder of a training run.")
STEP = cli.define_step()
AVERAGE = flags.DEFINE_integer(
    "average", None, "Checkpoints to average, the newest ones; as the config says if not given.",
    lower_bound=1)
DATA_PATH = flags.DEFINE_string("data_path", None, "Folder of the data, if it moved.")
SOURCE = flags.DEFINE_multi_string(
    "source", [], "Name of an evaluation of the config, file, or source to evaluate instead.")
SCORES = flags.DEFINE_list("scores", [], "Of classification, instead of those of the config.")
OUTPUT = cli.define_output(None, "File for the prediction of each example.")


def main() -> None:
  from jtx.errors import ConfigError
  from jtx.evals import choose
  from jtx.evals.run import evaluate, make_evaluators
  from jtx.saved.trained import reader_of
  from jtx.saved.workdir import load_run
  from jtx.train.teacher import evaluated
  task, params, step = load_run(WORKDIR.value, STEP.value, AVERAGE.value, DATA_PATH.value)
  task = evaluated(task)
  reader = reader_of(task.config, task.data)
  spec_of = (lambda source: reader.spec_of(source, whole=True) or source) if reader else str
  evals = choose.chosen(task.config, task.model.heads, SOURCE.value,
                        [name for names in SCORES.value for name in names.split("+")], spec_of,
                        predictions=OUTPUT.value is not None)
  config = task.config.copy_and_resolve_references()
  with config.unlocked():
    config.evals = evals
  evaluators = make_evaluators(config, task.model)
  records = None if OUTPUT.value is None else {}
  results = evaluate(task, params, evaluators, step, WORKDIR.value, records=records)
  if records is not None:
    if not records:
      raise ConfigError("--output: no evaluation predicts each example; config.evals has "
                        + (", ".join(f"{name} ({e.name})" for name, e in evals.items()) or "none"))
    write(task, reader, evals, records)
  print(json.dumps({"step": step, **results}))


def write(task, reader, evals, records) -> None:
  """An object of JSON a line for each record, with what it was predicted of."""
  read = reader.of_file if reader else paths_of
  lines = []
  for split, rows in records.items():
    inputs = [x for spec in evals[split].source for x in read(spec, task.data.data.path)]
    lines += [json.dumps({"split": split, **inputs[row["id"]], **plain(row)}, ensure_ascii=False)
              + "\n" for row in rows]
  cli.write_text(OUTPUT.value, "".join(lines))


def paths_of(spec: str, path: str) -> list[dict]:
  """The file of each image of a source that has them in files."""
  from jtx.data.sources.registry import open_source
  source = open_source(spec, path)
  return [{"path": source.path(i)} if hasattr(source, "path") else {} for i in range(len(source))]


def plain(value):
  """A value for JSON, which has no infinity and NaN."""
  if isinstance(value, dict):
    return {key: plain(x) for key, x in value.items()}
  return None if isinstance(value, float) and not math.isfinite(value) else value


if __name__ == "__main__":
  cli.run(main, required=("workdir",))
