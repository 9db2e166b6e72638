"""Hidden states, queries, keys and values of a model's layers, kept from a call as it runs.

Flax hands every call of a module to a function of this file: a stack is asked for the hidden states
of its layers, and attention returns its queries, keys and values in the place of its weights, so
they are outputs of the scan over layers. Layers know nothing of it. A model that is not tapped is
the program that it was.
"""

import functools
from typing import Any, Callable, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.errors import ConfigError
from jtx.nn import masks
from jtx.nn.attention import Attention
from jtx.nn.bias import PairBias
from jtx.nn.kernels.reference import SCORES
from jtx.nn.kinds import of_layer
from jtx.nn.stack import Stack, StackConfig

# What may be kept of layers: their hidden states; queries, keys and values; biases of logits.
HIDDEN, PROJECTIONS, BIASES = "hidden", "projections", "biases"
# Methods of models that make scores; of two that call each other the outer one comes later.
HEADS = ("mlm_logits", "logits", "outputs", "predict")


class Layers(NamedTuple):
  """What was kept of a stack's layers, each array of all of them; None is what was not asked for.

  Queries and keys are as attention compares them, turned by positions that do so.
  """
  config: StackConfig
  rows: masks.Rows
  hidden: jax.Array | None  # [layers + 1, B, T, D]: the stack's input, then every layer's output
  query: jax.Array | None = None  # [layers, B, T, N, H]
  key: jax.Array | None = None  # [layers, B, T, K, H]
  value: jax.Array | None = None  # [layers, B, T, K, Hv]
  bias: jax.Array | None = None  # [layers, B or 1, N or 1, T, T]

  @property
  def tokens(self) -> tuple[int, int]:
    """Rows and tokens, (B, T)."""
    return (self.query if self.hidden is None else self.hidden).shape[1:3]

  def allowed(self, layer: int) -> jax.Array:
    """Whether a token sees another in a layer, counted from 0: bool [B, 1, T, T]."""
    c, (B, T) = self.config, self.tokens
    mask, _ = of_layer(c, c.pattern[layer % len(c.pattern)])
    allowed = masks.materialize(mask, T, T, self.rows)
    return jnp.broadcast_to(True if allowed is None else allowed, (B, 1, T, T))

  def logits(self, layer: int) -> jax.Array:
    """The logits of attention in a layer, counted from 0, before its mask: float32 [B, N, T, T].

    Raises:
      ConfigError: they are not a function of queries, keys and biases alone.
    """
    c, q, k = self.config.block.attention, self.query[layer], self.key[layer]
    score = SCORES[c.score]
    if score.vector:
      raise ConfigError(f"distill.terms: the scores of attention.score={c.score!r} have parameters"
                        " of their own and can't be compared; use relations")
    if c.global_projections:
      raise ConfigError("distill.terms: with attention.global_projections=True a layer has two"
                        " kinds of scores, which can't be compared")
    B, T, N, H = q.shape
    logits = score.logits(q.reshape(B, T, k.shape[2], -1, H), k, None).reshape(B, N, T, T)
    if score.scaled:
      logits *= (self.config.position.products * H)**-0.5 if c.scale is None else c.scale
    if c.soft_cap is not None:
      logits = c.soft_cap * jnp.tanh(logits / c.soft_cap)
    return logits if self.bias is None else logits + self.bias[layer]


class Tapped:
  """A model whose calls also keep what `wanted` says of its layers, and the scores of its heads."""

  def __init__(self, model: Any, wanted: frozenset[str] = frozenset()):
    self._model, self._wanted = model, wanted
    self._configs: dict[str, StackConfig] = {}  # by the name of the stack
    self._kept: dict[str, dict[str, Any]] = {"layers": {}, "scores": {}}

  def __getattr__(self, name: str) -> Any:
    return getattr(self._model, name)

  def apply(self, variables: Any, *args: Any, method: Any = "__call__", **options: Any) -> Any:
    """As Linen's; what is kept are further outputs of the call, which so may be transformed."""
    def with_kept(module, *args, **kwargs):
      kept = {"layers": {}, "scores": {}}
      with nn.intercept_methods(self._intercept(kept, [])):
        bound = getattr(module, method) if isinstance(method, str) else (
            functools.partial(method, module))
        return bound(*args, **kwargs), kept

    result, kept = self._model.apply(variables, *args, method=with_kept, **options)
    for kind, found in kept.items():
      self._kept[kind] |= found
    return result

  @property
  def layers(self) -> dict[str, Layers]:
    """What was kept of stacks, by their names."""
    return {name: Layers(self._configs[name], **kept)
            for name, kept in self._kept["layers"].items()}

  @property
  def scores(self) -> jax.Array:
    """The outputs of the head, of whatever shape."""
    kept = self._kept["scores"]
    return next(kept[name] for name in reversed(HEADS) if name in kept)

  def _intercept(self, kept: dict[str, Any],
                 projected: list[dict[str, Any]]) -> Callable[..., Any]:
    """What Flax calls in place of methods; `projected` is of the attention that is under way."""
    projects = bool(self._wanted & {PROJECTIONS, BIASES})

    def call(method, args, kwargs, context):
      module, name = context.module, context.method_name
      if isinstance(module, Stack) and name == "__call__" and self._wanted:
        result, kept["layers"][module.name] = self._of_stack(module, method, args, kwargs)
        return result
      if isinstance(module, Attention) and projects and name == "project":
        result = method(*args, **kwargs)
        projected.append(self._of_projection(module, args, kwargs, result))
        return result
      if isinstance(module, Attention) and projects and name == "__call__":
        y, memory, _ = method(*args, **{**kwargs, "return_weights": False})
        return y, memory, projected.pop()
      result = method(*args, **kwargs)
      if name in HEADS and not module.path:
        kept["scores"][name] = result
      return result

    return call

  def _of_stack(self, stack: Stack, method: Callable, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The result of a stack, and what is kept of its layers."""
    x, ctx = args
    projects = bool(self._wanted & {PROJECTIONS, BIASES})
    last, out = method(x, ctx.replace(return_hidden=True, return_weights=projects), **kwargs)
    self._configs[stack.name] = stack.config
    kept = {"rows": ctx.rows, "hidden": None}
    if projects:  # in place of weights, of every segment of layers
      parts = [segment["self"] for segment in out.weights]
      kept |= jax.tree.map(lambda *parts: jnp.concatenate(parts), *parts)
    if HIDDEN in self._wanted:
      kept["hidden"] = jnp.concatenate([x[None], out.hidden[:-1], last[None]])
    return (last, out), kept

  def _of_projection(self, attention: Attention, args: Any, kwargs: Any,
                     result: Any) -> dict[str, jax.Array | None]:
    (x, _, places, key_places), (query, (key, value), project) = args, result
    found = {"query": query, "key": key, "value": value}
    if BIASES not in self._wanted:
      return found
    c, position = attention.config, kwargs["position"]
    scale = (position.products * query.shape[-1])**-0.5 if c.scale is None else c.scale
    bias = position.bias(query, key, places, key_places, params=kwargs["params"], project=project,
                         scale=scale)
    return found | {"bias": bias.materialize() if isinstance(bias, PairBias) else bias}
