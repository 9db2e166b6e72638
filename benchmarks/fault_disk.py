"""A small file system in a file, which can be filled, made read-only, or lose its power."""

import contextlib
import fcntl
import os
import pathlib
import struct
import subprocess
import time
from typing import Iterator

BYTES = 64 << 20
_SHUTDOWN = 0x8004587D  # FS_IOC_SHUTDOWN of Linux
_WITHOUT_JOURNAL = 2  # what was not written yet is never written


class Disk:
  """A file system of type ext4.

  Args:
    image: the file.
    folder: where it is mounted.
  """

  def __init__(self, image: pathlib.Path, folder: pathlib.Path):
    self.folder, self.image = folder, image

  def make(self) -> bool:
    """Makes and mounts it, where it is not; whether that is possible here (Linux, as root)."""
    try:
      if not self.image.exists():
        with open(self.image, "wb") as f:
          f.truncate(BYTES)
        _run("mkfs.ext4", "-q", "-m", "0", str(self.image))
      if not self.folder.is_mount():
        self.mount()
    except (OSError, subprocess.CalledProcessError):
      return False
    return True

  def mount(self, options: str = "rw") -> None:
    # What a power cut leaves is recovered first.
    subprocess.run(["fsck.ext4", "-p", str(self.image)], capture_output=True)
    self.folder.mkdir(exist_ok=True)
    _run("mount", "-o", f"loop,{options}", str(self.image), str(self.folder))

  def unmount(self) -> None:
    for _ in range(100):  # what was killed may still be ending
      if subprocess.run(["umount", str(self.folder)], capture_output=True).returncode == 0:
        return
      time.sleep(0.1)
    _run("umount", "--lazy", str(self.folder))

  def again(self) -> None:
    """Mounts it anew."""
    self.unmount()
    self.mount()

  @contextlib.contextmanager
  def filled(self) -> Iterator[None]:
    """No byte of it is free meanwhile."""
    filler = self.folder / "filler"
    with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as f:
      for size in (1 << 20, 4096):
        with contextlib.suppress(OSError):
          while f.write(bytes(size)):
            pass
    try:
      yield
    finally:
      filler.unlink()

  def abort(self) -> None:
    """Makes it read-only as the kernel does after an error, though files are open."""
    _run("mount", "-o", "remount,abort", str(self.folder))

  def cut_power(self) -> None:
    """From now on nothing reaches it, nor does what was written and not yet synced."""
    folder = os.open(self.folder, os.O_RDONLY)
    try:
      fcntl.ioctl(folder, _SHUTDOWN, struct.pack("I", _WITHOUT_JOURNAL))
    finally:
      os.close(folder)


def _run(*command: str) -> None:
  subprocess.run(command, check=True, capture_output=True)
