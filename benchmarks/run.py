"""Speed, memory and scores beside a peer's, measured in one run.

  python -m benchmarks.run --suite=nmt --data=FOLDER --workdir=runs/bench_nmt
  python -m benchmarks.run --suite=finetune --init=MODEL --data=FOLDER --workdir=runs/finetune
  python -m benchmarks.run --suite=bert --data=documents:FOLDER
  python -m benchmarks.run --suite=encoders
  python -m benchmarks.run --suite=prepare --data=documents:FOLDER --workdir=runs/bench_prepare
  python -m benchmarks.run --suite=vit_b16
  python -m benchmarks.run --suite=detr
  python -m benchmarks.run --suite=clip
  python -m benchmarks.run --suite=lm
  python -m benchmarks.run --suite=seq2seq
  python -m benchmarks.run --suite=equal_time --data=documents:FOLDER --workdir=runs/equal_time
  python -m benchmarks.run --suite=attention
  python -m benchmarks.run --suite=complexity
  python -m benchmarks.run --suite=saving --workdir=runs/saving
  python -m benchmarks.run --suite=serving --workdir=WORKDIR
  python -m benchmarks.run --suite=accelerator --workdir=runs/accelerator

The systems take turns on an otherwise idle machine. The last line is one JSON object. accelerator
is for one GPU or TPU, ends after --minutes and also writes rows for RESULTS.md. Needs the extra
`parity` (PyTorch and transformers), but for attention, complexity, saving and serving: pip install
-e ".[parity]".
"""

import json
from typing import Any, Collection, Mapping, Sequence

from absl import flags

from benchmarks import (
    accelerator,
    attention,
    bert,
    clip,
    complexity,
    detr,
    encoders,
    equal_time,
    finetune,
    lm,
    nmt,
    prepare,
    saving,
    seq2seq,
    serving,
    vit,
)
from experiments import cli

SUITES = ("nmt", "finetune", "bert", "encoders", "prepare", "vit_b16", "detr", "clip", "lm",
          "seq2seq", "equal_time", "attention", "complexity", "saving", "serving", "accelerator")
# Those of steps beside peers alone, and the peers that take part where --peer names none.
BESIDE = {"encoders": (encoders, ("transformers",)), "detr": (detr, detr.PEERS),
          "clip": (clip, clip.PEERS), "lm": (lm, ("transformers",)),
          "seq2seq": (seq2seq, ("transformers",))}

SUITE = flags.DEFINE_enum("suite", None, SUITES, "What to measure.")
WORKDIR = flags.DEFINE_string("workdir", None, "nmt: folder for the model that is trained first."
                              " finetune, prepare, saving, accelerator, equal_time: for"
                              " what is written."
                              " serving: of a model whose input is a text.")
DATA = flags.DEFINE_string("data", "", "nmt: folder of train.en, train.de, val.en and val.de;"
                           " without it generated number words are used. finetune: folder of"
                           " the tasks' folders. accelerator: folder of the folders multi30k"
                           " and sst2; what is not there is made. bert, prepare, equal_time: a"
                           " source of documents; without it the documentation of Python's library"
                           " is used.")
INIT = flags.DEFINE_string("init", "", "finetune: Hugging Face folder of the encoder.")
TASKS = flags.DEFINE_multi_enum("task", list(finetune.TASKS), list(finetune.TASKS),
                                "finetune: of the suite; may be repeated.")
SEEDS = flags.DEFINE_multi_integer("seed", [0, 1, 2], "finetune: of the runs; may be repeated.")
BATCHES = flags.DEFINE_enum("batches", "grouped", list(finetune.BATCHES),
                            "finetune: of similar lengths; or of any, as drawn, which jtx lays"
                            " into rows of several.")
EPOCHS = flags.DEFINE_float("epochs", 0.0, "finetune: of every task; its own number if 0.",
                            lower_bound=0.0)
PARTS = flags.DEFINE_multi_enum("part", None, [*nmt.PARTS, *bert.PARTS, *encoders.PARTS,
                                               *vit.PARTS, *detr.PARTS, *clip.PARTS,
                                               *lm.PARTS,  # and seq2seq's
                                               *accelerator.ROWS],
                                "Of the suite (nmt: train, translate; bert: full, sentences;"
                                f" encoders: {', '.join(encoders.PARTS)};"
                                " vit_b16: step, images; detr: step, matching; clip: step, packed;"
                                " lm: step, generate, one, experts; seq2seq: step, generate;"
                                f" accelerator: {', '.join(accelerator.ROWS)}); may be repeated;"
                                " all if absent.")
PEERS = flags.DEFINE_multi_enum("peer", None, bert.PEERS,
                                "bert, encoders, vit_b16, detr, clip, lm, seq2seq, accelerator:"
                                " beside jtx; may be repeated; all if absent, but for encoders and"
                                " the last three, which then have"
                                f" {', '.join(accelerator.DEFAULT_PEERS)}. Only bert has flax.")
ROUNDS = flags.DEFINE_integer("rounds", 5, "Turns of each system, but for finetune.",
                              lower_bound=1)
PRETRAIN_STEPS = flags.DEFINE_integer(
    "pretrain_steps", 600, "nmt: updates before translating, so that sentences end.", lower_bound=1)
STEPS = flags.DEFINE_integer("steps", None,
                             "nmt, bert, encoders, vit_b16, detr, clip, accelerator: updates of a"
                             f" turn; 3, and for accelerator {accelerator.STEPS}, if absent."
                             f" equal_time: ours of all turns; {equal_time.STEPS} if absent.",
                             lower_bound=1)
