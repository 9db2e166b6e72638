"""Parameters of published models, and the operations of a forward pass."""

import math
from typing import Any, Mapping

import jax
import jax.numpy as jnp

from docs.pictures.drawing import BLUE, GREEN, ORANGE, PINK, labels, plain
from jtx.data.ops.spans import span_lengths
from jtx.figures.figure import PAGE, new_figure, styled
from jtx.interop import configs, huggingface
from jtx.interop.presets import DECODERS, ENCDECS, ENCODERS
from jtx.nn.kernels.counted import counted
from jtx.parallel.sharding import unbox
from jtx.train.flops import count

TOKENS = 512  # of a text; of T5's inputs, whose targets are as long as its rows have them
HEADS = {"BERT": "mlm", "GPT": "lm", "T5": "seq2seq", "ViT": "classes"}
COLOURS = {"BERT": BLUE, "GPT": ORANGE, "T5": GREEN, "ViT": PINK}
OFFSETS = {("BERT", "large"): (-6, -2), ("BERT", "base"): (-6, -2), ("GPT", "2 medium"): (-3, 7),
           ("T5", "small"): (1, 5), ("T5", "3b"): (4, -9)}  # else names cover each other
MARKERS = {"BERT": "o", "GPT": "s", "T5": "^", "ViT": "D"}


def published() -> dict[str, dict[str, Mapping[str, Any]]]:
  """The content of config.json by family and size."""
  chosen = lambda presets, prefix, names: {
      name.replace("_", " "): presets[f"{prefix}{name}"] for name in names}
  vit = {f"{size}/{patch}": {"architecture": f"vit_{size}_patch{patch}_224"} for size, patch in (
      ("tiny", 16), ("small", 16), ("base", 32), ("base", 16), ("large", 16), ("huge", 14))}
  return {
      "BERT": chosen(ENCODERS, "bert_", ("tiny", "mini", "small", "medium", "base", "large")),
      "GPT": {"2": DECODERS["gpt2"], **chosen(DECODERS, "gpt", (
          "2_medium", "2_large", "2_xl", "3_2.7b", "3_6.7b"))},
      "T5": chosen(ENCDECS, "t5_", ("small", "base", "large", "3b", "11b")),
      "ViT": vit,
  }


def logits(model: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
  """The scores that a model is trained by."""
  if "classes" in model.heads:
    return model.predict(batch)
  return (model.mlm_logits if "mlm" in model.heads else model.logits)(model(batch))


def size(config: Mapping[str, Any], head: str) -> tuple[int, float]:
  """Parameters, and operations of a forward pass over a text or an image, by its shapes alone."""
  family = huggingface.identify(config, "config.json").family
  model = configs.make_model(family, huggingface.fields_for(config, {head}))
  example = model.example()
  params = unbox(jax.eval_shape(model.init, jax.random.key(0), example)["params"])
  lengths = {"tgt": span_lengths(TOKENS)[1]}
  batch = {key: x if key == "image" else jnp.ones(
      (1, lengths.get(key.split("_")[0], TOKENS)), jnp.int32) for key, x in example.items()}
  with counted():
    operations = count(lambda p, b: model.apply({"params": p}, b, method=logits), params, batch)
  return sum(math.prod(x.shape) for x in jax.tree.leaves(params)), operations


def sizes() -> dict[str, dict[str, tuple[int, float]]]:
  """Of all published ones, by family and size."""
  return {family: {name: size(config, HEADS[family]) for name, config in models.items()}
          for family, models in published().items()}


@styled
def draw_sizes():
  figure = new_figure((PAGE, 0.6 * PAGE))
  axes = figure.subplots()
  for family, models in sizes().items():
    xs, ys = zip(*models.values())
    axes.plot(xs, ys, color=COLOURS[family], marker=MARKERS[family], markersize=4, label=family,
              linestyle="")
    for name, place in models.items():
      x, y = OFFSETS.get((family, name), (4, -9) if family == "ViT" else (-3, 5))
      axes.annotate(name, place, (x, y), textcoords="offset points", fontsize=6,
                    ha="left" if x > 0 else "right")
  axes.set(xscale="log", yscale="log")
  labels(axes, "parameters", "floating-point operations of a forward pass")
  plain(axes)
  axes.legend(frameon=False)
  return figure


FIGURES = {"sizes": draw_sizes}
