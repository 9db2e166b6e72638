"""Pictures of measurements, whose numbers are in files beside this one."""

import json
import pathlib

from jtx.figures.curves import Line
from jtx.figures.scaling import scaling

COMPLEXITY = pathlib.Path(__file__).parent / "complexity.json"


def complexity():
  """Of `python -m benchmarks.run --suite=complexity`, whose last line the file is."""
  told = json.loads(COMPLEXITY.read_text("utf-8"))
  panels = {}
  for over, axis, other in (("length", "n", "d"), ("width", "d", "n")):
    points = [p for p in told["points"] if p["over"] == over]
    title = (f"tokens, at a width of {points[0][other]}" if over == "length"
             else f"width, at {points[0][other]} tokens")
    kinds = dict.fromkeys(p["layer"] for p in points)
    panels[title] = {kind: Line([p[axis] for p in points if p["layer"] == kind],
                                [1e3 * p["seconds"] for p in points if p["layer"] == kind])
                     for kind in kinds}
  return scaling(panels, "milliseconds of a layer")


FIGURES = {"complexity": complexity}
