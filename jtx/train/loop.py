"""Training: one flat function from a config and a workdir to a trained model."""

import dataclasses
import functools
import json
import math
import os
import time
from typing import Any, Iterable, Mapping, Sequence

from absl import logging
import flax.struct
from flax.traverse_util import flatten_dict, unflatten_dict
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jtx import config as config_lib
from jtx import experiment, storage
from jtx.config import ConfigDict
from jtx.data import pipeline
from jtx.data.dataset import Dataset
from jtx.data.tokenizers.files import save_tokenizers
from jtx.errors import ConfigError, TrainError
from jtx.evals.task import Task
from jtx.figures import plots
from jtx.parallel import preemption, processes, sharding
from jtx.saved import pretrained
from jtx.saved.checkpoint import Checkpointer
from jtx.train import flops, metrics, optim


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


def run(config: ConfigDict, workdir: str, devices: Sequence[jax.Device] | None = None,
        max_seconds: float = 0.0, stuck_seconds: float = 0.0) -> dict[str, Any]:
  """Trains `config` in `workdir`, going on from its newest checkpoint if it has one.

  Args:
    config: as `configs/common.py` declares it.
    workdir: folder for all that the run writes.
    devices: to train on; None is all.
    max_seconds: after which it saves and stops; 0 is no limit.
    stuck_seconds: without a step, after which the process ends; 0 is no limit.

  Returns:
    `step`, and the metrics of the final evaluation by `split/name`.

  Raises:
    ConfigError: the config can't be used, or the workdir holds another config's run.
    TrainError: the loss is no longer finite.
    Preempted: it was told to stop, by SIGTERM or `max_seconds`, and has saved.
  """
  with preemption.Notice(max_seconds) as notice, processes.Watchdog(stuck_seconds) as watchdog:
    return _run(config, workdir, devices, notice, watchdog)


def _run(config: ConfigDict, workdir: str, devices: Sequence[jax.Device] | None,
         notice: preemption.Notice, watchdog: processes.Watchdog) -> dict[str, Any]:
  # ------------------------------------------------------------------ workdir
  asked = config  # what the workdir keeps: `steps` may follow from the data
  for key in ("steps", "log_every", "checkpoint.every", "optim.accumulate"):
    if (value := config_lib.flatten(config)[key]) < 1:
      raise ConfigError(f"config.{key}={value}: must be 1 or more")
  jax.config.update("jax_default_prng_impl", config.prng)
  storage.make_folder(workdir)
  experiment.check_workdir(config, workdir)
  checkpoints = experiment.make_checkpoints(config, workdir)

  # --------------------------------------------------------------------- mesh
  mesh = sharding.make_mesh(config.mesh, devices)
  experiment.check_batches(config, mesh)
  rows_sharding = sharding.batch_sharding(mesh)
  banner("mesh", f"{mesh.size} {mesh.devices.flat[0].device_kind}: "
         + " x ".join(f"{a} {n}" for a, n in mesh.shape.items() if n > 1 or mesh.size == 1))

  # --------------------------------------------------------------------- data
  data = experiment.open_data(config, workdir, checkpoints)
  config = experiment.with_steps(config, data)

  # --------------------------------------------------- model, objective, state
  model, objective = experiment.make_model(config, data.info)
  evaluators = experiment.make_evaluators(config)
  task = Task(config, model, objective, data, mesh)
  objective, extra = experiment.with_teacher(objective, mesh)
  program = Program(config, model, objective, data.example_batch(config.batch_size), mesh, extra)
  banner("model", program.describe(model))

  # ------------------------------------------------------------------ restore
  if checkpoints.latest_step() is None:
    state, start, cursor, pending = program.init(), 0, (0, 0), ()
    if config.init_from:
      state = program.replace_params(state, pretrained.load_params(config.init_from, model)[0])
  else:
    restored, meta, start = checkpoints.restore(program.abstract_state_dict())
    state, cursor = TrainState(**restored), tuple(meta["cursor"])
    pending = meta.get("pending", ())  # evaluations that were due; older checkpoints have none
    if meta["config"]["checkpoint"].get("best") != config.checkpoint.best:
      checkpoints.scores.clear()  # they are of another number
    banner("restore", f"step {start} of {checkpoints.directory}")
  stream = experiment.train_stream(config, data, rows_sharding, start, cursor)

  # Only now, so that a config that can't be run does not claim the workdir.
  if processes.is_main():
    config_lib.save(asked, os.path.join(workdir, experiment.CONFIG_FILE))
    save_tokenizers(data.tokenizer_texts(), workdir)
    metrics.write_environment(workdir)

  # --------------------------------------------------------------------- loop
  writer = metrics.MetricWriter(workdir, resume_step=start, pending=pending)
  progress = metrics.Progress(config.steps, start, mesh.size, objective.unit)
  batches = pipeline.iterate(stream, start, config.steps, threads=config.data.threads,
                             workers=config.data.workers)

  def evaluate_now(names: Iterable[str], step: int) -> None:
    params = state.ema if config.optim.ema else state.params
    now = {name: e for name, e in evaluators.items() if name in names}
    results = evaluate(task, params, now, step, workdir, writer)
    experiment.rate(config, checkpoints, step, results)

  if pending:
    evaluate_now(pending, start)
  logging.info("compiling the train step")
  watchdog.start()
  flops_done = 0.0  # since the last log line
  step = start
  for step, batch in enumerate(notice.reading(batches), start + 1):
    last = step == config.steps
    batch = sharding.to_device(without_ids(batch), stream.batch_size(step - 1), rows_sharding)
    state = program.step(state, batch)
    watchdog.beat()
    flops_done += program.flops(batch)

    if step % config.log_every == 0 or last:
      host = processes.to_host(state.sums)
      check_finite(state, checkpoints)
      scalars = metrics.summarize(host)
      scalars["lr"] = float(program.schedule(step - 1))
      writer.write(step, scalars)
      progress.log(step, scalars, float(host["loss"][1]), flops_done)
      state, flops_done = state.replace(sums=program.jitted_zero_sums()), 0.0

    # Before the save, so that a restart from it does not find the evaluation missing; but who is
    # told to stop has no time for it.
    stop = notice.due(step)
    due = [name for name, e in evaluators.items()
           if e.every and step % e.every == 0 and not last]
    if due and not stop:
      with progress.pause(), watchdog.pause():
        evaluate_now(due, step)
      due = []

    if step % config.checkpoint.every == 0 or last or stop:
      with progress.pause(), watchdog.pause():
        save(checkpoints, state, config, data, stream, step, pending=due)
    if stop:
      break

  if notice.reason:
    save(checkpoints, state, config, data, stream, step)
  watchdog.stop()
  checkpoints.wait()
  notice.at_once()

  # --------------------------------------------------------- final evaluation
  results_path = os.path.join(workdir, "results.json")
  if start == config.steps and storage.exists(results_path):
    banner("done", f"the run of {workdir} is complete")
    results = json.loads(storage.read_text(results_path))
  else:
    params = program.averaged_params(checkpoints, config.checkpoint.average)
    results = {"step": config.steps,
               **evaluate(task, params, evaluators, config.steps, workdir, writer)}
    if processes.is_main():
      config_lib.write_json(results, results_path)
  checkpoints.close()
  writer.close()
  return results


