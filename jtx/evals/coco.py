"""Average precision and recall of boxes by COCO's rules, in float64.

Lin et al. 2014 and the rules of COCO's detection challenge: detections of a class are matched with
true boxes of an image by IoU, best score first; AP is the mean over IoU thresholds 0.5 to 0.95 of
the precision at 101 recalls, and AR that of the recall which so many detections an image reach.

Letters: D detections, G true boxes, T thresholds, R recalls, K classes, A ranges of areas, and M
numbers of detections.
"""

import dataclasses
from typing import NamedTuple, Sequence

import numpy as np

THRESHOLDS = np.linspace(0.5, 0.95, 10)  # of IoU
RECALLS = np.linspace(0, 1, 101)
MOST = (1, 10, 100)  # detections of an image and class, those with the best scores
AREAS = {"all": (0, 1e10), "small": (0, 32**2), "medium": (32**2, 96**2), "large": (96**2, 1e10)}


class Detections(NamedTuple):
  """What a model says of an image."""
  boxes: np.ndarray  # [D, 4]: left, top, right, bottom in pixels
  scores: np.ndarray  # [D]
  classes: np.ndarray  # [D], numbers


class Truth(NamedTuple):
  """What is in an image."""
  boxes: np.ndarray  # [G, 4]: left, top, right, bottom in pixels
  classes: np.ndarray  # [G], numbers
  areas: np.ndarray  # [G], pixels of the objects
  crowd: np.ndarray  # [G], bool: around many objects


class Matches(NamedTuple):
  """The detections of an image and class, best first, and how they were matched."""
  scores: np.ndarray  # [D]
  matched: np.ndarray  # bool [A, T, D]: with a true box
  ignored: np.ndarray  # bool [A, T, D]: neither right nor wrong
  wanted: np.ndarray  # [A]: true boxes that count


@dataclasses.dataclass(frozen=True)
class Curves:
  """Precision and recall of each class; NaN where no true box counts.

  Attributes:
    precision: [T, R, K, A], at `RECALLS`, of the largest number of detections.
    recall: [T, K, A, M], the highest that is reached.
    names: of the K classes.
  """
  precision: np.ndarray
  recall: np.ndarray
  names: Sequence[str]

  def ap(self, area: str = "all", threshold: float | None = None,
         number: int | None = None) -> float:
    """Average precision; NaN where it is not defined.

    Args:
      area: of `AREAS`.
      threshold: of `THRESHOLDS`; None is the mean over all.
      number: of a class; None is the mean over those that are there.
    """
    values = self.precision[..., list(AREAS).index(area)]
    if threshold is not None:
      values = values[np.abs(THRESHOLDS - threshold) < 1e-9]
    return mean(values if number is None else values[:, :, number])

  def ar(self, area: str = "all", most: int = MOST[-1], number: int | None = None) -> float:
    """Average recall, of up to `most` detections; otherwise as `ap`."""
    values = self.recall[:, :, list(AREAS).index(area), MOST.index(most)]
    return mean(values if number is None else values[:, number])

  def summary(self) -> dict[str, float]:
    """The twelve numbers that COCO has; NaN where one is not defined."""
    sizes = [area for area in AREAS if area != "all"]
    return {"ap": self.ap(), "ap50": self.ap(threshold=0.5), "ap75": self.ap(threshold=0.75),
            **{f"ap_{area}": self.ap(area) for area in sizes},
            **{f"ar{most}": self.ar(most=most) for most in MOST},
            **{f"ar_{area}": self.ar(area) for area in sizes}}

  def at(self, threshold: float = 0.5) -> np.ndarray:
    """Precision [R, K] at `RECALLS`, for boxes of all areas, by one threshold of `THRESHOLDS`."""
    place, = np.flatnonzero(np.abs(THRESHOLDS - threshold) < 1e-9)
    return self.precision[place, :, :, 0]


def mean(values: np.ndarray) -> float:
  """Of what is not NaN; NaN where all is."""
  values = values[~np.isnan(values)]
  return float(values.mean()) if values.size else float("nan")


def iou(boxes: np.ndarray, others: np.ndarray, crowd: np.ndarray) -> np.ndarray:
  """Intersection over union [D, G]; over the area of the detection, where the other is a crowd.

  Args:
    boxes: [D, 4].
    others: [G, 4].
    crowd: bool [G].
  """
  low = np.maximum(boxes[:, None, :2], others[None, :, :2])
  high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
  both = np.maximum(high - low, 0).prod(-1)
  own, their = ((x[:, 2:] - x[:, :2]).prod(-1) for x in (boxes, others))
  whole = np.where(crowd, own[:, None], own[:, None] + their - both)
  return np.divide(both, whole, out=np.zeros_like(both), where=whole > 0)


