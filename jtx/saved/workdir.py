"""The workdir of a run: whose it is, its checkpoints, its data, and its trained model."""

import functools
import os
from typing import Any, Collection, Mapping

from absl import logging
import jax

from jtx import build, config_files, hub, imports, storage
from jtx.config import ConfigDict
from jtx.data.dataset import Dataset
from jtx.data.tokenizers.files import load_tokenizers
from jtx.errors import CheckpointError, ConfigError, DataError, nearest
from jtx.evals.task import Task
from jtx.interop import files, huggingface
from jtx.nn import lora
from jtx.parallel import processes, sharding
from jtx.saved import base, manifest, older
from jtx.saved.checkpoint import Checkpointer

CONFIG_FILE = "config.json"
SOURCE_FILE = "config.py"  # a copy of the config file
IMPORTS_FILE = "imports.json"  # the folders of the modules that the config names
RESULTS_FILE = "results.json"  # of the final evaluation, which ends a run


def read_config(workdir: str) -> ConfigDict:
  """The config of a workdir, with today's keys; the modules that it names are imported.

  Raises:
    ConfigError: there is none, or it can't be used.
  """
  config = older.read(os.path.join(workdir, CONFIG_FILE))
  path = os.path.join(workdir, IMPORTS_FILE)
  folders = config_files.read_json(path, missing="") if storage.exists(path) else {}
  imports.load(config.imports, folders)
  return older.with_defaults(config)


def write_config(config: ConfigDict, workdir: str, source: str = "") -> None:
  """Writes a config, where the modules that it names lie, and a copy of its file.

  Args:
    config: of the run.
    workdir: of the run.
    source: path of the config file; "" is none.
  """
  config_files.save(config, os.path.join(workdir, CONFIG_FILE))
  if config.imports:
    config_files.write_json({name: imports.found_in[name] for name in config.imports},
                            os.path.join(workdir, IMPORTS_FILE))
  if source:
    storage.write_text(os.path.join(workdir, SOURCE_FILE), storage.read_text(source))


def make_checkpoints(config: ConfigDict, workdir: str) -> Checkpointer:
  """The checkpoints of the run in a workdir.

  Raises:
    ConfigError: what decides which of them stay can't be used.
  """
  c = config.checkpoint
  how, _, name = c.best.partition(":")
  if c.best:
    split = name.partition("/")[0]
    where = f"config.checkpoint.best={c.best!r}"
    if how not in ("min", "max") or split not in config.evals or split == name:
      raise ConfigError(f"{where}: min or max and a number of an evaluation, such as min:val/loss;"
                        f" evaluations are {', '.join(config.evals)}")
    every = config.evals[split].every
    if not every or c.every % every:
      raise ConfigError(f"{where}: every checkpoint must be evaluated, but config.checkpoint.every="
                        f"{c.every} is no multiple of config.evals.{split}.every={every}")
  if c.patience < 0 or c.patience and not c.best:
    raise ConfigError(f"config.checkpoint.patience={c.patience}: a number of checkpoints without a"
                      " better one, by config.checkpoint.best, after which the run ends; or 0")
  return Checkpointer(os.path.join(workdir, "checkpoints"), c.keep,
                      keep_every=c.keep_every, every=c.every, best=how)


def scored_by(config: ConfigDict) -> str:
  """The name of the evaluation that scores checkpoints, or "" where none does."""
  return config.checkpoint.best.partition(":")[2].partition("/")[0]


def chosen_step(config: ConfigDict, checkpoints: Checkpointer,
                step: int | str | None) -> int | None:
  """The step of the checkpoint to use; None is the newest that is good.

  Args:
    config: of the run.
    checkpoints: of the run, with the scores that are known.
    step: a step; "newest"; "best", by `config.checkpoint.best`; or None, the best where the run
      keeps it and the newest where it does not.

  Raises:
    ConfigError: the best is asked for of a run that keeps none.
    CheckpointError: or that has no score yet.
  """
  if step == "newest" or step is None and not config.checkpoint.best:
    return None
  if step not in ("best", None):
    return step
  if not config.checkpoint.best:
    raise ConfigError(f"step=best: the run of {checkpoints.directory.parent} keeps no best"
                      " checkpoint, since its config.checkpoint.best is unset; give newest or a"
                      " number")
  if (best := checkpoints.best_step()) is None and step == "best":
    raise CheckpointError(f"step=best: no checkpoint of {checkpoints.directory} has a score of"
                          f" {config.checkpoint.best!r} yet; give newest or a number")
  return best


