"""Trained models of folders with what predictions of texts need: tokenizer, labels, lengths."""

from typing import Any, Callable

import numpy as np

from jtx.config import ConfigDict
from jtx.data import recipes
from jtx.data.dataset import Dataset
from jtx.data.inputs import Reader
from jtx.data.op import TOKENIZER
from jtx.data.ops.captions import Caption
from jtx.inference import texts
from jtx.inference.tasks import Trained
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
    ConfigError: the tokenizer is not of the model's size.
    DataError: there is none.
  """
  found = lengths(saved) if max_length is None else {"max_length": max_length}
  found["max_length"] = texts.longest(model, found.get("max_length", MAX_LENGTH))
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


def reader_of(config: ConfigDict, data: Dataset) -> Reader | None:
  """The same of a run's config and data."""
  maker = recipes.maker_of(data.ops)
  if maker is None or not maker.inputs:
    return None
  evaluated = (source for e in config.evals.values() if "source" in e for source in e.source)
  return Reader([*config.data.train, *evaluated], data.ops)
