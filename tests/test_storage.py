"""Files of runs in folders and in buckets; the latter of a server in this process."""

import contextlib
import grp
import os
import pwd
import sys

import pytest

from jtx import storage
from jtx.errors import ConfigError


def test_a_file_is_written_whole(tmp_path):
  path = str(tmp_path / "a.txt")
  assert not storage.exists(path)
  storage.write_text(path, "çà\n")
  assert storage.read_text(path) == "çà\n" and os.listdir(tmp_path) == ["a.txt"]
  storage.make_folder(str(tmp_path / "b" / "c"))
  assert storage.is_folder(str(tmp_path / "b" / "c")) and not storage.is_folder(path)
  assert storage.absolute("x") == os.path.abspath("x")


def test_a_link_in_the_place_of_a_temporary_file_is_not_followed(tmp_path):
  path = str(tmp_path / "a.txt")
  (tmp_path / "other").write_text("mine")
  os.symlink(tmp_path / "other", path + ".tmp")
  storage.write_text(path, "new")
  assert storage.read_text(path) == "new" and (tmp_path / "other").read_text() == "mine"


def test_a_folder_of_one_s_own(tmp_path, monkeypatch):
  monkeypatch.setenv("HOME", str(tmp_path))
  path = storage.private_folder("~/a/compiled")
  assert path == str(tmp_path / "a" / "compiled") == storage.private_folder(path)
  assert os.stat(path).st_mode & 0o777 == 0o700
  os.symlink(path, tmp_path / "link")
  os.chmod(path, 0o770)  # of a group that has the user's name, or not
  private = pwd.getpwuid(os.getuid()).pw_name == grp.getgrgid(os.stat(path).st_gid).gr_name
  with contextlib.nullcontext() if private else pytest.raises(ConfigError):
    storage.private_folder(path)
  os.chmod(path, 0o700)
  os.makedirs(tmp_path / "open")
  os.chmod(tmp_path / "open", 0o777)
  (tmp_path / "file").write_text("")
  for name in ("link", "open", "file"):
    with pytest.raises(ConfigError, match=f"{name}: it must be a folder of your own"):
      storage.private_folder(str(tmp_path / name))
  if os.getuid() == 0:
    os.chown(path, 65534, -1)
    with pytest.raises(ConfigError, match="a folder of your own"):
      storage.private_folder(path)


def test_lines_replace_what_was_there_and_grow(tmp_path):
  path = str(tmp_path / "a.txt")
  storage.write_text(path, "old\n")
  lines = storage.Lines(path, ["1\n"])
  lines.write("2\n")
  assert storage.read_text(path) == "1\n2\n"
  lines.close()


@pytest.mark.parametrize("call", [storage.exists, storage.make_folder, storage.read_text,
                                  storage.is_folder, lambda path: storage.write_text(path, "")])
def test_a_store_that_is_not_known(call):
  with pytest.raises(ConfigError, match=r"s3://a/b: files are in a folder .* or in gs://BUCKET/"):
    call("s3://a/b")


def test_a_client_that_is_not_installed(monkeypatch):
  monkeypatch.setitem(sys.modules, "gcsfs", None)
  with pytest.raises(ConfigError, match=r"gs://a/b: the client of gs:// is not installed \("):
    storage.exists("gs://a/b")
