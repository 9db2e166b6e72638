"""The list of files from a config to its gradient: short enough to read, and complete."""

import os
import pathlib
import re

import pytest

from tests.test_architecture import imports_of, module_of

ROOT = pathlib.Path(__file__).parent.parent
PAGE = "docs/reading.md"
PATHS = ("NMT", "BERT", "ViT")
FILES, LINES = 10, 1100  # without layers
ALL_FILES, ALL_LINES = 17, 2400  # with them

# Modules, or folders of them, that the listed files import and that need not be opened.
SKIPPED = {
    "configs.images": "sources and augmentation of images",
    "configs.arguments": "the words behind the config's name, by type",
    "experiments.cli": "flags parsed, and mistakes told in a sentence",
    "jtx.errors": "exceptions",
    "jtx.storage": "files in folders and buckets",
    "jtx.hub": "models of the Hugging Face Hub by name",
    "jtx.config": "`section` is a constructor's fields, `build` calls it with them",
    "jtx.ranges": "what numbers a field takes",
    "jtx.config_files": "configs as JSON",
    "jtx.imports": "modules of users, by their names",
    "jtx.parallel.": "where arrays are on the mesh; processes; signals",
    "jtx.data.": "rows of tokens or pixels before they reach the model",
    "jtx.interop": "sizes of published models, as fields of ours",
    "jtx.interop.": "the same",
    "jtx.saved.": "checkpoints and workdirs",
    "jtx.evals": "the table of evaluators",
    "jtx.evals.": "scores of what is trained",
    "jtx.inference.": "decoding",
    "jtx.models": "the table of families",
    "jtx.models.contract": "what every family offers, as a Protocol",
    "jtx.models.generative": "prompts and steps of decoding",
    "jtx.models.global_tokens": "which tokens are global, of which these models have none",
    "jtx.models.heads": "the table of tasks",
    "jtx.models.masked": "DeBERTa's decoder of masked tokens, which BERT has not",
    "jtx.models.features": "frozen features, which pretraining has not",
    "jtx.models.filling": "rows that SigLIP fills up, which BERT's are not",
    "jtx.contracts": "what a model or an objective of the user's own may lack",
    "jtx.models.mae_decoder": "the decoder of MAE",
    "jtx.models.pooling": "the token, or the mean, that a head reads",
    "jtx.models.patches": "bytes of images to normalised patches, row by row",
    "jtx.models.resnet": "the stem of hybrids",
    "jtx.objectives": "the table of losses",
    "jtx.objectives.chunks": "the same loss, some tokens at a time",
    "jtx.objectives.imbalance": "weights of classes and the focal loss, which a config may turn on",
    "jtx.objectives.mixing": "mixup and CutMix, which a config may turn on",
    "jtx.objectives.rows": "texts of several fields as rows of one batch",
    "jtx.objectives.with_lm": "next tokens' loss beside that of a task, which is off in these",
    "jtx.objectives.contract": "what every objective offers, as a Protocol",
    "jtx.objectives.sums": "names with their sums and weights",
    "jtx.nn.activations": "GELU and others by their names",
    "jtx.nn.bias": "biases of logits as functions of places, which these models have not",
    "jtx.nn.apart": "decoding, layer by layer",
    "jtx.nn.cache": "decoding",
    "jtx.nn.convolution": "a convolution beside the first layer, which these models have not",
    "jtx.nn.dropout": "of the usual kind, from random bits that are cheap",
    "jtx.nn.encodings": "sines, ALiBi's slopes and buckets of distances",
    "jtx.nn.kept": "names of what the backward pass may keep",
    "jtx.nn.kernels": "the table of kernels",
    "jtx.nn.kernels.": "attention once more, computed in other ways",
    "jtx.nn.experts": "mixtures of experts, which these models have not",
    "jtx.nn.lora": "adapters, which these models have not unless a config says so",
    "jtx.nn.mixture": "their fields",
    "jtx.nn.numerics": "GELU, biases and norms with gradients that chips are quick at",
    "jtx.nn.recurrence": "the memory of earlier rows, which these models have not",
    "jtx.nn.relative": "biases of logits, which these models have not",
    "jtx.nn.residual": "layer scale and stochastic depth, which are off in these",
    "jtx.nn.shapes": "shapes of parameters, without drawing them",
    "jtx.nn.shift": "the tokens of targets, one place later",
    "jtx.nn.rope": "rotary positions, which these models have not",
    "jtx.nn.aligned": "first values of keys, which these models draw by themselves",
    "jtx.nn.global_queries": "global tokens' own projections, which these models have not",
    "jtx.nn.kinds": "kinds of layers by the names in a pattern",
    "jtx.nn.grid_positions": "positions of patches, which texts have not",
    "jtx.train.layer_sums": "losses of mixtures of experts, which these models have not",
    "jtx.train.keys": "the keys of a run: their defaults and ranges",
    "jtx.train.optimizers": "the table of optimisers",
    "jtx.train.optim": "what is done with the gradient",
    "jtx.train.schedules": "learning rates",
    "jtx.train.metrics": "logging",
    "jtx.train.progress": "logging",
    "jtx.train.profile": "traces of steps",
    "jtx.train.phases": "how many steps, of which length and batch",
    "jtx.train.states": "train states from and to checkpoints",
    "jtx.train.trackers": "TensorBoard, W&B, MLflow",
    "jtx.train.teacher": "another model, for distillation",
    "jtx.train.program": "`train_step`, jitted and sharded over the mesh",
}
# The same for one path.
SKIPPED_OF = {
    "NMT": {"jtx.models.text_head": "heads for tasks, which translation has not"},
    "BERT": {"jtx.objectives.cross_entropy": "the loss of sums once more, as chips compute it"},
    "ViT": {"jtx.nn.masks": "all tokens of an image attend to all"},
}


