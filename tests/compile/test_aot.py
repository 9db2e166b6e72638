"""Compiles for simulated devices, and what is told of a mesh without a compile."""

import jax
import pytest

from configs import bert_base, distilbert, mae, vit
from jtx.compile import aot
from jtx.compile.declared import declared_data
from jtx.data.tokenizers.files import save_tokenizers
from jtx.data.tokenizers.kinds import wordpiece
from jtx.errors import ConfigError
from jtx.parallel import sharding
from tests.helpers import compiled, tiny_config


def test_least_traffic_of_shards_and_copies():
  mesh = sharding.make_mesh({"data": 2, "fsdp": 2, "tensor": 2, "context": 1})
  place = lambda *spec: jax.NamedSharding(mesh, jax.P(*spec))
  array = lambda s: jax.ShapeDtypeStruct((8, 8), "float32", sharding=s)
  # All 64 numbers copied on 4 ways of the batch: reduced and gathered among them.
  assert aot.least_sent([array(place())], 2) == 128 * 2 * 3 / 4
  # In halves: gathered twice and scattered once among 2; then each half of 2 copies is reduced.
  assert aot.least_sent([array(place("fsdp"))], 2) == 128 * 3 / 2 + 64 * 2 / 2
  assert aot.least_sent([array(place("fsdp", "tensor"))], 2) == 64 * 3 / 2 + 32 * 2 / 2
  # For each of 5 parts of a batch; the copies are reduced once.
  assert aot.least_sent([array(place("fsdp"))], 2, 5) == 5 * 128 * 3 / 2 + 64 * 2 / 2
  mesh = sharding.make_mesh({"data": 2, "fsdp": 1, "tensor": 1, "context": 4})
  # A context sees other tokens: copies on it are summed, and parts of it gathered, like fsdp's.
  assert aot.least_sent([array(place())], 2) == 128 * 2 * 7 / 8
  assert aot.least_sent([array(place("context"))], 2) == 128 * 3 * 3 / 4 + 32 * 2 / 2


def test_meshes_split_the_batch_of_all_phases():
  config = bert_base.get_config()
  config.phases = ((0.5, 128, 12), (0.5, 512, 4))
  found = [tuple(m.values()) for m in aot.meshes(config, 8)]
  assert found == [(1, 4, 2, 1), (2, 2, 2, 1), (4, 1, 2, 1), (1, 2, 4, 1), (2, 1, 4, 1),
                   (1, 1, 8, 1)]


def test_nothing_is_read_of_the_data():
  config = bert_base.get_config()
  recipe, info = declared_data(config)
  assert info["vocab_size"] == 30_522 and recipe.layout.lengths
  assert declared_data(config, 30_522)[1] == info
  with pytest.raises(ConfigError, match=r"vocab_size=7: it is 30522 by .*kind\.vocab_size=30522"):
    declared_data(config, 7)
  config.tokenizer.kind = {"name": "file", "path": "nowhere"}
  with pytest.raises(ConfigError, match="vocab_size is needed: .*kind=file follows"):
    declared_data(config)
  assert declared_data(config, 7)[1]["vocab_size"] == 7
  with pytest.raises(ConfigError, match="outputs is needed: the names of classes"):
    declared_data(vit.get_config())
  assert declared_data(vit.get_config(), outputs=7)[1] == {"head.outputs": 7}
  assert declared_data(mae.get_config())[1] == {}  # which tells no classes


def test_a_tokenizer_that_is_there_is_read(tmp_path):
  tokenizer = wordpiece(iter(["some words to read"]), vocab_size=50, min_frequency=1)
  save_tokenizers({"text": tokenizer.to_json()}, str(tmp_path))
  config = bert_base.get_config()
  config.tokenizer.kind = {"name": "file", "path": str(tmp_path)}
  assert declared_data(config)[1]["vocab_size"] == tokenizer.vocab_size
  assert declared_data(config, 70)[1]["vocab_size"] == 70


def test_a_teacher_is_needed():
  with pytest.raises(ConfigError, match="objective.teacher is unset"):
    aot.report(distilbert.get_config().lock(), f"cpu:{len(jax.devices())}")


@pytest.mark.slow
def test_simulated_devices():
  """In this process, which has eight."""
  config = tiny_config(**{"mesh.fsdp": 8, "mesh.data": 1})
  result = aot.report(config, "cpu:8")
  assert result["fits"] and result["mesh"] == {"fsdp": 8}
  # Nothing but small vectors and what 8 does not divide is whole on every device.
  whole = 4 * result["parameters"]
  assert whole / 8 <= result["bytes"]["parameters"] < whole / 4
  assert result["bytes"]["optimizer"] == pytest.approx(2 * result["bytes"]["parameters"], rel=0.01)
  assert result["collectives"]["all-gather"]["count"] > 0
  assert result["flops_per_chip"] == result["flops_per_step"] / 8
  assert "8: " in aot.line(result) and "fits" in aot.line(result)
  assert "kernels" not in result  # of a CPU that stands for something else
  with pytest.raises(ConfigError, match="--ops=3 --topology=cpu:8: only the compiler for TPUs"):
    aot.report(config, "cpu:8", ops=3)


@pytest.mark.slow
def test_what_the_compiler_has_no_room_for_is_a_result(monkeypatch):
  def refuse(lowered, options, error="RESOURCE_EXHAUSTED: Shared memory size limit\nexceeded"):
    raise jax.errors.JaxRuntimeError(error)
  monkeypatch.setattr(jax.stages.Lowered, "compile", refuse)
  result = aot.report(tiny_config(), "cpu:8")
  assert not result["fits"]
  why = "RESOURCE_EXHAUSTED: Shared memory size limit exceeded"
  assert aot.line(result) == f"cpu:8 as data 8: does not fit: {why}"
  monkeypatch.setattr(jax.stages.Lowered, "compile", lambda *args: refuse(*args, "INTERNAL"))
  with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
    aot.report(tiny_config(), "cpu:8")


@pytest.mark.slow
def test_the_command_and_its_search():
  done, results = compiled("--config=configs/nmt_numbers.py:tiny", "--topology=cpu:2", "--search")
  assert done.returncode == 0, done.stderr
  assert sorted((r["mesh"] for r in results), key=str) == [{"data": 2}, {"fsdp": 2}, {"tensor": 2}]
  done, _ = compiled("--config=configs/nmt_numbers.py:tiny", "--topology=cpu:2",
                     "--config.mesh.fsdp=3")
  assert done.returncode == 1
  assert done.stderr.strip().splitlines()[-1].startswith("error: config.mesh (data=-1, fsdp=3")
