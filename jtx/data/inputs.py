"""Inputs of predictions: examples in a run's own data format, without their labels.

An input is a dict whose keys `ExampleOp.inputs` names, such as `text` and `second`; see
`jtx.inference.tasks`.
"""

import dataclasses
import os
import re
import reprlib
import tempfile
from typing import Any, Mapping, Sequence

from jtx.data import recipes
from jtx.data.op import ExampleOp
from jtx.data.ops.text import Fields
from jtx.data.sources.registry import open_source
from jtx.errors import DataError
from jtx.storage import join

Input = dict[str, Any]

NAMES = ("text", "second", "words", "question", "context", "prompt", "choices")
OPTION = r":(\w+)\[([^\]]*)\]"  # after the file of a spec
FORMAT = ("columns", "delimiter", "header")  # options that say how a file is read, not how much
# Kinds of sources that are read from files whose examples can be inputs.
FILES = ("tsv", "table", "jsonl", "csv", "parquet", "arrow", "conll", "conllu", "squad")
KINDS = {".jsonl": "jsonl", ".conll": "conll", ".conllu": "conllu", ".csv": "csv",
         ".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow"}  # by the endings of files
HEADED = ("table", "csv")


class Reader:
  """Reads files and lines as a run reads its data.

  Args:
    sources: specs of the run's sources, those of training first.
    ops: that it prepares examples with; one makes tokens of `inputs`.
  """

  def __init__(self, sources: Sequence[str], ops: Sequence[ExampleOp]):
    maker = recipes.maker_of(ops)
    self.inputs = maker.inputs
    self.keys = flat(self.inputs.values())  # of an example
    self._labels = [op for op in ops if op is not maker]
    self._ops = [narrowed(op, self.keys) for op in recipes.text_ops(ops) if not op.columns]
    self._specs = [spec for spec in sources if spec.partition(":")[0] in FILES]

  @property
  def changes(self) -> list[str]:
    """The ops that change texts before they become tokens, by their classes."""
    return [type(op).__name__ for op in self._ops if not op.renames]

  def spec_of(self, file: str, whole: bool = False) -> str | None:
    """The spec of a file that is read as one of the run's with this ending; None for plain lines.

    Args:
      file: or a spec, which stays as it is.
      whole: with labels, and of any ending.
    """
    if file.partition(":")[0] in FILES:
      return file
    alike = [spec for spec in self._specs if ending(file_of(spec)) == ending(file)]
    if not alike and ending(file) in KINDS:
      return f"{KINDS[ending(file)]}:{file}"
    if alike or whole and self._specs:
      return self._like([*alike, *self._specs][0], file, whole)
    return None

  def _like(self, spec: str, file: str, whole: bool) -> str:
    kind, _, rest = spec.partition(":")
    if kind == "conll":  # the column of the tags
      return f"{kind}:{file}{rest[len(file_of(spec)):]}"
    options = [(name, value) for name, value in re.findall(OPTION, rest) if name in FORMAT]
    if not whole:
      needed = self._sources_of(self.keys)
      options = [(name, narrowed_columns(value, needed) if name == "columns" else value)
                 for name, value in options]
    return f"{kind}:{file}" + "".join(f":{name}[{value}]" for name, value in options)

  def of_file(self, spec: str, path: str = "") -> list[Input]:
    """The inputs of a source's examples, in order.

    Raises:
      DataError: an example that is not of the run's form; the sentence names its file and line.
    """
    kind, file, source = spec.partition(":")[0], file_of(spec), open_source(spec, path)
    line = getattr(source, "line", lambda i: None)
    read = self._of_object if kind == "jsonl" else self._of_example
    results = []
    for i in range(len(source)):
      example = source[i]
      try:
        results.append(checked(read(example), self.inputs))
      except DataError as e:
        number = line(i)
        where = f"{spec}: example {i}" if number is None else f"{join(path, file)}:{number}"
        raise DataError(f"{where}: {e}") from e
    return results

  def of_lines(self, lines: Sequence[str], file: str) -> list[Input]:
    """The inputs of lines, in order: columns with tabs between them, or words and spaces.

    Raises:
      DataError: as `of_file`.
    """
    if "words" in self.inputs:
      return words_of(lines, file)
    kind = self._specs[0].partition(":")[0] if self._specs else ""
    rows = [line.split("\t") for line in lines]
    if kind in HEADED and lines and (found := self._headed(lines, file)) is not None:
      return found
    names = self.keys
    if kind == "tsv":
      names = [str(i) for i in range(len(rows[0]))] if rows else []
    results = []
    for number, row in enumerate(rows, 1):
      if len(row) != len(names):
        told = ("line 1 has " + str(len(names)) if kind == "tsv" else
                f"the run was trained on {len(names)} a line: {', '.join(names)}")
        raise DataError(f"{file}:{number}: {len(row)} columns, with tabs between them, but {told}")
      try:
        results.append(self._of_example(dict(zip(names, row)), renamed=kind != "tsv"))
      except DataError as e:
        raise DataError(f"{file}:{number}: {e}") from e
    return results

  def _headed(self, lines: Sequence[str], file: str) -> list[Input] | None:
    """The inputs of a table whose header names all texts; None where its first line does not."""
    if not set(self._sources_of(self.keys)) <= set(re.split(r'["\t,;|]+', lines[0])):
      return None
    with tempfile.TemporaryDirectory() as folder:
      path = os.path.join(folder, "lines")
      with open(path, "w", encoding="utf-8") as f:
        f.write("".join(line + "\n" for line in lines))
      try:
        return self.of_file(self._like(self._specs[0], path, whole=False))
      except DataError as e:
        raise DataError(str(e).replace(path, file)) from e

  def _of_object(self, example: Mapping[str, Any]) -> Input:
    """The input of an object, whose keys are the run's or those of inputs."""
    named = [name for name in NAMES if name in example]
    if set(self._sources_of(self.keys)) <= example.keys() or not named:
      return self._of_example(example)
    if more := [name for name in named if name not in self.inputs]:
      raise DataError(f"has {', '.join(more)}, but the run was trained on"
                      f" {', '.join(self.inputs)}")
    if less := [name for name in self.inputs if name not in example]:
      raise DataError(f"has no {', '.join(less)}; it has {', '.join(example)}")
    return self.cleaned({name: example[name] for name in self.inputs})

  def cleaned(self, given: Input) -> Input:
    """An input whose texts the run's ops have changed as those of its data; words stay.

    What is no text, or is not as many texts as the run has, is left for others to refuse.
    """
    keys = {name: key for name, key in self.inputs.items() if name in given and name != "words"}
    example: dict[str, Any] = {"id": 0}
    for name, key in keys.items():
      texts = [given[name]] if isinstance(key, str) else given[name]
      names = flat([key])
      if not isinstance(texts, list | tuple) or len(texts) != len(names) or not all(
          isinstance(text, str) for text in texts):
        return given
      example |= zip(names, texts)
    examples = [example]
    for op in self._ops:
      if not op.renames:
        examples = narrowed(op, flat(keys.values()))(examples, None)
    if not examples:  # an op drops empty texts
      examples = [dict.fromkeys(flat(keys.values()), "")]
    return {**given, **_picked(examples[0], keys)}

  def _of_example(self, example: Mapping[str, Any], renamed: bool = False) -> Input:
    """The input of an example with the keys of the run's data; `renamed` where an op has done."""
    for op in self._labels:
      if reason := op.misfit(example):
        raise DataError(reason)
    examples = [{**example, "id": 0}]
    for op in self._ops:
      if not (renamed and op.renames):
        examples = op(examples, None)
    found = examples[0] if examples else dict.fromkeys(self.keys, "")  # an op drops empty texts
    if missing := [key for key in self.keys if key not in found]:
      raise DataError(f"has no {', '.join(map(repr, missing))}, of which the run makes its"
                      f" texts; it has {', '.join(example)}")
    return _picked(found, self.inputs)

  def _sources_of(self, keys: Sequence[str]) -> list[str]:
    """The keys of a raw example that become `keys` by the ops."""
    for op in reversed(self._ops):
      if isinstance(op, Fields):
        old = dict(entry.split("=") for entry in op.keep)
        keys = [old[key].partition(".")[0] if key in old else key for key in keys]
    return list(keys)


