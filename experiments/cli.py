"""The command line of every entry point: flags and configs in, sentences out.

An entry point defines its flags with absl and ml_collections and ends with

    if __name__ == "__main__":
      cli.run(main, required=("config", "workdir"))

What the user can put right is told in one sentence on stderr: exit status 2 for the
command line and the config, 1 for what the run met later. `--verbosity=1` adds the
traceback. Any other exception is a fault of the program and keeps its traceback.

Nothing here imports JAX, so a mistyped flag is answered at once.
"""

from collections.abc import Callable, Sequence
import difflib
import gc
import itertools
import logging as py_logging
import os
import re
import sys
import threading
import traceback
from typing import Any

from absl import app, flags, logging
from ml_collections import ConfigDict
from ml_collections.config_flags import config_flags

from jtx import imports
from jtx.errors import RESTART, ConfigError, DataError
from jtx.parallel import preemption

from . import no_accelerator
from .config_files import find_file
from .config_values import ConfigParser, TupleParser, no_section
from .errors import UsageError, is_user_error, output_closed, sentence

# Imports and traced programs make many objects that stay: looking through them for garbage as often
# as Python does by itself is a sixth of a short run.
GARBAGE_AFTER = 100_000

flags.disclaim_key_flags()  # those that are defined here are of the entry point that asks for them


def run(main: Callable[[], int | None], required: Sequence[str] = (),
        resumes: bool = False) -> None:
  """Parses the command line, calls `main()`, and exits with its status; None is 0.

  Args:
    main: the entry point; it reads its flags from their holders.
    required: names of flags that must be given.
    resumes: whether it goes on when it is started again, as which signals are taken at once.
  """
  gc.set_threshold(GARBAGE_AFTER)
  if resumes:
    preemption.end_at_once()

  def parse_or_exit(argv: Sequence[str]) -> None:
    try:
      parse(argv, required)
    except UsageError as error:
      sys.exit(_report(error, argv, status=2))
    _set_up_logging(argv)

  program = sys.modules["__main__"]
  if __package__ != "experiments" and program.__doc__:  # of the command jtx, for --help
    text = program.__doc__.replace("python -m experiments.launch.", "jtx launch ")
    program.__doc__ = text.replace("python -m experiments.", "jtx ")

  def main_or_sentence(_: None) -> int | None:
    try:
      status = main()
      sys.stdout.flush()
      return status
    except BrokenPipeError:
      return output_closed()
    except Exception as error:
      expected, status = is_user_error(error), getattr(error, "status", 1)
      try:
        if expected:
          _report(error, sys.argv, status)
      finally:
        if (job := sys.modules.get("jtx.parallel.processes")) and status != RESTART:
          job.leave(status, None if expected else error)
      if not expected:
        raise
      return status

  no_accelerator.quiet()
  app.run(main_or_sentence, flags_parser=parse_or_exit)


class StepParser(flags.ArgumentParser):
  """The step of a checkpoint: "best", "newest" or a number."""
  syntactic_help = "best, newest or a number"

  def parse(self, argument: str | int) -> int | str:
    if argument in ("best", "newest"):
      return argument
    if not str(argument).isdecimal():
      raise ValueError("a step is best, newest or a number from 0")
    return int(argument)


def define_step() -> flags.FlagHolder:
  """The flag --step of commands that open a run."""
  return flags.DEFINE(
      StepParser(), "step", None, "Checkpoint: best, newest or a number; if not given the best,"
      " where the run keeps it (config.checkpoint.best), and else the newest.",
      serializer=flags.ArgumentSerializer())


class FileParser(flags.ArgumentParser):
  """A file that can be written, or "-"."""
  syntactic_help = "a file to write"

  def __init__(self, endings: Sequence[str] = ()):
    self._endings = tuple(endings)

  def parse(self, argument: str) -> str:
    folder = os.path.dirname(os.path.abspath(argument))
    if argument != "-" and os.path.isdir(argument):
      raise ValueError("it is a folder; name a file to write")
    if argument != "-" and not (os.path.isdir(folder) and os.access(folder, os.W_OK)):
      raise ValueError(f"no file can be written there, since {folder} is no folder, or not yours")
    if self._endings and not argument.endswith(self._endings):
      raise ValueError(f"its name must end in {' or '.join(self._endings)}")
    return argument


