"""Kernels: of attention, among which `jtx.nn.attend` chooses, of positions, of groups of rows."""
