"""Attention patterns: the masks of kinds of layers, on rows of 16 tokens."""

import numpy as np

from docs.pictures.drawing import BLUE, ORANGE, squares
from jtx.figures.figure import COLUMN, PAGE, new_figure, styled
from jtx.interop import configs, huggingface
from jtx.interop.presets import ENCODERS
from jtx.nn.kinds import kind_mask
from jtx.nn.masks import CAUSAL, FULL, Mask, Rows, materialize

TOKENS, WINDOW, PREFIX = 16, 3, 5
GLOBAL = (0, 9)  # places of the global tokens
SEGMENTS = np.repeat([1, 2, 3, 0], [6, 5, 4, 1])  # three texts of a row, and padding
LAYERS = 6


def rows() -> Rows:
  """The flags of one row of tokens."""
  places = np.arange(TOKENS)[None]
  flags = {"global": np.isin(places, GLOBAL), "prefix": places < PREFIX}
  return Rows(q_flags=flags, k_flags=flags)


def allowed(mask: Mask, of: Rows) -> np.ndarray:
  """[T, S] bool: whether a query sees a key."""
  found = materialize(mask, TOKENS, TOKENS, of)
  return np.broadcast_to(True if found is None else np.asarray(found),
                         (1, 1, TOKENS, TOKENS))[0, 0]


def patterns() -> dict[str, np.ndarray]:
  """[T, S] bool of each kind, and of rows that hold several texts, by title."""
  kind = lambda name, causal: allowed(
      kind_mask(name, causal=causal, window=WINDOW), rows())
  packed = Rows(q_segments=SEGMENTS[None], k_segments=SEGMENTS[None])
  return {
      "global": kind("global", False),
      "global, causal": kind("global", True),
      "local": kind("local", False),
      "local, causal": kind("local", True),
      "global_tokens": kind("global_tokens", False),
      "prefix": kind("prefix", True),
      "packed texts": allowed(FULL, packed),
      "packed texts, causal": allowed(CAUSAL, packed),
  }


def layers(preset: str = "modernbert_base") -> dict[str, np.ndarray]:
  """[T, S] bool of a published model's first layers, with a window that fits into the row."""
  family = huggingface.identify(ENCODERS[preset], preset).family
  fields = huggingface.fields_for(ENCODERS[preset], {"mlm"}, preset)
  pattern = configs.make_model(family, fields).stack.pattern
  kinds = [pattern[layer % len(pattern)] for layer in range(LAYERS)]
  return {f"layer {layer + 1}: {kind}":
          allowed(kind_mask(kind, causal=False, window=WINDOW), rows())
          for layer, kind in enumerate(kinds)}


def draw(grids: dict[str, np.ndarray], colours: dict[str, str], size: tuple[float, float],
         across: int):
  figure = new_figure(size)
  axes = figure.subplots(-(-len(grids) // across), across, squeeze=False)
  for place, (title, cells) in zip(axes.flat, grids.items()):
    squares(place, [(cells, colours.get(title, BLUE))])
    place.set_title(title, pad=3)
  figure.supxlabel("key (what is seen)")
  figure.supylabel("query (what sees)")
  return figure


@styled
def draw_patterns():
  return draw(patterns(), {}, (PAGE, 0.55 * PAGE), across=4)


@styled
def draw_layers():
  grids = layers()
  colours = {title: ORANGE for title in grids if title.endswith("local")}
  return draw(grids, colours, (COLUMN, 0.8 * COLUMN), across=3)


FIGURES = {"attention_patterns": draw_patterns, "alternating_layers": draw_layers}
