"""A sweep as arrays of tasks of a Slurm cluster: an item is a task, and has a folder as ever.

`arrays.json` in the sweep's folder says which items were submitted, by the array and the task. With
what the queue has, the folders tell the rest: the same command submits what is neither finished nor
in the queue.
"""

from collections.abc import Mapping, Sequence
import json
import os
import subprocess

from jtx import config_files
from jtx.errors import ConfigError
from jtx.launch import clusters
from jtx.sweeps.jobs import EXIT_FILE, LOG_FILE, environment, failure_of, finished
from jtx.sweeps.sweep import Item, write

ARRAYS_FILE = "arrays.json"
# A line for each task of the user's arrays: the number of the array, and of the task.
QUEUE = ("squeue", "--me", "--array", "--noheader", "--format=%F %K")


def script(items: Sequence[Item], names: Sequence[str], workdir: str, *, folder: str,
           at_once: int | None, options: Sequence[str]) -> str:
  """The batch script of an array.

  Args:
    items: of the whole sweep; a task has the number of its item, from 1.
    names: of the items that are to be tasks.
    workdir: of the sweep.
    folder: in which the commands run.
    at_once: how many tasks run at a time at most; None is all.
    options: of sbatch.

  Raises:
    ConfigError: an option that sbatch has not.
  """
  workdir = os.path.join(folder, workdir)
  tasks = {number: (os.path.join(workdir, item.name), item.command)
           for number, item in enumerate(items, 1) if item.name in names}
  return clusters.slurm_array(
      tasks, name=os.path.basename(os.path.normpath(workdir)), log=LOG_FILE, status=EXIT_FILE,
      folder=folder, env=environment(workdir), at_once=at_once, options=options)


def unfinished(items: Sequence[Item], workdir: str) -> list[str]:
  """The names of the items whose runs are not finished."""
  return [i.name for i in items if not finished(i.config, os.path.join(workdir, i.name))]


def in_queue(workdir: str) -> set[str]:
  """The names of the items that wait in the queue or run.

  Raises:
    ConfigError: the queue can't be asked.
  """
  submitted = _submitted(workdir)
  if not submitted:
    return set()
  lines = (line.split() for line in _output(QUEUE).splitlines())
  return {submitted[words[0]][words[1]] for words in lines
          if len(words) == 2 and words[1] in submitted.get(words[0], {})}


def failures(items: Sequence[Item], workdir: str) -> dict[str, str]:
  """How runs failed that are not finished, a sentence by the name of the item."""
  found = {name: failure_of({"failed": None}, os.path.join(workdir, name))
           for name in unfinished(items, workdir)}
  return {name: reason for name, reason in found.items() if reason}


def submit(items: Sequence[Item], names: Sequence[str], workdir: str, text: str) -> str:
  """Submits the script of an array, and keeps which items are its tasks.

  Returns:
    The number of the array.

  Raises:
    ConfigError: it can't be submitted.
  """
  write(items, {}, workdir)
  for name in names:
    path = os.path.join(workdir, name, EXIT_FILE)
    if os.path.exists(path):
      os.remove(path)  # the task is to be tried again
  number = _output(["sbatch", "--parsable"], text, workdir).strip().partition(";")[0]
  tasks = {str(i): item.name for i, item in enumerate(items, 1) if item.name in names}
  config_files.write_json(_submitted(workdir) | {number: tasks},
                          os.path.join(workdir, ARRAYS_FILE))
  return number


def _submitted(workdir: str) -> dict[str, Mapping[str, str]]:
  """Names of items by the number of the array and of the task."""
  path = os.path.join(workdir, ARRAYS_FILE)
  if not os.path.exists(path):
    return {}
  with open(path, encoding="utf-8") as f:
    return json.load(f)


def _output(command: Sequence[str], text: str = "", folder: str | None = None) -> str:
  """The standard output of a command that is given `text`."""
  try:
    done = subprocess.run(command, input=text, text=True, capture_output=True, cwd=folder)
  except FileNotFoundError:
    raise ConfigError(f"{command[0]} is not installed here; --dry_run prints what sbatch would be"
                      " given") from None
  if done.returncode:
    raise ConfigError(f"{command[0]} failed with {done.returncode}: {done.stderr.strip()}")
  return done.stdout