def matches(found: Detections, truth: Truth) -> Matches:
  """Matches the detections of an image and one class with its true boxes.

  A detection takes the free true box of the largest IoU that reaches the threshold; only where none
  that counts does, one that does not count: a crowd, which many may have, or a box of an area out
  of the range. It is ignored then, and so is one without a match of an area out of the range.
  """
  order = np.argsort(-found.scores, kind="stable")[:MOST[-1]]
  boxes = found.boxes[order]
  areas = (boxes[:, 2:] - boxes[:, :2]).prod(-1)
  overlaps = iou(boxes, truth.boxes, truth.crowd)
  shape = len(AREAS), len(THRESHOLDS), len(boxes)
  matched, ignored, wanted = np.zeros(shape, bool), np.zeros(shape, bool), np.zeros(len(AREAS), int)
  for a, (least, most) in enumerate(AREAS.values()):
    counts = ~truth.crowd & (least <= truth.areas) & (truth.areas <= most)  # [G]
    wanted[a] = counts.sum()
    free = np.ones((len(THRESHOLDS), len(counts)), bool)
    outside = (areas < least) | (areas > most)
    for d in range(len(boxes)):
      fits = free & (overlaps[d] >= THRESHOLDS[:, None])  # [T, G]
      best = np.where(fits & counts, overlaps[d], -1.0)
      second = np.where(fits & ~counts, overlaps[d], -1.0)
      use = np.where((best >= 0).any(1, keepdims=True), best, second)
      there = (use >= 0).any(1)  # [T]
      matched[a, :, d] = there
      if not len(counts):
        ignored[a, :, d] = outside[d]
        continue
      # Of boxes with the same IoU the last one.
      choice = len(counts) - 1 - use[:, ::-1].argmax(1)
      ignored[a, :, d] = np.where(there, ~counts[choice], outside[d])
      taken = np.flatnonzero(there & ~truth.crowd[choice])
      free[taken, choice[taken]] = False
  return Matches(found.scores[order], matched, ignored, wanted)


def curves(found: Sequence[Detections], truths: Sequence[Truth], names: Sequence[str]) -> Curves:
  """Precision and recall over images.

  Args:
    found: of each image.
    truths: of each image.
    names: of the K classes.
  """
  shape = len(THRESHOLDS), len(names), len(AREAS)
  precision = np.full((len(THRESHOLDS), len(RECALLS), *shape[1:]), np.nan)
  recall = np.full((*shape, len(MOST)), np.nan)
  for number in range(len(names)):
    own = []
    for detections, truth in zip(found, truths):
      which, those = detections.classes == number, truth.classes == number
      if which.any() or those.any():
        own.append(matches(Detections(*(x[which] for x in map(np.asarray, detections))),
                           Truth(*(x[those] for x in map(np.asarray, truth)))))
    for a in range(len(AREAS)):
      wanted = sum(m.wanted[a] for m in own)
      for m, most in enumerate(MOST) if wanted else ():
        values, recall[:, number, a, m] = of_class(own, a, most, int(wanted))
        precision[:, :, number, a] = values  # in the end that of the largest number
  return Curves(precision, recall, tuple(names))


def of_class(images: Sequence[Matches], area: int, most: int,
             wanted: int) -> tuple[np.ndarray, np.ndarray]:
  """Precision [T, R] at `RECALLS`, and the highest recall [T], of one class.

  Args:
    images: its matches.
    area: of which range.
    most: detections of an image.
    wanted: true boxes that count, one at least.
  """
  order = np.argsort(-np.concatenate([m.scores[:most] for m in images]), kind="stable")
  joined = lambda arrays: np.concatenate([x[area, :, :most] for x in arrays], 1)[:, order]
  matched, ignored = joined([m.matched for m in images]), joined([m.ignored for m in images])
  right, wrong = (np.cumsum(x, 1, dtype=np.float64) for x in (
      matched & ~ignored, ~matched & ~ignored))
  if not len(order):
    return np.zeros((len(THRESHOLDS), len(RECALLS))), np.zeros(len(THRESHOLDS))
  recall = right / wanted
  # With the smallest number that changes 1, as where nothing but ignored ones came before.
  precision = right / (right + wrong + np.spacing(1))
  highest = np.maximum.accumulate(precision[:, ::-1], 1)[:, ::-1]  # from this recall on
  at = np.stack([np.searchsorted(row, RECALLS, side="left") for row in recall])
  padded = np.concatenate([highest, np.zeros((len(highest), 1))], 1)  # 0 where it is not reached
  return np.take_along_axis(padded, at, 1), recall[:, -1]
