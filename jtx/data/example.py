"""Examples: dicts that ops work on, whose "id" is a number."""

import contextlib
import reprlib
from typing import Any, Iterator, Mapping, Sequence

from jtx.errors import DataError, ExampleError

Example = dict[str, Any]


def check_text(op: str, fields: Sequence[str], examples: Sequence[Example]) -> None:
  """Raises DataError unless every example has a text in each of the fields."""
  for e in examples:
    for f in fields:
      if not isinstance(e.get(f), str):
        has = f"{f}={reprlib.repr(e[f])}, which is not a text" if f in e else f"no text {f!r}"
        texts = ", ".join(k for k, v in e.items() if isinstance(v, str)) or "none"
        raise ExampleError(op, e["id"], f"has {has}; its texts are: {texts}")


def follow(op: str, example: Example, path: str) -> Any:
  """The value of a path in nested objects and lists, "translation.en" or "answers.0.text".

  Raises:
    ExampleError: it leads nowhere.
  """
  value: Any = example
  for part in path.split("."):
    if isinstance(value, Sequence) and not isinstance(value, str) and part.isdecimal() and (
        int(part) < len(value)):
      value = value[int(part)]
    elif isinstance(value, Mapping) and part in value:
      value = value[part]
    else:
      keys = ", ".join(k for k in value if k != "id") if isinstance(value, Mapping) else "no keys"
      raise ExampleError(op, example["id"], f"has no {path!r}; it has {keys}")
  return value


@contextlib.contextmanager
def placed(source: Any, first: int = 0) -> Iterator[None]:
  """Within it, what an op says of an example begins with its source, and its line where known.

  Args:
    source: of the examples.
    first: the "id" of its first example.
  """
  try:
    yield
  except ExampleError as e:
    raise DataError(f"{place(source, e.number - first)}: {e}") from e


def place(source: Any, i: int) -> str:
  """The name of a source, and the line of its example `i` where the source knows it."""
  line = source.line(i) if hasattr(source, "line") else None
  return source.name if line is None else f"{source.name}: line {line}"