def ended(config: ConfigDict, checkpoints: Checkpointer, step: int) -> bool:
  """Whether no step comes after this one, since it is the last or checkpoints got no better.

  It is a function of what the checkpoint of the step holds, so a run that goes on ends there too.
  """
  patience = config.checkpoint.patience
  return step == config.steps or bool(patience) and checkpoints.scores_since_best() >= patience


def read_results(workdir: str) -> dict[str, Any]:
  return config_files.read_json(os.path.join(workdir, RESULTS_FILE), missing="")


def has_results(workdir: str) -> bool:
  """Whether a workdir holds a run whose final evaluation is done."""
  if not storage.exists(os.path.join(workdir, RESULTS_FILE)):
    return False
  try:
    read_results(workdir)
  except ConfigError as e:  # half of it, as a power cut leaves files
    logging.warning("%s; the final evaluation is made anew", e)
    return False
  return True


def told_complete(workdir: str, missing: Collection[str]) -> str:
  """Says of a finished run, for the log, which evaluations are still made of it."""
  lacks = f"evaluations that it lacks are made: {', '.join(missing)}" if missing else (
      "it lacks no evaluation")
  return f"the run of {workdir} is complete; {lacks}; experiments.evaluate makes others"


def unevaluated(config: ConfigDict, workdir: str) -> list[str]:
  """The evaluations that a config asks for and a finished run's results do not have.

  Raises:
    ConfigError: the config asks for another best checkpoint, which comes too late.
  """
  theirs, ours = config_files.flatten(read_config(workdir)), config_files.flatten(config)
  best, asked = theirs["checkpoint.best"], config.checkpoint.best
  if asked != best:
    raise ConfigError(f"config.checkpoint.best={asked!r}: the run of {workdir} is complete, and its"
                      f" checkpoints were kept by {best!r}; leave it so, and try another by"
                      " `evaluate --step=N`")

  def same(section: str, *but: str) -> bool:
    a, b = ({key: value for key, value in keys.items() if (key + ".").startswith(section + ".")
             and key not in but} for keys in (theirs, ours))
    return a == b

  if not same("decode") or not same("checkpoint.average"):
    return list(config.evals)
  return [name for name in config.evals if not same(f"evals.{name}", f"evals.{name}.every")]


def save_results(config: ConfigDict, workdir: str, results: Mapping[str, Any]) -> dict[str, Any]:
  """Writes the results of a final evaluation, beside those that a finished run has of others.

  The config.json of a finished run takes over what was computed: evaluations, and decoding.

  Returns:
    All results.
  """
  path, complete = os.path.join(workdir, RESULTS_FILE), has_results(workdir)
  if complete:
    computed = {key.partition("/")[0] for key in results}
    old = read_results(workdir)
    results = {**results, **{key: value for key, value in old.items()
                             if key.partition("/")[0] not in computed}}
  if processes.is_main():
    config_files.write_json(results, path)
  if complete and processes.is_main():
    theirs = read_config(workdir)
    with theirs.unlocked():
      theirs.evals.update(config.evals)
      theirs.decode, theirs.checkpoint.average = config.decode, config.checkpoint.average
      theirs.imports = tuple(dict.fromkeys((*theirs.imports, *config.imports)))
    write_config(theirs, workdir)
  return dict(results)


def rate(config: ConfigDict, checkpoints: Checkpointer, step: int,
         results: Mapping[str, Any]) -> None:
  """Scores a step's checkpoint by `config.checkpoint.best`, where that was among the evaluations.

  Raises:
    ConfigError: the evaluation has no such number.
  """
  name = config.checkpoint.best.partition(":")[2]
  split = name.partition("/")[0] + "/"
  valid = [key for key, value in results.items()
           if key.startswith(split) and isinstance(value, (int, float))]
  if name in valid:
    checkpoints.rate(step, results[name])
  elif valid:
    raise ConfigError(f"config.checkpoint.best={config.checkpoint.best!r}: {nearest(name, valid)}")


