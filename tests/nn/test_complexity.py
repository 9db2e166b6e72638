"""Table 1 of Vaswani et al. 2017 in numbers, beside the operations of the layers themselves."""

import jax
import jax.numpy as jnp
import pytest

from benchmarks import complexity
from jtx.errors import ConfigError
from jtx.nn.complexity import Cost, costs
from jtx.nn.kernels.counted import counted
from jtx.train.flops import count


def test_table_1_for_a_sentence_of_the_paper():
  """n = 64 of d = 512: self-attention is the cheapest where n < d, as section 4 has it."""
  assert costs(64, 512, k=3, r=16) == {
      "self-attention": Cost(64 * 64 * 512, 1, 1),
      "recurrent": Cost(64 * 512 * 512, 64, 64),
      "convolutional": Cost(3 * 64 * 512 * 512, 1, 4),  # 3^4 = 81 reaches 64
      "separable convolutional": Cost(3 * 64 * 512 + 64 * 512 * 512, 1, 4),
      "restricted self-attention": Cost(16 * 64 * 512, 1, 4),
  }
  assert costs(27, 8, k=3, r=10)["convolutional"].path == 3
  assert costs(27, 8, k=3, r=10)["restricted self-attention"].path == 3
  assert costs(1, 8, k=2, r=1)["convolutional"].path == 0


@pytest.mark.parametrize("fields", [dict(n=0), dict(d=0), dict(k=1), dict(r=0)])
def test_refusals(fields):
  with pytest.raises(ConfigError, match="must be"):
    costs(**{**dict(n=4, d=4, k=2, r=1), **fields})


def test_layers_that_are_timed_do_the_operations_of_the_table():
  """A multiplication and an addition are two; products of queries and of values, four gates."""
  n, d, size = 64, 32, complexity.SIZES["tiny"]
  factors = {"self-attention": 2 * 2, "recurrent": 2 * (4 + 4), "convolutional": 2,
             "restricted self-attention": 2 * 2}
  table = costs(n, d, size.kernel, size.restricted + 1)  # its own place, too
  x = jnp.ones((1, n, d))
  for kind, (function, params) in complexity.layers(size, d).items():
    with counted():
      found = count(function, params, x)
    expected = factors[kind] * table[kind].operations
    least = 0.8 if kind == "restricted self-attention" else 1  # at the ends there is less to see
    assert least * expected <= found <= expected, (kind, found, expected)
    assert jax.eval_shape(function, params, x).shape == x.shape
