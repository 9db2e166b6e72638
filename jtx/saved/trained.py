"""Trained models of folders with what predictions of texts need: tokenizer, labels, lengths."""

from typing import Any, Callable, Sequence

from absl import logging
import numpy as np

from jtx.config import ConfigDict
from jtx.data import recipes
from jtx.data.dataset import Dataset
from jtx.data.inputs import Reader
from jtx.data.op import TOKENIZER
from jtx.data.ops.captions import Caption
from jtx.inference import texts
from jtx.inference.predictions import check_counts
from jtx.inference.tasks import Input, Trained
from jtx.interop.export import LONGEST
from jtx.nn.rope import Rope
from jtx.saved.folder import Run, Saved, Workdir

MAX_LENGTH = 256  # tokens, of a model that is not known to be trained with fewer or more


def trained(saved: Saved, model: Any, params: Any, max_length: int | None = None,
            batch_size: int = 64) -> Trained:
  """A model of texts that is ready for `jtx.inference.tasks.predict`.

  Args:
    saved: its folder.
    model: as `saved.load` gave it.
    params: likewise.
    max_length: tokens that a text is cut to; None is what the run was trained with, or MAX_LENGTH.
    batch_size: texts at a time.

  Raises:
    ConfigError: the tokenizer is not of the model's size, or a number can't be.
    DataError: there is none.
  """
  check_counts(max_length=max_length, batch_size=batch_size)
  found = lengths(saved) if max_length is None else {"max_length": max_length}
  found["max_length"] = texts.longest(model, found.get("max_length", MAX_LENGTH))
  warn_of_length(saved, model, found["max_length"], "texts")
  if isinstance(saved, Workdir) and saved.texts is not None:
    found["no_answer"] = saved.texts.get("no_answer")
  return Trained(model, params, saved.tokenizer_for(model), saved.labels() or (),
                 batch_size=batch_size, **found)


def lengths(saved: Saved) -> dict[str, int]:
  """The lengths of texts in tokens that a run was trained with, or that another folder tells."""
  if not isinstance(saved, Run):
    told = saved.originals().max_length
    return {} if told is None else {"max_length": told}
  rows = [length for _, length, _ in saved.config.phases]
  return saved.data.lengths | ({"max_length": max(rows)} if rows else {})


def told_length(saved: Saved, model: Any) -> int | None:
  """Tokens of texts that a model with rotary positions is for; None where its folder tells none.

  These positions have no end, so nothing refuses longer texts.
  """
  positions = (stack.position for stack in model.stacks.values())
  rope = next((position for position in positions if isinstance(position, Rope)), None)
  if rope is None or isinstance(saved, Run):
    return None
  config = saved.originals().config
  told = config[LONGEST] if LONGEST in config else None
  if not isinstance(told, int):
    return None
  # Files of scaled positions have the length before or behind it here.
  before = getattr(rope.scaling, "original_length", told)
  return max(told, int(before * getattr(rope.scaling, "factor", 1)))


def warn_of_length(saved: Saved, model: Any, length: int, what: str) -> None:
  """Warns where a model may get more tokens than its folder says that it is for.

  Args:
    saved: the folder.
    model: of it, or with its layers.
    length: tokens.
    what: has so many.
  """
  told = told_length(saved, model)
  if told is not None and length > told:
    logging.warning("%s: %s may have %d tokens, and by %s in its config.json the model is for %d:"
                    " rotary positions take more, but it was not trained with them",
                    saved.directory, what, length, LONGEST, told)


def caption_encoder(saved: Saved, model: Any) -> Callable[[str], np.ndarray]:
  """A function from a text to its tokens, as two towers were trained with them.

  Raises:
    ConfigError: the tokenizer is not of the model's size.
    DataError: there is none.
  """
  if isinstance(saved, Run):
    return saved.data.recipe.maker.encode
  tokenizer = saved.tokenizer_for(model)
  return Caption(length=model.longest or MAX_LENGTH).bind({TOKENIZER: tokenizer}).encode


def reader(saved: Saved) -> Reader | None:
  """How inputs are read as a run's own data is; None of another folder, and of runs of images."""
  return reader_of(saved.config, saved.data) if isinstance(saved, Run) else None


def warn_of_changes(saved: Saved) -> None:
  """Warns where a run's ops change texts before they become tokens, which no copy of it does."""
  if (found := reader(saved)) is not None and found.changes:
    logging.warning("%s changes texts before they become tokens (%s), which what is written of it"
                    " does not: give that texts that are changed so", saved.directory,
                    ", ".join(found.changes))


class Cleaner:
  """Makes inputs as a run's data are before they become tokens; those of others stay as they are.

  Args:
    saved: the folder of the model.
  """

  def __init__(self, saved: Saved):
    self._reader = reader(saved)

  def __call__(self, inputs: Sequence[Input]) -> list[Input]:
    return [x if self._reader is None else self._reader.cleaned(x) for x in inputs]

  def columns(self, **texts: Sequence[str] | None) -> list[list[str]]:
    """The same of lists of texts by the names of inputs, such as `text`; None is left out."""
    given = {name: x for name, x in texts.items() if x is not None}
    found = self([dict(zip(given, row)) for row in zip(*given.values(), strict=True)])
    return [[x[name] for x in found] for name in given]


def reader_of(config: ConfigDict, data: Dataset) -> Reader | None:
  """The same of a run's config and data."""
  maker = recipes.maker_of(data.ops)
  if maker is None or not maker.inputs:
    return None
  evaluated = (source for e in config.evals.values() if "source" in e for source in e.source)
  return Reader([*config.data.train, *evaluated], data.ops)
