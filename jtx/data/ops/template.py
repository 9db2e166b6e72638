"""Texts of any task: an input and a target, written by the task's template."""

import dataclasses
import functools
import math
import string
from typing import Any, Callable, Iterator, NamedTuple

from jtx.data.example import Example, follow
from jtx.data.op import ExampleOp
from jtx.errors import ConfigError, ExampleError

FIELDS = ("src", "tgt")


class Part(NamedTuple):
  """A piece of a template: some text, and the value that follows it, if one does."""
  text: str
  path: str | None
  write: Callable[[Any], str]


@dataclasses.dataclass(frozen=True)
class Template(ExampleOp):
  """Makes the texts `src` and `tgt` of an example by its task's template.

  So are all tasks alike (Raffel et al. 2020, section 2.4). Where there are several, an example's
  task is its `task`, such as that of `jsonl:train.jsonl:columns[task='qa'+question+answer]`.

  A template is a text with values of an example in braces: `{sentence}`, `{translation.en}` of
  nested ones, `{answers.0.text}` of lists. `{label:0=negative|1=positive}` writes words for values,
  and `{score:/0.2}` a number rounded to a multiple of 0.2. A brace of the text is written twice.

  Raises:
    ConfigError: a template that is not one, or two tasks of one name.
  """
  tasks: tuple[tuple[str, str, str], ...] = (("", "{src}", "{tgt}"),)  # name, input, target
  keep: tuple[str, ...] = ()  # other values, of the examples that have them, for evaluators

  renames = True

  def __post_init__(self):
    if not self.tasks:
      raise ConfigError("op template: tasks is empty; it has (name, input, target) for each task")
    names = [task[0] for task in self.tasks]
    if len(set(names)) < len(names):
      raise ConfigError(f"op template: two of the tasks {', '.join(names)} have one name")
    self.parts  # which says what is wrong with them

  @functools.cached_property
  def parts(self) -> dict[str, tuple[list[Part], list[Part]]]:
    """Of each task the parts of its input and of its target."""
    return {name: (list(parts_of(source, name)), list(parts_of(target, name)))
            for name, source, target in self.tasks}

  def __call__(self, examples: list[Example], tokenizers) -> list[Example]:
    return [{key: e[key] for key in ("id", *self.keep) if key in e}
            | dict(zip(FIELDS, self.written(e))) for e in examples]

  def written(self, example: Example) -> tuple[str, str]:
    """The input and the target of an example."""
    task = self.tasks[0][0]
    if len(self.tasks) > 1:
      task = example.get("task")
      if task not in self.parts:
        raise ExampleError("template", example["id"], f"has the task {task!r}; valid are"
                           f" {', '.join(self.parts)}, given by columns[task='NAME'+...]")
    source, target = self.parts[task]
    return fill(source, example), fill(target, example)


def fill(parts: list[Part], example: Example) -> str:
  """The text of a template for an example.

  Raises:
    ExampleError: a value is missing, or of another kind.
  """
  texts = []
  for part in parts:
    texts.append(part.text)
    if part.path is not None:
      try:
        texts.append(part.write(follow("template", example, part.path)))
      except ValueError as e:
        raise ExampleError("template", example["id"], f"has a {part.path!r} that {e}") from e
  return "".join(texts)


def parts_of(template: str, task: str) -> Iterator[Part]:
  """The parts of a template.

  Raises:
    ConfigError: it is not one.
  """
  what = f"op template: of the task {task!r} {template!r}"
  try:
    pieces = list(string.Formatter().parse(template))
  except ValueError as e:
    raise ConfigError(f"{what}: {e}; a brace that is meant is written twice") from e
  for text, path, spec, conversion in pieces:
    if path == "" or conversion:
      raise ConfigError(f"{what}: braces hold the name of a value, such as {{text}} or"
                        " {label:0=no|1=yes}")
    yield Part(text, path, writer(spec or "", what))


def writer(spec: str, what: str) -> Callable[[Any], str]:
  """What writes a value as what follows its name in braces says: "", "VALUE=WORD|...", "/STEP".

  It raises ValueError, with a clause, where a value can't be written so.
  """
  if not spec:
    return plain
  if spec.startswith("/"):
    try:
      step = float(spec[1:])
    except ValueError:
      step = 0.0
    if not 0 < step < float("inf"):
      raise ConfigError(f"{what}: {spec!r} is not / and a number above 0, to a multiple of which"
                        " values are rounded")
    return functools.partial(rounded, step, len(spec[1:].partition(".")[2]))
  words: dict[str, str] = {}
  for entry in spec.split("|"):
    value, equals, word = entry.partition("=")
    if not equals or not value or value in words:
      raise ConfigError(f"{what}: {spec!r} is not VALUE=WORD|VALUE=WORD, each value once")
    words[value] = word
  return functools.partial(in_words, words)


def plain(value: Any) -> str:
  if isinstance(value, bool) or not isinstance(value, (str, int, float)):
    raise ValueError(f"is {value!r}, neither text nor a number; words for its values are written"
                     " {NAME:VALUE=WORD|...}")
  return str(value)


def rounded(step: float, decimals: int, value: Any) -> str:
  try:
    number = float(value)
  except (TypeError, ValueError):
    number = math.nan
  if not math.isfinite(number):
    raise ValueError(f"is {value!r}, and no number")
  return f"{round(number / step) * step:.{decimals}f}"


def in_words(words: dict[str, str], value: Any) -> str:
  if str(value) not in words:
    raise ValueError(f"is {value!r}; the template has words for {', '.join(words)}")
  return words[str(value)]
