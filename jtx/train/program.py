"""The jitted program of a run: its state and train step, sharded over a mesh."""

import collections
import functools
import math
from typing import Any, Callable, Mapping, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jtx import build
from jtx.config import ConfigDict
from jtx.nn import lora
from jtx.nn.shapes import shapes_of
from jtx.parallel import sharding
from jtx.train import flops, optim
from jtx.train.layer_sums import sums_of
from jtx.train.own import own_params, without_own
from jtx.train.step import TrainState, train_step

# Steps that the host may be ahead of the devices: enough to keep them busy. Each more is one that a
# run which is told to stop still has to wait for.
AHEAD = 2


class OnOthers(NamedTuple):
  """An objective of what `change` makes of the trained parameters and of frozen ones, `base`."""
  objective: Any
  change: Callable[[Any, Any], Any]

  def __call__(self, model, params, batch, *, base=None, **more):
    return self.objective(model, self.change(params, base), batch, **more)

  def weights(self, batch):
    return self.objective.weights(batch)

  @property
  def staged(self):
    return getattr(self.objective, "staged", False)

  def at(self, done):
    return OnOthers(self.objective.at(done), self.change)


def held(still: Any, params: Any, base: Any) -> Any:
  """The parameters, without a gradient where `still` says so, a bool for each.

  The way back through the model then ends where no parameter before it is trained.
  """
  del base
  return jax.tree.map(lambda p, s: jax.lax.stop_gradient(p) if s else p, params, still)


def step_of(config: ConfigDict, model, objective, tx) -> Callable[..., TrainState]:
  """`train_step` of a state and inputs; an objective with stages is told of the present one."""
  if not getattr(objective, "staged", False):
    return functools.partial(train_step, config, model, objective, tx)

  def step(state, *inputs):
    now = objective.at(state.step / config.steps)
    return train_step(config, model, now, tx, state, *inputs)

  return step


def gradient_of(objective, model) -> Callable[..., Any]:
  """The gradient of the sums that an objective's losses are of, for its products to be counted."""
  def total(params, batch, extra):
    sums = sums_of(objective, model, params, batch, train=False, **extra)
    return sum(sums[name][0] for name in objective.weights(batch))

  return jax.grad(total)


