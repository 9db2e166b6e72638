"""Specs of sources: the file that follows KIND:, and options such as `rows[:90%]` after it."""

import re
from typing import Mapping, NamedTuple, Sequence

from jtx import storage
from jtx.data.sources.parts import Part
from jtx.errors import ConfigError

OPTION = r":(\w+)\[([^\]]*)\]"
# Kinds by the endings of files.
KIND_OF = {
    ".jsonl": "jsonl", ".csv": "csv", ".parquet": "parquet", ".pq": "parquet", ".arrow": "arrow",
    ".feather": "arrow", ".conllu": "conllu", ".tar": "wds",
}
EXAMPLES = {
    "rows": "rows[:90%]",
    "columns": "columns[text=review+label]",
    "delimiter": "delimiter[;]",
    "header": "header[no]",
    "images": "images[FOLDER]",
}


def split(rest: str) -> tuple[str, str, str]:
  """`rest.partition(":")` of "FILE:PART", where FILE may be gs://BUCKET/..."""
  scheme, slashes, path = rest.partition("://")
  if slashes and scheme.isalnum():
    file, colon, part = path.partition(":")
    return scheme + slashes + file, colon, part
  return rest.partition(":")


class Options(NamedTuple):
  """The options of a source whose examples are rows."""
  rows: Part | None = None  # None is all
  columns: Mapping[str, str] | None = None  # the new name of each -> the source's; None is all
  delimiter: str = ","
  header: bool = True
  images: str | None = None  # their folder

  @property
  def paths(self) -> tuple[str, ...] | None:
    """The columns that are read."""
    if self.columns is None:
      return None
    return tuple(old for old in self.columns.values() if literal(old) is None)


def without_options(rest: str) -> str:
  """The file of "FILE:OPTION[...]:OPTION[...]"."""
  return re.fullmatch(rf"(.*?)(?:{OPTION})*", rest, re.DOTALL).group(1)


def spec_of(file: str, default: str) -> str:
  """The spec of a file by its ending; one that begins with KIND: is left as it is.

  Args:
    file: with or without the options of a spec.
    default: the kind of files with other endings.
  """
  if re.match(r"\w{2,}:(?!//)", file):
    return file
  name = without_options(file).removesuffix(".gz").lower()
  kind = next((kind for ending, kind in KIND_OF.items() if name.endswith(ending)), default)
  return f"{kind}:{file}"


def joined(text: str) -> list[str]:
  """The files or sources that + joins; in the brackets of an option it joins columns."""
  return [spec for spec in re.split(r"\+(?![^\[\]]*\])", text) if spec]


def options(spec: str, rest: str, path: str, valid: Sequence[str]) -> tuple[str, Options]:
  """The path of a file, and the options that follow it.

  Args:
    spec: the whole, for messages.
    rest: what follows KIND: in it.
    path: the folder that the file's name is relative to.
    valid: names of options.

  Raises:
    ConfigError: an option of another form.
  """
  file = without_options(rest)
  examples = ", ".join(EXAMPLES[name] for name in valid)
  found: dict[str, str] = {}
  for name, value in re.findall(OPTION, rest[len(file):]):
    if name not in valid or name in found:
      raise ConfigError(f"source: {spec!r} has the option {name}[{value}]"
                        f"{' twice' if name in found else ''}; valid are {examples}")
    found[name] = value
  if broken := re.search(r":(\w+\[.*)", file, re.DOTALL):
    raise ConfigError(f"source: {spec!r} ends in {broken.group(1)!r}; options are written"
                      f" {examples}")
  result = Options()
  if "rows" in found:
    result = result._replace(rows=Part.parse(spec, f"rows[{found['rows']}]", "rows"))
  if "columns" in found:
    result = result._replace(columns=_columns(spec, found["columns"]))
  if "delimiter" in found:
    delimiter = {"tab": "\t", "semicolon": ";"}.get(found["delimiter"], found["delimiter"])
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n':
      raise ConfigError(f"source: {spec!r} has delimiter[{found['delimiter']}]; it is one character"
                        " of ASCII, or tab")
    result = result._replace(delimiter=delimiter)
  if "header" in found:
    if found["header"] not in ("yes", "no"):
      raise ConfigError(f"source: {spec!r} has header[{found['header']}]; valid are yes and no")
    result = result._replace(header=found["header"] == "yes")
  if "images" in found:
    result = result._replace(images=storage.join(path, found["images"]))
  return storage.join(path, file), result


def literal(column: str) -> str | None:
  """The text of a column 'TEXT', which every example has; None of another."""
  quoted = len(column) > 1 and column[0] == column[-1] == "'"
  return column[1:-1] if quoted else None


def cut_columns(spec: str, rest: str) -> tuple[str, dict[str, str] | None]:
  """What stands before `:columns[...]` at the end of what follows KIND:, and the columns.

  It is for sources without other options.
  """
  found = re.fullmatch(r"(.*):columns\[([^\]]*)\]", rest, re.DOTALL)
  return (rest, None) if found is None else (found.group(1), _columns(spec, found.group(2)))


def _columns(spec: str, text: str) -> dict[str, str]:
  """The columns of "new=old+same+other='text'", by their new names."""
  result: dict[str, str] = {}
  for entry in text.split("+"):
    new, equals, old = entry.partition("=")
    if not new or equals and not old or new in result or literal(new) is not None:
      raise ConfigError(f"source: {spec!r} has columns[{text}]; write the names of columns joined"
                        " by +, each once, and NEW=OLD for one that shall have another name, or"
                        " NEW='TEXT' for one that is the same in all examples")
    result[new] = old or new
  return result
