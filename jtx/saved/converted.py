"""Writing a workdir without a run: a model, its parameters and its tokenizers."""

import os
from typing import Any, Mapping, Sequence

import jax

from jtx import imports
from jtx.config import ConfigDict, section_of
from jtx.data.ops.registry import OPS
from jtx.data.tokenizers import files as tokenizer_files
from jtx.data.tokenizers.tokenizer import Tokenizer
from jtx.interop import configs, files, originals, preprocessor
from jtx.interop.originals import Originals
from jtx.saved import workdir
from jtx.saved.checkpoint import Checkpointer


def save(directory: str, model: Any, params: Any, tokenizers: Mapping[str, Tokenizer],
         labels: Sequence[str] | None, image_ops: Sequence[Any] | None,
         original: Originals = Originals()) -> None:
  """Writes config.json with the model's section, the tokenizers, originals, and checkpoints/0."""
  content = ConfigDict({"model": configs.model_section(model), "imports": tuple(imports.found_in)})
  content.labels = None if labels is None else tuple(labels)
  if image_ops is not None:
    content.image_ops = tuple(
        section_of(OPS, op) for op in preprocessor.evaluated(image_ops, model.image))
  if original.speaking is not None and model.heads & {"lm", "seq2seq", "span"}:
    content.texts = original.speaking
  texts = {field: tokenizer.to_json() for field, tokenizer in tokenizers.items()}
  with files.NewDirectory(directory) as path:
    workdir.write_config(content, path)
    originals.keep_in(path, original)
    if texts:
      tokenizer_files.save_tokenizers(texts, path)
    checkpoints = Checkpointer(os.path.join(path, "checkpoints"))
    checkpoints.save(0, {"params": jax.device_put(params)},
                     {"tokenizers": texts, "labels": content.labels, "cursor": [0, 0]})
    checkpoints.close()
