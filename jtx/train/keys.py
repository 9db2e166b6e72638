"""The keys of every run: what they are for, their defaults and their ranges."""

import dataclasses
from typing import Annotated, Literal

from jtx.config import ConfigDict, OneOf, build, check, fields, section
from jtx.data.ops.registry import OPS
from jtx.data.tokenizers.kinds import TOKENIZERS
from jtx.errors import ConfigError
from jtx.evals import EVALS
from jtx.inference.decode import METHODS
from jtx.models import MODELS
from jtx.objectives import OBJECTIVES
from jtx.objectives.terms import TERMS
from jtx.ranges import (
    Count, CountOrNone, NotNegative, Positive, Rate, Seed, Share, Size, SizeOrNone, Within)
from jtx.train.optimizers import OPTIMIZERS
from jtx.train.schedules import SCHEDULES

Axis = Annotated[int, Within("[-1, inf)")]  # devices along it; -1 is those that are left
_keys = dataclasses.dataclass(frozen=True, kw_only=True)


@_keys
class OptimKeys:
  """The optimiser and its learning rate; AdamW with a warmed-up cosine."""
  lr: NotNegative = 1e-3  # the highest learning rate; noam's factor
  # From gradients to updates, without the rate; see jtx/train/optimizers.py
  optimizer: Annotated[ConfigDict, OneOf(OPTIMIZERS)] = dataclasses.field(
      default_factory=lambda: section(OPTIMIZERS, "adamw"))
  # The learning rate of every update; see jtx/train/schedules.py
  schedule: Annotated[ConfigDict, OneOf(SCHEDULES)] = dataclasses.field(
      default_factory=lambda: section(SCHEDULES, "cosine"))
  clip_norm: NotNegative = 0.0  # of the gradient of all parameters together; 0 is off
  # (regex on a parameter's path, factor), first match wins, 0 freezes
  lr_mults: tuple[tuple[str, NotNegative], ...] = ()
  # (regex on a path, two shares of the run between which it is frozen), first match wins
  frozen: tuple[tuple[str, Share, Share], ...] = ()
  ema: Rate = 0.0  # decay of the average of the parameters; 0 is off
  accumulate: Size = 1  # parts that a batch is taken in, one after the other, for one update


@_keys
class DistillKeys:
  """A teacher, and terms against it that are added to the objective, whichever it is."""
  teacher: str = ""  # a Hugging Face folder or a workdir; "" is off
  # Each compares something of both models; see jtx/objectives/terms.py
  terms: tuple[Annotated[ConfigDict, OneOf(TERMS)], ...] = ()
  task_weight: NotNegative = 1.0  # of the objective's own loss; 0 leaves it out
  task_during: tuple[Share, Share] = (0.0, 1.0)  # shares of the run between which it is in the loss


@_keys
class MeshKeys:
  """The sizes of the mesh, in devices; one may be -1, those that are left."""
  data: Axis = -1  # that have the same parameters, and other rows
  fsdp: Axis = 1  # that share the parameters, by the width, and have other rows
  expert: Axis = 1  # that share the experts, and have other rows
  tensor: Axis = 1  # that share heads, hidden widths and the vocabulary
  context: Axis = 1  # that share the places of rows


@_keys
class CheckpointKeys:
  """The checkpoints that are written, and those that are kept."""
  every: Count = 1000  # steps
  keep: Count = 3  # the newest
  keep_every: CountOrNone = 0  # steps; these are kept for good; 0 is none
  best: str = ""  # such as "min:val/loss": kept for good, too
  patience: CountOrNone = 0  # checkpoints without a better one, after which a run ends; 0 is never
  average: Count = 1  # checkpoints averaged for the final evaluation
  same_data: bool = True  # whether a run goes on only with the training data that it began with


@_keys
class TokenizerKeys:
  """The tokenizers, trained on the training data or read."""
  # How they are made; see jtx/data/tokenizers/kinds.py
  kind: Annotated[ConfigDict, OneOf(TOKENIZERS)] = dataclasses.field(
      default_factory=lambda: section(TOKENIZERS, "bpe"))
  shared: bool = True  # one for source and target
  # Tokens before a text, between the two of a pair, and behind, such as ("<start>", "<delimiter>",
  # "<extract>"); those that it lacks are added. () is what the tokenizer itself puts there
  delimiters: tuple[str, ...] = ()


