"""Layers. Each module imports only from those before it: masks, dropout, layers, encodings,
positions, relative, disentangled, rope, grid_positions, kernels, attend, cache, apart,
attention, residual, convolution, block, stack."""

from jtx.nn import disentangled, relative, rope  # which name their encodings in `POSITIONS`

__all__ = ["disentangled", "relative", "rope"]
