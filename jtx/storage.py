"""Files of a run, in a folder of this machine or in a bucket of Google's store (gs://BUCKET/...).

Those of a bucket are read and written through `etils.epath` by the store's own client, which has to
be installed: gcsfs. There a file is written whole or not at all, and can't be appended to. Of other
stores `etils.epath` knows some, but Orbax 0.12 writes arrays to none of them.
"""

import contextlib
import errno
import grp
import io
import json
import os
import pathlib
import pwd
import re
import stat
from typing import Any, Iterator, Sequence

from jtx.errors import ConfigError

SCHEME = "gs"
DEPTH = 100  # of nested objects and lists in JSON
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def is_remote(path: str) -> bool:
  return "://" in path


def absolute(path: str) -> str:
  return path if is_remote(path) else os.path.abspath(path)


def join(folder: str, path: str) -> str:
  """A path that is relative to a folder, or what it is if it is absolute or in a bucket."""
  return path if is_remote(path) else os.path.join(folder, path)


@contextlib.contextmanager
def opened(path: str) -> Iterator[Any]:
  """A path of pathlib or epath; ConfigError where a store is not known or its client not there."""
  if not is_remote(path):
    yield pathlib.Path(path)
    return
  from etils import epath  # only here, since it takes a tenth of a second
  if path.partition("://")[0] != SCHEME:
    raise ConfigError(f"{path}: files are in a folder of this machine, where a bucket of another"
                      f" store may be mounted, or in {SCHEME}://BUCKET/...")
  try:
    yield epath.Path(path)
  except ImportError as e:
    raise ConfigError(f"{path}: the client of {SCHEME}:// is not installed ({e})") from e


def exists(path: str) -> bool:
  with opened(path) as p:
    return p.exists()


def is_folder(path: str) -> bool:
  with opened(path) as p:
    return p.is_dir()


def make_folder(path: str) -> None:
  """Makes a folder and those it is in, where they do not exist.

  Raises:
    ConfigError: it can't be made.
  """
  with opened(path) as p:
    try:
      p.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as e:
      raise ConfigError(f"{path}: it, or what it would lie in, is a file and no folder") from e


def private_folder(path: str) -> str:
  """Makes a folder that no other user can write to; its absolute path.

  Raises:
    ConfigError: it is there, and others own it or can write to it.
  """
  path = os.path.abspath(os.path.expanduser(path))
  os.makedirs(os.path.dirname(path), exist_ok=True)
  with contextlib.suppress(FileExistsError):
    os.mkdir(path, 0o700)
  found = os.lstat(path)
  if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or _others_write(found):
    raise ConfigError(f"{path}: it must be a folder of your own to which nobody else can write,"
                      " since what lies there is run; choose another, or: chmod go-w")
  return path


def _others_write(found: os.stat_result) -> bool:
  """Whether a folder's mode lets others write to it; its owner's private group is no other."""
  if not found.st_mode & stat.S_IWGRP or found.st_mode & stat.S_IWOTH:
    return bool(found.st_mode & stat.S_IWOTH)
  try:
    return pwd.getpwuid(found.st_uid).pw_name != grp.getgrgid(found.st_gid).gr_name
  except KeyError:
    return True


def check_regular(path: str) -> None:
  """Refuses what could keep a reader waiting, or never ends; /dev/null is an empty file.

  Raises:
    OSError: the path is that of a named pipe, a device or a socket.
  """
  if is_remote(path) or not os.path.exists(path):
    return
  found = os.stat(path)
  mode = found.st_mode
  if stat.S_ISCHR(mode) and found.st_rdev == os.stat(os.devnull).st_rdev:
    return
  if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
    kind = ("a named pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else
            "a device")
    raise OSError(errno.ESPIPE, f"is {kind}, and what is read from it is needed more than once;"
                  " write it into a file first", path)


def read_bytes(path: str) -> bytes:
  check_regular(path)
  with opened(path) as p:
    return p.read_bytes()


def read_text(path: str, errors: str = "strict") -> str:
  return io.TextIOWrapper(io.BytesIO(read_bytes(path)), "utf-8", errors).read()


def parse_json(text: str) -> Any:
  """The value of JSON of others.

  Raises:
    ValueError: it is not valid, nested too deep, or has a text that is no Unicode.
  """
  try:
    value = json.loads(text)
  except RecursionError:
    raise ValueError(f"it is nested more than {DEPTH} deep") from None
  if text.count("[") + text.count("{") > DEPTH:
    inner, depth = [value], 1
    while inner := [x for y in inner for x in (y.values() if isinstance(y, dict) else y)
                    if isinstance(x, (list, dict))]:
      depth += 1
      if depth > DEPTH:
        raise ValueError(f"it is nested more than {DEPTH} deep")
  if SURROGATE.search(text):
    try:
      json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as e:
      raise ValueError(f"it has {e.object[e.start]!r}, half of a surrogate pair, which is no"
                       " character") from None
  return value


def write_text(path: str, text: str) -> None:
  """Writes a UTF-8 file, on disk when it returns, that readers see whole or not at all."""
  write_bytes(path, text.encode("utf-8"))


def write_bytes(path: str, content: bytes) -> None:
  if is_remote(path):
    with opened(path) as p:
      p.write_bytes(content)
    return
  with contextlib.suppress(FileNotFoundError):
    os.unlink(path + ".tmp")  # of a run that was killed; a link there is not followed
  with open(path + ".tmp", "xb") as f:
    f.write(content)
    f.flush()
    os.fsync(f.fileno())
  os.replace(path + ".tmp", path)


def sync_folder(path: str) -> None:
  """Returns when a folder, with all that is in it, would outlive a power cut; not for buckets."""
  if is_remote(path):
    return
  inside = [os.path.join(folder, name) for folder, _, files in os.walk(path)
            for name in (*files, ".")]
  for each in (*inside, os.path.dirname(path)):
    number = os.open(each, os.O_RDONLY)
    try:
      os.fsync(number)
    finally:
      os.close(number)


class Lines:
  """A text file that grows. In a bucket it is written anew with every line.

  Args:
    path: of the file.
    lines: what it holds first, each with its line feed; what it held is replaced.
  """

  def __init__(self, path: str, lines: Sequence[str] = ()):
    self._path, self._file, self._lines = path, None, list(lines)
    write_text(path, "".join(lines))
    if not is_remote(path):
      self._file, self._lines = open(path, "a", encoding="utf-8"), []

  def write(self, line: str) -> None:
    """Adds a line, which is on disk when it returns."""
    if self._file is None:
      self._lines.append(line)
      write_text(self._path, "".join(self._lines))
    else:
      self._file.write(line)
      self._file.flush()
      os.fsync(self._file.fileno())

  def close(self) -> None:
    if self._file is not None:
      self._file.close()
