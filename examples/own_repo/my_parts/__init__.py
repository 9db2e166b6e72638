"""My position encoding, mask, objective and score; each file adds its name to a table of jtx."""

from my_parts import mask, metric, objective, position  # noqa: F401
