"""Phases of a run: where they begin, what they read, and what is refused."""

import jax
import numpy as np
import pytest

from configs import classify, common
from jtx.data.dataset import Dataset
from jtx.errors import ConfigError
from jtx.evals.task import Task
from jtx.parallel import sharding
from jtx.train import loop, phases
from jtx.train.phases import Phase
from tests.helpers import losses, tiny_config
from tests.train.test_loop import interrupt


def starts(*entries, steps=10):
  return phases.phases(tiny_config(phases=entries, steps=steps))


def test_phases_begin_at_their_shares_of_the_steps():
  assert phases.phases(tiny_config(batch_size=8)) == [Phase(0, None, 8)]
  assert starts((1.0, 32, 8)) == starts((1, 32, 8)) == [Phase(0, 32, 8)]
  assert starts((0.9, 128, 256), (0.1, 512, 64), steps=1_000_000) == [
      Phase(0, 128, 256), Phase(900_000, 512, 64)]
  # Shares of 7 steps, to the nearest: 1.4, 2.8 and 4.2 ...
  shares = [(0.2, 8, 2), (0.2, 16, 2), (0.2, 32, 2), (0.4, 64, 2)]
  assert [p.start for p in starts(*shares, steps=7)] == [0, 1, 3, 4]
  # ... and thirds, which do not quite add up.
  assert [p.start for p in starts(*[(1 / 3, 8, 2)] * 3, steps=9)] == [0, 3, 6]
  assert [p.start for p in starts(*[(0.1, 8, 2)] * 10, steps=1000)] == list(range(0, 1000, 100))


@pytest.mark.parametrize("entries", [
    ((0.5, 32, 8), (0.4, 32, 8)),  # 0.9 of the run
    ((0.9, 32, 8), (0.2, 32, 8)),
    ((1.5, 32, 8), (-0.5, 32, 8)),
    ((1.0, 32, 8), (0.0, 32, 8)),
    ((0.5, 32), (0.5, 64)),
    ((0.5, 32, 8, 1), (0.5, 64, 8, 1)),
    ((1.0, 0, 8),),
    ((1.0, 32, 0),),
    ((1.0, 32, -8),),
    ((1.0, 32.0, 8),),
    ((1.0, None, 8),),
    ((),),
    (0.5, 32, 8),  # one phase without its parentheses
    ("0.5",),
])
def test_bad_phases(entries):
  with pytest.raises(ConfigError) as e:
    starts(*entries)
  assert str(e.value) == (
      f"config.phases={entries}: each is (share of the run, tokens a row, rows a batch), all above"
      " 0, and the shares add up to 1")


def test_phases_and_epochs_exclude_each_other():
  config = tiny_config(phases=((1.0, 32, 8),), epochs=2.0)
  with pytest.raises(ConfigError) as e:
    phases.with_steps(config, None)
  assert str(e.value) == (
      "config.epochs and config.phases exclude each other: a phase is a share of config.steps")


def pretraining(**edits):
  """A small BERT with pairs, in phases of 4 and 6 steps."""
  c = common.get_config()
  c.phases, c.steps, c.seed = ((0.4, 24, 8), (0.6, 48, 4)), 10, 3
  c.tokenizer.kind = common.tokenizer("wordpiece", vocab_size=500, mask=True)
  c.data.train, c.data.path = ("blank_lines:corpus.txt",), ""
  c.data.ops = (common.op("split_sentences"), common.op("encode_sentences"),
                common.op("segment_pair"), common.op("pad", fields=("text",), lengths=(24,)),
                common.op("mask"))
  c.data.window, c.batch_size = 3, 8
  c.model = common.model("encoder", mlm=True, stack=dict(
      width=16, num_layers=1, block=dict(attention=dict(num_heads=2), ffn=dict(dim=32))),
                         head=dict(task="next_sentence", transform="tanh"))
  c.objective = common.objective("mlm")
  common.apply(c, edits)
  return c.lock()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  path = tmp_path_factory.mktemp("corpus")
  rng = np.random.default_rng(0)
  words = [a + b + c for a in "bdfgklm" for b in "aeiou" for c in "nrst"]
  documents = ["\n".join(" ".join(rng.choice(words, rng.integers(2, 9))).capitalize() + "."
                         for _ in range(rng.integers(2, 20))) for _ in range(24)]
  (path / "corpus.txt").write_text("\n\n".join(documents), encoding="utf-8")
  return str(path)


