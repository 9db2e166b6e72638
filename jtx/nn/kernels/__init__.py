"""Kernels of attention, one a file; `jtx.nn.attend` chooses among them."""
