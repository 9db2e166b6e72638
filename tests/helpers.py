"""What tests of several files share."""

import concurrent.futures
import contextlib
import dataclasses
import importlib
import json
import os
import pathlib
import subprocess
import sys
from unittest import mock

from absl import flags
import jax
import numpy as np
import pytest

from configs import nmt_numbers
from experiments import cli
from experiments.errors import is_user_error, sentence
from jtx.models.decoder import Decoder
from jtx.models.encdec import EncDec
from jtx.models.encoder import Encoder
from jtx.models.vit import Vit
from jtx.nn.attention import PROJECTIONS
from jtx.nn.block import BlockConfig
from jtx.nn.stack import StackConfig

ROOT = pathlib.Path(__file__).absolute().parent.parent


def tiny_config(**edits):
  """`nmt_numbers` at tiny size, with what a test wants changed."""
  from configs import common
  config = nmt_numbers.get_config("tiny")
  config.evals = {}
  config.model.encoder.block.dropout = 0.1  # the decoder follows
  config.log_every = 1
  config.steps = 10
  config.checkpoint.every = 5
  common.apply(config, edits)
  return config.lock()


def logged(workdir) -> list[dict]:
  """The lines of metrics.jsonl that have a loss."""
  lines = (pathlib.Path(workdir) / "metrics.jsonl").read_text().splitlines()
  return [line for line in map(json.loads, lines) if "loss" in line]


def steady(lines: list[dict]) -> list[dict]:
  """Lines of metrics.jsonl without what differs from run to run: times, rates and memory."""
  return [{k: v for k, v in line.items() if not k.startswith("perf/")} for line in lines]


def losses(workdir) -> list[tuple[int, float]]:
  return [(line["step"], line["loss"]) for line in logged(workdir)]


def one_device(**variables: str) -> dict[str, str]:
  """The environment of a process that has the machine's CPU as its one device."""
  flags = os.environ["XLA_FLAGS"].replace("device_count=8", "device_count=1")
  return {**os.environ, "XLA_FLAGS": flags, **variables}


def in_threads(work, number: int = 4) -> None:
  """Calls `work` with 0, 1, ... in as many threads at once."""
  with concurrent.futures.ThreadPoolExecutor(number) as pool:
    list(pool.map(work, range(number)))


def moved(params):
  """Fresh parameters and noise, so that none is zeros or ones; for each shape the same."""
  noise = lambda x: np.float32(0.3 * np.random.default_rng(x.size).normal(size=x.shape))
  return jax.device_put(jax.tree.map(lambda x: x + noise(x), jax.device_get(params)))


def one_fast(first, *others) -> list:
  """Parameters of a test, of which only the first belongs to the fast tests."""
  return [first, *(pytest.param(value, marks=pytest.mark.slow) for value in others)]


def one_fast_row(first: tuple, *others: tuple) -> list:
  """The same where a test has several parameters."""
  return [first, *(pytest.param(*values, marks=pytest.mark.slow) for values in others)]


@contextlib.contextmanager
def command(name: str):
  """The entry point `experiments.NAME`; its flags, which others define too, are taken back."""
  defined = ((flags.FLAGS.find_module_defining_flag(flag, ""), flags.FLAGS[flag])
             for flag in flags.FLAGS)
  programs = [(module, flag) for module, flag in defined if module.startswith("benchmarks.")]
  for _, flag in programs:  # that a test has imported
    delattr(flags.FLAGS, flag.name)
  before, modules = set(flags.FLAGS), set(sys.modules)
  module = importlib.import_module(f"experiments.{name}")
  own = set(flags.FLAGS) - before  # packages that it imports later keep theirs
  try:
    yield module
  finally:
    flags.FLAGS.unparse_flags()
    keys = {flag for flag in flags.FLAGS if flag.startswith("config.")}  # made by a command line
    for flag in own | keys - before:
      delattr(flags.FLAGS, flag)
    for program, flag in programs:
      flags.FLAGS[flag.name] = flag
      flags.FLAGS.register_flag_by_module(program, flag)
    for imported in set(sys.modules) - modules:
      if imported.startswith("experiments."):
        del sys.modules[imported]


def run_command(name: str, *argv: str) -> None:
  """`python -m experiments.NAME ARGV` in this process; its errors are raised."""
  with command(name) as module, mock.patch.object(sys, "argv", [name, *argv]):
    cli.parse(sys.argv)  # where flags of configs look for their keys, too
    module.main()


def refused(name: str, *argv: str) -> tuple[int, str]:
  """The exit status of a command line that is refused, and its sentence, in this process."""
  with pytest.raises(Exception) as caught:
    run_command(name, *argv)
  assert is_user_error(caught.value), caught.value
  return getattr(caught.value, "status", 1), sentence(caught.value)


