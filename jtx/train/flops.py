"""Matrix-product FLOPs of a JAX function, counted on its traced program.

XLA's own cost analysis counts the body of a scan once, whatever its length, and answers
nothing on some platforms; this count multiplies. It is the numerator of model FLOP/s
utilisation (PaLM, appendix B), which leaves out element-wise work, softmax and norms.
"""

from collections.abc import Callable, Iterator, Mapping
import math
from typing import Any

import jax

from jtx.nn.kernels.counted import counted


def count(fn: Callable[..., Any], *args: Any) -> float:
  """FLOPs that the matrix products and convolutions of `fn(*args)` take.

  A multiply and an add are two. Nothing is computed or compiled, so that a model of any
  size can be counted anywhere.

  - A scan counts its body once per step, `shard_map` once per shard of the axes it maps over, a
    Pallas kernel what it says of itself, or else its body once per grid point.
  - A while loop counts its condition and body once: its trip count is not known.
  - A conditional counts the mean over its branches, right for a `lax.switch` over kinds
    of layers that occur equally often or cost the same.
  - Recomputation by `jax.checkpoint` is in the program, hence in the count. Where
    utilisation should not reward it, count the function without.

  Args:
    fn: a function that `jax.make_jaxpr` can trace; `jax.grad` of a loss for a train step.
    *args: pytrees of arrays or of `jax.ShapeDtypeStruct`.
  """
  return _counted(fn, *args)[0]


def _counted(fn: Callable[..., Any], *args: Any) -> tuple[float, Any]:
  """FLOPs of `fn`, and the shapes of what it returns."""
  # A function of its own, so that no trace is taken that was made for another purpose.
  jaxpr, shapes = jax.make_jaxpr(lambda *args: fn(*args), return_shape=True)(*args)
  return float(_jaxpr_flops(jaxpr)), shapes


def _jaxpr_flops(jaxpr: Any) -> float:
  return sum(_equation_flops(eqn) for eqn in jaxpr.eqns)


def _equation_flops(eqn: Any) -> float:
  match eqn.primitive.name:
    case "dot_general":
      return _dot_flops(eqn)
    case "conv_general_dilated":
      return _conv_flops(eqn)
    case "ragged_dot_general":
      return _ragged_flops(eqn)
    case "jit" if eqn.params["name"] == "product_in_blocks":
      return _grouped_flops(eqn)
    case "cond":
      branches = eqn.params["branches"]
      return sum(map(_jaxpr_flops, branches)) / len(branches)
    case "pallas_call" if eqn.params.get("cost_estimate") is not None:
      return eqn.params["cost_estimate"].flops
    case _:
      return _trips(eqn) * sum(map(_jaxpr_flops, _inner_jaxprs(eqn.params)))


def _trips(eqn: Any) -> int:
  """How often the inner programs of `eqn` run, as far as the trace tells."""
  match eqn.primitive.name:
    case "scan":
      return eqn.params["length"]
    case "shard_map":
      mesh = eqn.params["mesh"]
      return math.prod(mesh.shape[axis] for axis in eqn.params["newly_manual_axes"])
    case "pallas_call":
      return math.prod(eqn.params["grid_mapping"].grid)
    case _:
      return 1


def _inner_jaxprs(params: dict[str, Any]) -> Iterator[Any]:
  """The programs among an equation's parameters: of a jit, remat, custom_vjp, scan, ..."""
  for value in params.values():
    if hasattr(value, "eqns"):
      yield value


def _dot_flops(eqn: Any) -> int:
  """Two for every element of the result and of the contracted dimensions."""
  (lhs_contract, _), _ = eqn.params["dimension_numbers"]
  lhs, out = eqn.invars[0].aval, eqn.outvars[0].aval
  return 2 * out.size * math.prod(lhs.shape[d] for d in lhs_contract)


def _ragged_flops(eqn: Any) -> int:
  """Two for every row of a group and element of its kernel, in each of the products of a step."""
  dimensions = eqn.params["ragged_dot_dimension_numbers"]
  (contract, _), _ = dimensions.dot_dimension_numbers
  lhs, out = eqn.invars[0].aval, eqn.outvars[0].aval
  dense = 2 * out.size * math.prod(lhs.shape[d] for d in contract)
  # Rows that are summed over, as in the gradient of kernels, are each of one group alone.
  return dense // out.shape[0] if set(dimensions.lhs_ragged_dimensions) <= set(contract) else dense


def _grouped_flops(eqn: Any) -> int:
  """A row goes through one kernel only."""
  if not eqn.invars:  # what flax's scan of layers computes ahead of it, which is no product
    return 0
  rows, kernels = (x.aval for x in eqn.invars[:2])
  return 2 * rows.size * kernels.shape[2]


def _conv_flops(eqn: Any) -> int:
  """Two for every element of the result and of the kernel that makes it.

  The products with the zeros that a dilated input holds (the input gradient of a strided
  convolution) don't count; those with padding do.
  """
  kernel, out = eqn.invars[1].aval, eqn.outvars[0].aval
  out_features = kernel.shape[eqn.params["dimension_numbers"].rhs_spec[0]]
  zeros = math.prod(eqn.params["lhs_dilation"])
  return 2 * out.size * (kernel.size // out_features) // zeros


class StepFlops:
  """Floating-point operations of a train step on a batch, counted once for its shapes.

  Those of attention are what `jtx.nn.kernels.counted` says, whichever kernel runs.

  Args:
    forward: (parameters, batch, extra) to the objective's sums.
    params: abstract parameters.
    extra: arrays that are not trained, by name.
    still: (parameters, batch) to the objective's sums of the part of the model whose parameters are
      frozen; None is no part.
    gradient: (parameters, batch, extra) to the gradient, whose products are then counted as they
      are, those of recomputation, too; None is of all parameters.
  """

  def __init__(self, forward: Callable[..., Any], params: Any, extra: Mapping[str, Any],
               still: Callable[..., Any] | None = None,
               gradient: Callable[..., Any] | None = None):
    self._forward, self._params, self._extra, self._still = forward, params, extra, still
    self._gradient = gradient
    self._known: dict[Any, tuple[float, Any]] = {}

  def __call__(self, batch: Mapping[str, Any]) -> float:
    return self._traced(batch)[0]

  def sums(self, batch: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the objective's sums, which the same trace tells."""
    return tuple(self._traced(batch)[1])

  def _traced(self, batch: Mapping[str, Any]) -> tuple[float, Any]:
    key = tuple(x.shape for x in jax.tree.leaves(dict(batch)))
    if key not in self._known:
      # A backward pass is two products for each of the forward's (Kaplan et al. 2020, 2.1), but
      # not through what isn't trained.
      with counted():
        whole, sums = _counted(self._forward, self._params, batch, self._extra)
        alone = _counted(self._forward, self._params, batch, {})[0] if self._extra else whole
        # Of two products of the backward pass, the gradient of a frozen kernel is one.
        frozen = _counted(self._still, self._params, batch)[0] if self._still else 0
        total = 2 * alone + whole - frozen
        if self._gradient:
          total = _counted(self._gradient, self._params, batch, self._extra)[0]
      self._known[key] = total, sums
    return self._known[key]
