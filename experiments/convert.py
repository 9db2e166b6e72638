"""Converts between Hugging Face directories and workdirs, and writes programs of StableHLO.

  python -m experiments.convert --from_hf=DIR --workdir=W [--architecture=BertModel]
  python -m experiments.convert --workdir=W --to_hf=DIR [--step=best|newest|N] [--average=N]
      [--push_to_hub=ORG/NAME]
  python -m experiments.convert --workdir=W --to=stablehlo --output=DIR [--length=128]
  python -m experiments.convert --workdir=W --to=peft --output=DIR
  python -m experiments.convert --workdir=W --to=jtx --output=DIR

What is written must not exist yet. A workdir made from a Hugging Face model holds the model
and its tokenizer, and no run; jtx.load_pretrained and --to_hf read it. --from_hf, and --workdir
where it is read, may also be a name of the Hugging Face Hub. --to=hf --output=DIR is --to_hf=DIR,
which writes a model card where the run has scores. Adapters (LoRA) are merged into the model, but
by --to=peft, which writes them alone, as files of PEFT. --to=jtx writes the model, its tokenizers
and how it reads and writes texts, without the run, for predict, translate, serve, init of configs
and jtx.load_pretrained; also of a model that Hugging Face has no class for.
"""

import os

from absl import flags, logging

from . import cli

WORKDIR = flags.DEFINE_string("workdir", None, "Folder of a run to read, or of a model to make.")
FROM_HF = flags.DEFINE_string("from_hf", None, "Hugging Face directory to read.")
TO_HF = flags.DEFINE_string("to_hf", None, "Hugging Face directory to make.")
TO = flags.DEFINE_enum(
    "to", None, ["hf", "stablehlo", "peft", "jtx", "onnx"], "What to make in --output.")
OUTPUT = flags.DEFINE_string("output", None, "Directory to make.")
PUSH_TO_HUB = flags.DEFINE_string(
    "push_to_hub", None, "Name on the Hugging Face Hub, ORG/NAME, that --to_hf is uploaded as.")
ARCHITECTURE = flags.DEFINE_string(
    "architecture", None, "Class to open --from_hf as; the one its config.json names if not given.")
STEP = cli.define_step()
AVERAGE = flags.DEFINE_integer(
    "average", None, "Checkpoints to average, the newest ones; as the config says if not given.",
    lower_bound=1)
LENGTH = flags.DEFINE_integer(
    "length", None, "Tokens of a row of --to=stablehlo; 128 if not given.", lower_bound=1)
DTYPE = flags.DEFINE_enum("dtype", None, ["float32", "float16", "bfloat16"],
                          "Of the tensors of --to_hf, or the computation of --to=stablehlo; that of"
                          " the folder of --from_hf, or float32, if not given.")

NO_ONNX = ("--to=onnx: jtx writes no ONNX; write a Hugging Face folder, by --to_hf=DIR, of which"
           " Optimum makes it: optimum-cli export onnx --model DIR NEW. --to=stablehlo writes a"
           " program that runs with jax and numpy alone")


def target() -> tuple[str, str] | None:
  """The format to write and its directory; None is a workdir, from --from_hf.

  Raises:
    ConfigError: flags that do not go together.
  """
  from jtx.errors import ConfigError
  if TO.value == "onnx":
    raise ConfigError(NO_ONNX)
  if (TO.value is None) != (OUTPUT.value is None):
    raise ConfigError("--to and --output go together: --to=hf, --to=stablehlo, --to=peft or"
                      " --to=jtx, and --output=DIR")
  given = [flag.value for flag in (FROM_HF, TO_HF, TO) if flag.value is not None]
  if len(given) != 1:
    raise ConfigError("give either --from_hf=DIR, to make a workdir, or --to_hf=DIR, to read one;"
                      " or --to=stablehlo --output=DIR")
  to = ("hf", TO_HF.value) if TO_HF.value is not None else TO.value and (TO.value, OUTPUT.value)
  wrong = {None: (STEP, AVERAGE, PUSH_TO_HUB, LENGTH), "hf": (ARCHITECTURE, LENGTH),
           "stablehlo": (ARCHITECTURE, PUSH_TO_HUB),
           "peft": (ARCHITECTURE, PUSH_TO_HUB, LENGTH),
           "jtx": (ARCHITECTURE, PUSH_TO_HUB, LENGTH, DTYPE)}[to and to[0]]
  for flag in wrong:
    if flag.value is not None:
      used = "--from_hf" if to is None else "--to_hf" if TO_HF.value else f"--to={to[0]}"
      raise ConfigError(f"--{flag.name} does not go with {used}")
  return to


def from_hf() -> None:
  from jtx.saved.folder import TOKENIZER_FILES, open_saved
  from jtx.saved.pretrained import save_pretrained
  saved = open_saved(FROM_HF.value)
  model, params = saved.load(ARCHITECTURE.value)
  tokenizers = saved.tokenizers()
  if not tokenizers:
    logging.warning("the workdir gets no tokenizer: there is none of %s",
                    ", ".join(os.path.join(FROM_HF.value, name) for name in TOKENIZER_FILES))
  save_pretrained(WORKDIR.value, model, params, tokenizers, format="jtx", like=saved)


def to_folder(format: str, directory: str) -> None:
  from jtx.errors import ConfigError, Inexpressible
  from jtx.saved.folder import Run, open_saved
  from jtx.saved.pretrained import push_to_hub, save_pretrained, save_program
  saved = open_saved(WORKDIR.value)
  if format == "peft":
    if not isinstance(saved, Run):
      raise ConfigError(f"--to=peft: --workdir={WORKDIR.value} holds no run, so no adapters")
    model, params = saved.load_adapted(STEP.value, AVERAGE.value)
    save_pretrained(directory, model, params, format="peft", dtype=DTYPE.value, like=saved)
    return
  model, params = saved.load(step=STEP.value, average=AVERAGE.value)
  if format == "stablehlo":
    save_program(directory, model, params, saved, length=LENGTH.value,
                 dtype=DTYPE.value or "float32")
    return
  try:
    save_pretrained(directory, model, params, format=format, dtype=DTYPE.value, like=saved)
  except Inexpressible as error:
    raise ConfigError(f"{error}; --to=jtx --output=DIR writes a folder that jtx reads") from error
  if PUSH_TO_HUB.value is not None:
    logging.info("uploaded: %s", push_to_hub(directory, PUSH_TO_HUB.value))


def main() -> None:
  to = target()
  if to is None:
    from_hf()
  else:
    to_folder(*to)


if __name__ == "__main__":
  cli.run(main, required=("workdir",))