class Program:
  """The jitted parts of training and the shardings of what they work on.

  Args:
    config: of the run.
    model: Linen module.
    objective: of `jtx.objectives`.
    example: a batch's abstract arrays.
    mesh: the devices.
    extra: arrays on the mesh that the objective takes by name and that are not trained. Of a model
      with adapters `self.extra` has its frozen parameters, too, as `base`; they are abstract until
      `jtx.train.adapters.take_base` reads them.
  """
  base_checksums: dict[str, int] | None = None  # of the frozen parameters

  def __init__(self, config: ConfigDict, model, objective, *, example: Mapping[str, Any], mesh,
               extra: Mapping[str, Any] = {}):
    self.config, self.model, self.objective = config, model, objective
    # The seed is an input: runs that differ in it alone share what is compiled.
    self.mesh, self.extra, self.seed = mesh, dict(extra), np.uint32(config.seed)

    boxed = build.abstract_params(model, objective, example)
    own = shapes_of(lambda: own_params(objective, model, jax.random.key(0)))
    self.replicated_dimensions = sharding.replicated_dimensions(boxed, mesh)
    forward = lambda p, b, extra: sums_of(objective, model, p, b, train=False, **extra)
    whole = sharding.unbox(boxed | own)
    trained, plain, gradient = objective, None, None
    if lora.adapted(model):
      boxed, frozen = lora.split(model, boxed)
      place = lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s)
      self.extra["base"] = jax.tree.map(place, sharding.unbox(frozen),
                                        sharding.param_shardings(frozen, mesh))
      trained, plain = OnOthers(objective, lora.joined), lora.plain(model)
    boxed = boxed | own
    params, axes = sharding.unbox(boxed), sharding.logical_axes(boxed)
    width = [None, *(stack.width for stack in model.stacks.values())][-1]
    self.tx, self.schedule = optim.make(config.optim, config.steps, params, axes, width=width)
    still = optim.untrained(config.optim, params, axes)
    if plain is None and any(jax.tree.leaves(still)):
      trained = OnOthers(objective, functools.partial(held, still))
      gradient = gradient_of(trained, model)
    self.flops = flops.StepFlops(
        forward, whole, extra, gradient=gradient,
        still=plain and (lambda p, b: objective(plain, p, b, train=False)))
    self.flops_per_step = self.flops(example)
    self.metric_names = (*self.flops.sums(example), "grad_norm")
    everywhere = jax.NamedSharding(mesh, jax.P())
    param_shardings = sharding.param_shardings(boxed, mesh)

    def init(seed):
      key = jax.random.key(seed)
      fresh = sharding.unbox(build.init_params(model, objective, example, key))
      made = own_params(objective, model, jax.random.fold_in(key, 1))
      return begun(lora.split(model, fresh)[0] | sharding.unbox(made))

    def begun(params):
      return TrainState(step=jnp.int32(0), params=params, opt_state=self.tx.init(params),
                        ema=params if config.optim.ema else {}, sums=self.zero_sums(),
                        bad_step=jnp.int32(-1))

    self.abstract_state = jax.eval_shape(begun, params)
    self.shardings = TrainState(
        step=everywhere, params=param_shardings,
        opt_state=optim.opt_state_shardings(self.abstract_state.opt_state, params,
                                            param_shardings, everywhere),
        ema=param_shardings if config.optim.ema else {},
        sums={name: everywhere for name in self.metric_names}, bad_step=everywhere)
    self.jitted_init = jax.jit(init, out_shardings=self.shardings)
    self._marks: collections.deque[jax.Array] = collections.deque()  # of steps under way
    self._mark = jax.jit(jnp.copy)
    self.jitted_zero_sums = jax.jit(self.zero_sums, out_shardings=self.shardings.sums)
    self.jitted_step = jax.jit(
        step_of(config, model, trained, self.tx), donate_argnums=0, out_shardings=self.shardings,
        in_shardings=(self.shardings, sharding.batch_sharding(mesh),
                      jax.tree.map(lambda x: x.sharding, self.extra), everywhere))

  def init(self) -> TrainState:
    return self.jitted_init(self.seed)

  def step(self, state: TrainState, batch: Mapping[str, jax.Array]) -> TrainState:
    """Starts a step, at most AHEAD others before it being under way."""
    # Without the mesh in scope the constraints on activations would silently do nothing.
    with jax.set_mesh(self.mesh):
      state = self.jitted_step(state, batch, self.extra, self.seed)
      self._marks.append(self._mark(state.step))  # a copy, since the next step takes the state
    if len(self._marks) > AHEAD:
      self._marks.popleft().block_until_ready()
    return state

  def zero_sums(self) -> dict[str, jax.Array]:
    return {name: jnp.zeros(2) for name in self.metric_names}

  def whole(self, params: Any) -> Any:
    """The model's parameters, of those that the state has and those that are frozen."""
    params = without_own(params)
    return lora.joined(params, self.extra["base"]) if "base" in self.extra else params

  def describe(self, model) -> str:
    state = self.abstract_state
    count, trained = (sum(math.prod(x.shape) for x in jax.tree.leaves(params))
                      for params in (self.whole(state.params), state.params))
    text = f"{type(model).__name__} of {count:,} parameters, {self.flops_per_step:.3g} FLOPs a step"
    if trained < count:
      held = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state.opt_state))
      text += f"; {trained:,} parameters are trained, for which the optimiser holds {held:,} bytes"
    if self.replicated_dimensions:
      text += "; replicated: " + ", ".join(self.replicated_dimensions)
    return text
