"""Pictures of what a vision transformer does, drawn into the workdir."""

import dataclasses
from typing import Any, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from jtx.errors import ConfigError
from jtx.evals.task import Task
from jtx.figures.attention import attention_rollout
from jtx.figures.images import grid_similarity, looked_at, reconstructions
from jtx.models.two_towers import of_images
from jtx.models.vit import Vit
from jtx.nn.grid_positions import LearnedGrid
from jtx.objectives.mae import Mae
from jtx.parallel import processes
from jtx.ranges import CountOrNone, Size


@dataclasses.dataclass(frozen=True)
class Pictures:
  """Attention, similarity of positions, and for MAE the reconstruction of masked patches.

  Attention is rolled out from [CLS], or the mean of all tokens where there is none.
  """
  source: tuple[str, ...]  # the split: sources, as data.train has them; the first images are drawn
  number: Size = 6  # images
  every: CountOrNone = 0  # steps; 0 is at the end only

  heads = frozenset()  # of the model
  keys = ("image",)  # of a batch

  def __call__(self, task: Task, params: Any) -> Iterator[tuple[str, Any]]:
    batch = next(iter(task.data.eval_batches(self.source, self.number, range(self.number))))
    images = batch["image"].reshape(-1, *batch["image"].shape[-3:])  # a row may have several
    images = images[batch["real"].reshape(-1) > 0][:self.number]
    with processes.alone(params) as params:
      figures = dict(self.draw(task.model, task.objective, params, images))
    yield from figures.items()

  def draw(self, model: Any, objective: Any, params: Any,
           images: np.ndarray) -> Iterator[tuple[str, Any]]:
    model, params = of_images(model, params)
    yield "attention", attention(model, params, images)
    if isinstance(model.stack.position, LearnedGrid) and model.stack.position_at == "stem":
      table = np.asarray(params["position_embedding"])[-model.grid.height * model.grid.width:]
      yield "positions", grid_similarity(table, model.grid[:2])
    if isinstance(objective, Mae):
      yield "reconstruction", reconstruction(model, params, images)


def attention(model: Any, params: Any, images: np.ndarray) -> Any:
  """A figure of images [B, H, W, C], bytes, and their attention."""
  return looked_at(images / 255, rolled_out(model, params, images))


def rolled_out(model: Any, params: Any, images: np.ndarray) -> np.ndarray:
  """Attention rolled out over the places of images, [B, h, w] of [B, H, W, C] bytes.

  Raises:
    ConfigError: the layers are not all of the same places.
  """
  model, params = of_images(model, params)
  if not isinstance(model, Vit):
    better = ("; what its queries attend to is drawn by the evaluator 'detection' with pictures"
              if "boxes" in model.heads else "")
    raise ConfigError("the attention of an image is rolled out over the layers of a Vit, and this"
                      f" model is a {type(model).__name__}{better}")
  weights = model.apply({"params": params}, {"image": jnp.asarray(images)},
                        method="attention_weights")["encoder"]
  rolled = attention_rollout(weights)  # [B, T, T]
  grid = model.grid
  of = rolled[:, 0] if model.prefix.cls else rolled.mean(1)
  return of[:, grid.prefix:].reshape(-1, grid.height, grid.width)


def reconstruction(model: Any, params: Any, images: np.ndarray) -> Any:
  """A figure of images [B, H, W, C], bytes, and what MAE makes of a part of their patches."""
  return reconstructions(images / 255, *reconstructed(model, params, images))


def reconstructed(model: Any, params: Any, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Which pixels are hidden, [B, H, W], and what MAE predicts, [B, H, W, C] from 0 to 1.

  Where it predicts patches of mean 0 and variance 1, the true ones are put back.

  Args:
    model: with a decoder.
    params: its parameters.
    images: [B, H, W, C] bytes, to hide patches of, the same ones every time.
  """
  batch = {"image": jnp.asarray(images)}
  noise = jax.random.uniform(jax.random.key(0), (len(images), model.grid.height * model.grid.width))
  predicted, hidden = model.apply({"params": params}, batch, noise, method="reconstruct")
  if model.decoder.normalize:
    pixels = model.apply({"params": params}, batch, method="pixels")
    predicted = predicted * jnp.sqrt(pixels.var(-1, keepdims=True, ddof=1) + 1e-6) + pixels.mean(
        -1, keepdims=True)
  size, channels = model.patch_size, model.image.channels
  mean, std = (np.array(x) for x in (model.image.mean, model.image.std))
  where = jnp.broadcast_to(hidden[..., None], (*hidden.shape, size * size))
  return (np.asarray(join(where, size, 1)[..., 0]),
          np.asarray(join(predicted, size, channels)) * std + mean)


def join(patches: jax.Array, size: int, channels: int) -> jax.Array:
  """Values of patches [B, N, size * size * C] as a square image [B, H, W, C]."""
  B, N, _ = patches.shape
  side = round(N**0.5)
  x = patches.reshape(B, side, side, size, size, channels).swapaxes(2, 3)
  return x.reshape(B, side * size, side * size, channels)