def sections() -> dict[str, tuple[list[str], list[str]]]:
  """By the name of a path: its files, and those of the layers, in the page's order."""
  text = (ROOT / PAGE).read_text(encoding="utf-8")
  found = {}
  for name in PATHS:
    row = re.search(rf"^\| {name} \|(.*)\|(.*)\|$", text, re.M)
    found[name] = tuple([os.path.normpath(f"{os.path.dirname(PAGE)}/{link}")
                         for link in re.findall(r"\]\(([^)]+)\)", cell)] for cell in row.groups())
  return found


def lines(files: list[str]) -> int:
  return sum(len((ROOT / file).read_text(encoding="utf-8").splitlines()) for file in files)


def skipped(module: str, path: str) -> bool:
  """Whether a module, or a folder (it ends in a dot) that it is in, is skipped on a path."""
  keys = SKIPPED | SKIPPED_OF.get(path, {})
  return any(module == key or key.endswith(".") and module.startswith(key) for key in keys)


def missing(files: list[str], path: str) -> list[str]:
  """Imports of our modules, at the top of files, that are neither listed nor skipped."""
  sources = {str(p.relative_to(ROOT)): p.read_text(encoding="utf-8")
             for folder in ("jtx", "configs", "experiments")
             for p in (ROOT / folder).rglob("*.py")}
  listed = {module_of(file) for file in files}
  return [f"{i.path} imports {i.target}" for i in imports_of(sources)
          if i.path in files and not i.lazy
          and i.target not in listed and not skipped(i.target, path)]


@pytest.mark.parametrize("name", PATHS)
def test_the_path_is_short(name):
  files, layers = sections()[name]
  found = lines(files), lines(files + layers)
  assert found[0] <= LINES and found[1] <= ALL_LINES, found
  assert len(files) <= FILES and len(files + layers) <= ALL_FILES


@pytest.mark.parametrize("name", PATHS)
def test_the_path_is_complete(name):
  files, layers = sections()[name]
  assert missing(files + layers, name) == []


def test_what_is_skipped_is_there():
  for key in SKIPPED:
    path = ROOT / key.rstrip(".").replace(".", "/")
    assert path.is_dir() or path.with_suffix(".py").is_file(), key


@pytest.mark.slow
def test_a_file_that_is_left_out_is_found():
  files, _ = sections()["NMT"]
  assert "cross_entropy" in missing(files[:-1], "NMT")[0]
  assert missing(["jtx/nn/stack.py"], "NMT")
