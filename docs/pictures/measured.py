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
    panels[title] = lines(points, axis)
  return scaling(panels, "milliseconds of a layer")


def long_texts():
  """Of the same file."""
  points = json.loads(COMPLEXITY.read_text("utf-8"))["long_texts"]["points"]
  return scaling({f"tokens, at a width of {points[0]['d']}": lines(points, "n")},
                 "milliseconds of a layer's gradient")


def lines(points: list[dict], axis: str) -> dict[str, Line]:
  """Milliseconds by what an axis is, a line for each kind of layer."""
  of = lambda kind: [p for p in points if p["layer"] == kind]
  return {kind: Line([p[axis] for p in of(kind)], [1e3 * p["seconds"] for p in of(kind)])
          for kind in dict.fromkeys(p["layer"] for p in points)}


FIGURES = {"complexity": complexity, "long_texts": long_texts}
