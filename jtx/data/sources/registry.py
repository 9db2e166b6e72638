"""Sources: random access to raw examples, from local files, TFDS or a generator.

A source has `len()`, `source[i] -> dict`, and `name`, the spec that opened it. It can be
pickled, and opening it again gives the same examples in the same order. One of images has
`classes` too, their names in the order of the labels, or None where it does not know them.
"""

import importlib
import json
import os
from typing import Any, Callable, Protocol

from jtx import config
from jtx.data.sources import documents, images, number_words, sentences
from jtx.data.sources.documents import BlankLinesSource, FilesSource
from jtx.data.sources.lines import Lines
from jtx.data.sources.parts import Part
from jtx.data.sources.squad import SquadSource
from jtx.data.sources.tagged import ConllSource, ConlluSource
from jtx.errors import DataError


class Source(Protocol):
  """Random access to raw examples."""

  name: str

  def __len__(self) -> int: ...

  def __getitem__(self, i: int) -> dict[str, Any]: ...


def open_source(spec: str, path: str = "") -> Source:
  """Opens a source.

  Args:
    spec: one of
      text:train.en,train.de             parallel files, a line an example: "src", "tgt"
      text:train.txt                     one file: "text"
      jsonl:train.jsonl                  an object a line
      tsv:train.tsv                      columns "0", "1", ...; quotes are characters
      table:train.tsv                    the same, with columns named by the first line
      conll:train.conll[:COLUMN]         a word and its tag a line: "words", "tags"
      conllu:train.conllu[.gz]           Universal Dependencies: FORM and UPOS, likewise
      squad:train.json[:titles[:80%]]    a question of SQuAD 1.1 or 2.0; here, of the first
                                         80 % of the titles; see SquadSource
      documents:FOLDER[:folders[:90%]]   a .txt or .md file each, of a folder or a zip archive;
                                         here, of the first 90 % of the folders in it
      blank_lines:corpus.txt             one file, blank lines between its documents
      images:FOLDER[:each[:90%]]         a folder a class, in a folder or a zip archive: "image",
                                         "label"; here, of the first 90 % of each class
      npz:train.npz[:rows[:90%]]         arrays "images" and "labels"; here, of their first 90 %
      prepared:FOLDER                    in data.train only: what experiments.prepare made of others
      tfds:wmt14_translate/de-en:train[:1%]      NAME[/CONFIG][:SPLIT]
      embedded:number_words/cardinal:train       NAME[/SUBSET][:SPLIT]; of text: number_words,
                                         sentences, pydocs; of images: digits
      where SPLIT is "train" if absent.
    path: the folder that relative file names are relative to; TFDS's data_dir, if given.

  Raises:
    ConfigError: a spec that is not of this form.
    DataError: a file or dataset that is missing, empty or broken.
  """
  kind, colon, rest = spec.partition(":")
  opener = config.lookup(_KINDS, kind, "source")
  if not colon or not rest:
    raise config.ConfigError(f"source: {spec!r} names no data; write {kind}:NAME")
  source = opener(spec, rest, path)
  if len(source) == 0:
    raise DataError(f"{spec}: empty split")
  return source


# Files


class TextSource:
  """One text file, or two parallel ones; a line is an example."""

  def __init__(self, name: str, files: list[str]):
    if len(files) > 2:
      raise config.ConfigError(f"{name}: one file or two parallel files, not {len(files)}")
    self.name = name
    self._keys = ("text",) if len(files) == 1 else ("src", "tgt")
    self._lines = [Lines(f) for f in files]
    if len(set(map(len, self._lines))) > 1:
      counts = " and ".join(f"{lines.file} has {len(lines)}" for lines in self._lines)
      raise DataError(f"parallel files need as many lines each, but {counts}")

  def __len__(self) -> int:
    return len(self._lines[0])

  def __getitem__(self, i: int) -> dict[str, str]:
    return {key: lines[i] for key, lines in zip(self._keys, self._lines)}


class JsonlSource:
  """A JSON object a line."""

  def __init__(self, name: str, file: str):
    self.name = name
    self._lines = Lines(file)

  def __len__(self) -> int:
    return len(self._lines)

  def __getitem__(self, i: int) -> dict[str, Any]:
    try:
      example = json.loads(self._lines[i])
    except json.JSONDecodeError as e:
      raise DataError(f"{self._lines.file}:{i + 1}: not valid JSON ({e})") from e
    if not isinstance(example, dict):
      raise DataError(f"{self._lines.file}:{i + 1}: a line must be a JSON object")
    return example


