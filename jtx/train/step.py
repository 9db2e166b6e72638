"""The train step: the state that it updates, and the jitted program of a config on a mesh."""

import functools
import math
from typing import Any, Mapping

import flax.struct
import jax
import jax.numpy as jnp
import optax

from jtx import build
from jtx.config import ConfigDict
from jtx.parallel import sharding
from jtx.train import flops, optim


@flax.struct.dataclass
class TrainState:
  """Everything that a checkpoint holds, as plain arrays."""
  step: jax.Array  # optimiser updates made
  params: Any
  opt_state: Any
  ema: Any  # averaged parameters, or an empty dict
  # Metrics since they were last written: name -> [sum, weight]. Being part of the state, they
  # survive a restart between two log lines.
  sums: dict[str, jax.Array]
  bad_step: jax.Array  # the first step whose loss or gradient was not finite, or -1


def train_step(config: ConfigDict, model, objective, tx: optax.GradientTransformation,
               state: TrainState, batch: Mapping[str, jax.Array],
               extra: Mapping[str, Any]) -> TrainState:
  """One update of the parameters from a global batch; see `Program` for `extra`."""
  key = jax.random.fold_in(jax.random.key(config.seed), state.step)
  divisors = {k: jnp.maximum(w, 1) for k, w in objective.weights(batch).items()}

  def loss_fn(params, part, key):
    sums = objective(model, params, part, train=True, rngs={"dropout": key}, **extra)
    return sum(sums[k][0] / d for k, d in divisors.items()), sums

  grad_fn = jax.grad(loss_fn, has_aux=True)
  accumulate = config.optim.accumulate
  if accumulate == 1:
    grads, sums = grad_fn(state.params, batch, key)
  else:
    # Strided, so that each part has rows of every device.
    parts = jax.tree.map(
        lambda x: x.reshape(-1, accumulate, *x.shape[1:]).swapaxes(0, 1), dict(batch))

    def body(total, x):
      part, i = x
      new = grad_fn(state.params, part, jax.random.fold_in(key, i))
      return jax.tree.map(jnp.add, total, new), None

    shapes = jax.eval_shape(grad_fn, state.params, jax.tree.map(lambda x: x[0], parts), key)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    (grads, sums), _ = jax.lax.scan(body, zeros, (parts, jnp.arange(accumulate)))

  updates, opt_state = tx.update(grads, state.opt_state, state.params)
  params = optax.apply_updates(state.params, updates)
  ema = state.ema
  if config.optim.ema:
    ema = optim.ema_update(ema, params, config.optim.ema)

  norm = optax.tree.norm(grads)
  new = {name: jnp.stack(pair) for name, pair in sums.items()}
  new["grad_norm"] = jnp.stack([norm, 1.0])
  finite = jnp.isfinite(norm) & jnp.isfinite(sums["loss"][0])
  bad_step = jnp.where((state.bad_step < 0) & ~finite, state.step + 1, state.bad_step)
  return TrainState(step=state.step + 1, params=params, opt_state=opt_state, ema=ema,
                    sums={k: state.sums[k] + v for k, v in new.items()},
                    bad_step=bad_step.astype(jnp.int32))


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
    self.jitted_zero_sums = jax.jit(self.zero_sums, out_shardings=self.shardings.sums)
    self.jitted_step = jax.jit(functools.partial(train_step, config, model, objective, self.tx),
                               donate_argnums=0, out_shardings=self.shardings,
                               in_shardings=(self.shardings, sharding.batch_sharding(mesh),
                                             jax.tree.map(lambda x: x.sharding, self.extra)))

  def init(self) -> TrainState:
    return self.jitted_init(self.config.seed)

  def step(self, state: TrainState, batch: Mapping[str, jax.Array]) -> TrainState:
    # Without the mesh in scope the constraints on activations would silently do nothing.
    with jax.set_mesh(self.mesh):
      return self.jitted_step(state, batch, self.extra)

  def zero_sums(self) -> dict[str, jax.Array]:
    return {name: jnp.zeros(2) for name in self.metric_names}

  def describe(self, model) -> str:
    count = sum(math.prod(x.shape) for x in jax.tree.leaves(self.abstract_state.params))
    text = f"{type(model).__name__} of {count:,} parameters, {self.flops_per_step:.3g} FLOPs a step"
    if self.replicated_dimensions:
      text += "; replicated: " + ", ".join(self.replicated_dimensions)
    return text
