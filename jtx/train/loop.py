"""Training: one flat function from a config and a workdir to a trained model."""

from typing import Any, Iterable, Mapping, Sequence

from absl import logging
import jax
import numpy as np

from jtx import build, imports
from jtx.config import ConfigDict
from jtx.data import pipeline
from jtx.data.tokenizers.files import save_tokenizers
from jtx.evals.run import check_early, checked, evaluate, make_evaluators
from jtx.evals.task import Task
from jtx.objectives.contract import units_of
from jtx.objectives.sums import summarize
from jtx.parallel import preemption, processes, sharding
from jtx.saved import claims, lock, workdir as workdirs
from jtx.train import keys, metrics, phases, states, trackers
from jtx.train.profile import Profile
from jtx.train.program import Program
from jtx.train.progress import Progress
from jtx.train.teacher import check_folders, evaluated, taught, tokenizer_of, with_teacher


def run(config: ConfigDict, workdir: str, devices: Sequence[jax.Device] | None = None,
        max_seconds: float = 0.0, stuck_seconds: float = 0.0,
        config_file: str = "") -> dict[str, Any]:
  """Trains `config` in `workdir`, going on from its newest checkpoint if it has one.

  Args:
    config: as `configs/common.py` declares it.
    workdir: folder for all that the run writes.
    devices: to train on; None is all.
    max_seconds: after which it saves and stops; 0 is no limit.
    stuck_seconds: without a step, after which the process ends; 0 is no limit.
    config_file: path of the file that made the config, to be copied into the workdir.

  Returns:
    `step`, and the metrics of the final evaluation by `split/name`.

  Raises:
    ConfigError: the config can't be used, or the workdir holds another config's run.
    TrainError: the loss is no longer finite.
    Preempted: it was told to stop, by a signal or `max_seconds`, and has saved.
  """
  imports.load(config.get("imports", ()))
  keys.check_config(config)
  trackers.check(config.trackers)
  with (lock.claimed(workdir), preemption.Notice(max_seconds) as notice,
        processes.Watchdog(stuck_seconds) as watchdog):
    return _run(config, workdir, devices, config_file, notice, watchdog)


