"""Generated conversations: something is asked of a number in words, and answered.

  digits   Write in digits: three hundred and five    305
  german   Say in German: three hundred and five      dreihundertfünf
  letters  Count the letters: three hundred and five  19
  reverse  Spell backwards: three hundred and five    evif dna derdnuh eerht

Numbers are below 10,000, in the splits of `number_words`.
"""

from typing import Any, Callable

from jtx.config import nearest
from jtx.data.sources import number_words
from jtx.errors import ConfigError

LIMIT = 10_000

TASKS: dict[str, tuple[str, Callable[[int, str], str]]] = {
    "digits": ("Write in digits", lambda n, words: str(n)),
    "german": ("Say in German", lambda n, words: number_words.german_cardinal(n)),
    "letters": ("Count the letters", lambda n, words: str(sum(map(str.isalpha, words)))),
    "reverse": ("Spell backwards", lambda n, words: words[::-1]),
}


class Instructions:
  """A source of {"messages": what is asked, and the answer}."""

  def __init__(self, name: str, tasks: tuple[str, ...], split: str):
    self.name, self._tasks = name, tasks
    values = number_words.values_of("cardinal", split)
    self._values = values[values < LIMIT].tolist()

  def __len__(self) -> int:
    return len(self._values) * len(self._tasks)

  def __getitem__(self, i: int) -> dict[str, Any]:
    number, task = divmod(range(len(self))[i], len(self._tasks))
    n = self._values[number]
    words = number_words.english_cardinal(n)
    asked, answer = TASKS[self._tasks[task]]
    return {"messages": [{"role": "user", "content": f"{asked}: {words}"},
                         {"role": "assistant", "content": answer(n, words)}]}


class Preferences(Instructions):
  """Of the same conversations {"prompt", "chosen", "rejected"}, lists of messages.

  Rejected is the answer for the next number.
  """

  def __getitem__(self, i: int) -> dict[str, Any]:
    i = range(len(self))[i]
    asked, answer = super().__getitem__(i)["messages"]
    other = super().__getitem__((i + len(self._tasks)) % len(self))["messages"][1]
    if other == answer:  # as many letters
      other = {**answer, "content": answer["content"] + answer["content"][-1]}
    return {"prompt": [asked], "chosen": [answer], "rejected": [other]}


def instructions(subset: str, split: str) -> Instructions:
  """The embedded set `instructions[/TASK][:SPLIT]`; all tasks where `subset` is "".

  Raises:
    ConfigError: no such task or split.
  """
  return _opened(Instructions, "instructions", subset, split)


def preferences(subset: str, split: str) -> Preferences:
  """The embedded set `preferences[/TASK][:SPLIT]`; likewise."""
  return _opened(Preferences, "preferences", subset, split)


def _opened(kind: type[Instructions], name: str, subset: str, split: str) -> Any:
  name = f"embedded:{name}" + (f"/{subset}" if subset else "") + f":{split}"
  if subset and subset not in TASKS:
    raise ConfigError(f"{name}: unknown task {subset!r}; {nearest(subset, TASKS)}")
  if split not in number_words.SPLITS:
    raise ConfigError(f"{name}: unknown split {split!r}; {nearest(split, number_words.SPLITS)}")
  return kind(name, (subset,) if subset else tuple(TASKS), split)
