"""Transformers in JAX and Flax: layers, models, objectives and one train loop."""

__version__ = "0.1.0"
