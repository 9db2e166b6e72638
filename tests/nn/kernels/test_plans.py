"""How a GPU's programs cut a call: what fits into its fast memory, and loops without branches."""

import dataclasses

import pytest

from jtx.nn import masks
from jtx.nn.kernels import plans
from jtx.nn.kernels.tile import Variant
from jtx.nn.masks import CAUSAL, FULL, Global, Prefix, window


@pytest.mark.parametrize("width, itemsize, side", [
    (16, 2, 64), (64, 2, 64), (128, 2, 64), (64, 4, 64), (80, 4, 32), (128, 4, 32), (256, 2, 32),
    (256, 4, 16)])
def test_a_gpus_blocks_fit_into_its_fast_memory(width, itemsize, side):
  """Of 227 KiB on an H100 and 163 on an A100 the widest took 197 in blocks of 64, or 393."""
  shape = 2, 512, 4, width
  plan = plans.make_plan("gpu", False, Variant(FULL, 1.0), q=shape, k=shape, v=shape,
                         itemsize=itemsize)
  assert plan.q_block == plan.k_block == side and plan.q_blocks == 512 // side
  assert side * plan.width * itemsize <= plans.GPU_BYTES


@dataclasses.dataclass(frozen=True)
class Stripes(masks.Mask):
  """Keys of the same 64 as the query, or of every other 64."""

  def __call__(self, q, k, rows):
    return (q // 64 == k // 64) | (k // 64 % 2 == 0)


@pytest.mark.parametrize("kind, mask, gaps", [
    ("gpu", FULL, False), ("gpu", CAUSAL, False), ("gpu", window(100, 0), False),
    ("gpu", CAUSAL & window(200, 200), False), ("gpu", Stripes(), True),
    ("gpu", CAUSAL | Prefix(), True), ("gpu", window(64, 64) | Global(), True),
    ("tpu", FULL, True)])
def test_a_gpus_loops_ask_no_block_where_none_lies_empty_between_others(kind, mask, gaps):
  shape = 2, 512, 4, 64
  variant = Variant(mask, 1.0, num_queries=512, num_keys=512)
  plan = plans.make_plan(kind, False, variant, q=shape, k=shape, v=shape, itemsize=2)
  assert plans.has_gaps(variant, plan) == gaps