def _picked(example: Mapping[str, Any], keys: Mapping[str, Any]) -> Input:
  """The texts of an example by the names of inputs: one, or a list of several keys'."""
  return {name: example[key] if isinstance(key, str) else [example[k] for k in key]
          for name, key in keys.items()}


def checked(given: Input, keys: Mapping[str, Any]) -> Input:
  """An input, all of whose values are texts or lists of texts.

  Args:
    given: by the names of `keys`.
    keys: of the example that it is made of.

  Raises:
    DataError: a value is something else.
  """
  for name, value in given.items():
    several = name in ("words", "choices")
    texts = value if several else [value]
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
      key = keys[name] if isinstance(keys[name], str) else name
      raise DataError(f"{key!r} is {reprlib.repr(value)}, which is not"
                      f" {'a list of texts' if several else 'a text'}")
  return given


def of_plain_lines(lines: Sequence[str], file: str, labels: Sequence[str],
                   words: bool) -> list[Input]:
  """The inputs of lines for a model without a run: a text, a pair with a tab between, or words.

  Raises:
    DataError: what stands behind the tabs are labels, or there are several tabs.
  """
  if words:
    return [{"words": line.split()} for line in lines]
  rows = [line.split("\t") for line in lines]
  for number, row in enumerate(rows, 1):
    if len(row) > 2:
      raise DataError(f"{file}:{number}: {len(row)} columns, with tabs between them; a line is a"
                      " text, or a pair of texts")
  second = [row[1] for row in rows if len(row) == 2]
  if second and set(second) <= set(labels):
    raise DataError(f"{file}:1: {second[0]!r} behind the tab is a class of the model, as all others"
                    " are, and no second text; give texts without their labels")
  return [dict(zip(("text", "second"), row)) for row in rows]


