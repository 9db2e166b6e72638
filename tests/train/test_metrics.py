"""What a run reports, read back from disk."""

import json
import os
import struct

import numpy as np
import pytest
from tensorboardX.crc32c import crc32c
from tensorboardX.proto.event_pb2 import Event

from jtx.train import metrics


def lines(workdir):
  return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def masked_crc(data: bytes) -> int:
  crc = crc32c(data)
  return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def events(workdir):
  """All events in order of their files, with TFRecord's framing and checksums verified."""
  result = []
  for path in sorted(workdir.glob("events.out.tfevents.*"), key=os.path.getmtime):
    data = path.read_bytes()
    while data:
      (size,), (size_crc,) = struct.unpack("<Q", data[:8]), struct.unpack("<I", data[8:12])
      body, (body_crc,) = data[12:12 + size], struct.unpack("<I", data[12 + size:16 + size])
      assert (masked_crc(struct.pack("<Q", size)), masked_crc(body)) == (size_crc, body_crc)
      result.append(Event.FromString(body))
      data = data[16 + size:]
  return result


def test_writes_both_files(tmp_path):
  writer = metrics.MetricWriter(str(tmp_path))
  writer.write(10, {"loss": np.float32(2.5), "lr": 1e-3})
  assert lines(tmp_path) == [{"step": 10, "loss": 2.5, "lr": 1e-3}]  # before close
  writer.write(20, {"test/bleu": 31})
  writer.write_text(20, "sample", "a *text*")
  writer.write_image(20, "map", np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3))
  writer.close()
  assert lines(tmp_path)[1] == {"step": 20, "test/bleu": 31.0}

  values = {(e.step, v.tag): v for e in events(tmp_path) for v in e.summary.value}
  assert values[10, "loss"].simple_value == 2.5
  assert values[10, "lr"].simple_value == pytest.approx(1e-3)
  assert values[20, "test/bleu"].simple_value == 31
  assert b"a *text*" in values[20, "sample/text_summary"].tensor.string_val
  assert (values[20, "map"].image.height, values[20, "map"].image.width) == (4, 5)


def test_not_finite_is_null(tmp_path):
  writer = metrics.MetricWriter(str(tmp_path))
  writer.write(1, {"a": float("nan"), "b": float("inf"), "c": 1.0})
  writer.close()
  assert lines(tmp_path) == [{"step": 1, "a": None, "b": None, "c": 1.0}]


def test_resume_drops_later_lines(tmp_path):
  writer = metrics.MetricWriter(str(tmp_path))
  for step in (1, 2, 3, 4):
    writer.write(step, {"loss": float(step)})
  writer.close()
  with open(tmp_path / "metrics.jsonl", "a") as f:
    f.write('{"step": 2, "los')  # killed while it wrote
  writer = metrics.MetricWriter(str(tmp_path), resume_step=2)
  writer.write(3, {"loss": 30.0})
  writer.close()
  assert [(x["step"], x["loss"]) for x in lines(tmp_path)] == [(1, 1.0), (2, 2.0), (3, 30.0)]
  assert os.listdir(tmp_path).count("metrics.jsonl.tmp") == 0
  # TensorBoard hides older events from the step of a session's start on.
  starts = [e.step for e in events(tmp_path) if e.HasField("session_log")]
  assert sorted(starts) == [1, 3]


def test_environment(tmp_path):
  import jax
  metrics.write_environment(str(tmp_path / "run"))
  environment = json.loads((tmp_path / "run" / "environment.json").read_text())
  assert environment["versions"]["jax"] == jax.__version__
  assert environment["devices"] == len(jax.devices())
  assert environment["cpu_cores"] >= 1
  revision = environment["git_revision"]
  assert revision is None or len(revision.removesuffix("-dirty")) == 40