def define_output(default: str | None, help: str, endings: Sequence[str] = ()
                  ) -> flags.FlagHolder:
  """The flag --output of commands that write a file, which is checked before anything is done."""
  return flags.DEFINE(FileParser(endings), "output", default, help,
                      serializer=flags.ArgumentSerializer())


def after_dashes() -> list[str]:
  """Takes `--` and what follows it from the command line, for another command."""
  at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
  rest = sys.argv[at + 1:]
  del sys.argv[at:]
  return rest


def parse(
    argv: list[str],
    required: Sequence[str] = (),
    flag_values: flags.FlagValues = flags.FLAGS,
) -> None:
  """Parses `argv`, whose first entry is the program, into `flag_values`.

  Config files are moved to its front, in place, since ml_collections reads it, too, and wants them
  before their keys.

  Raises:
    UsageError: an unknown or missing flag, a positional argument, a config file that
      can't be loaded, an unknown config key, or a value of the wrong type.
  """
  config_flags.register_flag_parser_for_type(tuple, TupleParser())
  configs = [name for name in flag_values if config_flags.is_config_flag(flag_values[name])]
  argv[1:] = _files_first(argv[1:], configs)
  parsers = {name: ConfigParser(name, argv) for name in configs}
  for name, parser in parsers.items():
    flag_values[name].parser = parser
  try:
    rest = flag_values(argv)
  except SystemExit as help_was_shown:
    raise SystemExit(0) from help_was_shown
  except flags.UnrecognizedFlagError as error:
    raise UsageError(_unknown_flag(error.flagname, configs, flag_values)) from error
  except (flags.Error, TypeError, ValueError) as error:
    raise UsageError(_illegal_value(str(error), flag_values)) from error
  if len(rest) > 1:
    raise UsageError(f"unexpected argument {rest[1]!r}; flags are written --name=value")
  for name in flag_values:
    if flag_values[name].value != flag_values[name].value:  # which no bound of a flag excludes
      raise UsageError(f"--{name}=nan is not a number")
  for name in required:
    if flag_values[name].value in (None, ""):
      raise UsageError(f"--{name} must be given: {flag_values[name].help}")
  for name, parser in parsers.items():
    if (config := flag_values[name].value) is not None:
      overrides = flag_values[name].override_values
      parser.check_values(overrides)
      parser.choose_length(config, overrides)
      try:
        imports.load(config.imports if "imports" in config else ())
      except ConfigError as error:
        raise UsageError(str(error)) from error


def config_path(flag: flags.FlagHolder) -> str:
  """The path of a config flag's file, without arguments."""
  return find_file(flags.FLAGS[flag.name].config_filename.partition(":")[0])


def config_of(arguments: Sequence[str]) -> ConfigDict:
  """The config that `--config=FILE --config.a.b=value` would give an entry point.

  Raises:
    UsageError: as `parse`.
  """
  argv = ["", *arguments]
  values = flags.FlagValues()
  config_flags.DEFINE_config_file("config", flag_values=values, sys_argv=argv)
  parse(argv, ("config",), values)
  return values.config


def read_lines(path: str) -> list[str]:
  """The lines of a UTF-8 file, or of standard input for "-"."""
  from jtx.data.sources.lines import Lines
  if path != "-":
    lines = Lines(path)
    return [lines[i] for i in range(len(lines))]
  try:
    text = sys.stdin.buffer.read().decode("utf-8")
  except UnicodeDecodeError as e:
    raise DataError(f"standard input: byte {e.start} is not valid UTF-8") from e
  return text.removesuffix("\n").replace("\r\n", "\n").split("\n") if text else []


def write_text(path: str, text: str) -> None:
  """Writes a UTF-8 file, or to standard output for "-"."""
  if path == "-":
    sys.stdout.write(text)
  else:
    with open(path, "w", encoding="utf-8") as f:
      f.write(text)