@pytest.fixture(scope="module")
def data(folder):
  config = pretraining(**{"data.path": folder})
  return Dataset(config.data, config.tokenizer)


def stream_of(config, data, start=0, cursor=(0, 0), devices=1):
  mesh = sharding.make_mesh({"data": devices, "fsdp": 1, "tensor": 1, "context": 1},
                            jax.devices()[:devices])
  return phases.train_stream(config, data, sharding.batch_sharding(mesh), start, cursor)


def assert_same(a, b):
  assert a.keys() == b.keys()
  for key in a:
    np.testing.assert_array_equal(a[key], b[key], err_msg=key)


def test_the_stream_changes_lengths_and_batches_at_the_second_phase(data):
  config = pretraining()
  stream = stream_of(config, data)
  shapes = [stream.batch(step)["text"].shape for step in range(10)]
  assert shapes == [(8, 24)] * 4 + [(4, 48)] * 6
  assert [stream.batch_size(step) for step in range(10)] == [8] * 4 + [4] * 6
  # Of phase i the seed is config.seed + i 2^32, so another run's phases are other streams.
  for i, phase in enumerate(phases.phases(config)):
    alone = data.train_stream(3 + (i << 32), phase.batch_size, range(phase.batch_size),
                              length=phase.length)
    for step in range(4):
      assert_same(stream.batch(phase.start + step), alone.batch(step))
  assert_same(stream_of(config, data, devices=4).batch(7), stream.batch(7))


def test_a_run_without_phases_reads_rows_of_the_layout(data):
  config = pretraining(phases=())
  stream = stream_of(config, data)
  alone = data.train_stream(3, 8, range(8))
  for step in (0, 9):
    assert stream.batch(step)["text"].shape == (8, 24)
    assert_same(stream.batch(step), alone.batch(step))


def test_a_stream_goes_on_within_either_phase(data):
  config = pretraining()
  whole = stream_of(config, data)
  batches = [whole.batch(step) for step in range(10)]
  assert whole.cursor(3) != (0, 0) == whole.cursor(4) and whole.cursor(9)[0] > 0
  for start in range(10):
    resumed = stream_of(config, data, start, whole.cursor(start))
    for step in range(start, 10):
      assert_same(resumed.batch(step), batches[step])
    # Without the cursor too, which only saves planning, and in any order.
    assert_same(stream_of(config, data, start).batch(start), batches[start])
    assert_same(stream_of(config, data, start, whole.cursor(start)).batch(9), batches[9])
  resumed = stream_of(config, data, 9, whole.cursor(9))
  planned, phase = [], resumed.streams[1]
  plan = phase.plan
  phase.plan = lambda w: planned.append(w) or plan(w)
  resumed.batch(9)
  assert min(planned) == whole.cursor(9)[0]


def test_examples_that_are_not_formed_need_room_in_every_phase():
  config = tiny_config()
  data = Dataset(config.data, config.tokenizer)
  longest = max(data.recipe.layout.lengths)
  longer = data.train_stream(0, 4, range(4), length=longest + 8).batch(0)
  assert longer["src"].shape == (4, longest + 8)
  with pytest.raises(ConfigError) as e:
    stream_of(tiny_config(phases=((0.5, longest, 8), (0.5, longest - 1, 8))), data)
  assert str(e.value) == (
      f"config.phases: rows of {longest - 1} tokens are too short for examples of up to"
      f" lengths={data.recipe.layout.lengths}, which the layout keeps; give it the shortest"
      " phase's")