# ------------------------------------------------------------------------------- parts


def banner(section: str, text: str) -> None:
  logging.info("%-8s %s", section, text)


def without_ids(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """A batch without the example numbers, which stay on the host."""
  return {k: v for k, v in batch.items() if k != "ids"}


def to_dict(state: TrainState) -> dict[str, Any]:
  return {f.name: getattr(state, f.name) for f in dataclasses.fields(state)}


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

  def __init__(self, config: ConfigDict, model, objective, example: Mapping[str, Any], mesh,
               extra: Mapping[str, Any] = {}):
    self.config, self.model, self.objective = config, model, objective
    self.mesh, self.extra = mesh, dict(extra)

    boxed = experiment.abstract_params(model, objective, example)
    self.replicated_dimensions = sharding.replicated_dimensions(boxed, mesh)
    params, axes = sharding.unbox(boxed), sharding.logical_axes(boxed)
    self.tx, self.schedule = optim.make(config.optim, config.steps, params, axes)
    everywhere = jax.NamedSharding(mesh, jax.P())
    param_shardings = sharding.param_shardings(boxed, mesh)

    forward = lambda p, b, extra: objective(model, p, b, train=False, **extra)
    self.forward, self.abstract_params = forward, params
    sums = jax.eval_shape(forward, params, example, self.extra)
    self.metric_names = (*sums, "grad_norm")
    self.known_flops: dict[Any, float] = {}
    self.flops_per_step = self.flops(example)

    def init(seed):
      key = jax.random.key(seed)
      params = sharding.unbox(experiment.init_params(model, objective, example, key))
      return TrainState(jnp.int32(0), params, self.tx.init(params),
                        params if config.optim.ema else {}, self.zero_sums(), jnp.int32(-1))

    self.abstract_state = jax.eval_shape(init, 0)
    self.shardings = TrainState(
        everywhere, param_shardings,
        optim.opt_state_shardings(self.abstract_state.opt_state, params, param_shardings,
                                  everywhere),
        param_shardings if config.optim.ema else {},
        {name: everywhere for name in self.metric_names}, everywhere)
    self.jitted_init = jax.jit(init, out_shardings=self.shardings)
    self.jitted_zero_sums = jax.jit(self.zero_sums, out_shardings=self.shardings.sums)
    self.jitted_step = jax.jit(functools.partial(train_step, config, model, objective, self.tx),
                               donate_argnums=0, out_shardings=self.shardings,
                               in_shardings=(self.shardings, sharding.batch_sharding(mesh),
                                             jax.tree.map(lambda x: x.sharding, self.extra)))

  def init(self) -> TrainState:
    return self.jitted_init(self.config.seed)

  def replace_params(self, state: TrainState, params: Any) -> TrainState:
    """A fresh state with other parameters; those that `params` does not have stay.

    Args:
      state: as `init` makes it.
      params: nested dict of arrays.
    """
    fresh = flatten_dict(state.params, sep="/")
    places = flatten_dict(self.shardings.params, sep="/")
    given = {path: jax.device_put(x, places[path])
             for path, x in flatten_dict(params, sep="/").items()}
    banner("init", f"{len(given)} of {len(fresh)} parameters from {self.config.init_from}"
           + ("; fresh: " + ", ".join(sorted(fresh.keys() - given.keys()))
              if len(given) < len(fresh) else ""))
    params = unflatten_dict(fresh | given, sep="/")
    # The average starts from them too, in arrays of its own: the step gives its state away.
    ema = jax.tree.map(jnp.copy, params) if self.config.optim.ema else {}
    return state.replace(params=params, ema=ema)

  def step(self, state: TrainState, batch: Mapping[str, jax.Array]) -> TrainState:
    # Without the mesh in scope the constraints on activations would silently do nothing.
    with jax.set_mesh(self.mesh):
      return self.jitted_step(state, batch, self.extra)

  def flops(self, batch: Mapping[str, Any]) -> float:
    """Floating-point operations of a step on a batch of these shapes."""
    key = tuple(x.shape for x in jax.tree.leaves(dict(batch)))
    if key not in self.known_flops:
      # A backward pass is two products for each of the forward's (Kaplan et al. 2020, 2.1), but
      # not through what isn't trained.
      alone, whole = (flops.count(self.forward, self.abstract_params, batch, extra)
                      for extra in ({}, self.extra))
      self.known_flops[key] = 2 * alone + whole
    return self.known_flops[key]

  def zero_sums(self) -> dict[str, jax.Array]:
    return {name: jnp.zeros(2) for name in self.metric_names}

  def abstract_state_dict(self) -> dict[str, Any]:
    """What to restore a checkpoint as, and where on the mesh."""
    place = lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s)
    return to_dict(jax.tree.map(place, self.abstract_state, self.shardings))

  def averaged_params(self, checkpoints: Checkpointer, number: int) -> Any:
    """The mean of the last `number` checkpoints (of their EMA, where there is one)."""
    key = "ema" if self.config.optim.ema else "params"
    number = min(number, len(checkpoints.all_steps()))  # a short run has fewer
    abstract = self.abstract_state_dict()[key]
    return checkpoints.restore_params(abstract, average=number, key=key)[0]

  def describe(self, model) -> str:
    count = sum(math.prod(x.shape) for x in jax.tree.leaves(self.abstract_state.params))
    text = f"{type(model).__name__} of {count:,} parameters, {self.flops_per_step:.3g} FLOPs a step"
    if self.replicated_dimensions:
      text += "; replicated: " + ", ".join(self.replicated_dimensions)
    return text


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
  return TrainState(state.step + 1, params, opt_state, ema,
                    {k: state.sums[k] + v for k, v in new.items()}, bad_step.astype(jnp.int32))


