"""Opening sources by their specs: random access to raw examples of files, TFDS or a generator.

A source has `len()`, `source[i] -> dict`, and `name`, the spec that opened it. It can be
pickled, and opening it again gives the same examples in the same order. One of images has
`classes` too, their names in the order of the labels, or None where it does not know them.
"""

import os
from typing import Any, Callable, Protocol

from jtx import config, storage
from jtx.data.sources import (
    boxes,
    captions,
    documents,
    images,
    instructions,
    number_words,
    scattered,
    sentences,
    specs,
)
from jtx.data.sources.arrow import ArrowSource, ParquetSource
from jtx.data.sources.documents import BlankLinesSource, FilesSource
from jtx.data.sources.parts import Part
from jtx.data.sources.squad import SquadSource
from jtx.data.sources.tables import CsvSource, TsvSource
from jtx.data.sources.tagged import ConllSource, ConlluSource
from jtx.data.sources.text import JsonlSource, TextSource
from jtx.data.sources.tfds import TfdsSource
from jtx.data.sources.views import View
from jtx.data.sources.voc import voc
from jtx.data.sources.webdataset import WebDatasetSource
from jtx.errors import DataError
from jtx.storage import join


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
      csv:train.csv                      columns in quotes, named by the first line; options
                                         :delimiter[;], :delimiter[tab] and :header[no]
      tsv:train.tsv                      columns "0", "1", ...; quotes are characters
      table:train.tsv                    the same, with columns named by the first line
      parquet:train.parquet              rows; a folder or a pattern, train-*.parquet, too
      arrow:train.arrow                  rows of an Arrow or Feather file, a folder of them or of
                                         save_to_disk, or a pattern
      conll:train.conll[:COLUMN]         a word and its tag a line: "words", "tags"
      conllu:train.conllu[.gz]           Universal Dependencies: FORM and UPOS, likewise
      squad:train.json[:titles[:80%]]    a question of SQuAD 1.1 or 2.0; here, of the first
                                         80 % of the titles; see SquadSource
      documents:FOLDER[:folders[:90%]]   a .txt or .md file each, of a folder or a zip archive;
                                         here, of the first 90 % of the folders in it
      documents:FILE[:characters[:90%]]  one such file; here, its first 90 %, as of a folder each's
      blank_lines:corpus.txt             one file, blank lines between its documents
      images:FOLDER[:each[:90%]]         a folder a class, in a folder or a zip archive: "image",
                                         "label"; here, of the first 90 % of each class
      captions:train.tsv                 files of images, by the column "image" of a TSV or CSV
                                         with a header, or of JSONL, and "text", "label" or both
      wds:train-{00..99}.tar             WebDataset: KEY.jpg and KEY.cls in tar archives
      npz:train.npz[:rows[:90%]]         arrays "images" and "labels"; here, of their first 90 %
      coco:instances.json[:images[F]]    boxes in COCO's format; the images are in the folder F, or
                                         beside the file; takes :rows[:90%], too
      voc:FOLDER[:SPLIT]                 boxes as PASCAL VOC has them, in a folder or a zip archive
      boxes:train.jsonl[:rows[:90%]]     boxes, a line an image: "image", "boxes", "classes"
      scattered:mnist.npz[:rows[:90%]]   digits of such an npz, one to four an image, with boxes
      prepared:FOLDER                    in data.train only: what experiments.prepare made of others
      tfds:wmt14_translate/de-en:train[:1%]      NAME[/CONFIG][:SPLIT]
      embedded:number_words/cardinal:train       NAME[/SUBSET][:SPLIT]; of text: number_words,
                                         sentences, pydocs, instructions,
                                         preferences; of images: digits, scenes; with
                                         boxes: scattered
      where SPLIT is "train" if absent, but of voc all. text, jsonl, csv, tsv, table, captions,
      parquet, arrow, conll, conllu and wds take :rows[:90%], and all of these but the last three
      :columns[text=review+label+task='mine'], which are the columns "review", as "text", and
      "label", and "mine" as each example's "task". So do squad, tfds and embedded. Files and
      folders may be in a bucket, gs://BUCKET/....
    path: the folder that relative file names are relative to; TFDS's data_dir, if given.

  Raises:
    ConfigError: a spec that is not of this form.
    DataError: a file or dataset that is missing, empty or broken.
  """
  kind, colon, rest = spec.partition(":")
  _check_kind(spec, kind, path)
  opener = config.lookup(KINDS, kind, "source")
  if not colon or not rest:
    raise config.ConfigError(f"source: {spec!r} names no data; write {kind}:NAME")
  source = opener(spec, rest, path)
  if len(source) == 0:
    raise DataError(f"{spec}: empty split")
  return source


def _check_kind(spec: str, kind: str, path: str) -> None:
  """Raises ConfigError for a file alone, in the folder of the data or the working directory."""
  there = lambda file: any(storage.exists(name) for name in (join(path, file), file))
  if kind not in KINDS and all(file and there(file) for file in spec.split(",")):
    parallel = "" if "," in spec else f", and of parallel texts text:{spec},FILE"
    raise config.ConfigError(f"source: {spec!r} lacks the kind of file that it is; write"
                             f" KIND:{spec}, such as text:{spec}{parallel}; kinds are:"
                             f" {', '.join(KINDS)}")


# Openers: (spec, what follows "KIND:" in it, path) -> Source

EMBEDDED: dict[str, Callable[[str, str], Source]] = {
    "instructions": instructions.instructions,
    "preferences": instructions.preferences,
    "number_words": number_words.number_words,
    "sentences": sentences.sentences,
    "pydocs": documents.pydocs_source,
    "digits": images.digits_source,
    "scenes": captions.scenes,
    "scattered": scattered.small,
}


def _open_text(spec: str, rest: str, path: str) -> Source:
  files, options = specs.options(spec, rest, "", ("rows", "columns"))
  return _taken(TextSource(spec, [join(path, f) for f in files.split(",")]), options)


def _taken(source: Source, options: specs.Options) -> Source:
  """The rows and columns of a source that are taken."""
  if options.rows is None and options.columns is None:
    return source
  return View(source, options.columns, options.rows)


def _of_rows(make: Callable[[str, str, specs.Options], Source],
             valid: tuple[str, ...] = ("rows", "columns")) -> Callable[[str, str, str], Source]:
  """The opener of a source whose examples are rows, of which some, and some columns, are taken."""
  def opener(spec: str, rest: str, path: str) -> Source:
    file, options = specs.options(spec, rest, path, valid)
    return _taken(make(spec, file, options), options)
  return opener


def _with_columns(make: Callable[[str, str, str], Source]) -> Callable[[str, str, str], Source]:
  """The opener of a source of which some columns are taken."""
  def opener(spec: str, rest: str, path: str) -> Source:
    rest, columns = specs.cut_columns(spec, rest)
    source = make(spec, rest, path)
    return source if columns is None else View(source, columns, None)
  return opener


def _open_conll(spec: str, rest: str, options: specs.Options) -> Source:
  file, colon, column = specs.split(rest)
  if colon and not (column.isdecimal() and int(column)):
    raise config.ConfigError(f"source: {spec!r} has the column {column!r} for its tags; valid are"
                             " 1, 2, ..., counted from 0, which has the words")
  return ConllSource(spec, file, int(column) if colon else None)


def _open_squad(spec: str, rest: str, path: str) -> Source:
  file, colon, part = specs.split(rest)
  return SquadSource(spec, join(path, file),
                     Part.parse(spec, part, "titles") if colon else None)


def _open_documents(spec: str, rest: str, path: str) -> Source:
  file, colon, part = specs.split(rest)
  what = "characters" if part.startswith("characters") else "folders"
  whole = "each file" if what == "characters" else ""
  parts = {what: Part.parse(spec, part, what, whole)} if colon else {}
  return FilesSource(spec, join(path, file), **parts)


def _open_blank_lines(spec: str, rest: str, path: str) -> Source:
  return BlankLinesSource(spec, join(path, rest))


def _open_images(spec: str, rest: str, path: str) -> Source:
  file, colon, part = specs.split(rest)
  return images.ImagesSource(spec, join(path, file),
                             Part.parse(spec, part, "each", "every class") if colon else None)


def _open_captions(spec: str, rest: str, path: str) -> Source:
  ending = os.path.splitext(specs.without_options(rest))[1].lower()
  more = ("delimiter", "header") if ending == ".csv" else ()
  file, options = specs.options(spec, rest, path, ("rows", "columns", *more))
  if ending not in TABLES:
    raise config.ConfigError(f"source: {spec!r} names {file}; it is a table in a file that ends in"
                             f" {', '.join(TABLES)}, beside the images that it lists")
  rows = captions.rows_of(TABLES[ending](spec, file, options), options.columns, options.rows)
  return captions.CaptionsSource(spec, rows, os.path.dirname(file))


def _open_coco(spec: str, file: str, options: specs.Options) -> Source:
  folder = os.path.dirname(file) if options.images is None else options.images
  return boxes.coco(spec, file, folder)


def _open_voc(spec: str, rest: str, path: str) -> Source:
  file, _, split = specs.split(rest)
  return voc(spec, join(path, file), split)


def _open_scattered(spec: str, rest: str, path: str) -> Source:
  file, colon, part = specs.split(rest)
  return scattered.of_file(spec, join(path, file),
                           Part.parse(spec, part, "rows") if colon else None)


def _open_npz(spec: str, rest: str, path: str) -> Source:
  file, colon, part = specs.split(rest)
  return images.NpzSource(spec, join(path, file),
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


# Tables of `captions`, by the endings of their files.
TABLES = {".tsv": lambda spec, file, options: TsvSource(spec, file, header=True),
          ".csv": CsvSource, ".jsonl": lambda spec, file, options: JsonlSource(spec, file)}

KINDS: dict[str, Callable[[str, str, str], Source]] = {
    "text": _open_text,
    "jsonl": _of_rows(lambda spec, file, options: JsonlSource(spec, file)),
    "csv": _of_rows(CsvSource, ("rows", "columns", "delimiter", "header")),
    "tsv": _of_rows(lambda spec, file, options: TsvSource(spec, file)),
    "table": _of_rows(lambda spec, file, options: TsvSource(spec, file, header=True)),
    "parquet": _of_rows(lambda spec, file, options: ParquetSource(spec, file, options.paths)),
    "arrow": _of_rows(lambda spec, file, options: ArrowSource(spec, file, options.paths)),
    "conll": _of_rows(_open_conll, ("rows",)),
    "conllu": _of_rows(lambda spec, file, options: ConlluSource(spec, file), ("rows",)),
    "squad": _with_columns(_open_squad),
    "documents": _open_documents,
    "blank_lines": _open_blank_lines,
    "images": _open_images,
    "captions": _open_captions,
    "wds": _of_rows(lambda spec, file, options: WebDatasetSource(spec, file), ("rows",)),
    "npz": _open_npz,
    "coco": _of_rows(_open_coco, ("rows", "images")),
    "voc": _open_voc,
    "boxes": _of_rows(lambda spec, file, options: boxes.json_lines(spec, file), ("rows",)),
    "scattered": _open_scattered,
    "prepared": _open_prepared,
    "tfds": _with_columns(_open_tfds),
    "embedded": _with_columns(_open_embedded),
}
