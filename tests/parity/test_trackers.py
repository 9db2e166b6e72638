"""Weights & Biases and MLflow, offline: the numbers of metrics.jsonl, in one run over restarts."""

from collections.abc import Iterator
import json
import pathlib
import struct
import time

import jax
import pytest

from jtx.errors import Preempted
from jtx.train import loop
from tests.helpers import tiny_config


def wanted(workdir) -> dict[tuple[str, int], float]:
  """The numbers of metrics.jsonl by name and step."""
  lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
  return {(name, line["step"]): x for line in lines for name, x in line.items() if name != "step"}


def run_in_parts(workdir, tracker) -> dict[tuple[str, int], float]:
  config = tiny_config(steps=4, trackers=(tracker,))
  with pytest.raises(Preempted):
    loop.run(config, str(workdir), jax.devices()[:1], max_seconds=1e-6)
  loop.run(config, str(workdir), jax.devices()[:1])
  found = wanted(workdir)
  assert {step for _, step in found} == {1, 2, 3, 4}
  assert {"loss", "lr", "seen/tokens", "seen/epochs", "perf/seconds", "perf/steps_per_second",
          "perf/tokens_per_second", "perf/host_memory_gib"} <= {name for name, _ in found}
  return found


def test_mlflow(tmp_path, monkeypatch):
  mlflow = pytest.importorskip("mlflow")
  monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path}/store")
  monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
  monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "numbers")
  numbers = run_in_parts(tmp_path / "run", "mlflow")
  client = mlflow.MlflowClient()
  run, = client.search_runs([client.get_experiment_by_name("numbers").experiment_id])
  assert (run.info.run_name, run.info.status) == ("run", "FINISHED")
  assert run.data.params["batch_size"] == "8" and run.data.params["data.ops.0.name"]
  points = [(name, point.step, point.value) for name in run.data.metrics
            for point in client.get_metric_history(run.info.run_id, name)]
  assert len(points) == len(numbers)
  assert {(name, step): x for name, step, x in points} == numbers


def records(path: pathlib.Path) -> Iterator[bytes]:
  """The records of a W&B file: a head, then LevelDB's log format, in blocks of 32 KiB."""
  data, at, record = path.read_bytes(), 7, b""
  if not data:  # not written yet
    return
  assert data[:4] == b":W&B"
  while at + 7 <= len(data):
    if 32768 - at % 32768 < 7:  # the rest of a block is too short for a record's head
      at += 32768 - at % 32768
      continue
    _, size, kind = struct.unpack("<IHB", data[at:at + 7])
    if at + 7 + size > len(data):  # not written yet
      return
    record += data[at + 7:at + 7 + size]
    at += 7 + size
    if kind in (1, 4):  # whole, or the last part
      yield record
      record = b""


def written(workdir, kind) -> tuple[dict[tuple[str, int], float], list[str]]:
  """The numbers in W&B's files by name and step, and the ids of runs."""
  found, ids = {}, []
  for path in sorted((workdir / "wandb").glob("offline-run-*/*.wandb")):
    for data in records(path):
      record = kind.FromString(data)
      if record.HasField("run"):
        ids.append(record.run.run_id)
      if record.HasField("history"):
        line = {"/".join(item.nested_key) or item.key: json.loads(item.value_json)
                for item in record.history.item}
        found |= {(name, line["_step"]): x for name, x in line.items() if name[0] != "_"}
  return found, ids


def test_wandb_offline(tmp_path, monkeypatch):
  wandb_internal_pb2 = pytest.importorskip("wandb.proto.wandb_internal_pb2")
  monkeypatch.setenv("WANDB_MODE", "offline")
  monkeypatch.setenv("WANDB_SILENT", "true")
  numbers = run_in_parts(tmp_path / "run", "wandb")
  deadline = time.monotonic() + 60  # W&B's own process writes the files, at its leisure
  found, ids = written(tmp_path / "run", wandb_internal_pb2.Record)
  while found != numbers and time.monotonic() < deadline:
    time.sleep(0.2)
    found, ids = written(tmp_path / "run", wandb_internal_pb2.Record)
  assert found == numbers
  assert len(set(ids)) == 1 and ids[0] == json.loads(
      (tmp_path / "run" / "trackers.json").read_text())["wandb"]
