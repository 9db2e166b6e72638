"""GELU, biases, norms and sums of logits, computed so that chips do not wait between products.

The formulas are those of the papers; what is chosen here is the order, what the way back keeps, and
which unit does the work. docs/speed.md has what each is worth. Vectors at length 1 are here, too.
"""

import functools
import math
from typing import Sequence

import jax
import jax.numpy as jnp

from jtx.nn.kept import keep
from jtx.parallel.sharding import platform, with_whole

# Of x^2, times x: atanh(erf(x / sqrt 2)), fitted so that GELU is off by at most 3.2e-6.
_ERF = (0.7978287628072798, 0.03646617589293164, -0.00012309328282677877, -3.092277460155236e-05,
        1.1374531142198043e-06)


LARGE = 2**18  # numbers of an array that the caches of a CPU core do not hold
FEW_ROWS = 96  # of a product, to which what is on its right is not worth being laid out anew
MATRIX = "matrix"  # beside a kernel or an embedding, where layers decode on a CPU; of no checkpoint


def gelu(x: jax.Array) -> jax.Array:
  """x Phi(x) (Hendrycks and Gimpel 2016), exact to the last digit of x's type.

  In bfloat16 the error function is a hyperbolic tangent of a polynomial, which chips have an
  instruction for: a TPU's products wait for the float32 error function, and not for this one.
  """
  if x.dtype != jnp.bfloat16:
    return jax.nn.gelu(x, approximate=False)
  y = x.astype(jnp.float32)
  square, (*lower, inner) = y * y, _ERF
  for coefficient in reversed(lower):
    inner = inner * square + coefficient
  return (0.5 * y * (1 + jnp.tanh(y * inner))).astype(x.dtype)


def product(x: jax.Array, kernel: jax.Array, bias: jax.Array | None, num_in: int, *,
            axes: Sequence[str] = (), matrix: jax.Array | None = None) -> jax.Array:
  """Contracts the last `num_in` axes of x with the first of the kernel, and adds the bias.

  Args:
    x: [..., *inputs].
    kernel: [*inputs, *features].
    bias: [*features], or None.
    num_in: axes of inputs.
    axes: logical names of the kernel's, by which devices share it; () is none.
    matrix: the kernel as [outputs, inputs], where layers decode on a CPU; see `left_product`.
  """
  if matrix is not None:
    rows = x.shape[:x.ndim - num_in]
    y = left_product(x.reshape(*rows, -1), matrix.astype(x.dtype))
    y = y.reshape(*rows, *kernel.shape[num_in:])
    return y if bias is None else y + bias
  multiply = functools.partial(_on_cpu if platform() == "cpu" else _as_matrices, num_in=num_in)
  y = with_whole(multiply, x, kernel, axes) if axes else multiply(x, kernel)
  rows, features = x.shape[:x.ndim - num_in], kernel.shape[num_in:]
  if bias is None:
    return y.reshape(*rows, *features)
  if platform() == "cpu":
    return add_bias(y, bias)
  return add_bias(y, bias.reshape(-1)).reshape(*rows, *features)


def _as_matrices(x, kernel, num_in):
  # Of more axes, a TPU's compiler would choose layouts that it copies from and to.
  inputs = math.prod(kernel.shape[:num_in])
  return x.reshape(*x.shape[:x.ndim - num_in], -1) @ kernel.reshape(inputs, -1)


