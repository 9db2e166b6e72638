"""A stand-in for a bucket: files in memory under gs://, which fsspec opens for epath."""

import os
import sys

from etils.epath import backend
from fsspec.implementations.memory import MemoryFileSystem
import pytest


class Bucket(MemoryFileSystem):
  """A store that counts what is asked of it."""

  protocol = ("gs", "gcs")
  store, pseudo_dirs = {}, [""]
  requests: list[tuple[str, int, int]] = []  # path, start and stop of each range

  @classmethod
  def _strip_protocol(cls, path):
    return "/" + os.fspath(path).removeprefix("gs://").removeprefix("gcs://").strip("/")

  def cat_file(self, path, start=None, end=None, **kwargs):
    self.requests.append((path, start, end))
    return super().cat_file(path, start, end, **kwargs)


def upload(folder, bucket):
  """Copies the files of a folder into a bucket."""
  for path in sorted(folder.rglob("*")):
    if path.is_file():
      name = f"{bucket}/{path.relative_to(folder)}"
      Bucket().pipe_file(name, path.read_bytes())


@pytest.fixture
def bucket(monkeypatch):
  """The path of an empty folder in a bucket."""
  for name in Bucket.protocol:
    monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, name, Bucket)
  backend.fsspec_backend._get_filesystem.cache_clear()
  yield "gs://bucket/data"
  backend.fsspec_backend._get_filesystem.cache_clear()
  Bucket.store.clear()
  Bucket.requests.clear()
