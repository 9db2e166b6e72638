"""The geometry of boxes: corners, intersection over union, and its generalised form.

Letters: N and M boxes. A box is its centre x, centre y, width and height, of any unit; the four
numbers of a pair of corners are left, top, right and bottom.
"""

import jax
import jax.numpy as jnp


def corners(boxes: jax.Array) -> jax.Array:
  """Boxes [..., 4] (centre x, centre y, width, height) to [..., 4] (left, top, right, bottom)."""
  centre, size = boxes[..., :2], boxes[..., 2:]
  return jnp.concatenate([centre - size / 2, centre + size / 2], -1)


def iou(a: jax.Array, b: jax.Array) -> jax.Array:
  """The intersection over the union of each box of a with each of b; 0 where neither has an area.

  Args:
    a: [..., N, 4], centre x, centre y, width, height.
    b: [..., M, 4].

  Returns:
    [..., N, M], of 0 to 1.
  """
  return iou_of_pairs(a[..., :, None, :], b[..., None, :, :])


def iou_of_pairs(a: jax.Array, b: jax.Array) -> jax.Array:
  """`iou` of each box of a [..., 4] with its own of b [..., 4], [...]."""
  return _ratio(*_areas(a, b))


def generalized_iou(a: jax.Array, b: jax.Array) -> jax.Array:
  """IoU less the part of the smallest box around both that is in neither (Rezatofighi et al. 2019).

  Args:
    a: [..., N, 4], centre x, centre y, width, height.
    b: [..., M, 4].

  Returns:
    [..., N, M], of -1 to 1.
  """
  return generalized_iou_of_pairs(a[..., :, None, :], b[..., None, :, :])


def generalized_iou_of_pairs(a: jax.Array, b: jax.Array) -> jax.Array:
  """`generalized_iou` of each box of a [..., 4] with its own of b [..., 4], [...]."""
  inside, union = _areas(a, b)
  (left_top, right_bottom), (other_left_top, other_right_bottom) = (
      jnp.split(corners(x), 2, -1) for x in (a, b))
  around = (jnp.maximum(right_bottom, other_right_bottom)
            - jnp.minimum(left_top, other_left_top)).prod(-1)
  return _ratio(inside, union) - _ratio(around - union, around)


def _areas(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
  """The areas of the intersection and of the union of boxes [..., 4] that broadcast."""
  (left_top, right_bottom), (other_left_top, other_right_bottom) = (
      jnp.split(corners(x), 2, -1) for x in (a, b))
  sides = (jnp.minimum(right_bottom, other_right_bottom)
           - jnp.maximum(left_top, other_left_top))
  inside = jnp.maximum(sides, 0).prod(-1)
  return inside, a[..., 2:].prod(-1) + b[..., 2:].prod(-1) - inside


def _ratio(part: jax.Array, whole: jax.Array) -> jax.Array:
  """part / whole, and 0 with a gradient of 0 where the whole is none."""
  there = whole > 0
  return jnp.where(there, part, 0) / jnp.where(there, whole, 1)
