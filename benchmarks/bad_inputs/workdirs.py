"""Workdirs: of other kinds, of other configs, with files that are missing or damaged."""

import json
import shutil

from benchmarks.bad_inputs.case import Case


def copy(name, *changes):
  """A copy of a run, changed in place."""
  def write(path, made):
    shutil.copytree(made / name, path)
    for change in changes:
      change(path)
  return write


def put(name, content):
  return lambda path: (path / name).write_text(content)


def gone(pattern):
  def change(path):
    for found in sorted(path.glob(pattern)):
      shutil.rmtree(found) if found.is_dir() else found.unlink()
  return change


def configured(**edits):
  def change(path):
    file = path / "config.json"
    config = json.loads(file.read_text())
    for key, value in edits.items():
      *sections, last = key.split("__")
      node = config
      for section in sections:
        node = node[section]
      node[last] = value
    file.write_text(json.dumps(config))
  return change


def on(command, name, sentence, *changes, run="classes"):
  inputs = {"predict": " --input={made}/val.en", "translate": " --input={made}/val.en"}
  return Case(f"{command}: {name}", f"{command} --workdir=w{inputs.get(command, '')}", sentence,
              {"w": copy(run, *changes)})


CLASSES = "--config=jtx.configs.classify:tiny --config.checkpoint.every=2"

CASES = [
    *(Case(f"{command}: no workdir", f"{command} --workdir=none{rest}", "none")
      for command, rest in (("predict", " --input={made}/dev.tsv"), ("evaluate", ""),
                            ("translate", " --input={made}/val.en"), ("inspect", ""),
                            ("convert", " --to_hf=o"), ("attention", " --text=a"))),
    *(Case(f"{command}: an empty workdir", f"{command} --workdir=w{rest}", "w", {"w/x": ""})
      for command, rest in (("predict", " --input={made}/dev.tsv"), ("evaluate", ""),
                            ("translate", " --input={made}/val.en"), ("inspect", ""),
                            ("convert", " --to_hf=o"), ("attention", " --text=a"))),
    *(Case(f"{command}: a workdir that is a file", f"{command} --workdir=w{rest}", "w", {"w": "x"})
      for command, rest in (("train", f" {CLASSES}"), ("predict", " --input={made}/dev.tsv"),
                            ("evaluate", ""), ("translate", " --input={made}/val.en"),
                            ("inspect", ""), ("report", ""), ("convert", " --to_hf=o"))),
    Case("a folder that is not ours to write", f"train {CLASSES} --workdir=/proc/w", "/proc"),
    Case("translate: a classifier", "translate --workdir={made}/classes --input={made}/val.en",
         "classes"),
    Case("translate: a model of images", "translate --workdir={made}/digits"
         " --input={made}/val.en", "digits"),
    Case("predict: a translator", "predict --workdir={made}/translator --input={made}/val.en",
         "translate"),
    Case("train: another config's run", "train --config=jtx.configs.vit:tiny --workdir=w", "w",
         {"w": copy("classes")}),
    Case("train: another width", f"train {CLASSES} --config.steps=4 --workdir=w"
         " --config.model.stack.width=64", "width", {"w": copy("classes")}),
    on("predict", "no config", "config.json", gone("config.json")),
    on("predict", "half a config", "config.json", put("config.json", '{"model": {')),
    on("predict", "a config that is a list", "config.json", put("config.json", "[]")),
    on("predict", "a config without a model", "model", put("config.json", "{}")),
    on("predict", "a model that is none", "encodr", configured(model__name="encodr")),
    on("predict", "a key that is none", "heigth", configured(model__heigth=3)),
    on("predict", "a width of 0", "width", configured(model__stack__width=0)),
    on("predict", "a module that is gone", "no_such_module",
       configured(imports=["no_such_module"])),
    on("predict", "no checkpoints", "w", gone("checkpoints")),
    on("evaluate", "no config", "config.json", gone("config.json")),
    on("evaluate", "no checkpoints", "w", gone("checkpoints")),
    on("evaluate", "data that are gone", "moved", configured(
        evals__dev__source=["tsv:moved.tsv"])),
    on("translate", "no checkpoints", "w", gone("checkpoints"), run="translator"),
    on("translate", "half a config", "config.json", put("config.json", "{"), run="translator"),
    on("inspect", "no checkpoints", "w", gone("checkpoints")),
    on("report", "nothing of its run", "metrics.jsonl", gone("metrics.jsonl"),
       gone("results.json")),
    Case("report: curves of nothing", "report --workdir=w --output=a.pdf", "a.pdf",
         {"w": copy("classes", gone("metrics.jsonl"))}),
    Case("convert: a translator to Hugging Face", "convert --workdir={made}/translator --to_hf=o",
         "EncDec"),
    Case("convert: a length of images", "convert --workdir={made}/digits --to=stablehlo --output=o"
         " --length=9", "length=9 is of texts"),
    Case("attention: an encoder's cross-attention", "attention --workdir={made}/classes --text=a"
         " --kind=decoder", "kind='decoder' is of a translator"),
]
