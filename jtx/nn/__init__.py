"""Layers. Each module imports only from those before it: masks, dropout, layers, encodings,
positions, relative, rope, grid_positions, kernels, attend, cache, attention, residual, block,
stack."""

from jtx.nn import relative, rope  # which name their encodings in `positions.POSITIONS`

__all__ = ["relative", "rope"]
