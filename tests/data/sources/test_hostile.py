"""Files that would fill the memory, keep a reader waiting, or hold what is no text: a sentence."""

import contextlib
import gzip
import io
import json
import os
import re
import signal
import tracemalloc
import zipfile

import numpy as np
import pytest

from experiments.errors import is_user_error
from jtx import config_files, storage
from jtx.data.sources import files, images
from jtx.data.sources.lines import Lines
from jtx.data.sources.registry import open_source
from jtx.data.tokenizers.files import from_json, read_tokenizer
from jtx.data.tokenizers.kinds import subword_nmt
from jtx.errors import ConfigError, DataError
from jtx.interop.huggingface import FAMILIES, Tensors
from tests.data.sources.test_webdataset import write_tar

MB = 1 << 20
DEEP = "[" * 100_000 + "]" * 100_000


@contextlib.contextmanager
def refused(message, error=DataError, seconds=20, peak=None):
  """Expects an error in time, whose message begins so, and a limit on the memory of Python."""
  def late(*_):
    raise TimeoutError
  before = signal.signal(signal.SIGALRM, late)
  signal.alarm(seconds)
  tracemalloc.start()
  try:
    with pytest.raises(error, match=f"^{re.escape(message)}") as found:
      yield found
    assert peak is None or tracemalloc.get_traced_memory()[1] < peak
  finally:
    tracemalloc.stop()
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def zip_of(path, name, content):
  with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
    archive.writestr(name, content)


@pytest.fixture
def small(monkeypatch):
  """What may be unpacked anyway is a megabyte, so that 32 of zeros do."""
  monkeypatch.setattr(files, "UNPACKED", MB)


def test_an_entry_of_an_archive_that_unpacks_to_very_many_bytes(tmp_path, small):
  zeros = bytes(32 * MB)
  zip_of(tmp_path / "a.zip", "c/x.png", zeros)
  source = open_source("images:a.zip", str(tmp_path))
  with refused(f"{tmp_path}/a.zip/c/x.png: its 0.0 MB unpack to 33.6 MB or more", peak=4 * MB):
    source[0]
  zip_of(tmp_path / "d.zip", "x.txt", zeros)
  source = open_source("documents:d.zip", str(tmp_path))
  with refused(f"{tmp_path}/d.zip/x.txt: its 0.0 MB unpack to 33.6 MB or more", peak=4 * MB):
    source[0]
  np.savez_compressed(tmp_path / "a.npz", images=np.zeros((512, 256, 256), np.uint8),
                      labels=np.zeros(512, int))
  with refused(f"{tmp_path}/a.npz: images.npy: its 0.0 MB unpack to 33.6 MB or more, over 100 times"
               " as many, which is no data; if it is, pack it without compression", peak=4 * MB):
    open_source("npz:a.npz", str(tmp_path))
  np.savez(tmp_path / "a.npz", images=np.zeros((512, 256, 256), np.uint8), labels=np.arange(512))
  assert len(open_source("npz:a.npz", str(tmp_path))) == 512


def test_an_entry_that_is_more_than_its_archive_says(tmp_path):
  """The directory of the archive says 100 bytes; no more than that is unpacked."""
  zip_of(tmp_path / "a.zip", "c/x.png", bytes(32 * MB))
  content = (tmp_path / "a.zip").read_bytes()
  (tmp_path / "a.zip").write_bytes(content.replace((32 * MB).to_bytes(4, "little"),
                                                   (100).to_bytes(4, "little")))
  source = open_source("images:a.zip", str(tmp_path))
  with refused(f"{tmp_path}/a.zip/c/x.png: is damaged (its checksum differs)", peak=4 * MB):
    source[0]