def _run(config: ConfigDict, workdir: str, devices: Sequence[jax.Device] | None,
         config_file: str, notice: preemption.Notice,
         watchdog: processes.Watchdog) -> dict[str, Any]:
  # ------------------------------------------------------------------ workdir
  asked = config  # what the workdir keeps: `steps` may follow from the data
  profile = Profile(config.profile, workdir)
  jax.config.update("jax_default_prng_impl", config.prng)
  claims.check(config, workdir)
  checkpoints = workdirs.make_checkpoints(config, workdir)

  # --------------------------------------------------------------------- mesh
  mesh = sharding.make_mesh(config.mesh, devices)
  phases.check_batches(config, mesh)
  rows_sharding = sharding.batch_sharding(mesh)
  banner("mesh", f"{mesh.size} {mesh.devices.flat[0].device_kind}: "
         + " x ".join(f"{a} {n}" for a, n in mesh.shape.items() if n > 1 or mesh.size == 1))

  # --------------------------------------------------------------------- data
  if checkpoints.latest_step() is None:  # a run that ends may do without
    check_early(config)
    check_folders(config)
  data = workdirs.open_data(config, workdir, checkpoints)
  config = phases.with_steps(config, data)

  # --------------------------------------------------- model, objective, state
  model, objective = build.make_model(config, data.info, data.label_shares)
  phases.check_lengths(config, data.recipe, model)
  example = data.example_batch(*phases.first_shape(config))
  evaluators = make_evaluators(config, model, example)
  task = Task(config, model, objective, data=data, mesh=mesh)
  objective, extra = with_teacher(taught(config, objective), mesh, tokenizer=tokenizer_of(data))
  task = evaluated(task, objective, extra)
  program = Program(config, model, objective, example=example, mesh=mesh, extra=extra)
  banner("model", program.describe(model))

  # ------------------------------------------------------------------ restore
  begun = states.begin(program, checkpoints)
  state, start = begun.state, begun.step
  if start:
    banner("restore", f"step {start} of {checkpoints.directory}")
  else:
    phases.warn_of_lengths(config, data.recipe, model)
  complete = workdirs.ended(config, checkpoints, start) and workdirs.has_results(workdir)
  names = workdirs.unevaluated(asked, workdir) if complete else evaluators
  missing = checked({name: evaluators[name] for name in names}, data)
  if complete:
    banner("done", workdirs.told_complete(workdir, missing))
  if not workdirs.ended(config, checkpoints, start):
    states.check_same(config, data, begun)
  stream = phases.train_stream(config, data, rows_sharding, start, begun.cursor, begun.epochs)

  # Only now, so that a config that can't be run leaves nothing there.
  if processes.is_main():
    if not complete:
      workdirs.write_config(asked, workdir, config_file)
    save_tokenizers(data.tokenizer_texts(), workdir)
    metrics.write_environment(workdir)

  # --------------------------------------------------------------------- loop
  idle = complete and not missing
  writer = metrics.MetricWriter(workdir, resume_step=start, pending=begun.pending,
                                trackers=() if idle else config.trackers, config=config)
  progress = Progress(config.steps, start, mesh.size, unit=objective.unit, flops=program.flops,
                      before=begun.totals)

  def evaluate_now(names: Iterable[str], step: int) -> None:
    params = program.whole(state.ema if config.optim.ema else state.params)
    now = {name: e for name, e in evaluators.items() if name in names}
    results = evaluate(task, params, now, step, workdir, writer.write)
    workdirs.rate(config, checkpoints, step, results)

  if begun.pending:
    evaluate_now(begun.pending, start)
  stop_at = start if workdirs.ended(config, checkpoints, start) else config.steps
  batches = pipeline.iterate(stream, start, stop_at, threads=config.data.threads,
                             workers=config.data.workers)
  watchdog.start()
  step, scored = start, workdirs.scored_by(config)
  for step, batch in enumerate(notice.reading(batches), start + 1):
    last = step == config.steps
    batch = sharding.to_device(without_ids(batch), stream.batch_size(step - 1), rows_sharding)
    with profile.step(step), progress.step(batch):
      state = program.step(state, batch)
    watchdog.beat()

    logged = step % config.log_every == 0 or last
    if logged or progress.due():
      host = processes.to_host(state.sums)
      scalars = summarize(host)
      measured = progress.log(step, scalars, units_of(objective, host), logged)
    if logged:
      states.check_finite(state, checkpoints)
      scalars |= {"lr": float(program.schedule(step - 1)), "seen/epochs": stream.epochs(step)}
      writer.write(step, scalars | measured)
      state = state.replace(sums=program.jitted_zero_sums())

    # Before the save, so that a restart from it does not find the evaluation missing; but who is
    # told to stop has no time for it.
    stop = notice.due(step)
    due = [name for name, e in evaluators.items()
           if (name == scored if last else e.every and step % e.every == 0)]
    if due and not stop:
      with progress.pause(), watchdog.pause(), notice.abandons():
        evaluate_now(due, step)
        due = []
      stop = bool(notice.reason)

    if step % config.checkpoint.every == 0 or last or stop:
      with progress.pause(), watchdog.pause():
        states.save(checkpoints, state, program, data, stream, step, pending=due,
                    totals=progress.totals())
    if stop or workdirs.ended(config, checkpoints, step):
      break

  if notice.reason:
    states.save(checkpoints, state, program, data, stream, step, totals=progress.totals())
  profile.finish()
  watchdog.stop()
  checkpoints.wait()
  notice.at_once()

  # --------------------------------------------------------- final evaluation
  if step < config.steps:
    banner("stop", f"step {step}, {config.checkpoint.patience} checkpoints after the best")
  if idle:
    results = workdirs.read_results(workdir)
  else:
    params, at = states.final_params(program, checkpoints)
    results = workdirs.save_results(asked, workdir, {
        "step": at, **evaluate(task, program.whole(params), missing, at, workdir, writer.write)})
  checkpoints.close()
  writer.close()
  return results


# ------------------------------------------------------------------------------- parts


def banner(section: str, text: str) -> None:
  logging.info("%-8s %s", section, text)


def without_ids(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """A batch without the example numbers, which stay on the host."""
  return {k: v for k, v in batch.items() if k != "ids"}
