"""Images: patches and MAE's mask, RandAugment, mixup and CutMix."""

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

from docs.pictures.drawing import picture
from jtx.data.ops.augment import RandAugment
from jtx.data.ops.image import Resize
from jtx.data.sources.images import Digits
from jtx.figures.figure import PAGE, new_figure, styled
from jtx.models.mae_decoder import DecoderConfig
from jtx.models.patches import ImageConfig, split
from jtx.models.vit import GridStackConfig, Vit
from jtx.nn.attention import AttentionConfig
from jtx.nn.block import BlockConfig
from jtx.objectives.mixing import mixed

SIZE, PATCH = 32, 4  # pixels
NUMBERS = (0, 1, 2, 6, 8)  # of digits of the training split, no two alike
DRAWS = 5


def digits() -> np.ndarray:
  """[B, SIZE, SIZE, 1] bytes: handwritten digits, made larger."""
  source, resize = Digits("train"), Resize(size=SIZE, interpolation="bicubic")
  images = [resize.apply(Image.fromarray(source[i]["image"]), None) for i in NUMBERS]
  return np.stack([np.asarray(image) for image in images])[..., None]


def patches() -> np.ndarray:
  """[n, PATCH, PATCH]: the patches of the first digit, row by row."""
  return np.asarray(split(digits()[:1], PATCH))[0, ..., 0]


def seen() -> np.ndarray:
  """[n / side, n / side] bool: the patches that MAE's encoder sees of an image."""
  block = BlockConfig(attention=AttentionConfig(num_heads=1))
  model = Vit(image=ImageConfig(size=SIZE, channels=1, mean=(0.5,), std=(0.5,)), patch_size=PATCH,
              stack=GridStackConfig(width=4, num_layers=1, block=block),
              decoder=DecoderConfig(num_layers=1, width=4, num_heads=1, ffn_dim=4))
  side = SIZE // PATCH
  noise = jax.random.uniform(jax.random.key(0), (1, side * side))
  batch = {"image": jnp.asarray(digits()[:1])}
  (_, hidden), _ = jax.jit(lambda: model.init_with_output(
      jax.random.key(0), batch, noise, method="reconstruct"))()
  return np.asarray(hidden).reshape(side, side) == 0


def show(axes, image: np.ndarray, title: str = "") -> None:
  picture(axes, image, cmap="gray", vmin=0, vmax=255)
  axes.set_axis_off()
  axes.set_title(title, parse_math=False, pad=3, fontsize=7)


@styled
def draw_patches():
  figure = new_figure((PAGE, 0.34 * PAGE))
  parts = figure.subfigures(1, 3)
  show(parts[0].subplots(), digits()[0, ..., 0], f"{SIZE} x {SIZE} pixels")
  side = SIZE // PATCH
  shown = seen()
  for part, kept, title in ((parts[1], np.ones_like(shown), f"{side * side} patches"),
                            (parts[2], shown, f"the {shown.sum()} that MAE's encoder sees")):
    part.suptitle(title, fontsize=7)
    tiles = np.where(kept.reshape(-1, 1, 1), patches(), 200)
    gaps = np.full((side, side, PATCH + 1, PATCH + 1), 255, np.uint8)
    gaps[:, :, :PATCH, :PATCH] = tiles.reshape(side, side, PATCH, PATCH)
    show(part.subplots(), gaps.swapaxes(1, 2).reshape(side * (PATCH + 1), -1))
  return figure


def augmented() -> np.ndarray:
  """[DRAWS, SIZE, SIZE]: the first digit, changed by operations that are drawn."""
  image, generator = Image.fromarray(digits()[0, ..., 0]), np.random.default_rng(0)
  return np.stack([np.asarray(RandAugment().apply(image, generator)) for _ in range(DRAWS)])


def mixtures(**alphas: float) -> tuple[np.ndarray, np.ndarray]:
  """Images [B, SIZE, SIZE] mixed with the one before them, and their share of the result."""
  images, shares = mixed(jax.random.key(3), jnp.asarray(digits(), jnp.float32),
                         jnp.ones(len(NUMBERS)), **alphas)
  return np.asarray(images)[..., 0], np.asarray(shares)


@styled
def draw_augmentation():
  figure = new_figure((PAGE, 0.62 * PAGE))
  grid = figure.subplots(3, DRAWS)
  for axes, image in zip(grid[0], augmented()):
    show(axes, image)
  source = Digits("train")
  names = [str(source[i]["label"]) for i in NUMBERS]
  for row, alphas in enumerate((dict(mixup=0.8, cutmix=0.0), dict(mixup=0.0, cutmix=1.0)), 1):
    found = mixtures(**alphas)
    for number, (axes, image, share) in enumerate(zip(grid[row], *found)):
      show(axes, image, f"{share:.0%} {names[number]}, {1 - share:.0%} {names[number - 1]}")
  for axes, name in zip(grid[:, 0], ("RandAugment", "mixup", "CutMix")):
    axes.text(-0.12, 0.5, name, transform=axes.transAxes, rotation=90, va="center", ha="right")
  return figure


FIGURES = {"patches": draw_patches, "augmentation": draw_augmentation}
