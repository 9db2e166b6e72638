"""Images with boxes around objects, their classes and scores."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jtx.figures.figure import PAGE, clip, new_figure, styled

if TYPE_CHECKING:
  from matplotlib.figure import Figure


class Drawn(NamedTuple):
  """A box of an image: left, top, width and height in its pixels."""
  label: str
  box: Sequence[float]
  score: float | None = None  # from 0 to 1
  true: bool = False  # of the data, and not found: its line is dashed


@styled
def boxed(images: Sequence[Any], boxes: Sequence[Sequence[Drawn]], names: Sequence[str] = (),
          titles: Sequence[str] = (), most: int = 3, maps: Sequence[Any] = ()) -> "Figure":
  """Images side by side, with their boxes; a class has the same colour in all of them.

  Args:
    images: each [h, w], [h, w, 1] or [h, w, 3], bytes or numbers from 0 to 1, of any size.
    boxes: of each image.
    names: of the classes in order, which tell the colours; () is that of their labels.
    titles: of the images.
    most: images in a row of the figure.
    maps: numbers [h, w] that lie over the images, such as attention; None, or () for all, is none.

  Raises:
    ValueError: there is no image, or another number of lists of boxes, or of maps.
  """
  if not len(images) or len(images) != len(boxes) or len(maps) not in (0, len(images)):
    raise ValueError(f"{len(images)} images, {len(boxes)} lists of boxes and {len(maps)} maps")
  names = list(names) or sorted({x.label for row in boxes for x in row})
  across = min(most, len(images))
  down = -(-len(images) // across)
  side = PAGE / across
  tallest = max(np.shape(image)[0] / np.shape(image)[1] for image in images)
  figure = new_figure((PAGE, down * clip(side * tallest, 0.8, 9) + 0.2 * bool(titles)))
  grid = figure.subplots(down, across, squeeze=False).flat
  for place, axes in enumerate(grid):
    axes.set_axis_off()
    if place < len(images):
      _draw(axes, images[place], boxes[place], names, maps[place] if len(maps) else None)
      axes.set_title(titles[place] if titles else "", parse_math=False)
  return figure


def _draw(axes: Any, image: Any, boxes: Sequence[Drawn], names: Sequence[str],
          over: Any = None) -> None:
  from matplotlib.patches import Rectangle
  image = np.asarray(image)
  image = np.clip(image / 255 if image.dtype == np.uint8 else image.astype(np.float32), 0, 1)
  image = image[..., 0] if image.ndim == 3 and image.shape[-1] == 1 else image
  height, width = image.shape[:2]
  # Pixel (0, 0) is from 0 to 1, as boxes count.
  axes.imshow(image, cmap="gray", vmin=0, vmax=1, interpolation="nearest",
              extent=(0, width, height, 0))
  if over is not None:
    axes.imshow(over, cmap="inferno", alpha=0.6, interpolation="nearest",
                extent=(0, width, height, 0))
  for x in boxes:
    left, top, *sides = x.box
    colour = f"C{names.index(x.label) % 10}" if x.label in names else "C7"
    axes.add_patch(Rectangle((left, top), *sides, fill=False, edgecolor=colour,
                             linewidth=0.8 if x.true else 1.2, linestyle=":" if x.true else "-"))
    if not x.true:
      score = "" if x.score is None else f" {x.score:.2f}"
      inside = top < 0.05 * height  # where above the box there is no place
      axes.text(left, top, x.label + score, fontsize=5, color="white",
                va="top" if inside else "bottom", ha="left", parse_math=False, clip_on=True,
                bbox={"facecolor": colour, "edgecolor": "none", "pad": 0.6, "alpha": 0.8})
  axes.set_xlim(0, width)
  axes.set_ylim(height, 0)
