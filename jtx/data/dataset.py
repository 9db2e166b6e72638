"""The dataset of a config: tokenizers, training batches and splits for evaluation."""

import dataclasses
import functools
import json
import os
from typing import Any, Iterator, Mapping, Sequence

from absl import logging
import numpy as np

from jtx.config import ConfigDict, build
from jtx.data import order, pipeline, prepared, recipes
from jtx.data.corpus import files, reader
from jtx.data.example import place, placed
from jtx.data.lazy import LazyExamples
from jtx.data.op import ExampleOp
from jtx.data.sources.fingerprints import IMAGES, SAMPLES, of_listed
from jtx.data.sources.registry import Source, open_source
from jtx.data.tokenizers.delimited import delimited
from jtx.data.tokenizers.files import TOKENIZER_FILE, from_json, load_tokenizers
from jtx.data.tokenizers.kinds import TOKENIZERS
from jtx.data.tokenizers.tokenizer import Tokenizer
from jtx.errors import ConfigError, DataError

FEW = 4  # examples of a split that are prepared before training, to see that they can be


class Dataset:
  """Data and tokenizers of a run.

  Args:
    data: the config's `data` section.
    tokenizer: the config's `tokenizer` section.
    saved: tokenizers as `tokenizer_texts` gave them, from a checkpoint or workdir; without
      them they are trained on the training sources, or are those that these were prepared with.
    labels: `labels` of a checkpoint; without them, an op whose names are unset takes them
      from the training sources.
    shares: `shares` of a checkpoint; without them the training data is counted, if ever asked.
  """

  def __init__(self, data: ConfigDict, tokenizer: ConfigDict,
               saved: Mapping[str, str] | None = None, labels: Sequence[str] | None = None,
               shares: Sequence[float] | None = None):
    self.data = data
    self.shares = shares and tuple(shares)  # of `label_shares`, once it was asked for
    self.folders = reader.folders(data.train, data.path)  # of prepared training sources
    self._opened = functools.lru_cache(None)(self._open)
    self.known_splits = functools.lru_cache(None)(self._known_splits)
    self._warned: set[str] = set()  # paths of broken images
    recipe = recipes.build_ops(data.ops)
    if recipe.augment and self.folders:
      raise ConfigError(f"data.train={tuple(data.train)}: a prepared source holds tokens, and"
                        " data.ops work on images")
    self.ops, maker = recipe.prepare, recipe.maker
    self.fields = maker.tokenizer_fields if maker else ()  # none of images without texts
    self.ops = [self._with_names(op, labels, recipes.text_ops(self.ops[:i]))
                for i, op in enumerate(self.ops)]
    augment = [self._with_names(op, labels, ()) for op in recipe.augment]
    recipe = recipe._replace(prepare=self.ops, augment=augment)
    self.tokenizers = self._tokenizers(tokenizer, saved, [*self.ops, *augment]
                                       ) if self.fields else {}
    self.recipe = recipe.bind(self.tokenizers)

  def _tokenizers(self, config: ConfigDict, saved: Mapping[str, str] | None,
                  ops: Sequence[Any]) -> dict[str, Tokenizer]:
    if saved is None and self.folders:
      saved = self._prepared_tokenizers(config)
    if saved is None:
      return self._train_tokenizers(config, ops)
    unique = {text: from_json(text) for text in set(saved.values())}
    return {field: unique[text] for field, text in saved.items()}

  def _with_names(self, op: Any, labels: Sequence[str] | None, before: Sequence[Any]) -> Any:
    """An op with the names that it lacks; of the ops `before` it those that need no tokenizer."""
    if not op.named or op.names:
      return op
    if labels is None and self.folders:
      labels = files.read_manifest(self.folders[0])["labels"]
    if labels is None:
      sources = self._opened if op.of_images else self.sources
      labels = op.collect_names(sources(tuple(self.data.train)), before)
    return dataclasses.replace(op, names=tuple(labels))

  def _prepared_tokenizers(self, config: ConfigDict) -> dict[str, str]:
    """The tokenizers that the training sources were prepared with.

    Raises:
      ConfigError: the config asks for others.
      DataError: they are missing or damaged.
    """
    folder = self.folders[0]
    manifest, texts = files.read_manifest(folder), load_tokenizers(folder)
    file = os.path.join(folder, TOKENIZER_FILE)
    if texts is None:
      raise DataError(f"{file}: does not exist; {files.AGAIN}")
    if files.digest_of_tokenizers(texts) != manifest["tokenizer_sha256"]:
      raise DataError(f"{file}: is not what the corpus was prepared with; restore it, or prepare"
                      " the corpus again, into another folder")
    keys = ({"tokenizer": files.tokenizer_key(section)}
            for section in (manifest["tokenizer"], json.loads(config.to_json())))
    found = files.difference(*keys)
    if not found and config.kind.name == "file":
      # Texts stay as they were prepared; older corpora have ends that a model's folder is without.
      content = lambda text: {**json.loads(text), "ends": None}
      own = content(make_tokenizer(config, iter(())).to_json())
      if any(content(text) != own for text in texts.values()):
        found = f"{config.kind.path} is none that it was prepared with"
    if found:
      raise ConfigError(f"{folder}: was prepared with another tokenizer: {found}; leave the"
                        " config's as it was, or prepare the corpus again, into another folder")
    return texts

  def _train_tokenizers(self, config: ConfigDict, ops: Sequence[Any]) -> dict[str, Tokenizer]:
    sources = self.sources(self.data.train)
    groups = [self.fields] if config.shared else [(f,) for f in self.fields]
    result = {}
    for fields in groups:
      text = prepared.texts(sources, ops, fields)
      result |= dict.fromkeys(fields, make_tokenizer(config, text))
    for field, tokenizer in result.items():
      logging.info("tokenizer of %s: %s, %d tokens", field, config.kind.name, tokenizer.vocab_size)
    return result

  def tokenizer_texts(self) -> dict[str, str]:
    return {field: t.to_json() for field, t in self.tokenizers.items()}

  @property
  def info(self) -> dict[str, int]:
    """Keys that the model and the objective leave unset, since they follow from the data."""
    info = {}
    if self.fields:
      source, target = (self.tokenizers[f] for f in (self.fields[0], self.fields[-1]))
      info |= {"vocab_size": target.vocab_size, "src_vocab_size": source.vocab_size,
               "bos_id": target.bos_id, "globals.separator": target.eos_id}
      if getattr(self.recipe.form or self.recipe.maker, "start_role", "bos") == "eos":
        info["bos_id"] = target.eos_id
    if labels := self.labels:
      info[self.recipe.namer.names_key] = len(labels)
    return info | recipes.model_keys(self.ops, self.recipe.layout)

  @property
  def around(self) -> tuple[bool, bool]:
    """Whether a begin token stands before a text, and an end token behind it."""
    form, maker = self.recipe.form, self.recipe.maker
    if form is not None and "tgt" in form.columns:  # pairs, around whose texts the form has tokens
      return form.begin, True
    return getattr(maker, "begin", False), getattr(maker, "end", True)

  @property
  def labels(self) -> tuple[str, ...]:
    """The names of classes or tags, where an op has them."""
    return self.recipe.names or ()

  def label_shares(self) -> tuple[float, ...]:
    """The share of the training examples that has each class or label.

    Raises:
      ConfigError: they have none.
    """
    if self.shares is None:
      columns, prepared = self.recipe.prepared_columns(), self.prepared_train
      if not self.labels or "label" not in columns:
        raise ConfigError("config.objective: weights that are 'balanced' need classes or labels,"
                          " and data.ops make none")
      if isinstance(prepared, LazyExamples):
        decode = self.recipe.augment[0]
        rows = [decode.label_of(label, "an image") for label in prepared.labels()]
      else:
        rows = [prepared.example(i)["label"] for i in range(len(prepared))]
      found = np.stack(rows)
      if not columns["label"].shape:
        found = found[:, None] == np.arange(len(self.labels))
      self.shares = tuple(found.mean(0, dtype=np.float64).tolist())
    return self.shares

  @property
  def lengths(self) -> dict[str, int]:
    """`max_length` of a text, in tokens; of windows `stride` and `max_question`, too."""
    maker = recipes.maker_of(self.ops)
    keys = ("max_length", "stride", "max_question")
    return {"max_length": max(self.recipe.layout.lengths)} | {
        key: getattr(maker, key) for key in keys if hasattr(maker, key)}

  def sources(self, specs: Sequence[str]) -> list[Source]:
    if not specs:
      raise ConfigError("data.train: no source is named")
    return [open_source(spec, self.data.path) for spec in specs]

  def _open(self, specs: tuple[str, ...]) -> list[Source]:
    """`sources`, for keeping them: of images they are small, and slow to list."""
    return self.sources(specs)

  def examples(self, specs: Sequence[str], limit: int = 0) -> list[dict[str, Any]]:
    """The cleaned text of a split: `limit` examples spread over it, or all for 0."""
    examples = self.after(recipes.text_ops(self.ops), specs)
    return spread(examples, limit) if limit else examples

  def encoded(self, specs: Sequence[str]) -> list[dict[str, Any]]:
    """A split after all ops: what the model takes, and what an evaluator reads beside it.

    An image that can't be decoded is left out.
    """
    if not self.recipe.augment:
      return self.after(self.ops, specs)
    images = self.prepare(specs)
    examples = images.after_ops(range(len(images)), None)
    images.tally.finish()
    return examples

  def after(self, ops: Sequence[Any], specs: Sequence[str]) -> list[dict[str, Any]]:
    examples, first = [], 0
    for source in self.sources(specs):
      own = [source[i] | {"id": first + i} for i in range(len(source))]
      with placed(source, first):
        for op in ops:
          own = op(own, self.tokenizers)
      examples += own
      first += len(source)
    if not examples:
      raise DataError(f"{', '.join(specs)}: no example is left after data.ops")
    return examples

  def check(self, specs: Sequence[str]) -> None:
    """Opens a split and prepares a few of its examples; of texts all labels are looked at.

    Raises:
      DataError: it can't be used.
    """
    if self.recipe.augment:
      images, layout = self.prepare(specs), self.recipe.layout
      few, numbers = images, spread(range(len(images)), FEW)
      if layout.by_size:
        few, numbers = images.sized(np.array(numbers), None), range(len(numbers))
      if not few.after_ops(numbers, None, layout.fit(None)):
        images.tally.finish()
      return
    labels = [op for op in self.ops if type(op).misfit is not ExampleOp.misfit]
    for source in self.sources(specs):
      examples = [source[i] | {"id": i} for i in spread(range(len(source)), FEW)]
      with placed(source):
        for op in self.ops:
          examples = op(examples, self.tokenizers)
      for i in range(len(source)) if labels else ():
        example = source[i]
        for reason in filter(None, (op.misfit(example) for op in labels)):
          where = place(source, i)
          raise DataError(f"{where}{f': example {i}' * (where == source.name)}: {reason}")

  @functools.cached_property
  def prepared_train(self) -> prepared.Prepared | reader.PreparedFiles | LazyExamples:
    if not self.folders:
      return self.prepare(self.data.train)
    ops = recipes.build_ops(self.data.ops).prepare
    for folder in self.folders:
      reader.check(folder, ops, self.labels, self.tokenizer_texts())
    return reader.PreparedFiles(self.folders, self.recipe.prepared_columns(),
                                self.recipe.prepared_fields(), self.recipe.row_limits())

  @functools.cached_property
  def known_by(self) -> list[dict[str, Any]]:
    """What the training data is known again by, wherever it lies: an object a source."""
    prepared = self.prepared_train
    return [{"examples": int(size), "digest": digest}
            for size, digest in zip(prepared.sizes, prepared.digests, strict=True)]

  def _known_splits(self, splits: tuple[tuple[str, ...], ...]) -> dict[str, dict[str, Any]]:
    """`known_by` of the sources of splits to evaluate on, by their specs."""
    opened = self._opened if self.recipe.augment else self.sources
    samples = IMAGES if self.recipe.augment else SAMPLES
    return {spec: {"examples": len(source), "digest": of_listed(source, samples)}
            for specs in splits for spec, source in zip(specs, opened(specs), strict=True)}

  def num_train_rows(self) -> int:
    """Rows of an epoch's plan; packed together all at once, and not a window at a time."""
    prepared = self.prepared_train
    if self.recipe.augment and self.recipe.layout.max_segments == 1:
      return len(prepared)
    window = pipeline.planned(self.recipe, prepared, np.arange(len(prepared)),
                              order.rng(0, "form", 0))
    return len(window.rows)

  def train_stream(self, seed: int, batch_size: int, rows: Sequence[int],
                   cursor: tuple[int, int] = (0, 0), length: int | None = None) -> pipeline.Stream:
    """Training batches.

    Args:
      seed: of all that is drawn.
      batch_size: rows of a global batch.
      rows: of a batch, that this process reads.
      cursor: where a stream of the same data stood.
      length: tokens of a row; None is what the layout says.

    Raises:
      ConfigError: examples may be longer than `length`, or are images.
    """
    prepared, recipe = self.prepared_train, self.recipe.with_length(length)
    if self.recipe.augment:
      self.check(self.data.train)
    counts = order.mixture_sizes(prepared.sizes, self.data.weights, self.data.smoothing,
                                 self.data.size_limit)
    return pipeline.Stream(prepared, recipe, seed=seed, batch_size=batch_size, counts=counts,
                           window=self.data.window, rows=rows, cursor=cursor)

  def example_batch(self, batch_size: int, length: int | None = None) -> dict[str, np.ndarray]:
    """A global batch of padding, which has the shapes and dtypes of all of that `length`."""
    return pipeline.example_batch(self.recipe.with_length(length), batch_size)

  def clean(self, texts: Sequence[str]) -> list[str]:
    """Source texts as training saw them, before tokenising."""
    return recipes.cleaned(recipes.line_ops(self.ops), self.fields, texts)

  def prepare(self, specs: Sequence[str]) -> prepared.Prepared | LazyExamples:
    if self.recipe.augment:
      return prepared.lazy(self._opened(tuple(specs)), self.recipe, self._warned)
    return prepared.prepare(self.sources(specs), self.recipe, self.tokenizers)

  def classified(self, specs: Sequence[str]) -> tuple[recipes.Recipe, LazyExamples]:
    """Images with the classes of their sources and without texts, whatever training has.

    Returns:
      The recipe of their batches, whose `names` are the classes, and the examples.
    """
    sources = self._opened(tuple(specs))
    decode, *others = (op for op in self.recipe.augment if not op.tokenizer_fields)
    decode = dataclasses.replace(decode, labelled=True, names=(), multi_label=False)
    decode = dataclasses.replace(decode, names=decode.collect_names(sources, ()))
    layout = others.pop().alone()
    recipe = self.recipe._replace(augment=[decode, *others, layout], layout=layout)
    return recipe, prepared.lazy(sources, recipe, self._warned)

  def eval_batches(self, specs: Sequence[str], batch_size: int, rows: Sequence[int],
                   length: int | None = None) -> Iterator[pipeline.Batch]:
    """The batches of a split; arguments are as for `train_stream`."""
    recipe = self.recipe.with_length(length)
    return pipeline.eval_batches(self.prepare(specs), recipe, batch_size, rows,
                                 threads=self.data.threads if self.recipe.augment else 0)


def make_tokenizer(config: ConfigDict, texts: Iterator[str]) -> Tokenizer:
  """The tokenizer of a config's `tokenizer` section, trained on texts where its kind is."""
  made = build(TOKENIZERS, config.kind, texts, what="tokenizer.kind")
  return delimited(made, config.delimiters)


def spread(items: Sequence[Any], number: int) -> list[Any]:
  """Up to `number` of the items at equal distances, in order."""
  places = np.linspace(0, len(items), min(number, len(items)), endpoint=False)
  return [items[int(i)] for i in places]
