"""Parts that the launchers share: the training command, and running what was printed."""

from collections.abc import Sequence
import shlex
import subprocess
import sys

from absl import flags

from .. import cli

CACHE = flags.DEFINE_string(
    "cache", "~/.cache/jtx/compiled", "Folder, or gs:// path, of compiled programs, which a"
    " restarted run need not compile again. Nobody else may be able to write to it.")
DRY_RUN = flags.DEFINE_bool("dry_run", False, "Print what would run, and run nothing.")

PYTHON = sys.executable
ARGUMENTS: list[str] = []  # for experiments.train, behind the `--`


def training(python: str) -> list[str]:
  """The command of each process.

  Raises:
    UsageError: --config or --workdir are missing, or the config can't be used.
  """
  names = [argument.partition("=")[0] for argument in ARGUMENTS]
  for name in ("--config", "--workdir"):
    if name not in names:
      raise cli.UsageError(f"{name}=... must be given behind `--`, for experiments.train")
  cli.config_of([a for a in ARGUMENTS if a.startswith("--config")])
  return [python, "-m", f"{cli.__package__}.train", *ARGUMENTS]


def environment() -> dict[str, str]:
  """Of each process: programs are kept, also those that compile fast."""
  return {"JAX_COMPILATION_CACHE_DIR": CACHE.value,
          "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
          "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}


def submit(command: Sequence[str], text: str = "") -> int:
  """Runs a command, with text on its standard input; or prints both.

  Raises:
    UsageError: the command is not installed.
  """
  if DRY_RUN.value:
    print(text or shlex.join(command), end="" if text else "\n")
    return 0
  try:
    return subprocess.run(command, input=text or None, text=True).returncode
  except FileNotFoundError:
    raise cli.UsageError(f"{command[0]} is not installed here; --dry_run prints what it would be"
                         " given") from None


def run(main, required: Sequence[str], resumes: bool = False) -> None:
  """`cli.run`, for a command line that ends in `--` and the arguments of experiments.train."""
  ARGUMENTS[:] = cli.after_dashes()
  cli.run(main, required=required, resumes=resumes)

