"""Bad inputs by family, and the sound data and runs that they are made from."""

import pathlib
import shutil
import struct
from typing import Callable
import zlib

from benchmarks.bad_inputs import (
    boxes, commands, config_files, images, language, models, numbers, plans, tables, texts,
    tokenizers, workdirs)

FAMILIES = {
    "commands": commands.CASES, "config files": config_files.CASES, "numbers": numbers.CASES,
    "texts": texts.CASES, "tables": tables.CASES, "images": images.CASES,
    "boxes": boxes.CASES,
    "tokenizers": tokenizers.CASES, "models": models.CASES, "workdirs": workdirs.CASES,
    "language models": language.CASES, "sweeps and launches": plans.CASES,
}

TINY = ("--config.steps=2", "--config.checkpoint.every=2", "--config.batch_size=8")
RUNS = {
    "translator": ["--config=jtx.configs.nmt_numbers:tiny", *TINY,
                   "--config.evals.val.limit=2", "--config.evals.test.limit=2"],
    "classes": ["--config=jtx.configs.classify:tiny", "--config.steps=2",
                "--config.checkpoint.every=2"],
    "digits": ["--config=jtx.configs.vit:tiny", "--config.steps=2", "--config.checkpoint.every=2"],
    "masked": ["--config=jtx.configs.bert:tiny", "--config.steps=2", "--config.checkpoint.every=2"],
    "chat": ["--config=jtx.configs.instruct:tiny", *TINY],
}


def make(folder: pathlib.Path, run: Callable) -> pathlib.Path:
  """Makes what cases start from, unless it is there: data, runs, and a Hugging Face folder."""
  if (folder / "done").exists():
    return folder
  remove(folder)
  folder.mkdir(parents=True)
  write_texts(folder)
  for name in ("cat", "dog"):
    for i in range(4):
      path = folder / "photos" / name / f"{i}.png"
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_bytes(png(8, 8, 50 * i + len(name)))
  commands_of = [["train", *words, f"--workdir={name}"] for name, words in RUNS.items()]
  commands_of += [["convert", "--workdir=classes", "--to_hf=hf"],
                  ["convert", "--workdir=chat", "--to_hf=chat_hf"],
                  ["prepare", "--config=jtx.configs.classify:tiny", "--output=prepared"]]
  for words in commands_of:
    if (ended := run(words, folder, limit=600.0)).status:
      raise RuntimeError(f"{' '.join(words)}: {ended.errors[-2000:]}")
  (folder / "done").touch()
  return folder


def write_texts(folder: pathlib.Path) -> None:
  lines = [f"the {a} {b} sat on the {c}" for a in ("old", "red", "big", "sad")
           for b in ("cat", "dog") for c in ("mat", "hill", "box")]
  for name, chosen in (("train", lines), ("dev", lines[:6])):
    rows = "".join(f"{text}\t{i % 2}\n" for i, text in enumerate(chosen))
    (folder / f"{name}.tsv").write_text(rows)
  for split in ("train", "val"):
    for language in ("en", "de"):
      (folder / f"{split}.{language}").write_text("\n".join(lines) + "\n")


def png(width: int, height: int, grey: int) -> bytes:
  """A grey image."""
  part = lambda kind, data: (struct.pack(">I", len(data)) + kind + data
                             + struct.pack(">I", zlib.crc32(kind + data)))
  rows = (b"\0" + bytes([grey % 256]) * width) * height
  size = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
  return (b"\x89PNG\r\n\x1a\n" + part(b"IHDR", size)
          + part(b"IDAT", zlib.compress(rows)) + part(b"IEND", b""))


def remove(folder: pathlib.Path) -> None:
  shutil.rmtree(folder, ignore_errors=True)
