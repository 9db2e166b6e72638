"""Profiles: which steps are in the trace, the regions of a step, and what is refused."""

import gzip
import json

import jax
import pytest

from jtx import build
from jtx.data.dataset import Dataset
from jtx.errors import ConfigError
from jtx.parallel import sharding
from jtx.train import loop
from jtx.train.profile import Profile
from jtx.train.program import Program
from tests.helpers import tiny_config


@pytest.mark.slow
def test_the_steps_of_a_run_are_traced(tmp_path):
  config = tiny_config(steps=4, log_every=4, profile=(2, 3))
  loop.run(config, str(tmp_path), jax.devices()[:1])
  trace, = (tmp_path / "profile").rglob("perfetto_trace.json.gz")  # for Perfetto
  assert list(trace.parent.glob("*.xplane.pb"))  # for xprof
  events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
  steps = [event["args"]["step_num"] for event in events if event.get("name") == "train"]
  assert sorted(map(int, steps)) == [2, 3]
  assert (tmp_path / "results.json").exists()


def test_a_trace_ends_with_the_run(tmp_path, caplog):
  profile = Profile((2, 9), str(tmp_path))
  for step in (4, 5):  # of a run that went on with step 4
    with profile.step(step):
      pass
  assert not list(tmp_path.rglob("*.pb"))
  profile.finish()
  profile.finish()
  assert len(list(tmp_path.rglob("*.pb"))) == 1 and not caplog.records
  late = Profile((20, 21), str(tmp_path))
  with late.step(19):
    pass
  late.finish()
  assert "there is no trace: none of steps 20 to 21 was made" in caplog.text


def test_regions_of_a_step_have_names():
  config = tiny_config(**{"optim.ema": 0.9})
  data = Dataset(config.data, config.tokenizer)
  model, objective = build.make_model(config, data.info)
  example = data.example_batch(config.batch_size)
  mesh = sharding.make_mesh(config.mesh, jax.devices()[:1])
  program = Program(config, model, objective, example=example, mesh=mesh)
  with jax.set_mesh(mesh):
    lowered = program.jitted_step.lower(program.abstract_state, example, {}, 0)
  text = lowered.as_text(debug_info=True)
  for region in ("jvp(loss)/", "transpose(jvp(loss))/", "optimizer/", "ema/"):
    assert f"/{region}" in text, region


@pytest.mark.parametrize("steps", [(10,), (0, 5), (5, 4), (1.0, 2), (1, 2, 3)])
def test_steps_that_are_no_pair(tmp_path, steps):
  with pytest.raises(ConfigError, match="config.profile=.*: the first and the last step"):
    Profile(steps, str(tmp_path))


def test_a_bucket_is_refused():
  Profile((), "gs://bucket/run")
  with pytest.raises(ConfigError, match="--workdir=gs://bucket/run is in a bucket; a trace"):
    Profile((1, 2), "gs://bucket/run")