def flat(keys: Any) -> list[str]:
  return [k for key in keys for k in ([key] if isinstance(key, str) else key)]


def narrowed(op: ExampleOp, keys: Sequence[str]) -> ExampleOp:
  """An op on texts for those of an input alone, which lacks what a label is made of."""
  if isinstance(op, Fields):
    return dataclasses.replace(op, keep=tuple(e for e in op.keep if e.split("=")[0] in keys))
  if any(field.name == "fields" for field in dataclasses.fields(op)):
    return dataclasses.replace(op, fields=tuple(f for f in op.fields if f in keys))
  return op


def narrowed_columns(value: str, keys: Sequence[str]) -> str:
  """The columns "new=old+same" without those that are not among `keys`."""
  return "+".join(c for c in value.split("+") if c.partition("=")[0] in keys)


def words_of(lines: Sequence[str], file: str) -> list[Input]:
  for number, line in enumerate(lines, 1):
    if "\t" in line:
      raise DataError(f"{file}:{number}: has a tab, and a line is words with spaces between them; a"
                      " file with a word and its tag a line is given as conll:FILE")
  return [{"words": line.split()} for line in lines]


def file_of(spec: str) -> str:
  """The file of a spec without what follows it."""
  rest = re.sub(rf"(?:{OPTION})+$", "", spec.partition(":")[2])
  scheme, slashes, path = rest.partition("://")
  file = (path if slashes else rest).partition(":")[0]
  return scheme + slashes + file if slashes else file


def ending(file: str) -> str:
  return os.path.splitext(file.removesuffix(".gz"))[1].lower()
