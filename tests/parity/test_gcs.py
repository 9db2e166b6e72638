"""A run in a bucket of Google's storage, whose server runs in this process."""

from http import HTTPStatus
import json
import logging
import os
import socket

import jax
import numpy as np
import pytest
from tensorboardX import record_writer
import tensorstore

from configs import classify, common
import jtx
from jtx import storage
from jtx.data.sources.registry import open_source
from jtx.errors import ConfigError
from jtx.saved import pretrained
from jtx.sweeps import report
from jtx.train import loop, states
from tests.data.sources.test_files import SPECS, folder, plain  # noqa: F401
from tests.data.sources.text_files import all_of
from tests.helpers import steady

server = pytest.importorskip("gcp_storage_emulator.server")
objects = pytest.importorskip("gcp_storage_emulator.handlers.objects")
pytest.importorskip("gcsfs")

BUCKET = "gs://jtx-test"


download = objects.download


def download_and_tell(request, response, storage):
  """The emulator's, with a header that it lacks, without which who read a file can't write it."""
  download(request, response, storage)
  if response.status in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
    found = storage.get_file_obj(request.params["bucket_name"], request.params["object_id"])
    response["x-goog-generation"] = found["generation"]


@pytest.fixture(scope="module", autouse=True)
def store():
  """The store; TensorStore, gcsfs and TensorBoard find it by environment variables."""
  with socket.socket() as s:
    s.bind(("localhost", 0))
    port = s.getsockname()[1]
  logging.getLogger("gcp_storage_emulator").setLevel(logging.ERROR)
  running = server.create_server("localhost", port, in_memory=True, default_bucket="jtx-test")
  running.start()
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("STORAGE_EMULATOR_HOST", f"http://localhost:{port}")
    patch.setenv("TENSORSTORE_GCS_HTTP_URL", f"http://localhost:{port}")
    patch.setenv("GOOGLE_CLOUD_PROJECT", "test")
    patch.setattr(objects, "download", download_and_tell)
    yield
  running.stop()
  # Writers of stopped runs write once more as the process ends, and would wait for the store.
  record_writer.GCSRecordWriter.flush = lambda self: None


def config(steps):
  c = classify.get_config("tiny")
  common.apply(c, {"steps": steps, "epochs": None, "log_every": 1, "checkpoint.every": 2,
                   "optim.schedule.warmup": 0.0})
  return c.lock()


def lines(workdir):
  return [json.loads(line) for line in
          storage.read_text(os.path.join(workdir, "metrics.jsonl")).splitlines()]


def test_files_of_a_bucket():
  path = f"{BUCKET}/folder/a.txt"
  assert not storage.exists(path) and storage.absolute(path) == path
  written = storage.Lines(path, ["1\n"])
  written.write("ç\n")
  assert storage.read_text(path) == "1\nç\n"
  assert storage.is_folder(f"{BUCKET}/folder") and not storage.is_folder(path)


def test_a_database_that_was_read_can_be_written():
  for i in range(2):  # contexts share no cache: the second reads what the first wrote
    opened = tensorstore.KvStore.open(f"{BUCKET}/ocdbt/|ocdbt:", context=tensorstore.Context())
    opened.result().write(f"key{i}", b"value").result()
  assert opened.result().list().result() == [b"key0", b"key1"]


def test_a_run_in_a_bucket_is_that_in_a_folder_and_goes_on_where_it_was(tmp_path):
  here, there = str(tmp_path / "run"), f"{BUCKET}/runs/a"
  devices = jax.devices()[:1]
  wanted = loop.run(config(4), here, devices)

  class Stopped(Exception):
    pass

  with pytest.MonkeyPatch.context() as patch:
    save = states.save

    def save_and_stop(checkpoints, *args, **kwargs):
      save(checkpoints, *args, **kwargs)
      checkpoints.wait()
      raise Stopped

    patch.setattr(states, "save", save_and_stop)
    with pytest.raises(Stopped):
      loop.run(config(4), there, devices)
  assert [line["step"] for line in lines(there) if "loss" in line][-1] == 2
  found = loop.run(config(4), there, devices)
  assert found == wanted and loop.run(config(4), there, devices) == wanted
  assert steady(lines(there)) == steady(lines(here))
  assert "dev/accuracy" in report.report(there)
  with pytest.raises(ConfigError, match="holds a run of another config: steps is 4 there"):
    loop.run(config(5), there, devices)
  text = ["a fine day"]
  np.testing.assert_equal(jtx.Classifier(there)(text), jtx.Classifier(here)(text))


def test_fine_tuning_starts_from_a_bucket(tmp_path):
  there = f"{BUCKET}/runs/b"
  c = config(2)
  loop.run(c, there, jax.devices()[:1])
  edited = classify.get_config(f"tiny,init={there}")
  assert edited.init_from == there and edited.tokenizer.kind.path == there
  common.apply(edited, {"steps": 2, "epochs": None})
  loop.run(edited.lock(), str(tmp_path / "run"), jax.devices()[:1])
  storage.write_text(f"{BUCKET}/hf/config.json",
                     '{"model_type": "bert", "architectures": ["BertModel"]}')
  message = "hf: a Hugging Face model must be in a folder of this mach"
  with pytest.raises(ConfigError, match=message):
    pretrained.load_pretrained(f"{BUCKET}/hf")


@pytest.fixture(scope="module")
def uploaded(folder):  # noqa: F811
  for path in sorted(folder.rglob("*")):
    if path.is_file():
      storage.write_bytes(f"{BUCKET}/data/{path.relative_to(folder)}", path.read_bytes())
  return f"{BUCKET}/data"


@pytest.mark.parametrize("spec", SPECS)
def test_sources_in_a_bucket_are_those_in_a_folder(folder, uploaded, spec):  # noqa: F811
  here, there = open_source(spec, str(folder)), open_source(spec, uploaded)
  assert plain(all_of(there), uploaded) == plain(all_of(here), str(folder))
