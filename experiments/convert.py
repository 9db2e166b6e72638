"""Converts between Hugging Face directories and workdirs.

  python -m experiments.convert --from_hf=DIR --workdir=W [--architecture=BertModel]
  python -m experiments.convert --workdir=W --to_hf=DIR [--step=best|newest|N] [--average=N]

What is written must not exist yet. A workdir made from a Hugging Face model holds the model
and its tokenizer, and no run; jtx.load_pretrained and --to_hf read it.
"""

import os

from absl import flags, logging

from . import cli

WORKDIR = flags.DEFINE_string("workdir", None, "Folder of a run to read, or of a model to make.")
FROM_HF = flags.DEFINE_string("from_hf", None, "Hugging Face directory to read.")
TO_HF = flags.DEFINE_string("to_hf", None, "Hugging Face directory to make.")
ARCHITECTURE = flags.DEFINE_string(
    "architecture", None, "Class to open --from_hf as; the one its config.json names if not given.")
STEP = cli.define_step()
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
  from jtx.saved.folder import TOKENIZER_FILES, open_saved
  from jtx.saved.pretrained import save_pretrained
  saved = open_saved(FROM_HF.value)
  model, params = saved.load(ARCHITECTURE.value)
  tokenizers = saved.tokenizers()
  if not tokenizers:
    logging.warning("the workdir gets no tokenizer: there is neither %s nor %s",
                    *(os.path.join(FROM_HF.value, name) for name in TOKENIZER_FILES))
  save_pretrained(WORKDIR.value, model, params, tokenizers, format="jtx", like=saved)


def to_hf() -> None:
  from jtx.saved.folder import open_saved
  from jtx.saved.pretrained import save_pretrained
  saved = open_saved(WORKDIR.value)
  model, params = saved.load(step=STEP.value, average=AVERAGE.value)
  save_pretrained(TO_HF.value, model, params, dtype=DTYPE.value, like=saved)


def main() -> None:
  check_flags()
  if FROM_HF.value is not None:
    from_hf()
  else:
    to_hf()


if __name__ == "__main__":
  cli.run(main, required=("workdir",))