def chi_square(counts, expected=None):
  """Standard deviations by which the counts are less even than chance makes them."""
  counts = np.asarray(counts, float)
  expected = counts.mean() if expected is None else expected
  freedom = len(counts) - 1
  return (((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom)


def assert_share(count, total, p, errors=3):
  """That `count` of `total` is what draws of probability p give, within standard errors."""
  assert abs(count - p * total) <= errors * np.sqrt(total * p * (1 - p))


def compiled(*args) -> tuple[subprocess.CompletedProcess, dict | list | None]:
  """`experiments.compile` as it ended, and the report of its last line."""
  command = [sys.executable, "-m", "experiments.compile", *args]
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
  return done, json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None


# ------------------------------------------------------- small models of flat keywords

_ATTENTION = dict(num_heads="num_heads", num_kv_heads="num_kv_heads", head_dim="head_dim",
                  v_head_dim="v_head_dim", score="score", attention_dropout="dropout",
                  kernel="kernel", biases="biases", scale="scale", soft_cap="soft_cap",
                  qk_norm="qk_norm")
_FFN = dict(ffn_dim="dim", activation="activation", gated="gated", ffn_bias="bias",
            ffn_dropout="dropout")
_NORM = dict(norm="kind", norm_position="position", norm_eps="eps", norm_bias="bias",
             attention_norm="attention", unit_offset="unit_offset")


def block(base: BlockConfig = BlockConfig(), **flat) -> BlockConfig:
  """A BlockConfig of keywords without their sections.

  `attention_bias=True` is of all four projections, `use_bias` of feed-forward and norms.
  """
  if "use_bias" in flat:
    flat |= dict.fromkeys(("ffn_bias", "norm_bias"), flat.pop("use_bias"))
  if "attention_bias" in flat:
    flat["biases"] = PROJECTIONS if flat.pop("attention_bias") else ()
  edits = {}
  for section, names in (("attention", _ATTENTION), ("ffn", _FFN), ("norm", _NORM)):
    own = {names[key]: flat.pop(key) for key in tuple(flat) if key in names}
    edits[section] = dataclasses.replace(getattr(base, section), **own)
  return dataclasses.replace(base, **edits, **flat)


def stack_of(base: StackConfig, flat: dict) -> StackConfig:
  """`base` with those of the keywords that are a stack's, which are taken out of `flat`."""
  names = {f.name for f in dataclasses.fields(base)}
  return dataclasses.replace(base, **{key: flat.pop(key) for key in tuple(flat) if key in names})


def decoder(base: Decoder | None = None, **flat) -> Decoder:
  """A Decoder of keywords without their sections: those of its stack, and of its embeddings."""
  base = Decoder(vocab_size=flat["vocab_size"]) if base is None else base
  names = dict(embedding_width="width", embedding_norm="norm", scale_embeddings="scale",
               tie="tie", logits_cap="soft_cap")
  embedding = {names[key]: flat.pop(key) for key in tuple(flat) if key in names}
  stack = stack_of(base.stack, flat)
  return base.clone(stack=stack, embedding=dataclasses.replace(base.embedding, **embedding), **flat)


def encoder(base: Encoder | None = None, **flat) -> Encoder:
  """An Encoder of keywords without their sections: those of its stack, and of its embeddings."""
  base = Encoder(vocab_size=flat["vocab_size"]) if base is None else base
  names = dict(num_token_types="types", embedding_width="width", embedding_norm="norm",
               scale_embeddings="scale")
  embedding = {names[key]: flat.pop(key) for key in tuple(flat) if key in names}
  if "share_layers" in flat:
    flat["share"] = flat.pop("share_layers")
  stack = stack_of(base.stack, flat)
  return base.clone(stack=stack, embedding=dataclasses.replace(base.embedding, **embedding), **flat)


def encdec(base: EncDec | None = None, **flat) -> EncDec:
  """An EncDec of keywords without their sections; those of a stack are of both.

  `num_decoder_layers` and `decoder`, a dict, are of the decoder alone.
  """
  base = EncDec(vocab_size=flat["vocab_size"]) if base is None else base
  ties = {"all": ("source", "output", "positions"), "output": ("output", "positions"),
          "none": ("positions",)}
  embedding = {}
  if "share_embeddings" in flat:
    embedding["tie"] = ties[flat.pop("share_embeddings")]
  names = dict(scale_embeddings="scale", output_bias="output_bias", tie="tie",
               output_scale="output_scale", embedding_norm="norm")
  embedding |= {names[key]: flat.pop(key) for key in tuple(flat) if key in names}
  of_decoder = flat.pop("decoder", {})
  if "num_decoder_layers" in flat:
    of_decoder = {"num_layers": flat.pop("num_decoder_layers"), **of_decoder}
  both = dict(flat)
  return base.clone(
      encoder=stack_of(base.encoder, flat), decoder=stack_of(base.decoder, both | of_decoder),
      embedding=dataclasses.replace(base.embedding, **embedding), **flat)


def vit(base: Vit | None = None, **flat) -> Vit:
  """A Vit of keywords without their section."""
  base = Vit() if base is None else base
  return base.clone(stack=stack_of(base.stack, flat), **flat)