@_keys
class DataKeys:
  """The sources of examples, and the way from there to the rows of a batch."""
  path: str = ""  # folder of relative file names
  train: tuple[str, ...] = ()  # sources; see jtx/data/sources/registry.py
  weights: tuple[NotNegative, ...] = ()  # one a source; () is by size
  smoothing: NotNegative | None = None  # by size^smoothing instead
  size_limit: CountOrNone = 0  # examples that a source counts as at most, by size; 0 is no limit
  # What is done to examples, in this order; see jtx/data/ops/registry.py
  ops: tuple[Annotated[ConfigDict, OneOf(OPS)], ...] = ()
  window: SizeOrNone = 8192  # examples that are shuffled into rows together; 0 is an epoch
  threads: Annotated[int, Within("[0, 1024]")] = 2  # that read ahead
  workers: Annotated[int, Within("[0, 1024]")] = 0  # processes that read ahead, for heavy ops


@_keys
class DecodeKeys:
  """The search for target texts, in evaluations and in experiments.translate."""
  # The search: by beams, or draws; see jtx/inference/decode.py
  method: Annotated[ConfigDict, OneOf(METHODS)] = dataclasses.field(
      default_factory=lambda: section(METHODS, "beam"))
  batch_size: Size = 64  # sources at a time
  max_source_length: Size = 256  # tokens; longer lines are cut, with a warning
  max_target_length: Size = 256  # tokens


@_keys
class RunKeys:
  """The config of a run. `model` and `objective` are for the experiment to choose."""
  imports: tuple[str, ...] = ()  # modules of yours that register names; see jtx/imports.py
  seed: Seed = 0  # of all that training draws
  # threefry has the same bits on every mesh; rbg is faster on TPU and has others
  prng: Literal["threefry2x32", "rbg", "unsafe_rbg"] = "threefry2x32"
  steps: Count = 100_000  # optimiser updates
  epochs: Positive | None = None  # passes over the data, instead of steps, unless a flag sets these
  batch_size: Annotated[int, Within(f"[1, {2 ** 20}]")] = 64  # rows, over all processes
  # Stretches of the run, (share of it, tokens a row, rows a batch), such as BERT's last tenth
  phases: tuple[tuple[Positive, Size, Size], ...] = ()
  log_every: Count = 100  # steps
  trackers: tuple[str, ...] = ("tensorboard",)  # beside metrics.jsonl; also wandb and mlflow
  # First and last step of a trace for Perfetto and xprof, such as (10, 15)
  profile: tuple[Count, ...] = ()
  model: Annotated[ConfigDict, OneOf(MODELS)]  # a family, and its fields
  objective: Annotated[ConfigDict, OneOf(OBJECTIVES)]  # that is minimised
  distill: DistillKeys = DistillKeys()
  optim: OptimKeys = OptimKeys()
  # A Hugging Face folder or a workdir whose parameters training starts from; "" is fresh.
  init_from: str = ""
  mesh: MeshKeys = MeshKeys()
  checkpoint: CheckpointKeys = CheckpointKeys()
  tokenizer: TokenizerKeys = TokenizerKeys()
  data: DataKeys = DataKeys()
  decode: DecodeKeys = DecodeKeys()
  # Evaluators, by names of yours; see jtx/evals
  evals: dict[str, Annotated[ConfigDict, OneOf(EVALS)]] = dataclasses.field(default_factory=dict)


def check_config(config: ConfigDict) -> None:
  """Raises ConfigError where the config of a run can't be used, whatever its data are."""
  check(RunKeys, config, "config")
  if missing := [key for key in fields(RunKeys) if key not in config]:
    raise ConfigError(f"config.{missing[0]} must be set")
  build(METHODS, config.decode.method, what="config.decode.method")
  kept = config.checkpoint
  if kept.average > kept.keep and not (kept.keep_every or kept.best):
    raise ConfigError(f"config.checkpoint.average={kept.average} is more than are kept: set"
                      f" config.checkpoint.keep={kept.keep} to as many")
