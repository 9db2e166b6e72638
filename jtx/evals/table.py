"""A table of an evaluation: printed as text, and kept in results.json."""

from typing import Mapping, NamedTuple, Sequence

MOST = 40  # rows or columns that are printed


class Table(NamedTuple):
  """Values by the names of rows and columns."""
  columns: tuple[str, ...]
  rows: Mapping[str, Sequence[float]]

  def plain(self) -> dict[str, dict[str, float]]:
    """row -> column -> value."""
    return {name: dict(zip(self.columns, values)) for name, values in self.rows.items()}

  def lines(self) -> list[str]:
    """The table as text, or what it is too large for."""
    if max(len(self.rows), len(self.columns)) > MOST:
      return [f"({len(self.rows)} rows and {len(self.columns)} columns: see results.json)"]
    told = lambda value: str(value) if isinstance(value, int) else f"{value:.4f}"
    grid = [("", *self.columns)]
    grid += [(name, *map(told, values)) for name, values in self.rows.items()]
    widths = [max(map(len, column)) for column in zip(*grid)]
    align = lambda row: [row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]
    return ["  ".join(align(row)).rstrip() for row in grid]
