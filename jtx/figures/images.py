"""Figures of images: attention over them, similar positions of a grid, and reconstructions."""

from typing import TYPE_CHECKING, Any, Sequence

import numpy as np

from jtx.figures.figure import COLUMN, SIGNED_COLOURS, as_array, new_figure, styled

if TYPE_CHECKING:
  from matplotlib.figure import Figure


@styled
def looked_at(images: Any, maps: Any, titles: Sequence[str] = ()) -> "Figure":
  """Images, and beside each where attention lies.

  Args:
    images: [B, H, W, C] with values from 0 to 1.
    maps: [B, h, w], a number a patch.
    titles: of the images.

  Raises:
    ValueError: there are not as many images as maps.
  """
  images, maps = _images(images), np.asarray(maps, np.float32)
  if len(images) != len(maps) or not len(images):
    raise ValueError(f"{len(images)} images and {len(maps)} maps")
  figure = new_figure((COLUMN, 0.5 * COLUMN * len(images)))
  grid = figure.subplots(len(images), 2, squeeze=False)
  for row, (image, values) in enumerate(zip(images, maps)):
    _show(grid[row, 0], image, titles[row] if titles else "")
    _show(grid[row, 1], image)
    height, width = image.shape[:2]
    grid[row, 1].imshow(values, cmap="inferno", alpha=0.6, extent=(-0.5, width - 0.5, height - 0.5,
                                                                   -0.5))
  return figure


@styled
def grid_similarity(table: Any, shape: tuple[int, int], most: int = 8) -> "Figure":
  """For patches spread over the image, the cosine of their position with all (ViT, figure 7).

  Args:
    table: positions [h * w, D], row by row.
    shape: (h, w).
    most: patches shown, in each direction.

  Raises:
    ValueError: the table is not of that shape.
  """
  table = as_array(table, 2)
  if len(table) != shape[0] * shape[1]:
    raise ValueError(f"a table of {len(table)} positions is no grid of {shape[0]} x {shape[1]}")
  unit = table / np.maximum(np.linalg.norm(table, axis=-1, keepdims=True), 1e-12)
  cosine = (unit @ unit.T).reshape(*shape, *shape)
  rows, columns = (np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(int))
                   for n in shape)
  figure = new_figure((0.9 * len(columns) + 1.2, 0.9 * len(rows) + 0.6))
  grid = figure.subplots(len(rows), len(columns), squeeze=False)
  for axes, (i, j) in zip(grid.flat, np.ndindex(len(rows), len(columns))):
    image = axes.imshow(cosine[rows[i], columns[j]], vmin=-1, vmax=1, cmap=SIGNED_COLOURS)
    axes.set_axis_off()
  figure.colorbar(image, ax=grid, label="cosine similarity", shrink=0.8)
  return figure


@styled
def reconstructions(images: Any, hidden: Any, predicted: Any) -> "Figure":
  """Images, what the encoder sees of them, and what the decoder makes of that.

  Args:
    images: [B, H, W, C] with values from 0 to 1.
    hidden: bool or 0 and 1 [B, H, W], where pixels were hidden.
    predicted: [B, H, W, C], of which the hidden pixels are shown.
  """
  images, predicted = _images(images), _images(predicted)
  hidden = np.asarray(hidden, bool)[..., None]
  figure = new_figure((COLUMN, COLUMN / 3 * len(images) + 0.3))
  grid = figure.subplots(len(images), 3, squeeze=False)
  titles = ("image", "seen", "reconstructed")
  for row, parts in enumerate(zip(images, np.where(hidden, 0.5, images),
                                  np.where(hidden, predicted, images))):
    for axes, part, title in zip(grid[row], parts, titles):
      _show(axes, part, title if row == 0 else "")
  return figure


def _images(values: Any) -> np.ndarray:
  values = np.clip(np.asarray(values, np.float32), 0, 1)
  if values.ndim != 4:
    raise ValueError(f"expected images [B, H, W, C], got shape {values.shape}")
  return values


def _show(axes: Any, image: np.ndarray, title: str = "") -> None:
  if image.shape[-1] == 3:
    axes.imshow(image, interpolation="nearest")
  else:
    axes.imshow(image[..., 0], cmap="gray", vmin=0, vmax=1, interpolation="nearest")
  axes.set_axis_off()
  axes.set_title(title, parse_math=False)