MINUTES = flags.DEFINE_float("minutes", accelerator.MINUTES, "accelerator: after which it ends.",
                             lower_bound=0.1)
SENTENCES = flags.DEFINE_integer("sentences", 1000, "nmt: to translate in a turn.", lower_bound=1)
SIZE = flags.DEFINE_enum("size", "base", ("base", "large", "tiny"),
                         "nmt, bert, encoders, vit_b16, detr, clip, lm, seq2seq, equal_time,"
                         " accelerator: of the model; attention, complexity: of the layers; tiny"
                         " tries things out.")
STATE_MIB = flags.DEFINE_integer("state_mib", 1024, "saving: the state's size.", lower_bound=3)
CLIENTS = flags.DEFINE_integer("clients", 200, "serving: that ask at once.", lower_bound=1)
SECONDS = flags.DEFINE_float("seconds", 120, "serving: for which they ask.", lower_bound=1)
TOKENIZER = flags.DEFINE_string("tokenizer", "", "prepare: its file; without it one is trained.")
WORKERS = flags.DEFINE_integer("workers", 1, "prepare: processes of each system. vit_b16: that"
                               " read images.", lower_bound=0)


def need(*needed: flags.FlagHolder) -> None:
  for flag in needed:
    if not flag.value:
      raise cli.UsageError(f"--suite={SUITE.value} needs --{flag.name}")


def parts(valid: Collection[str]) -> list[str]:
  """The suite's parts that --part names, or all of them."""
  for part in PARTS.value or ():
    if part not in valid:
      raise cli.UsageError(f"--suite={SUITE.value} has no --part={part}; valid are"
                           f" {', '.join(valid)}")
  return list(PARTS.value or valid)


def peers(valid: Sequence[str], default: Sequence[str]) -> list[str]:
  """The suite's peers that --peer names, or those of `default`."""
  for peer in PEERS.value or ():
    if peer not in valid:
      raise cli.UsageError(f"--suite={SUITE.value} has no --peer={peer}; valid are"
                           f" {', '.join(valid)}")
  return list(PEERS.value or default)


def size(valid: Mapping[str, Any]) -> Any:
  """The suite's size that --size names."""
  if SIZE.value not in valid:
    raise cli.UsageError(f"--suite={SUITE.value} has no --size={SIZE.value}; valid are"
                         f" {', '.join(valid)}")
  return valid[SIZE.value]


def main() -> int:
  steps, status = STEPS.value or 3, 0
  if SUITE.value == "finetune":
    need(INIT, DATA, WORKDIR)
    result = finetune.run(WORKDIR.value, DATA.value, INIT.value, TASKS.value, SEEDS.value,
                          BATCHES.value, EPOCHS.value)
  elif SUITE.value == "bert":
    result = bert.run(DATA.value, size(bert.SIZES), parts(bert.PARTS),
                      peers(bert.PEERS, bert.PEERS), ROUNDS.value, steps)
  elif SUITE.value in BESIDE:
    suite, default = BESIDE[SUITE.value]
    result = suite.run(size(suite.SIZES), parts(suite.PARTS), peers(suite.PEERS, default),
                       ROUNDS.value, steps)
  elif SUITE.value == "vit_b16":
    result = vit.run(size(vit.SIZES), parts(vit.PARTS), peers(vit.PEERS, vit.PEERS), ROUNDS.value,
                     steps, WORKERS.value)
  elif SUITE.value == "prepare":
    need(WORKDIR)
    if not WORKERS.value:
      raise cli.UsageError("--suite=prepare needs --workers of 1 or more")
    result = prepare.run(WORKDIR.value, DATA.value or "embedded:pydocs:train", TOKENIZER.value,
                         WORKERS.value, ROUNDS.value)
  elif SUITE.value == "equal_time":
    need(WORKDIR)
    result = equal_time.run(WORKDIR.value, DATA.value, size(equal_time.SIZES), ROUNDS.value,
                            STEPS.value or equal_time.STEPS)
  elif SUITE.value == "attention":
    result = attention.run(size(attention.SIZES))
  elif SUITE.value == "complexity":
    result = complexity.run(size(complexity.SIZES))
  elif SUITE.value == "saving":
    need(WORKDIR)
    result = saving.run(WORKDIR.value, ROUNDS.value, STATE_MIB.value << 20)
  elif SUITE.value == "serving":
    need(WORKDIR)
    result = serving.run(WORKDIR.value, CLIENTS.value, SECONDS.value)
    status = int(result["failed"])
  elif SUITE.value == "accelerator":
    need(WORKDIR)
    context = accelerator.Context(
        WORKDIR.value, DATA.value, tiny=size({"base": False, "tiny": True}), rounds=ROUNDS.value,
        steps=STEPS.value or accelerator.STEPS)
    result = accelerator.run(context, parts(accelerator.ROWS),
                             peers(accelerator.PEERS, accelerator.DEFAULT_PEERS), MINUTES.value)
    status = int(any(row["failed"] for row in result["rows"].values()))
  else:
    need(WORKDIR)
    result = nmt.run(WORKDIR.value, DATA.value, size(nmt.SIZES), parts(nmt.PARTS), ROUNDS.value,
                     PRETRAIN_STEPS.value, steps, SENTENCES.value)
  print(json.dumps(result))
  return status


if __name__ == "__main__":
  cli.run(main, required=("suite",))
