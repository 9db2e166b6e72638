"""Detection on a split of images: COCO's average precision and recall of boxes."""

import dataclasses
import math
from typing import Any, Iterator, Mapping, NamedTuple, Sequence

from absl import logging
import jax
import jax.numpy as jnp
import numpy as np

from jtx.evals import coco
from jtx.evals.table import Table
from jtx.evals.task import Record, Task
from jtx.figures.boxes import Drawn, boxed
from jtx.figures.curves import curve
from jtx.inference.boxes import KEYS, Queries, corners, detect, objects, with_sides
from jtx.parallel import processes
from jtx.ranges import CountOrNone, Share

TRUE = ("boxes", "box_classes", "box_areas", "crowd", "original_size")  # keys of a batch
LINES = 10  # classes of which the curves are drawn, the first


class Split(NamedTuple):
  """The images of a split by their numbers: what a model says of them, and what is true."""
  ids: list[int]  # numbers of the images
  queries: list[Queries]  # of each image
  truths: list[coco.Truth]
  sizes: list[np.ndarray]  # height and width of each file, [2]
  pictures: list[dict[str, np.ndarray]]  # batches of one, `KEYS`, of the first images


@dataclasses.dataclass(frozen=True)
class Detection:
  """Boxes and classes of all queries are scored, each by the probability of its likeliest class.

  `ap` is the mean of average precision over IoUs of 0.5 to 0.95 and over classes, `ap50` and `ap75`
  are those of one IoU, `ap_small`, `ap_medium` and `ap_large` of objects of up to 32², up to 96²
  and more pixels of the file; `ar1`, `ar10` and `ar100` are recalls of so many detections an image.
  What is not defined, since no object is of the size, is left out.
  """
  source: tuple[str, ...]  # the split: sources, as data.train has them
  every: CountOrNone = 0  # steps; 0 is at the end only
  report: bool = False  # a table of the classes, and their curves of precision over recall
  # Images that are drawn with their boxes, those found and the true ones; where there are any, the
  # first also with what each query attends to.
  pictures: CountOrNone = 0
  threshold: Share = 0.5  # the least score of what is drawn

  heads = frozenset({"boxes"})  # of the model
  keys = (*KEYS, *TRUE)  # of a batch

  def __call__(self, task: Task, params: Any) -> Iterator[tuple[str, Any]]:
    split = detected(task, params, self.source, self.pictures)
    names = task.data.labels
    found = [coco.Detections(corners(q.boxes, size), q.scores, q.classes)
             for q, size in zip(split.queries, split.sizes)]
    curves = coco.curves(found, split.truths, names)
    for name, value in curves.summary().items():
      if math.isfinite(value):
        yield name, value
    yield "examples", len(split.truths)
    if not any(len(truth.boxes) for truth in split.truths):
      logging.warning("%s: no image has a box, so nothing is scored", ", ".join(self.source))
    if self.report:
      yield from reported(curves, split.truths)
    if split.pictures:
      pictures = [shown(task.data.recipe.layout, batch) for batch in split.pictures]
      yield "boxes", self.drawn(pictures, split, names)
      if hasattr(task.model, "attention_weights"):
        with processes.alone(params) as params:
          found = attended(task.model, params, split.pictures[0], names, self.threshold)
        if found:
          yield "queries", drawn_queries(pictures[0], found, names)
    yield "predictions", records(split, names)

  def drawn(self, pictures: Sequence[np.ndarray], split: Split, names: Sequence[str]) -> Any:
    """A figure of images with the boxes that were found, and dashed those that are true."""
    rows = []
    for picture, queries, truth, size in zip(pictures, split.queries, split.truths, split.sizes):
      height, width = picture.shape[:2]
      found = objects(queries, (height, width), names, self.threshold)
      scale = np.array([width / size[1], height / size[0]] * 2)
      rows.append([Drawn(x.label, x.box, x.score) for x in found] + [
          Drawn(names[c], with_sides(box * scale), true=True)
          for c, box in zip(truth.classes, truth.boxes)])
    return boxed(pictures, rows, names)


class Attended(NamedTuple):
  """An object that was found, and what its query attends to."""
  query: int  # its number
  drawn: Drawn
  places: np.ndarray  # [height, width] of the image: the weight of the place that a pixel is in


