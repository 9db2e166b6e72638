"""Costs of a layer by its kind: table 1 of Vaswani et al. 2017, for numbers."""

import math
from typing import NamedTuple

from jtx.errors import ConfigError


class Cost(NamedTuple):
  """A row of the table, of one layer over one sequence, without constant factors."""
  operations: int  # "complexity per layer": multiplications, of the mixing of places
  sequential: int  # operations that wait for one another
  path: int  # the longest way, in layers or steps, between two places


def costs(n: int, d: int, k: int, r: int) -> dict[str, Cost]:
  """Costs by the kind of a layer.

  Convolutions reach all places by dilation, each layer k times as many as the one below; contiguous
  ones would take n / k layers (section 4). Paths are whole numbers of layers.

  Args:
    n: tokens of the sequence.
    d: width.
    k: places that a convolution's kernel has; 2 or more.
    r: places around its own that restricted self-attention sees.

  Raises:
    ConfigError: a number is out of range.
  """
  for name, value, least in (("n", n, 1), ("d", d, 1), ("k", k, 2), ("r", r, 1)):
    if value < least:
      raise ConfigError(f"costs of layers: {name}={value} must be {least} or more")
  layers, reach = 0, 1
  while reach < n:
    layers, reach = layers + 1, reach * k
  return {
      "self-attention": Cost(n * n * d, 1, 1),
      "recurrent": Cost(n * d * d, n, n),
      "convolutional": Cost(k * n * d * d, 1, layers),
      "separable convolutional": Cost(k * n * d + n * d * d, 1, layers),
      "restricted self-attention": Cost(r * n * d, 1, math.ceil(n / r)),
  }
