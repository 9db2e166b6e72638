"""One bad input: its files, the command that takes it, and the sentence that must answer."""

from collections.abc import Callable, Mapping
import dataclasses
import pathlib

Content = str | bytes | Callable[[pathlib.Path, pathlib.Path], None]


@dataclasses.dataclass(frozen=True)
class Case:
  """A bad input.

  Attributes:
    name: of it, among those of its family.
    command: of `jtx`; {made} is the folder of sound things that `make` has made.
    sentence: a regular expression of what must be said.
    files: content by path, or what writes it, given its path and the folder of sound things.
  """
  name: str
  command: str
  sentence: str
  files: Mapping[str, Content] = dataclasses.field(default_factory=dict)

  def write(self, folder: pathlib.Path, made: pathlib.Path) -> None:
    for name, content in self.files.items():
      path = folder / name
      path.parent.mkdir(parents=True, exist_ok=True)
      if callable(content):
        content(path, made)
      elif isinstance(content, bytes):
        path.write_bytes(content)
      else:
        path.write_text(content, encoding="utf-8")
