"""Transformers in JAX and Flax: layers, models, objectives and one train loop."""

import importlib
from typing import Any

__version__ = "0.1.0"

# What is for use from Python, and where it is: imported when asked for.
_EXPORTS = {
    "load_pretrained": "jtx.saved.pretrained",
    "load_tokenizer": "jtx.saved.pretrained",
    "save_pretrained": "jtx.saved.pretrained",
    "Classifier": "jtx.inference.texts",
    "Embedder": "jtx.inference.texts",
}
__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
  if name not in _EXPORTS:
    raise AttributeError(f"module 'jtx' has no attribute {name!r}")
  return getattr(importlib.import_module(_EXPORTS[name]), name)
