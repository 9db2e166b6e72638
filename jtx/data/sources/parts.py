"""Parts of a source that its spec asks for: `titles[:80%]`, `folders[90%:]`, `each[:500]`."""

import re
from typing import Any, NamedTuple, Sequence

from jtx.errors import ConfigError


class Part(NamedTuple):
  """A slice, "3:" or ":80%", whose bounds are counts or percent of what is sliced."""
  start: str
  stop: str

  @classmethod
  def parse(cls, spec: str, text: str, what: str, whole: str = "") -> "Part":
    """Reads `WHAT[START:STOP]`, the end of a source's spec.

    Args:
      spec: of the source.
      text: its end.
      what: WHAT.
      whole: what this is a part of; "" is "the WHAT".

    Raises:
      ConfigError: it is not of this form.
    """
    found = re.fullmatch(what + r"\[(\d*%?):(\d*%?)\]", text)
    if not found or "%" in found.groups():
      raise ConfigError(f"source: {spec!r} ends in {text!r}; a part of {whole or 'the ' + what} is"
                        f" written {what}[:80%], {what}[80%:] or {what}[3:5]")
    return cls(*found.groups())

  def of(self, items: Sequence[Any]) -> Sequence[Any]:
    def place(bound: str) -> int | None:
      if bound.endswith("%"):
        return len(items) * int(bound[:-1]) // 100
      return int(bound) if bound else None
    return items[place(self.start):place(self.stop)]