@pytest.mark.parametrize("edits, message", [
    ({"phases": ((0.5, 24, 32), (0.5, 48, 34)), "optim.accumulate": 4},
     r"config.optim.accumulate=4 does not divide config.phases\[1\]\[2\]=34"),
    ({"phases": ((0.5, 24, 8), (0.5, 48, 6))},
     r"config.phases\[1\]\[2\]=6 must be a positive multiple of the 8 ways"),
    ({"batch_size": 8, "optim.accumulate": 2},
     r"config.batch_size=8 \(rows of up to config.data.ops\[2\].max_segments=64 examples\) /"
     " config.optim.accumulate=2 must be a positive multiple of the 8 ways"),
    ({"phases": ((0.5, 24, 8), (0.4, 48, 8))}, r"config.phases=.*add up to 1"),
])
def test_a_run_checks_all_its_phases_first(tmp_path, edits, message):
  with pytest.raises(ConfigError, match=message):
    loop.run(tiny_config(**edits), str(tmp_path), jax.devices())
  assert not (tmp_path / "config.json").exists()


@pytest.mark.parametrize("pack, told", [
    (1, "config.batch_size=12"),
    (4, "config.batch_size=3 (rows of up to config.data.ops[2].max_segments=4 examples, as"
     " arguments such as batch / pack of a config make it)")])
def test_rows_of_a_packed_batch_are_told_with_what_makes_them(pack, told):
  config = classify.get_config(f"batch=12,pack={pack},train=a.tsv,dev=b.tsv")
  with pytest.raises(ConfigError) as e:
    phases.check_batches(config, sharding.make_mesh(config.mesh, jax.devices()))
  assert str(e.value).startswith(f"{told} must be a positive multiple of the 8 ways")


def test_the_log_has_the_arithmetic_of_a_step_of_the_first_phase(tmp_path, folder, monkeypatch):
  """Not of config.batch_size rows of the layout, which no step has."""
  class Made(Exception):
    pass

  def program(config, model, objective, *, example, mesh, extra):
    raise Made(example["text"].shape)

  monkeypatch.setattr(loop, "Program", program)
  config = pretraining(**{"data.path": folder, "batch_size": 64, "phases": ((1.0, 48, 4),)})
  with pytest.raises(Made) as made:
    loop.run(config, str(tmp_path / "run"), jax.devices()[:1])
  assert made.value.args[0] == (4, 48)


@pytest.mark.parametrize("phases, devices, shape", [
    ((), 1, (16, 24)),  # of config.batch_size, and of the layout
    (((0.4, 48, 4), (0.6, 96, 2)), 1, (4, 48)),
    (((0.4, 48, 6), (0.6, 96, 8)), 4, (8, 48)),
])
def test_evaluations_have_the_rows_that_a_run_begins_with(data, phases, devices, shape):
  config = pretraining(phases=phases, batch_size=16)
  mesh = sharding.make_mesh({"data": devices, "fsdp": 1, "tensor": 1, "context": 1},
                            jax.devices()[:devices])
  task = Task(config, model=None, objective=None, data=data, mesh=mesh)
  batches = list(task.batches(config.data.train))
  assert {batch["text"].shape for batch in batches} == {shape} and task.padded_size == shape[0]
  assert len(set(np.concatenate([b["ids"] for b in batches]).reshape(-1)) - {-1}) >= 24
  assert next(task.batches(config.data.train, range(2)))["text"].shape == (2, shape[1])


@pytest.mark.slow
@pytest.mark.parametrize("stop", [3, 6])  # in the first phase, and in the second
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not(tmp_path, folder, stop):
  """Ten steps of a small BERT with pairs, dropout on."""
  config = pretraining(**{"data.path": folder, "checkpoint.every": 3, "log_every": 1})
  loop.run(config, str(tmp_path / "whole"), jax.devices()[:1])
  assert [step for step, _ in losses(tmp_path / "whole")] == list(range(1, 11))

  def hook(step):
    if step == stop:
      raise KeyboardInterrupt

  interrupt(config, tmp_path / "parts", hook)
  assert losses(tmp_path / "parts")[-1][0] == stop
  loop.run(config, str(tmp_path / "parts"), jax.devices()[:1])
  assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
