"""Layers. Each module imports only from those before it:
masks, positions, layers, attention, block, stack."""