class TsvSource:
  """Tab-separated columns; every line has as many as the first.

  Args:
    name: the spec.
    file: a quote in it is a character.
    header: the first line names the columns; else they are called "0", "1", ...
  """

  def __init__(self, name: str, file: str, header: bool = False):
    self.name = name
    self._lines = Lines(file)
    self._header = int(header)
    first = self._lines[0].split("\t") if len(self._lines) else []
    self._names = first if header else [str(c) for c in range(len(first))]
    for column in self._names:
      if not column or self._names.count(column) > 1:
        what = f"names {column!r} more than once" if column else "leaves a column without a name"
        raise DataError(f"{file}:1: the header {what}")

  def __len__(self) -> int:
    return max(len(self._lines) - self._header, 0)

  def __getitem__(self, i: int) -> dict[str, str]:
    line = range(len(self))[i] + self._header
    columns = self._lines[line].split("\t")
    if len(columns) != len(self._names):
      raise DataError(f"{self._lines.file}:{line + 1}: {len(columns)} columns, "
                      f"but line 1 has {len(self._names)}")
    return dict(zip(self._names, columns))


# TFDS

# TFDS finds these of its datasets only once their module is imported.
_TFDS_MODULES = {
    "c4": "text.c4",
    "cnn_dailymail": "summarization.cnn_dailymail",
    "conll2002": "text.conll2002",
    "conll2003": "text.conll2003",
    "flores": "translate.flores",
    "glue": "text.glue",
    "gsm8k": "text.gsm8k",
    "hellaswag": "text.hellaswag",
    "multi_nli": "text.multi_nli",
    "wiki40b": "text.wiki40b",
    "wikipedia": "text.wikipedia",
    "wmt13_translate": "translate.wmt13",
    "wmt14_translate": "translate.wmt14",
    "wmt15_translate": "translate.wmt15",
    "wmt16_translate": "translate.wmt16",
    "wmt17_translate": "translate.wmt17",
    "wmt18_translate": "translate.wmt18",
    "wmt19_translate": "translate.wmt19",
    "wmt_t2t_translate": "translate.wmt_t2t",
    "xnli": "text.xnli",
    "xsum": "summarization.xsum",
}


def _plain(value: Any) -> Any:
  """`value` with bytes decoded, where they are text, in nested dicts and lists too."""
  if isinstance(value, dict):
    return {k: _plain(v) for k, v in value.items()}
  if isinstance(value, list):
    return [_plain(v) for v in value]
  if isinstance(value, bytes):
    try:
      return value.decode("utf-8")
    except UnicodeDecodeError:
      return value
  return value


class TfdsSource:
  """A split of a TFDS dataset that was prepared as ArrayRecord; needs no TensorFlow.

  Images come as the bytes of their files. `classes` are the names of the feature "label", or None.
  """

  def __init__(self, name: str, dataset: str, split: str, data_dir: str | None):
    import tensorflow_datasets as tfds
    self.name = name
    module = _TFDS_MODULES.get(dataset.split("/")[0])
    try:
      if module:
        importlib.import_module(f"tensorflow_datasets.{module}")
      builder = tfds.builder(dataset, data_dir=data_dir)
    except tfds.core.DatasetNotFoundError as e:
      raise DataError(f"{name}: TFDS has no dataset {dataset!r}, nor is one prepared in "
                      f"{data_dir or 'its default data_dir'}") from e
    except ImportError as e:
      raise DataError(f"{name}: TFDS's own code for this dataset needs "
                      f"{e.name or 'TensorFlow'}") from e
    except (ValueError, RuntimeError) as e:  # an unknown config or version
      raise DataError(f"{name}: TFDS cannot build {dataset!r}: {_first_line(e)}") from e
    if not builder.info.splits:
      raise DataError(
          f"{name}: not prepared in {builder.data_path}; prepare it once with "
          f"tfds.builder({dataset!r}, data_dir=..., file_format='array_record')"
          ".download_and_prepare()")
    features = dict(builder.info.features.items())
    self._images = {key for key, feature in features.items()
                    if isinstance(feature, tfds.features.Image)}
    named = isinstance(features.get("label"), tfds.features.ClassLabel)
    self.classes = tuple(features["label"].names) if named else None
    try:
      self._data = builder.as_data_source(
          split=split, decoders={key: tfds.decode.SkipDecoding() for key in self._images} or None)
    except NotImplementedError as e:
      raise DataError(f"{name}: the files in {builder.data_path} have no random access; "
                      "prepare it again with file_format='array_record'") from e
    except ValueError as e:
      raise DataError(f"{name}: no split {split!r}; {dataset} has "
                      + ", ".join(builder.info.splits)) from e

  def __len__(self) -> int:
    return len(self._data)

  def __getitem__(self, i: int) -> dict[str, Any]:
    return {key: value if key in self._images else _plain(value)
            for key, value in self._data[i].items()}


