"""A mask of tokens that are near, or a multiple of the window away."""

import dataclasses

from jtx.nn.masks import CAUSAL, FULL, KINDS, Kind, Mask, window


@dataclasses.dataclass(frozen=True)
class Strided(Mask):
  """Keys whose distance is a multiple of the stride (Child et al. 2019, section 4.2)."""
  stride: int

  def __call__(self, q, k, rows):
    return (q - k) % self.stride == 0


KINDS["strided"] = Kind(
    lambda causal, width: (CAUSAL if causal else FULL) & (window(width, width) | Strided(width)),
    windowed=True)
