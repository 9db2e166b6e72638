"""The train step of a toy objective against its definition, and states beside checkpoints."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jtx.compile import aot
from jtx.config import ConfigDict
from jtx.models.text_head import HeadConfig
from jtx.train import states
from jtx.train.step import TrainState, train_step
from tests.helpers import tiny_config
from tests.interop.samples import BERT

W, RATE, SEED = jnp.array([1.0, -2.0]), 0.5, 3
ROWS = jnp.asarray(np.random.default_rng(0).normal(size=(4, 2)), jnp.float32)


class Toy:
  """The mean over rows of x . w; a metric tells what dropout would draw."""

  def weights(self, batch):
    return {"loss": jnp.float32(len(batch["x"]))}

  def __call__(self, model, params, batch, *, train, rngs):
    drawn = jax.random.uniform(rngs["dropout"]) if train else 0.0
    rows = jnp.float32(len(batch["x"]))
    return {"loss": (jnp.sum(batch["x"] @ params["w"]), rows), "drawn": (drawn, 1.0)}


@pytest.mark.parametrize("seed", [0, 7, 2**31, 2**32 - 1])
def test_a_seed_that_is_an_input_gives_the_same_keys(seed):
  assert jax.jit(jax.random.key)(np.uint32(seed)) == jax.random.key(seed)


def test_runs_that_differ_in_their_seed_have_the_same_programs():
  def texts(seed):
    config = tiny_config(seed=seed)
    program, arguments, _ = aot.train_step(config, "cpu:1")
    with jax.set_mesh(program.mesh):
      return (program.jitted_step.lower(*arguments).as_text(),
              program.jitted_init.lower(program.seed).as_text())

  assert texts(0) == texts(2**32 - 1)


def run(batches, accumulate=1, ema=0.0):
  """The states after each step."""
  config = ConfigDict({"seed": SEED, "optim": {"accumulate": accumulate, "ema": ema}})
  tx, params = optax.sgd(RATE), {"w": W}
  state = TrainState(step=jnp.int32(0), params=params, opt_state=tx.init(params),
                     ema=params if ema else {}, bad_step=jnp.int32(-1),
                     sums=dict.fromkeys(("loss", "drawn", "grad_norm"), jnp.zeros(2)))
  model = types.SimpleNamespace(stacks={})
  step = jax.jit(lambda state, batch: train_step(config, model, Toy(), tx, state, batch, {}, SEED))
  after = []
  for x in batches:
    state = step(state, {"x": x})
    after.append(state)
  return after


@pytest.mark.parametrize("accumulate", [1, 2])
def test_every_step_and_part_has_a_key_of_its_own_and_all_rows_count_once(accumulate):
  after = run([ROWS, 2 * ROWS, ROWS], accumulate)
  keys = [jax.random.fold_in(jax.random.key(SEED), step) for step in range(3)]
  drawn = [jax.random.uniform(k) for key in keys for k in (
      [key] if accumulate == 1 else [jax.random.fold_in(key, part) for part in range(2)])]
  gradient, expected = np.asarray(ROWS).mean(0), np.asarray(W)
  for state, factor in zip(after, (1, 2, 1)):
    expected = expected - RATE * factor * gradient
    np.testing.assert_allclose(state.params["w"], expected, rtol=1e-5)
  # Sums go on from step to step, until they are logged.
  sums = after[-1].sums
  np.testing.assert_allclose(sums["drawn"], [sum(drawn), 3 * accumulate], rtol=1e-6)
  np.testing.assert_allclose(sums["grad_norm"], [4 * np.linalg.norm(gradient), 3], rtol=1e-5)
  assert sums["loss"][1] == 12 and after[-1].step == 3


def test_the_average_takes_what_an_update_gives():
  average = W
  for state in run([ROWS, 3 * ROWS], ema=0.9):
    average = 0.9 * average + 0.1 * state.params["w"]
    np.testing.assert_allclose(state.ema["w"], average, rtol=1e-6)


def test_the_first_bad_step_is_told():
  after = run([ROWS, jnp.inf * ROWS, ROWS])
  assert [int(state.bad_step) for state in after] == [-1, 2, 2]


# -------------------------------------------------------------------------------- states


def program_of(ema):
  here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  state = run([ROWS], ema=ema)[0]
  config = ConfigDict({"optim": {"ema": ema}, "init_from": "there",
                       "checkpoint": {"best": "", "average": 2}})
  return state, types.SimpleNamespace(config=config, abstract_state=state, extra={},
                                      shardings=jax.tree.map(lambda x: here, state))


def test_the_average_starts_from_the_parameters_that_a_run_starts_from():
  state, program = program_of(0.9)
  given = states.with_params(program, state, {"w": np.array([5.0, 6.0], np.float32)})
  np.testing.assert_array_equal(given.ema["w"], [5.0, 6.0])
  np.testing.assert_array_equal(given.params["w"], [5.0, 6.0])


def test_parameters_that_adapters_leave_as_they_are_come_from_the_folder(caplog):
  caplog.set_level("INFO", logger="absl")
  state, program = program_of(0.0)
  program.extra["base"] = {"embed": {"embedding": ROWS}, "layer": {"kernel": ROWS, "bias": ROWS}}
  states.with_params(program, state, {})
  assert "3 of 4 parameters from there; fresh: w" in caplog.text


@pytest.mark.parametrize("pool, told", [("mean", True), ("first", False)])
def test_a_run_says_at_its_start_that_no_class_has_its_head(pool, told, monkeypatch, caplog):
  caplog.set_level("INFO", logger="absl")
  state, program = program_of(0.0)
  program.init = lambda: state
  program.model = BERT.clone(head=HeadConfig(
      task="classes", outputs=2, pool=pool, transform="tanh" if pool == "first" else "none"))
  program.config.tokenizer = ConfigDict({"delimiters": ()})
  monkeypatch.setattr(states, "open_saved", lambda folder: types.SimpleNamespace(
      params_for=lambda model, number: ({}, [])))
  states.begin(program, types.SimpleNamespace(latest_step=lambda: None, check_none_lost=lambda: 0))
  assert ("--config.model.head.pool=first" in caplog.text) == told


@pytest.mark.parametrize("ema, key", [(0.9, "ema"), (0.0, "params")])
def test_a_run_ends_with_its_average(ema, key):
  def restore_params(abstract, step, average, key):
    assert abstract["w"].shape == (2,) and (step, average) == (None, 1)
    return key, {}, 7

  checkpoints = types.SimpleNamespace(at_most=lambda number, step: number - 1,
                                      restore_params=restore_params)
  assert states.final_params(program_of(ema)[1], checkpoints) == (key, 7)
