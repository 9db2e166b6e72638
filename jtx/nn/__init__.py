"""Layers. Each module imports only from those before it: masks, dropout, layers, encodings,
positions, relative, disentangled, transformer_xl, rope, grid_positions, grid_relative, recurrence,
kernels, attend, cache, apart, attention, residual, convolution, mbconv, block, stack."""

# Which name their encodings in `POSITIONS`.
from jtx.nn import disentangled, grid_relative, relative, rope, transformer_xl

__all__ = ["disentangled", "grid_relative", "relative", "rope", "transformer_xl"]
