"""Prompts of a file: lines of text, or objects of JSON."""

from typing import Any, Mapping, NamedTuple, Sequence

from jtx import storage
from jtx.errors import DataError
from jtx.ranges import SEEDS


class Prompt(NamedTuple):
  """A text to go on from."""
  text: str
  name: str  # by which errors call it
  seed: int | None = None  # of its draws; None is by its number
  given: Mapping[str, Any] = {}  # the object that it is of


def of_lines(lines: Sequence[str], file: str) -> list[Prompt]:
  """A prompt a line of text."""
  return [Prompt(line, f"{file}:{number}") for number, line in enumerate(lines, 1)]


def of_objects(lines: Sequence[str], file: str) -> list[Prompt]:
  """A prompt a line: an object of JSON with `prompt` or `messages`, and if it likes `seed`.

  Raises:
    DataError: a line is no such object; the sentence names it.
  """
  results = []
  for number, line in enumerate(lines, 1):
    name = f"{file}:{number}"
    try:
      given = storage.parse_json(line)
    except ValueError as e:
      raise DataError(f"{name}: not JSON: {e}") from None
    kinds = {"prompt": str, "messages": list}
    has = [key for key in kinds if isinstance(given, dict) and key in given]
    if len(has) != 1 or not isinstance(given[has[0]], kinds[has[0]]):
      raise DataError(name + ': a prompt is an object such as {"prompt": "Once upon a time"}, with'
                      ' a text, or {"messages": [{"role": "user", "content": "Hello"}]}')
    seed = given.get("seed")
    if seed is not None and (type(seed) is not int or seed not in SEEDS):
      raise DataError(f"{name}: seed={seed!r}: valid are whole numbers from 0 to {SEEDS[-1]}")
    results.append(Prompt(given.get("prompt", ""), name, seed, given))
  return results