def _files_first(arguments: Sequence[str], names: Sequence[str]) -> list[str]:
  """The config flags of these names, and then the other arguments."""
  files, others, left = [], [], iter(arguments)
  for argument in left:
    flag, has_value, _ = argument.partition("=")
    if argument == "--":
      others += [argument, *left]
    elif flag in [f"{dashes}{name}" for name in names for dashes in ("-", "--")]:
      files += [argument] if has_value else [argument, *itertools.islice(left, 1)]
    else:
      others.append(argument)
  return files + others


def _unknown_flag(flag: str, configs: Sequence[str], flag_values: flags.FlagValues) -> str:
  if flag.split(".")[0].removeprefix("no") in configs and "." in flag:
    name = flag.split(".")[0].removeprefix("no")
    if flag_values[name].value is None:
      return f"--{flag} needs --{name}=FILE"
    return f"--{flag} is not a yes-or-no key, so it is written --{flag.removeprefix('no')}=VALUE"
  close = difflib.get_close_matches(flag, list(flag_values), n=1)
  if close:
    return f"unknown flag --{flag}; did you mean --{close[0]}?"
  own = sorted(f.name for f in flag_values.get_key_flags_for_module(sys.argv[0]))
  return f"unknown flag --{flag}; valid are: " + ", ".join(f"--{name}" for name in own)


def _illegal_value(message: str, flag_values: flags.FlagValues) -> str:
  """absl's message, with the type that was expected instead of Python's words for it."""
  if match := re.match(r"flag --(\w+)\.([^=]+)=(.*?): Failed to parse .* as a ConfigDict", message,
                       re.DOTALL):
    name, path, value = match.groups()
    return no_section(flag_values[name].value, name, path, value)
  match = re.match(
      r"flag --(?P<name>[^=]+)=(?P<value>.*?): "
      r"(invalid literal|could not convert|\('Non-boolean)", message, re.DOTALL)
  if not match:
    return message
  kind = {"int": "an int", "float": "a float", "bool": "true or false"}.get(
      flag_values[match["name"]].flag_type(), "valid")
  return f"--{match['name']}: {match['value']!r} is not {kind}"


def _is_verbose(argv: Sequence[str]) -> bool:
  """Whether `--verbosity=1` was given, in a command line that may not have parsed."""
  return bool(re.search(r"\s--?(verbosity|v)[= ][1-9]", " ".join(argv)))


def _report(error: Exception, argv: Sequence[str], status: int) -> int:
  if _is_verbose(argv):
    traceback.print_exception(error)
  print(f"error: {sentence(error)}", file=sys.stderr)
  return status


def _set_up_logging(argv: Sequence[str]) -> None:
  """Our INFO and the libraries' warnings to stderr, after the date and time."""
  handler = logging.get_absl_handler()
  handler.setFormatter(
      py_logging.Formatter("%(asctime)s %(levelname).1s %(message)s", "%Y-%m-%d %H:%M:%S"))
  if not _is_verbose(argv):
    handler.addFilter(_is_for_all)
    sys.unraisablehook = _show


def _show(unraisable: Any) -> None:
  """Shows an exception that nobody can catch, unless it comes of a save that has failed.

  TensorStore then has one, in a thread of C++, for each array that it still wrote, and asyncio for
  loops that could not be made.
  """
  of, here = unraisable.object, threading.current_thread()
  if getattr(of, "__module__", "") == "asyncio.base_events":
    return
  if of is not None or here is threading.main_thread():
    sys.__unraisablehook__(unraisable)


def _is_for_all(record: py_logging.LogRecord) -> bool:
  """Whether a record is ours or a library's warning, which goes without its traceback.

  asyncio tells of exceptions that the library which uses it has raised elsewhere, too.
  """
  if "-packages" not in record.pathname:
    return record.name != "asyncio"
  record.exc_info = record.exc_text = None
  return record.levelno >= py_logging.WARNING