def _first_line(error: Exception) -> str:
  return str(error).strip().split("\n")[0]


# Openers: (spec, what follows "KIND:" in it, path) -> Source

EMBEDDED: dict[str, Callable[[str, str], Source]] = {
    "number_words": number_words.number_words,
    "sentences": sentences.sentences,
    "pydocs": documents.pydocs_source,
    "digits": images.digits_source,
}


def _open_text(spec: str, rest: str, path: str) -> Source:
  return TextSource(spec, [os.path.join(path, f) for f in rest.split(",")])


def _open_jsonl(spec: str, rest: str, path: str) -> Source:
  return JsonlSource(spec, os.path.join(path, rest))


def _open_tsv(spec: str, rest: str, path: str) -> Source:
  return TsvSource(spec, os.path.join(path, rest))


def _open_table(spec: str, rest: str, path: str) -> Source:
  return TsvSource(spec, os.path.join(path, rest), header=True)


def _open_conll(spec: str, rest: str, path: str) -> Source:
  file, colon, column = rest.partition(":")
  if colon and not (column.isdecimal() and int(column)):
    raise config.ConfigError(f"source: {spec!r} has the column {column!r} for its tags; valid are"
                             " 1, 2, ..., counted from 0, which has the words")
  return ConllSource(spec, os.path.join(path, file), int(column) if colon else None)


def _open_conllu(spec: str, rest: str, path: str) -> Source:
  return ConlluSource(spec, os.path.join(path, rest))


def _open_squad(spec: str, rest: str, path: str) -> Source:
  file, colon, part = rest.partition(":")
  return SquadSource(spec, os.path.join(path, file),
                     Part.parse(spec, part, "titles") if colon else None)


def _open_documents(spec: str, rest: str, path: str) -> Source:
  file, colon, part = rest.partition(":")
  return FilesSource(spec, os.path.join(path, file),
                     Part.parse(spec, part, "folders") if colon else None)


def _open_blank_lines(spec: str, rest: str, path: str) -> Source:
  return BlankLinesSource(spec, os.path.join(path, rest))


def _open_images(spec: str, rest: str, path: str) -> Source:
  file, colon, part = rest.partition(":")
  return images.ImagesSource(spec, os.path.join(path, file),
                             Part.parse(spec, part, "each", "every class") if colon else None)


def _open_npz(spec: str, rest: str, path: str) -> Source:
  file, colon, part = rest.partition(":")
  return images.NpzSource(spec, os.path.join(path, file),
                          Part.parse(spec, part, "rows") if colon else None)


def _open_prepared(spec: str, rest: str, path: str) -> Source:
  del rest, path
  raise config.ConfigError(f"source: {spec!r} holds tokens and no texts, so it has its place in"
                           " data.train only, for training; name what it was prepared from")


def _open_tfds(spec: str, rest: str, path: str) -> Source:
  dataset, _, split = rest.partition(":")
  return TfdsSource(spec, dataset, split or "train", path or None)


def _open_embedded(spec: str, rest: str, path: str) -> Source:
  del path  # generated, not read
  dataset, _, split = rest.partition(":")
  name, _, subset = dataset.partition("/")
  return config.lookup(EMBEDDED, name, spec)(subset, split or "train")


_KINDS: dict[str, Callable[[str, str, str], Source]] = {
    "text": _open_text,
    "jsonl": _open_jsonl,
    "tsv": _open_tsv,
    "table": _open_table,
    "conll": _open_conll,
    "conllu": _open_conllu,
    "squad": _open_squad,
    "documents": _open_documents,
    "blank_lines": _open_blank_lines,
    "images": _open_images,
    "npz": _open_npz,
    "prepared": _open_prepared,
    "tfds": _open_tfds,
    "embedded": _open_embedded,
}