def open_data(config: ConfigDict, workdir: str, checkpoints: Checkpointer | manifest.Manifests,
              step: int | None = None) -> Dataset:
  """The run's data, with the tokenizers and labels that its checkpoint or workdir has.

  Args:
    config: of the run.
    workdir: of the run.
    checkpoints: of the run.
    step: of the checkpoint; None is the newest.

  Raises:
    ConfigError: the workdir's tokenizers are not the checkpoint's.
  """
  saved, labels, shares = None, None, None
  if checkpoints.latest_step() is not None:  # before, a file is of a start that may be another's
    try:
      saved = load_tokenizers(workdir)
    except DataError as e:  # as a power cut leaves files
      logging.warning("%s; those of the checkpoint are used", e)
    meta = checkpoints.read_meta(step)
    trained_with = meta["tokenizers"]
    labels, shares = meta.get("labels"), meta.get("shares")  # older checkpoints have none
    if saved is not None and saved != trained_with:
      raise ConfigError(f"--workdir={workdir}: its tokenizer does not fit its checkpoints, which"
                        " were trained with another vocabulary; restore or remove tokenizer.json")
    saved = trained_with
  make = functools.partial(Dataset, config.data, config.tokenizer)
  if saved is not None or jax.process_count() == 1:  # which is not asked without need
    return make(saved, labels, shares)
  # Trained once, since not every kind of tokenizer comes out the same twice.
  data = make(None, labels) if processes.is_main() else None
  texts, labels = processes.share(data and [data.tokenizer_texts(), list(data.labels)])
  return data or make(texts, labels)


def opened_checkpoints(config: ConfigDict, workdir: str) -> Checkpointer:
  """The checkpoints of a run, for reading, with the scores that its newest one knows.

  Raises:
    CheckpointError: there is none.
  """
  c = config.checkpoint
  checkpoints = Checkpointer(os.path.join(workdir, "checkpoints"), c.keep, c.keep_every,
                             every=c.every, best=c.best.partition(":")[0])
  if checkpoints.latest_step() is None:
    raise CheckpointError(f"--workdir={workdir} has no checkpoint yet")
  newest = checkpoints.read_manifest()
  if newest.meta["config"]["checkpoint"].get("best") == c.get("best"):  # else scores of another
    checkpoints.scores.update(newest.scores)
  return checkpoints


def load_run(workdir: str, step: int | str | None = None, average: int | None = None,
             data_path: str | None = None, merge: bool = True) -> tuple[Task, Any, int]:
  """The model, parameters and data of a run, on all devices of this machine.

  Args:
    workdir: of the run.
    step: of the checkpoint; see `chosen_step`.
    average: how many checkpoints, the newest up to `step`, are averaged; None is what the
      config says.
    data_path: replaces the config's data.path.
    merge: a model with adapters becomes one without, whose kernels have them.

  Returns:
    The task, its parameters (their EMA, where the run keeps one), and the step.
  """
  config = read_config(workdir)
  if "data" not in config:
    raise ConfigError(f"--workdir={workdir} holds a model and no run of jtx, so no data:"
                      " predict, translate or generate, and jtx.load_pretrained, open it")
  if data_path is not None:
    config.data.path = data_path
  checkpoints = opened_checkpoints(config, workdir)
  step = chosen_step(config, checkpoints, step)
  data = open_data(config, workdir, checkpoints, step)
  model, objective = build.make_model(config, data.info, data.label_shares)
  mesh = sharding.make_mesh({"data": -1, "fsdp": 1, "tensor": 1, "context": 1})
  boxed = build.abstract_params(model, objective, data.example_batch(config.batch_size))
  place = lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s)
  abstract = jax.tree.map(place, sharding.unbox(boxed), sharding.param_shardings(boxed, mesh))
  key = "ema" if config.optim.ema else "params"
  if average is None:  # a short run has fewer than its config averages
    average = checkpoints.at_most(config.checkpoint.average, step)
  params, meta, step = checkpoints.restore_params(
      lora.split(model, abstract)[0], step=step, average=average, key=key)
  checkpoints.close()
  if lora.adapted(model):
    kept = base.frozen(_base_params(config, model, workdir), lora.split(model, abstract)[1],
                       config.init_from, meta["base"])
    params = lora.joined(params, kept)
    if merge:
      model, params = lora.merged(model, params)
  return Task(config, model, objective, data=data, mesh=mesh), params, step


def _base_params(config: ConfigDict, model: Any, workdir: str) -> Any:
  """The parameters of the folder that a run of adapters began from, for its model without them."""
  try:
    directory, new = hub.folder(config.init_from), len(config.tokenizer.delimiters)
    if huggingface.is_hf(files.read_config(directory)):
      return huggingface.load_params(directory, lora.plain(model), new)[0]
    theirs = read_config(directory)
    if "data" in theirs:
      found = load_run(directory)
      return base.fitted(directory, lora.plain(model), found[0].model, found[1], new)[0]
    return base.fitted(directory, lora.plain(model), *base.converted(directory, theirs), new)[0]
  except (ConfigError, DataError, CheckpointError) as e:
    raise type(e)(f"--workdir={workdir} holds adapters of the model of {config.init_from}: {e};"
                  f" put it back, or its place into init_from of {workdir}/{CONFIG_FILE}") from e
