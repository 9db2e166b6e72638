"""Layers. Each module imports only from those before it: masks, dropout, layers, encodings, rope,
positions, grid_positions, kernels, attend, cache, attention, block, stack."""
