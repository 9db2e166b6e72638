"""Transformers in JAX and Flax: layers, models, objectives and one train loop."""

import importlib
from typing import Any

__version__ = "0.1.0"

# Of jtx.api, which is imported when one of them is asked for: it takes seconds.
__all__ = ("Answerer", "Classifier", "Detector", "Embedder", "FillMask", "Generator", "Tagger",
           "Translator", "attention", "load_pretrained", "load_tokenizer", "push_to_hub",
           "save_pretrained")


def __getattr__(name: str) -> Any:
  if name not in __all__:
    raise AttributeError(f"module 'jtx' has no attribute {name!r}")
  return getattr(importlib.import_module("jtx.api"), name)
