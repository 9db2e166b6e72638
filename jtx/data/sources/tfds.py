"""Sources of TFDS, prepared as ArrayRecord."""

import importlib
from typing import Any

from jtx.errors import DataError

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