@pytest.mark.parametrize("line", [b"\n", b"1\ta\t_\tX\t_\t_\t_\t_\t_\t_\n", b"x"])
def test_a_gz_that_unpacks_to_very_many_bytes(tmp_path, line, small):
  (tmp_path / "a.gz").write_bytes(gzip.compress(line * (32 * MB // len(line))))
  with refused(f"{tmp_path}/a.gz: its 0.", peak=12 * MB):
    open_source("conllu:a.gz", str(tmp_path))


def test_an_array_whose_header_lies(tmp_path):
  head = io.BytesIO()
  np.lib.format.write_array_header_1_0(
      head, {"descr": "|u1", "fortran_order": False, "shape": (1 << 44, 2, 2)})
  np.savez(tmp_path / "a.npz", labels=np.zeros(3, int))
  with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive:
    archive.writestr("images.npy", head.getvalue())
  with refused(f"{tmp_path}/a.npz: is not what numpy.savez writes, or is damaged"):
    open_source("npz:a.npz", str(tmp_path))


def test_a_label_is_the_number_of_a_class(tmp_path):
  few = np.zeros((2, 2, 2), np.uint8)
  for largest in (1 << 40, images.MOST_CLASSES):
    np.savez(tmp_path / "a.npz", images=few, labels=np.array([0, largest]))
    said = f": has the label {largest}, and labels are the numbers of classes from 0 up to 999999"
    with refused(f"{tmp_path}/a.npz{said}", peak=4 * MB):
      open_source("npz:a.npz", str(tmp_path))
    write_tar(tmp_path / "a.tar", [("0.png", b""), ("0.cls", str(largest).encode())])
    with refused(f"{tmp_path}/a.tar{said}", peak=4 * MB):
      open_source("wds:a.tar", str(tmp_path))
  np.savez(tmp_path / "a.npz", images=few, labels=np.array([0, 20_000]))
  assert open_source("npz:a.npz", str(tmp_path)).classes[-1] == "20000"


# ------------------------------------------------------------------------------- no files


SPECS = ("text", "jsonl", "csv", "tsv", "parquet", "arrow", "conll", "conllu", "squad", "documents",
         "blank_lines", "images", "wds", "npz")


@pytest.mark.parametrize("kind", SPECS)
def test_a_named_pipe_is_no_source(kind, tmp_path):
  os.mkfifo(tmp_path / "a")
  with refused(f"{tmp_path}/a: is a named pipe, and what is read from it is needed more than once;",
               seconds=5):
    open_source(f"{kind}:a", str(tmp_path))


def test_a_named_pipe_or_a_device_is_no_other_file(tmp_path):
  for name in ("a.txt", "tokenizer.json", "config.json", "model.safetensors"):
    os.mkfifo(tmp_path / name)
  for call in (lambda: read_tokenizer(tmp_path / "a.txt"),
               lambda: read_tokenizer(tmp_path / "tokenizer.json"),
               lambda: subword_nmt(iter(["a"]), merges=str(tmp_path / "a.txt")),
               lambda: config_files.load(str(tmp_path / "config.json")),
               lambda: Tensors(str(tmp_path), FAMILIES["bert"].names)):
    with refused("", (ConfigError, DataError, OSError), seconds=5) as found:
      call()
    assert "is a named pipe, and what" in str(found.value) and is_user_error(found.value)
  with refused("/dev/zero: is a device", seconds=5):
    open_source("text:/dev/zero")
  assert files.read("/dev/null") == b"" and len(Lines("/dev/null")) == 0
  (tmp_path / "link").symlink_to("/dev/zero")
  with refused(f"{tmp_path}/link: is a device", seconds=5):
    files.read(str(tmp_path / "link"))


# ----------------------------------------------------------------------------------- JSON


@pytest.mark.parametrize("text, said", [
    (DEEP, "it is nested more than 100 deep"),
    ('{"a": ' * 101 + "1" + "}" * 101, "it is nested more than 100 deep"),
    (r'{"a": ["\ud83d"]}', r"it has '\ud83d', half of a surrogate pair, which is no character"),
    (r'{"\uDC00": 1}', r"it has '\udc00', half of a surrogate pair, which is no character"),
])
def test_json_that_can_not_be_used(text, said, tmp_path):
  for name in ("a.jsonl", "a.json", "tokenizer.json", "config.json", "tokenizer_config.json"):
    (tmp_path / name).write_text(text)
  (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n")
  with refused(f"{tmp_path}/a.jsonl:1: not valid JSON ({said})"):
    open_source("jsonl:a.jsonl", str(tmp_path))[0]
  with refused(f"{tmp_path}/a.json: not valid JSON ({said})"):
    open_source("squad:a.json", str(tmp_path))
  with refused(f"{tmp_path}/tokenizer.json: not a tokenizer, not valid JSON ({said})"):
    read_tokenizer(tmp_path)
  with refused(f"{tmp_path}/config.json is not valid JSON ({said})", ConfigError):
    config_files.load(str(tmp_path / "config.json"))
  with refused(f"{tmp_path}/config.json is not valid JSON ({said})"):  # beside the vocabulary
    read_tokenizer(tmp_path / "vocab.txt")
  (tmp_path / "config.json").unlink()
  with refused(f"{tmp_path}/tokenizer_config.json is not valid JSON ({said})"):
    read_tokenizer(tmp_path / "vocab.txt")
  with refused(f"the tokenizer of a run: is damaged ({said})"):
    from_json(text)


def test_json_that_can_be_used():
  value = [[{"a": ["\U0001f600", "\\ud800"]}] * 200, json.loads("[" * 97 + "]" * 97)]
  assert storage.parse_json(json.dumps(value)) == value
  with pytest.raises(ValueError, match="more than 100 deep"):
    storage.parse_json(json.dumps([[[value]]]))
