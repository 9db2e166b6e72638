"""Losses over what they depend on: distillation, focal loss, smoothed labels, preferences."""

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from docs.pictures.drawing import labels, lines
from jtx.figures.figure import COLUMN, PAGE, new_figure, styled
from jtx.models.patches import ImageConfig
from jtx.objectives.cross_entropy import cross_entropy
from jtx.objectives.distill_classes import TaughtClasses
from jtx.objectives.dpo import preference_loss
from jtx.objectives.imbalance import focal

TEACHER = (4.0, 2.0, 0.0, -1.0)  # its logits
LOGITS = np.linspace(-4, 12, 65)  # the student's, of the teacher's likeliest class
TEMPERATURES = (1.0, 2.0, 4.0)
GAMMAS = (0.0, 0.5, 1.0, 2.0, 5.0)
PROBABILITIES = np.linspace(0.01, 1, 67)
SMOOTHING, CLASSES = (0.0, 0.1, 0.2), 10
MARGINS = np.linspace(-20, 20, 49)
BETAS = (0.1, 0.3, 1.0)


class Fixed(nn.Module):
  """A classifier whose parameters are the scores of one image."""
  image: ImageConfig = ImageConfig(size=1, channels=1, mean=(0.5,), std=(0.5,))
  heads = frozenset({"classes"})

  @nn.compact
  def scores(self, batch, train=False):
    shape = len(batch["image"]), 1, len(TEACHER)
    return self.param("scores", nn.initializers.zeros, shape)

  def predict(self, batch, num_texts=1, train=False):
    return self.scores(batch)


def divergences() -> dict[float, np.ndarray]:
  """By temperature the soft loss against TEACHER for LOGITS; the other logits are the teacher's."""
  number = len(LOGITS)
  teacher = np.tile(np.float32(TEACHER), (number, 1))
  student = teacher.copy()
  student[:, 0] = LOGITS
  return {temperature: np.array([soft_loss(temperature, one, two)
                                 for one, two in zip(student, teacher)])
          for temperature in TEMPERATURES}


def soft_loss(temperature: float, student: np.ndarray, teacher: np.ndarray) -> float:
  """The term of `distill_classes` for one image, given the scores [C] of both."""
  objective = TaughtClasses(kind="soft", weight=1.0, temperature=temperature, model=Fixed())
  batch = {"image": jnp.zeros((1, 1, 1, 1), jnp.uint8), "real": jnp.ones((1, 1)),
           "label": jnp.zeros((1, 1), jnp.int32)}
  params = lambda scores: {"scores": jnp.asarray(scores)[None, None]}
  sums = objective(Fixed(), params(student), batch, train=False, teacher=params(teacher))
  return float(sums["taught_loss"][0])


@styled
def draw_distillation():
  figure = new_figure((COLUMN, 0.72 * COLUMN))
  axes = figure.subplots()
  lines(axes, LOGITS, {f"T = {t:g}": loss for t, loss in divergences().items()})
  axes.axvline(TEACHER[0], color="black", linewidth=0.6, linestyle=":")
  axes.text(TEACHER[0] - 0.2, 2.5, "the teacher's", fontsize=7, rotation=90, ha="right")
  labels(axes, "the student's logit of the likeliest class", "KL times T squared, in nats")
  axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.68, 1.02))
  return figure


def focal_losses() -> dict[float, np.ndarray]:
  """By gamma, the loss at PROBABILITIES of the right class."""
  return {gamma: np.asarray(focal(jnp.log(jnp.asarray(PROBABILITIES)), gamma))
          for gamma in GAMMAS}


def smoothed() -> dict[float, np.ndarray]:
  """By smoothing, the loss for LOGITS of the right one of CLASSES; all other logits are 0."""
  logits = np.zeros((len(LOGITS), CLASSES), np.float32)
  logits[:, 0] = LOGITS
  right = jnp.zeros(len(LOGITS), jnp.int32)
  return {share: np.asarray(cross_entropy(jnp.asarray(logits), right, share)[0])
          for share in SMOOTHING}


@styled
def draw_classes():
  figure = new_figure((PAGE, 0.36 * PAGE))
  left, right = figure.subplots(1, 2)
  lines(left, PROBABILITIES, {f"gamma = {g:g}": loss for g, loss in focal_losses().items()})
  labels(left, "probability of the right class", "loss, in nats", "focal loss")
  lines(right, LOGITS, {f"smoothing {s:g}": loss for s, loss in smoothed().items()})
  labels(right, "logit of the right one of 10 classes", "loss, in nats", "label smoothing")
  for axes in (left, right):
    axes.legend(frameon=False)
  return figure


def preferences() -> dict[str, dict[str, np.ndarray]]:
  """Losses at MARGINS, by panel and line."""
  loss = lambda *options: np.asarray(preference_loss(jnp.asarray(MARGINS), *options))
  return {
      "DPO": {f"beta = {beta:g}": loss("sigmoid", beta) for beta in BETAS},
      "cDPO, beta = 0.3": {f"{share:g} are wrong": loss("sigmoid", 0.3, share)
                           for share in (0.0, 0.1, 0.3)},
      "IPO": {f"beta = {beta:g}": loss("ipo", beta) for beta in BETAS},
  }


@styled
def draw_preferences():
  figure = new_figure((PAGE, 0.36 * PAGE))
  for number, (axes, (title, found)) in enumerate(zip(figure.subplots(1, 3),
                                                      preferences().items())):
    lines(axes, MARGINS, found)
    labels(axes, "margin, in nats", "" if number else "loss", title)
    axes.legend(frameon=False)
  return figure


FIGURES = {"distillation": draw_distillation, "class_losses": draw_classes,
           "preferences": draw_preferences}
