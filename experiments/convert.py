"""Converts between Hugging Face directories and workdirs.

  python -m experiments.convert --from_hf=DIR --workdir=W [--architecture=BertModel]
  python -m experiments.convert --workdir=W --to_hf=DIR [--step=N] [--average=N]

What is written must not exist yet. A workdir made from a Hugging Face model holds the model
and its tokenizer, and no run; jtx.load_pretrained and --to_hf read it.
"""

import os

from absl import flags, logging

from experiments import cli

WORKDIR = flags.DEFINE_string("workdir", None, "Folder of a run to read, or of a model to make.")
FROM_HF = flags.DEFINE_string("from_hf", None, "Hugging Face directory to read.")
TO_HF = flags.DEFINE_string("to_hf", None, "Hugging Face directory to make.")
ARCHITECTURE = flags.DEFINE_string(
    "architecture", None, "Class to open --from_hf as; the one its config.json names if not given.")
STEP = flags.DEFINE_integer("step", None, "Checkpoint; the newest if not given.", lower_bound=0)
AVERAGE = flags.DEFINE_integer(
    "average", None, "Checkpoints to average, the newest ones; as the config says if not given.",
    lower_bound=1)
DTYPE = flags.DEFINE_enum("dtype", "float32", ["float32", "float16", "bfloat16"],
                          "Of the tensors of --to_hf.")


def check_flags() -> None:
  from jtx.errors import ConfigError
  if (FROM_HF.value is None) == (TO_HF.value is None):
    raise ConfigError("give either --from_hf=DIR, to make a workdir, or --to_hf=DIR, to read one")
  wrong = (ARCHITECTURE,) if FROM_HF.value is None else (STEP, AVERAGE)
  for flag in wrong:
    if flag.value is not None:
      raise ConfigError(f"--{flag.name} does not go with"
                        f" --{'to_hf' if FROM_HF.value is None else 'from_hf'}")


def from_hf() -> None:
  from jtx.data.tokenizers.files import read_tokenizer
  from jtx.saved import pretrained
  model, params = pretrained.load_pretrained(FROM_HF.value, ARCHITECTURE.value)
  files = [os.path.join(FROM_HF.value, name) for name in ("tokenizer.json", "vocab.txt")]
  tokenizer = read_tokenizer(FROM_HF.value) if any(map(os.path.exists, files)) else None
  if tokenizer is None:
    logging.warning("the workdir gets no tokenizer: there is neither %s nor %s", *files)
  labels = pretrained.labels(FROM_HF.value) if model.head.outputs else None
  pretrained.save_pretrained(WORKDIR.value, model, params, tokenizer, "jtx", labels)


def to_hf() -> None:
  from jtx.saved import pretrained
  from jtx.saved.workdir import load_run
  if pretrained.is_converted(WORKDIR.value):
    model, params = pretrained.load_converted(WORKDIR.value)
    has_tokenizer = os.path.exists(os.path.join(WORKDIR.value, "tokenizer.json"))
    tokenizer = pretrained.load_tokenizer(WORKDIR.value) if has_tokenizer else None
  else:
    task, params, _ = load_run(WORKDIR.value, STEP.value, AVERAGE.value)
    model, tokenizer = task.model, task.data.tokenizers[task.data.fields[0]]
  labels = pretrained.labels(WORKDIR.value)
  pretrained.save_pretrained(TO_HF.value, model, params, tokenizer, "hf", labels, DTYPE.value)


def main() -> None:
  check_flags()
  if FROM_HF.value is not None:
    from_hf()
  else:
    to_hf()


if __name__ == "__main__":
  cli.run(main, required=("workdir",))
