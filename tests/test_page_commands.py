"""The commands that pages and docstrings of configs show: each has flags and keys that there are.

CI runs those of a tutorial. Others take hours, or a folder of the reader's own; here their entry
point parses them, and nothing is run.
"""

from collections.abc import Iterator
import re
import shlex
import sys
from unittest import mock

import pytest

from experiments import cli
from experiments.errors import is_user_error, sentence
from tests.helpers import ROOT, command

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("configs/*.py")])
COMMAND = re.compile(
    r"^ *(?:\w+=\S+ )*(?:.* \| )?(?:python -m experiments\.|jtx )((?:launch\.|launch )?[a-z]+)"
    r" ((?:-|\\\n)[^\n\\]*(?:\\\n[^\n\\]*)*)", re.MULTILINE)
# Of a reader: what a config finds out about these folders can't be checked here.
READERS = re.compile(r"is no folder of this machine|is not a directory|can't be read as JSON"
                     r"|there is no config file|no such file|no file can be written there",
                     re.IGNORECASE)


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
  """The name and arguments of each command in a text; what stands in brackets is given, too."""
  for found in COMMAND.finditer(text):
    name, words = found[1].replace(" ", "."), []
    for word in shlex.split(found[2].replace("\\\n", " "), comments=True):
      if word in ("|", ">", "<", "--") or word.endswith("`"):
        break
      if word.startswith("["):
        word = word[1:].removesuffix("]")
      if word != "...":
        for shown, given in (("[:args]", ""), (",...", ""), ("best|newest|N", "3"), ("=N", "=3")):
          word = word.replace(shown, given)
        words.append(word)
    yield name, words


def fault(name: str, argv: list[str]) -> str:
  """Why a command is refused, but for what is in a reader's folders."""
  with command(name) as module, mock.patch.object(sys, "argv", [name, *argv]):
    del module
    try:
      cli.parse(sys.argv)
    except Exception as e:
      if not is_user_error(e):
        raise
      return "" if READERS.search(sentence(e)) else sentence(e)
  return ""


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_flags_and_keys_of_commands(path):
  for name, argv in commands(path.read_text("utf-8")):
    assert not fault(name, argv), argv


def test_faults_are_found():
  shown = "    A=1 python -m experiments.train \\\n      --config=configs/X.py[:args] [--step=N]\n"
  assert list(commands(shown)) == [("train", ["--config=configs/X.py", "--step=3"])]
  assert "did you mean" in fault("train", ["--config=configs/bert.py:tiny", "--config.stepz=3"])
  assert "tinny" in fault("train", ["--config=configs/bert.py:tinny"])
  assert "--workdir" in fault("predict", ["--workdirs=w"])
  assert sum(len(list(commands(path.read_text("utf-8")))) for path in PAGES) > 150
