"""Examples: dicts that ops work on, whose "id" is a number."""

from typing import Any, Sequence

from jtx.errors import DataError

Example = dict[str, Any]


def check_text(op: str, fields: Sequence[str], examples: Sequence[Example]) -> None:
  """Raises DataError unless every example has a text in each of the fields."""
  for e in examples:
    for f in fields:
      if not isinstance(e.get(f), str):
        texts = ", ".join(k for k, v in e.items() if isinstance(v, str)) or "none"
        raise DataError(f"op {op}: example {e['id']} has no text {f!r}; its texts are: {texts}")
