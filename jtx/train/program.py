"""The jitted program of a run: its state and train step, sharded over a mesh."""

import collections
import functools
import math
from typing import Any, Mapping

import jax
import jax.numpy as jnp

from jtx import build
from jtx.config import ConfigDict
from jtx.parallel import sharding
from jtx.train import flops, optim
from jtx.train.step import TrainState, train_step

# Steps that the host may be ahead of the devices: enough to keep them busy. Each more is one that a
# run which is told to stop still has to wait for.
AHEAD = 2


class Program:
  """The jitted parts of training and the shardings of what they work on.

  Args:
    config: of the run.
    model: Linen module.
    objective: of `jtx.objectives`.
    example: a batch's abstract arrays.
    mesh: the devices.
    extra: arrays on the mesh that the objective takes by name and that are not trained.
  """

  def __init__(self, config: ConfigDict, model, objective, *, example: Mapping[str, Any], mesh,
               extra: Mapping[str, Any] = {}):
    self.config, self.model, self.objective = config, model, objective
    self.mesh, self.extra = mesh, dict(extra)

    boxed = build.abstract_params(model, objective, example)
    self.replicated_dimensions = sharding.replicated_dimensions(boxed, mesh)
    params, axes = sharding.unbox(boxed), sharding.logical_axes(boxed)
    width = [None, *(stack.width for stack in model.stacks.values())][-1]
    self.tx, self.schedule = optim.make(config.optim, config.steps, params, axes, width=width)
    everywhere = jax.NamedSharding(mesh, jax.P())
    param_shardings = sharding.param_shardings(boxed, mesh)

    forward = lambda p, b, extra: objective(model, p, b, train=False, **extra)
    sums = jax.eval_shape(forward, params, example, self.extra)
    self.metric_names = (*sums, "grad_norm")
    self.flops = flops.StepFlops(forward, params, self.extra)
    self.flops_per_step = self.flops(example)

    def init(seed):
      key = jax.random.key(seed)
      params = sharding.unbox(build.init_params(model, objective, example, key))
      return TrainState(step=jnp.int32(0), params=params, opt_state=self.tx.init(params),
                        ema=params if config.optim.ema else {}, sums=self.zero_sums(),
                        bad_step=jnp.int32(-1))

    self.abstract_state = jax.eval_shape(init, 0)
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
    self.jitted_step = jax.jit(functools.partial(train_step, config, model, objective, self.tx),
                               donate_argnums=0, out_shardings=self.shardings,
                               in_shardings=(self.shardings, sharding.batch_sharding(mesh),
                                             jax.tree.map(lambda x: x.sharding, self.extra)))

  def init(self) -> TrainState:
    return self.jitted_init(self.config.seed)

  def step(self, state: TrainState, batch: Mapping[str, jax.Array]) -> TrainState:
    """Starts a step, at most AHEAD others before it being under way."""
    # Without the mesh in scope the constraints on activations would silently do nothing.
    with jax.set_mesh(self.mesh):
      state = self.jitted_step(state, batch, self.extra)
      self._marks.append(self._mark(state.step))  # a copy, since the next step takes the state
    if len(self._marks) > AHEAD:
      self._marks.popleft().block_until_ready()
    return state

  def zero_sums(self) -> dict[str, jax.Array]:
    return {name: jnp.zeros(2) for name in self.metric_names}

  def describe(self, model) -> str:
    count = sum(math.prod(x.shape) for x in jax.tree.leaves(self.abstract_state.params))
    text = f"{type(model).__name__} of {count:,} parameters, {self.flops_per_step:.3g} FLOPs a step"
    if self.replicated_dimensions:
      text += "; replicated: " + ", ".join(self.replicated_dimensions)
    return text
