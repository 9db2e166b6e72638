"""Positions added at each attention (DETR, appendix A.4): sinusoids, or a model's own vectors."""

import dataclasses

from jtx.nn.positions import POSITIONS, Position, Sinusoidal


@dataclasses.dataclass(frozen=True)
class Attached(Sinusoidal):
  """Sinusoids added to the inputs of queries and keys in every layer (DETR, appendix A.4)."""
  cross: bool = False  # in cross-attention, too

  @property
  def embeds(self):
    return False

  @property
  def crosses(self):
    return self.cross

  def embed(self, x, places, params):
    return x

  def add(self, x, places, params):
    return Sinusoidal.embed(self, x, places, params)


@dataclasses.dataclass(frozen=True)
class Given(Position):
  """The vectors of places are added to the inputs of queries and keys, and not of values.

  A model binds its stacks to them; no config names them. Places without vectors have no position.
  """
  cross: bool = False  # in cross-attention, too: of queries their own vectors, of keys the memory's

  @property
  def crosses(self):
    return self.cross

  def add(self, x, places, params):
    return x if places.vectors is None else x + places.vectors.astype(x.dtype)


POSITIONS["attached"] = Attached