def attended(model: Any, params: Any, batch: Mapping[str, np.ndarray], names: Sequence[str],
             threshold: float = 0.5, most: int = 6) -> list[Attended]:
  """The objects found in one image, best first, with the cross-attention of their queries.

  That is of the decoder's last layer, the mean of its heads (Carion et al. 2020, figure 6).

  Args:
    model: with methods `boxes`, `features` and `attention_weights`, such as a Detr.
    params: its parameters.
    batch: of one image.
    names: of the classes.
    threshold: the least score of what is found.
    most: objects, those of the highest scores.
  """
  batch = {key: jnp.asarray(batch[key]) for key in KEYS}
  queries = Queries(*(x[0] for x in jax.device_get(detect(model, params, batch))))
  apply = lambda method: model.apply({"params": params}, batch, method=method)
  weights = np.asarray(jax.jit(apply, static_argnums=0)("attention_weights")["cross"])
  h, w = jax.eval_shape(lambda: apply("features"))[0].shape[1:3]
  (height, width), (H, W) = np.asarray(batch["size"][0]), batch["image"].shape[1:3]
  places = np.ix_(np.arange(height) * h // H, np.arange(width) * w // W)
  maps = weights[-1, 0].mean(0).reshape(-1, h, w)
  result = []
  for q in np.argsort(-queries.scores, kind="stable")[:most]:
    for x in objects(Queries(*(x[[q]] for x in queries)), (height, width), names, threshold):
      result.append(Attended(int(q), Drawn(x.label, x.box, x.score), maps[q][places]))
  return result


def drawn_queries(image: np.ndarray, found: Sequence[Attended], names: Sequence[str]) -> Any:
  """A figure of one image for each object that was found in it, under its query's attention."""
  return boxed([image] * len(found), [[x.drawn] for x in found], names,
               [f"query {x.query}" for x in found], maps=[x.places for x in found])


def reported(curves: coco.Curves, truths: Sequence[coco.Truth]) -> Iterator[tuple[str, Any]]:
  """A table of the classes that are there, and the precision at each recall by an IoU of 0.5."""
  counts = np.bincount(np.concatenate([t.classes[~t.crowd] for t in truths]).astype(int),
                       minlength=len(curves.names))
  rows = {name: (curves.ap(number=k), curves.ap(threshold=0.5, number=k),
                 curves.ap(threshold=0.75, number=k), curves.ar(number=k), int(counts[k]))
          for k, name in enumerate(curves.names) if counts[k]}
  if rows:
    yield "report", Table(("ap", "ap50", "ap75", "ar100", "objects"), rows)
    first = [k for k in range(len(curves.names)) if counts[k]][:LINES]
    yield "precision_recall", curve(coco.RECALLS, {curves.names[k]: curves.at(0.5)[:, k]
                                                   for k in first}, "recall", "precision, IoU 0.5")


def detected(task: Task, params: Any, source: Sequence[str], pictures: int = 0) -> Split:
  """What a model says of the images of a split; one that can't be decoded is left out."""
  found: dict[int, tuple[Queries, coco.Truth, np.ndarray]] = {}
  drawn: dict[int, dict[str, np.ndarray]] = {}
  for batch in task.batches(tuple(source)):
    arrays = {key: batch[key] for key in (*KEYS, *TRUE, "real")}
    arrays["ids"] = batch["ids"].astype(np.int32)  # there are no others on devices
    batch = task.to_device(arrays)
    queries = detect(task.model, params, {key: batch[key] for key in KEYS})
    image = batch.pop("image")
    queries, batch = processes.to_host((tuple(queries), batch))
    numbers = {int(batch["ids"][i, 0]): i for i in np.flatnonzero(batch["real"][:, 0])}
    for number, i in numbers.items():
      found[number] = (Queries(*(x[i] for x in queries)),
                       truth_of({key: batch[key][i] for key in TRUE}), batch["original_size"][i])
    # The first by their numbers, though images of several shapes are read in another order.
    first = sorted({*drawn, *numbers})[:pictures]
    if new := [number for number in first if number in numbers]:
      batch["image"] = processes.to_host(image)
      drawn |= {number: {key: batch[key][[numbers[number]]] for key in KEYS} for number in new}
    drawn = {number: drawn[number] for number in first}
  ids = sorted(found)
  queries, truths, sizes = ([found[number][k] for number in ids] for k in range(3))
  return Split(ids, queries, truths, sizes=sizes, pictures=list(drawn.values()))


def shown(layout: Any, batch: Mapping[str, np.ndarray]) -> np.ndarray:
  """The picture [h, w, 3], from 0 to 1, of a batch of one image, without padding."""
  height, width = batch["size"][0]
  return layout.shown(batch["image"][0, :height, :width])


def truth_of(row: dict[str, np.ndarray]) -> coco.Truth:
  """The true boxes of an image, in pixels of its file."""
  there = row["box_classes"] >= 0
  return coco.Truth(corners(row["boxes"][there], row["original_size"]), row["box_classes"][there],
                    row["box_areas"][there].astype(np.float64), row["crowd"][there])


def records(split: Split, names: Sequence[str]) -> Iterator[Record]:
  """A record of each image: the true boxes (left, top, width, height) and those of all queries."""
  for number, queries, truth, size in zip(split.ids, split.queries, split.truths, split.sizes):
    yield {"id": number, "gold": [{"label": names[c], "box": with_sides(box)}
                             for c, box in zip(truth.classes, truth.boxes)],
           "prediction": [x._asdict() for x in objects(queries, size, names, threshold=0)]}
