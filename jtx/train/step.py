"""The train step: the gradient of the objective, the update, and the state that holds both."""

from typing import Any, Mapping

import flax.struct
import jax
import jax.numpy as jnp
import optax

from jtx.config import ConfigDict
from jtx.train import optim
from jtx.train.layer_sums import LOSS, sums_of


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
               extra: Mapping[str, Any], seed: jax.Array) -> TrainState:
  """One update of the parameters from a global batch; see `Program` for `extra`."""
  key = jax.random.fold_in(jax.random.key(seed), state.step)
  divisors = {k: jnp.where(w > 0, w, 1) for k, w in objective.weights(batch).items()}

  @jax.named_scope("loss")  # regions have names in a profile; those of layers are inside of them
  def loss_fn(params, part, key):
    sums = sums_of(objective, model, params, part, train=True, rngs={"dropout": key}, **extra)
    own = {LOSS: config.optim.accumulate} if LOSS in sums else {}  # a mean over the parts
    return sum(sums[k][0] / d for k, d in (divisors | own).items()), sums

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

  with jax.named_scope("optimizer"):
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