def check_finite(state: TrainState, checkpoints: Checkpointer) -> None:
  bad = int(state.bad_step)
  if bad < 0:
    return
  checkpoints.wait()
  good = checkpoints.latest_step()
  kept = "there is no checkpoint yet"
  if good is not None:
    kept = f"the checkpoint of step {good} is the last good one"
  raise TrainError(f"the loss or its gradient became NaN or infinite at step {bad}, and nothing was"
                   f" saved since; {kept}; try a lower optim.lr, optim.clip_norm or more warm-up")


def save(checkpoints: Checkpointer, state: TrainState, config: ConfigDict, data: Dataset,
         stream: pipeline.Phases, step: int, pending: Iterable[str] = ()) -> None:
  """Starts to write a checkpoint; `pending` are the names of evaluators that are due."""
  check_finite(state, checkpoints)
  checkpoints.save(step, to_dict(state), {
      "config": json.loads(config.to_json()), "tokenizers": data.tokenizer_texts(),
      "labels": list(data.labels), "cursor": [int(i) for i in stream.cursor(step)],
      "pending": list(pending)})


def evaluate(task: Task, params: Any, evaluators: Mapping[str, Any], step: int, workdir: str,
             writer: metrics.MetricWriter | None = None) -> dict[str, Any]:
  """Runs evaluators: numbers are written, texts logged, figures drawn into the workdir.

  Returns:
    Numbers and signatures by `split/name`.
  """
  results: dict[str, Any] = {}
  for split, evaluator in evaluators.items():
    start = time.monotonic()
    numbers, lines = {}, []
    with jax.set_mesh(task.mesh):
      for name, value in evaluator(task, params):
        key = f"{split}/{name}"
        if isinstance(value, (int, float)):
          numbers[key] = value
        elif not isinstance(value, str):
          if processes.is_main():
            plots.save(value, os.path.join(workdir, f"{split}_{name}.png"))
        elif name.startswith("sample"):
          lines.append(value)
        else:
          results[key] = value
    logging.info("eval     step %d %s in %.1f s", step,
                 " ".join(f"{k}={v:.4g}" for k, v in numbers.items()), time.monotonic() - start)
    for line in lines:
      logging.info("  %s", line)
    if writer is not None:
      writer.write(step, numbers)
    results |= numbers
  return results
