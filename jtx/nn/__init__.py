"""Layers. Each module imports only from those before it: masks, kinds, dropout, layers, encodings,
positions, attached, relative, disentangled, transformer_xl, rope, grid_positions, grid_kinds,
recurrence, kernels, attend, cache, apart, global_queries, attention, residual, convolution, mbconv,
block, stack, mask_decoder, characters, recurrent, additive."""

# Which name their encodings in `POSITIONS`.
from jtx.nn import attached, disentangled, grid_kinds, relative, rope, transformer_xl

__all__ = ["attached", "disentangled", "grid_kinds", "relative", "rope", "transformer_xl"]
