"""Jobs of several processes: who ends them, and when they start again."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from jtx.launch import local
from jtx.launch.local import Command

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# A process of the job: its number is the last argument. It notes each start in a file of its own.
SCRIPT = """\
import os, signal, sys, time
folder, number = sys.argv[1], int(sys.argv[-1].partition("=")[2])
with open(os.path.join(folder, str(number)), "a") as f:
  f.write("start\\n")
starts = len(open(os.path.join(folder, str(number))).readlines())
def until(path):
  while not os.path.exists(os.path.join(folder, path)):
    time.sleep(0.01)
"""


def job(tmp_path, body, number=2):
  script = tmp_path / "script.py"
  script.write_text(SCRIPT + body)
  base = (sys.executable, str(script), str(tmp_path))
  return [Command(base, i, number) for i in range(number)]


def starts(tmp_path, number):
  return len((tmp_path / str(number)).read_text().splitlines())


@pytest.fixture(autouse=True)
def short_grace(monkeypatch):
  monkeypatch.setattr(local, "GRACE_SECONDS", 0.3)


def test_all_done(tmp_path):
  assert local.run(job(tmp_path, "sys.exit(0)"), restarts=0) == 0
  assert starts(tmp_path, 0) == starts(tmp_path, 1) == 1


def test_arguments_of_one_and_of_several():
  base = ("train", "--config=c")
  assert Command(base, 0, 1).arguments("host:1") == ["train", "--config=c"]
  assert Command(base, 1, 2).arguments("host:1") == [
      "train", "--config=c", "--coordinator=host:1", "--num_processes=2", "--process_id=1"]


def test_told_to_stop_starts_again(tmp_path):
  assert local.run(job(tmp_path, "sys.exit(75 if starts < 3 else 0)"), restarts=0) == 0
  assert starts(tmp_path, 0) == starts(tmp_path, 1) == 3


def test_one_killed_ends_the_others_and_all_start_again(tmp_path):
  """The other hangs, as one that waits for its peer."""
  body = """
if starts == 1:
  if number == 1:
    until("0")
    os.kill(os.getpid(), signal.SIGKILL)
  time.sleep(1000)
"""
  assert local.run(job(tmp_path, body), restarts=1) == 0
  assert starts(tmp_path, 0) == starts(tmp_path, 1) == 2


def test_restarts_are_counted(tmp_path):
  body = "os.kill(os.getpid(), signal.SIGKILL)"
  assert local.run(job(tmp_path, body), restarts=2) == 128 + signal.SIGKILL
  assert starts(tmp_path, 0) == 3


def test_a_failure_is_final(tmp_path):
  body = "sys.exit(2) if number else time.sleep(1000)"
  assert local.run(job(tmp_path, body), restarts=5) == 2
  assert starts(tmp_path, 0) == 1


def test_what_fails_first_is_the_cause(tmp_path, monkeypatch):
  """The runtime aborts a process whose peer is gone."""
  monkeypatch.setattr(local, "GRACE_SECONDS", 5.0)
  ends = "\nif number: until('0'), time.sleep(1)\n"
  (tmp_path / "failed").mkdir()
  body = ends + "os.abort() if number else sys.exit(3)"
  assert local.run(job(tmp_path / "failed", body), restarts=5) == 3
  assert starts(tmp_path / "failed", 0) == 1
  (tmp_path / "aborted").mkdir()
  body = ends + "if starts == 1: sys.exit(3) if number else os.abort()"
  assert local.run(job(tmp_path / "aborted", body), restarts=1) == 0
  assert starts(tmp_path / "aborted", 0) == 2


def test_a_notice_reaches_all(tmp_path):
  body = """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
open(os.path.join(folder, f"ready{number}"), "w").close()
time.sleep(1000)
"""
  def send():
    while not all((tmp_path / f"ready{i}").exists() for i in range(2)):
      time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)

  thread = threading.Thread(target=send)
  thread.start()
  assert local.run(job(tmp_path, body), restarts=5) == 75
  thread.join()
  assert starts(tmp_path, 0) == 1


def test_dry_run_prints_the_commands():
  done = subprocess.run(
      [sys.executable, "-m", "experiments.launch.local", "--processes=2", "--cpu_devices=4",
       "--cache=/c", "--dry_run", "--", "--config=configs/nmt_numbers.py:tiny",
       "--workdir=/tmp/a b"], cwd=ROOT, capture_output=True, text=True,
      env={k: v for k, v in os.environ.items() if "CACHE" not in k})
  assert done.returncode == 0, done.stderr
  lines = done.stdout.splitlines()
  assert len(lines) == 2
  assert lines[1].startswith("JAX_COMPILATION_CACHE_DIR=/c ")
  assert " JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES=4 " in lines[1]
  assert lines[1].endswith("-m experiments.train --config=configs/nmt_numbers.py:tiny"
                           " '--workdir=/tmp/a b' --coordinator=127.0.0.1:PORT --num_processes=2"
                           " --process_id=1")
