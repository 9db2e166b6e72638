"""Detection as the prediction of a set (DETR; Carion et al. 2020, section 3.1).

Each object of an image goes to one query, so that all together cost least; the other queries are to
say that there is no object.
"""

import dataclasses
from typing import Any, Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.objectives.boxes import generalized_iou, generalized_iou_of_pairs, iou_of_pairs
from jtx.objectives.matching import match
from jtx.objectives.sums import Batch, Sums, weighted_sums
from jtx.ranges import Positive, SomeShare


@dataclasses.dataclass(frozen=True)
class CostConfig:
  """The cost of giving an object to a query, by which they are matched (equation 2)."""
  classes: Positive = 1.0  # times minus the probability of its class
  l1: Positive = 5.0  # times the sum of the differences of a box's four numbers
  giou: Positive = 2.0  # times minus the generalised IoU


@dataclasses.dataclass(frozen=True)
class Detection:
  """The loss of a set of boxes, added up over all of the decoder's layers.

  Batches have `image` [B, H, W, C], `size` [B, 2], `boxes` [B, N, 4], which are centre x, centre y,
  width and height relative to the picture, and `box_classes` [B, N], -1 where there is no box.
  Rows whose `real` [B, 1] is 0 are padding. The loss of a layer is the cross-entropy of all
  queries, a mean in which "no object" weighs less, plus two means over boxes: `l1` times the L1
  distance and `giou` times 1 - generalised IoU. Each layer has a matching of its own. Means are
  over the global batch.
  """
  l1: Positive = 5.0  # weight of the L1 distance
  giou: Positive = 2.0  # weight of the generalised IoU
  no_object: SomeShare = 0.1  # weight of a query without an object in the mean; others have 1
  cost: CostConfig = CostConfig()  # of the matching
  # Q, of the model; `with_model` sets it
  num_queries: int = dataclasses.field(default=0, metadata={"config": False}, kw_only=True)

  unit = "images"
  heads = frozenset({"boxes"})  # of the model
  keys = ("image", "size", "boxes", "box_classes")  # of a batch
  needs_model = True  # see `with_model`

  def with_model(self, model: Any) -> "Detection":
    """The objective for a model, whose number of queries is in the divisor of the loss."""
    return dataclasses.replace(self, num_queries=model.num_queries)

  def weights(self, batch: Batch):
    """The divisors: of `loss` the weights of all queries, of the others boxes over their weight."""
    number = there(batch).sum().astype(jnp.float32)
    queries = real(batch).sum() * self.num_queries
    boxes = jnp.maximum(number, 1)
    return {"loss": number + self.no_object * (queries - number),
            "l1_loss": boxes / self.l1, "giou_loss": boxes / self.giou}

  def units(self, sums: Mapping[str, Any]) -> float:
    """Images, which the two divisors of `weights` tell, of `loss` and over boxes."""
    boxes = float(sums["iou"][1])
    others = (float(sums["loss"][1]) - boxes) / self.no_object
    return round((boxes + others) / self.num_queries)

  def model_inputs(self, batch: Batch) -> Batch:
    return {key: batch[key] for key in ("image", "size")}

  def __call__(self, model: nn.Module, params, batch: Batch, *, train: bool, rngs=None) -> Sums:
    """Sums of `loss`, the cross-entropy, and over boxes of `l1_loss` and `giou_loss`.

    All three are of all layers. Of the last there are `accuracy`, of queries that got an object,
    and `iou`, of their boxes.
    """
    found = model.apply({"params": params}, self.model_inputs(batch), train, rngs=rngs,
                        method="boxes")
    is_box = there(batch)
    queries = self.matched(found, batch, is_box)
    log_p = jax.nn.log_softmax(found["logits"])  # [L, B, Q, C + 1]
    log_p_matched, boxes = (jnp.take_along_axis(x, queries[..., None], 2)
                            for x in (log_p, found["boxes"]))  # [L, B, N, ...]
    classes = jnp.broadcast_to(jnp.where(is_box, batch["box_classes"], 0), queries.shape)
    nll = -jnp.take_along_axis(log_p_matched, classes[..., None], -1)[..., 0]
    # Queries without an object are all but those that got one.
    none = -jnp.sum(log_p[..., -1].sum(-1) * real(batch), 0)  # [B], of all layers
    none += jnp.sum(jnp.where(is_box, log_p_matched[..., -1], 0), (0, 2))
    loss = jnp.sum(jnp.where(is_box, nll, 0)) + self.no_object * none.sum()
    weights = is_box.astype(jnp.float32)
    targets = jnp.broadcast_to(batch["boxes"], boxes.shape)
    l1 = jnp.abs(boxes - targets).sum(-1).sum(0)
    giou = (1 - generalized_iou_of_pairs(boxes, targets)).sum(0)
    hits = (log_p_matched[-1].argmax(-1) == classes[-1]).astype(jnp.float32)
    overlap = iou_of_pairs(boxes[-1], targets[-1])
    sums = weighted_sums(weights, l1_loss=l1, giou_loss=giou, accuracy=hits,
                         iou=jax.lax.stop_gradient(overlap))
    return {"loss": (loss, self.weights(batch)["loss"]), **sums}

  def matched(self, found: Batch, batch: Batch, is_box: jax.Array) -> jax.Array:
    """[L, B, N] int32: the query of each box, after each layer.

    Args:
      found: `logits` [L, B, Q, C + 1] and `boxes` [L, B, Q, 4].
      batch: with `boxes` [B, N, 4] and `box_classes` [B, N].
      is_box: [B, N] bool, whether there is a box.
    """
    found = jax.lax.stop_gradient(found)
    p = jax.nn.softmax(found["logits"])
    classes = jnp.where(is_box, batch["box_classes"], 0)  # [B, N]
    p = jnp.take_along_axis(p, jnp.broadcast_to(classes[:, None], (*p.shape[:3], classes.shape[1])),
                            -1)  # [L, B, Q, N]
    l1 = jnp.abs(found["boxes"][..., :, None, :] - batch["boxes"][:, None]).sum(-1)
    c = self.cost
    cost = c.l1 * l1 - c.classes * p - c.giou * generalized_iou(found["boxes"], batch["boxes"])
    # Of a run that diverges: a matching needs numbers, and the loss tells of it.
    return match(jnp.nan_to_num(cost, nan=1e6, posinf=1e6, neginf=-1e6), is_box)


def real(batch: Batch) -> jax.Array:
  """[B] float32: 1 for images, 0 for rows of padding."""
  if "real" in batch:
    return batch["real"][:, 0].astype(jnp.float32)
  return jnp.ones(batch["box_classes"].shape[0], jnp.float32)


def there(batch: Batch) -> jax.Array:
  """[B, N] bool: where a box is."""
  return (batch["box_classes"] >= 0) & (real(batch)[:, None] > 0)
