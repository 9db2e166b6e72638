"""Draws the pictures of docs/gallery.md by jtx's own functions, into docs/gallery/.

  python docs/gallery.py                 all
  python docs/gallery.py rope schedules  these
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import matplotlib

from docs.pictures import (
    boxes, functions, images, losses, measured, patterns, positions, sizes, texts,
    trained)
from jtx.figures.figure import save_figure

FOLDER = ROOT / "docs" / "gallery"
FIGURES = (patterns.FIGURES | positions.FIGURES | functions.FIGURES | texts.FIGURES
           | losses.FIGURES | images.FIGURES | boxes.FIGURES | trained.FIGURES | sizes.FIGURES
           | measured.FIGURES)


def save(name: str, folder: pathlib.Path = FOLDER) -> None:
  """Writes a picture as SVG; the same picture gives the same bytes."""
  # Else pictures of pixels would be drawn again at the resolution of the page.
  with matplotlib.rc_context({"image.composite_image": False}):
    save_figure(FIGURES[name](), path := folder / f"{name}.svg")
  path.write_text(shortened(path.read_text("utf-8")), "utf-8")


def shortened(svg: str) -> str:
  """The same SVG in fewer bytes: places in hundredths of a point, short names, no indents."""
  in_hundredths = lambda match: f"{round(float(match[0]), 2) + 0.0:.2f}".rstrip("0").rstrip(".")
  svg = re.sub(r'(?<= [dxy]=")[^"]*|(?<=translate\()[^)]*', lambda places: re.sub(
      r"-?\d+\.\d{3,}", in_hundredths, places[0]), re.sub(r"\n +(?=<)", "\n", svg))
  svg = svg.replace("DejaVuSansMono-", "m").replace("DejaVuSans-", "s")  # ids of letters
  return re.sub(r'(?<=") transform="translate\(([\d.]+) 0\)"(?=/>)', r' x="\1"', svg)


def main(names: list[str]) -> None:
  if unknown := [name for name in names if name not in FIGURES]:
    sys.exit(f"no picture is named {unknown[0]!r}; there are {', '.join(FIGURES)}")
  for name in names or FIGURES:
    save(name)


if __name__ == "__main__":
  main(sys.argv[1:])
