"""What a config names, made: data, model, objective, evaluators; and whose workdir it is."""

import functools
import math
import os
from typing import Any, Mapping, NamedTuple

import jax
import jax.numpy as jnp

from jtx import config as config_lib
from jtx import storage
from jtx.config import ConfigDict, build
from jtx.data import pipeline, recipes
from jtx.data.dataset import Dataset
from jtx.data.tokenizers.files import load_tokenizers
from jtx.data.tokenizers.kinds import wordpiece
from jtx.errors import ConfigError, nearest
from jtx.evals import EVALS
from jtx.models import MODELS
from jtx.objectives import OBJECTIVES
from jtx.parallel import processes
from jtx.parallel.sharding import check_batch, local_rows, param_shardings
from jtx.saved.checkpoint import Checkpointer

CONFIG_FILE = "config.json"
LABELLED = ("classes", "tags")  # tasks of heads whose outputs are the data's labels

# Keys that do not change what is computed: a workdir may be resumed with others.
FREE_KEYS = ("mesh", "log_every", "checkpoint", "evals", "decode", "data.threads", "data.workers",
             "data.path", "init_from")


def check_workdir(config: ConfigDict, workdir: str) -> None:
  """Raises ConfigError where the workdir holds a run of another config."""
  path = os.path.join(workdir, CONFIG_FILE)
  if storage.exists(path):
    theirs, ours = config_lib.flatten(config_lib.load(path)), config_lib.flatten(config)
    for key in sorted(theirs.keys() | ours.keys()):
      free = any(key == k or key.startswith(k + ".") for k in FREE_KEYS)
      if not free and theirs.get(key) != ours.get(key):
        raise ConfigError(
            f"--workdir={workdir} holds a run of another config: {key} is {theirs.get(key)!r} there"
            f" and {ours.get(key)!r} here; choose another workdir, or the same config to go on")


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
  return Checkpointer(os.path.join(workdir, "checkpoints"), c.keep, c.keep_every, c.every, how)


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


def open_data(config: ConfigDict, workdir: str, checkpoints: Checkpointer,
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
  saved, labels = load_tokenizers(workdir), None
  if checkpoints.latest_step() is not None:
    meta = checkpoints.read_meta(step)
    trained_with = meta["tokenizers"]
    labels = meta.get("labels")  # older checkpoints have none
    if saved is not None and saved != trained_with:
      raise ConfigError(f"--workdir={workdir}: its tokenizer does not fit its checkpoints, which"
                        " were trained with another vocabulary; restore or remove tokenizer.json")
    saved = trained_with
  make = functools.partial(Dataset, config.data, config.tokenizer)
  if jax.process_count() == 1 or saved is not None:
    return make(saved, labels)
  # Trained once, since not every kind of tokenizer comes out the same twice.
  data = make(None, labels) if processes.is_main() else None
  texts, labels = processes.share(data and [data.tokenizer_texts(), list(data.labels)])
  return data or make(texts, labels)


def check_batches(config: ConfigDict, mesh: jax.sharding.Mesh) -> None:
  """Raises ConfigError where a part of a batch of some phase can't be split over the mesh."""
  parts = config.optim.accumulate
  what = "rows of a batch in config.phases" if config.phases else "config.batch_size"
  for phase in phases(config):
    if phase.batch_size % parts:
      raise ConfigError(f"config.optim.accumulate={parts} does not divide"
                        f" {what}={phase.batch_size}")
    check_batch(phase.batch_size // parts, mesh,
                what + " / config.optim.accumulate" * (parts > 1))


def declared_data(config: ConfigDict, vocab_size: int | None = None,
                  outputs: int | None = None) -> tuple[recipes.Recipe, dict[str, int]]:
  """The recipe and the `info` of a config's data as far as the config tells; no source is read.

  Args:
    config: of a run.
    vocab_size: of tokenizers, where it follows from the data or a file.
    outputs: classes or tags, where they follow from the data.

  Raises:
    ConfigError: one of them is needed and None.
  """
  # Of a tokenizer the ops need no more than that it has the special tokens.
  stand_in = wordpiece(iter(["a few words"]), vocab_size=40, min_frequency=1, mask=True)
  recipe = recipes.build_ops(config.data.ops).bind({"text": stand_in})
  info, ops = {}, (*recipe.prepare, *recipe.augment)
  if not recipe.augment:
    kind = config.tokenizer.kind
    size = kind.vocab_size if "vocab_size" in kind else vocab_size
    if size is None:
      raise ConfigError(f"vocab_size is needed: that of config.tokenizer.kind={kind.name} follows"
                        " from the data or a file")
    info = {"vocab_size": size, "src_vocab_size": size, "bos_id": 1}
  names = next((op.names for op in ops if hasattr(op, "names")), None)
  if names is not None and _labelled(config.model.get("head", {})):
    if not names and outputs is None:
      raise ConfigError("outputs is needed: the names of classes or tags follow from the data")
    info["head.outputs"] = len(names) or outputs
  return recipe, info


def _labelled(head: Mapping[str, Any]) -> bool:
  return "task" not in head or head["task"] in LABELLED


def make_model(config: ConfigDict, info: Mapping[str, int]) -> tuple[Any, Any]:
  """The model and the objective; fields that are unset and in `info` come from the data.

  Raises:
    ConfigError: a field of the model that is set differs from the data.
  """
  built = []
  for section, registry in (("model", MODELS), ("objective", OBJECTIVES)):
    cfg = config[section].copy_and_resolve_references()
    for key, value in info.items():
      *path, last = key.split(".")
      node = functools.reduce(lambda node, part: node[part] if part in node else {}, path, cfg)
      if path == ["head"] and not _labelled(node):
        continue  # labels that the model is not asked for
      if last in node and node[last] is None:
        node[last] = value
      elif last in node and node[last] != value:
        raise ConfigError(f"config.{section}.{key}={node[last]} does not fit the data, whose {last}"
                          f" is {value}; leave it unset to take the data's")
    built.append(build(registry, cfg, what=section))
  return tuple(built)


def with_teacher(objective, mesh, abstract: bool = False) -> tuple[Any, dict[str, Any]]:
  """The objective with the teacher that it names, if any, and the teacher's parameters.

  Args:
    objective: of a config.
    mesh: the devices that the parameters are put on.
    abstract: only say where they would be.
  """
  if not hasattr(objective, "taught_by"):
    return objective, {}
  if not objective.teacher:
    raise ConfigError("objective.teacher is unset; it names the folder or workdir of the model that"
                      " teaches")
  from jtx.saved import pretrained
  model, params = pretrained.load_pretrained(objective.teacher)
  objective = objective.taught_by(model)
  boxed = jax.eval_shape(model.init, jax.random.key(0), model.example())["params"]
  places = param_shardings(boxed, mesh)
  if abstract:
    put = lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place)
    return objective, {"teacher": jax.tree.map(put, params, places)}
  return objective, {"teacher": jax.device_put(params, places)}