def _on_cpu(x, kernel, num_in):
  inputs = math.prod(kernel.shape[:num_in])
  numbers = math.prod(n if isinstance(n, int) else 1 for n in x.shape)  # of exports some are open
  if numbers < LARGE or jax.sharding.get_abstract_mesh().size > 1:
    axes = tuple(range(x.ndim - num_in, x.ndim)), tuple(range(num_in))
    return jax.lax.dot_general(x, kernel, (axes, ((), ())))  # earlier runs have these last digits
  # With one axis of rows: of more, the compiler copies what the kernel's gradient contracts,
  # transposed, and for every layer's copy it sums the gradients of all layers above anew.
  rows, matrix = x.reshape(-1, inputs), kernel.reshape(inputs, -1)
  narrow = 2 * matrix.shape[1] <= min(numbers // inputs, inputs)
  y = narrowing(rows, matrix) if narrow else rows @ matrix
  return y.reshape(*x.shape[:x.ndim - num_in], *kernel.shape[num_in:])


@jax.custom_vjp
def narrowing(x: jax.Array, kernel: jax.Array) -> jax.Array:
  """[M, K] by [K, D], with D the least by far, for a CPU.

  The kernel's gradient has its left side turned, which of x takes up to as long as the product; so
  the output's gradient, which has fewer numbers, is on the left.
  """
  return x @ kernel


def _narrowing_gradient(kept, gradient):
  x, kernel = kept
  # Without the barrier the compiler exchanges the sides again.
  return gradient @ kernel.T, jax.lax.optimization_barrier(gradient.T @ x).T


narrowing.defvjp(lambda x, kernel: (x @ kernel, (x, kernel)), _narrowing_gradient)


def left_product(x: jax.Array, matrix: jax.Array) -> jax.Array:
  """[..., D] with [V, D] to [..., V], for a CPU's products of few rows.

  What is on the right of a product is laid out anew each time it is made, which takes longer than
  the product where rows are few; the left side is read as it lies. One row is read as a vector.
  """
  *rows, D = x.shape
  if not all(isinstance(n, int) for n in rows) or not 1 < math.prod(rows) <= FEW_ROWS:
    return x @ matrix.T
  # Without the barrier the compiler exchanges the sides again.
  y = jax.lax.optimization_barrier(matrix @ x.reshape(-1, D).T)
  return y.T.reshape(*rows, -1)


def add_bias(x: jax.Array, bias: jax.Array) -> jax.Array:
  """x [..., *D] plus what lacks some of its axes, or has them with size 1, in the type of x.

  The way back sums in float32, and rounds to the type that `bias` came in.
  """
  if _wide(x.dtype) and platform() == "cpu":
    return x + bias  # earlier runs have these last digits
  return _added(x, bias)


@jax.custom_vjp
def _added(x, bias):
  return x + bias.astype(x.dtype)


def _added_gradient(bias, gradient):
  if bias.shape != gradient.shape[-1:] or platform() == "cpu":
    return gradient, total(gradient, bias)
  rows = gradient.reshape(-1, gradient.shape[-1])
  if platform() == "gpu":  # which would copy the gradients of several biases into one array for it
    # Without the barrier a sum in float32 has XLA write the gradient in float32, too.
    rows = jax.lax.optimization_barrier(rows)
    return rows.reshape(gradient.shape), total(rows, bias)
  # A TPU's units for products sum for nothing. One row alone would become a sum again.
  sums = jnp.matmul(jnp.ones((8, rows.shape[0]), rows.dtype), rows,
                    preferred_element_type=jnp.float32)
  return gradient, sums.mean(0).astype(bias.dtype)


_added.defvjp(lambda x, bias: (_added(x, bias), bias), _added_gradient)


def total(gradient: jax.Array, of: jax.Array) -> jax.Array:
  """The sum of a gradient over the axes that `of` was broadcast along, made in float32."""
  more = gradient.ndim - of.ndim
  axes = [i for i in range(gradient.ndim) if i < more or of.shape[i - more] == 1]
  return gradient.sum(axes, dtype=jnp.float32).reshape(of.shape).astype(of.dtype)


def scaled(x: jax.Array, scale: jax.Array) -> jax.Array:
  """x times a scale, which is as the bias of `add_bias`; the way back keeps both as they came."""
  return x * scale if _wide(x.dtype) else _scaled(x, scale)


@jax.custom_vjp
def _scaled(x, scale):
  return x * scale.astype(x.dtype)


def _scaled_gradient(kept, gradient):
  x, scale = kept
  products = x.astype(jnp.float32) * gradient.astype(jnp.float32)
  return gradient * scale.astype(x.dtype), total(products, scale)


_scaled.defvjp(lambda x, scale: (_scaled(x, scale), (x, scale)), _scaled_gradient)


def spread(x: jax.Array, shape: Sequence[int], dtype: jnp.dtype) -> jax.Array:
  """x, broadcast to a shape in another type; the way back sums in float32."""
  shape, dtype = tuple(shape), jnp.dtype(dtype)
  return jnp.broadcast_to(x, shape) if _wide(dtype) else _spread(x, shape, dtype)


def _wide(dtype):  # what autodiff sums well enough
  return jnp.finfo(dtype).bits >= 32


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _spread(x, shape, dtype):
  return jnp.broadcast_to(x.astype(dtype), shape)


_spread.defvjp(lambda x, shape, dtype: (_spread(x, shape, dtype), x),
               lambda shape, dtype, x, gradient: (total(gradient, x),))


def normalized(x: jax.Array, scale: jax.Array, epsilon: float, centered: bool) -> jax.Array:
  """scale (x - mean) / sqrt(mean square + epsilon) over the last axis [..., D], in float32.

  Without `centered` the mean stays. On chips the way back keeps x as it came and two numbers a row;
  on a CPU it is autodiff's, whose last digits earlier runs have.
  """
  if platform() == "cpu":
    return _normalized(x, scale, epsilon, centered)[0]
  return _on_chips(x, scale, epsilon, centered)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _on_chips(x, scale, epsilon, centered):
  return _normalized(x, scale, epsilon, centered)[0]


def _normalized(x, scale, epsilon, centered):
  y = x.astype(jnp.float32)
  square, mean = None, jnp.float32(0)
  if centered:
    if x.dtype == jnp.bfloat16:
      # The mean of squares loses less than the numbers did; both means are then one pass, which a
      # product before them can make.
      square = jnp.square(y).mean(-1, keepdims=True)
    mean = keep(y.mean(-1, keepdims=True), "statistics")
    y -= mean
  if square is None:
    square = jnp.square(y).mean(-1, keepdims=True)
  else:
    square = jnp.maximum(square - jnp.square(mean), 0)
  inverse = keep(jax.lax.rsqrt(square + epsilon), "statistics")
  return y * inverse * scale, (x, scale, mean, inverse)


def _normalized_gradient(epsilon, centered, kept, gradient):
  x, scale, mean, inverse = kept
  y = (x.astype(jnp.float32) - mean) * inverse
  d_y = gradient * scale
  along = (d_y * y).mean(-1, keepdims=True)
  d_x = d_y - y * along
  if centered:
    d_x -= d_y.mean(-1, keepdims=True)
  d_scale = (gradient * y).sum(tuple(range(x.ndim - 1)))
  return (d_x * inverse).astype(x.dtype), d_scale


_on_chips.defvjp(_normalized, _normalized_gradient)


def logit_statistics(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, ...]:
  """Of logits [..., V] the log of the sum of exp, the label's logit, and the mean: each [...].

  On chips the way back writes one array of the logits' shape, and keeps none beside them; autodiff
  would keep the exponentials and fill zeros for what the labels' entries are put into.
  """
  if platform() == "cpu":  # whose last digits earlier runs have
    return jax.nn.logsumexp(logits, -1), label_logits(logits, labels), logits.mean(-1)
  return _statistics(logits, labels)


def label_logits(logits: jax.Array, labels: jax.Array) -> jax.Array:
  """The logit of each label, [...]."""
  if platform() == "cpu":
    return jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
  return jnp.where(_is_label(logits, labels), logits, 0).sum(-1)  # in the same pass as other sums


def _is_label(logits, labels):
  return jax.lax.broadcasted_iota(labels.dtype, logits.shape, logits.ndim - 1) == labels[..., None]


@jax.custom_vjp
def _statistics(logits, labels):
  return jax.nn.logsumexp(logits, -1), label_logits(logits, labels), logits.mean(-1)


def _statistics_kept(logits, labels):
  lse, *others = _statistics(logits, labels)
  return (lse, *others), (logits, labels, lse)


def _statistics_gradient(kept, gradients):
  logits, labels, lse = kept
  d_lse, d_own, d_mean = (g[..., None] for g in gradients)
  d_logits = jnp.exp(logits - lse[..., None]) * d_lse + d_mean / logits.shape[-1]
  return d_logits + jnp.where(_is_label(logits, labels), d_own, 0), None


_statistics.defvjp(_statistics_kept, _statistics_gradient)


def unit(x: jax.Array) -> jax.Array:
  """Vectors [..., D] at length 1; those of zeros stay zeros, and so does their gradient."""
  return x * jax.lax.rsqrt(jnp.maximum(jnp.sum(x * x, -1, keepdims=True), 1e-24))