def make_evaluators(config: ConfigDict) -> dict[str, Any]:
  return {name: build(EVALS, config.evals[name], what=f"evals.{name}") for name in config.evals}


def init_params(model, objective, example: Mapping[str, Any], key: jax.Array) -> Any:
  """Fresh parameters, with axis names. Of the batch only shapes matter."""
  zeros = {k: jnp.zeros(v.shape, v.dtype) for k, v in example.items()}
  return model.init(key, objective.model_inputs(zeros))["params"]


def abstract_params(model, objective, example: Mapping[str, Any]) -> Any:
  """Shapes, dtypes and axis names of the parameters, at no cost."""
  init = functools.partial(init_params, model, objective, example)
  return jax.eval_shape(init, jax.random.key(0))


class Phase(NamedTuple):
  """A stretch of training."""
  start: int  # step
  length: int | None  # tokens of a row; None is what the layout says
  batch_size: int


def phases(config: ConfigDict) -> list[Phase]:
  """The stretches of a run.

  Raises:
    ConfigError: an entry of `phases` is not of its form, or the shares do not add up to 1.
  """
  if not config.phases:
    return [Phase(0, None, config.batch_size)]
  kinds = ([float, int, int], [int, int, int])
  shaped = all(isinstance(phase, tuple) and [*map(type, phase)] in kinds and min(phase) > 0
               for phase in config.phases)
  if not shaped or abs(sum(share for share, *_ in config.phases) - 1) > 1e-6:
    raise ConfigError(f"config.phases={config.phases}: each is (share of the run, tokens a row,"
                      " rows a batch), all above 0, and the shares add up to 1")
  result, done = [], 0.0
  for share, length, batch_size in config.phases:
    result.append(Phase(round(done * config.steps), length, batch_size))
    done += share
  return result


def train_stream(config: ConfigDict, data: Dataset, sharding, start: int,
                 cursor: tuple[int, int]) -> pipeline.Phases:
  """This process's training batches.

  Args:
    config: of the run.
    data: of the run.
    sharding: of a batch's rows.
    start: the step to go on from.
    cursor: where the stream stood at that step.
  """
  parts = phases(config)
  active = max(i for i, phase in enumerate(parts) if phase.start <= start)
  streams = [
      data.train_stream(config.seed + (i << 32), phase.batch_size,
                        local_rows(phase.batch_size, sharding),
                        cursor if i == active else (0, 0), phase.length)
      for i, phase in enumerate(parts)]
  return pipeline.Phases(streams, [phase.start for phase in parts])


def with_steps(config: ConfigDict, data: Dataset) -> ConfigDict:
  """The config with the `steps` that its `epochs`, where they are set, come to."""
  if config.epochs is None:
    return config
  if config.phases:
    raise ConfigError("config.epochs and config.phases exclude each other: a phase is a share of"
                      " config.steps")
  if config.epochs <= 0:
    raise ConfigError(f"config.epochs={config.epochs}: must be above 0, or unset to go by steps")
  config = config.copy_and_resolve_references()
  config.steps = max(math.ceil(config.epochs * data.num_train_rows() / config.batch_size), 1)
  return config.lock()
