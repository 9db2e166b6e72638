"""The ranges of all keys of a run: what is out of them is refused before anything is read."""

import dataclasses
import importlib.util
import math
import pathlib
import typing

from ml_collections import ConfigDict
import pytest

from configs import common
from configs.common import evaluator, method, model, objective, op, optimizer, schedule, tokenizer
from experiments.config_files import load_config
from jtx import config as configs
from jtx.errors import ConfigError
from jtx.evals import EVALS
from jtx.models import MODELS
from jtx.ranges import Share, Within, excluded
from jtx.train import loop
from jtx.train.keys import RunKeys, check_config

ROOT = pathlib.Path(__file__).parent.parent.parent
NAN, INF = math.nan, math.inf


def refusal(call) -> str:
  with pytest.raises(ConfigError) as e:
    call()
  return str(e.value)


def run_config(edits=None, **sections):
  """A config of a translator with all kinds of sections, edited by path."""
  c = common.get_config()
  c.model, c.objective = model("encdec"), objective("seq2seq")
  c.data.ops = (op("filter_length"), op("mask"), op("pack"))
  c.evals = {"val": evaluator("translation", source=("val",))}
  for path, section in sections.items():
    configs.edit(c, {path.replace("__", "."): section})
  return configs.edit(c, edits or {})


@pytest.mark.parametrize("edits, valid", [
    ({"seed": -1}, "0 to 4294967295"), ({"seed": 2 ** 32}, "0 to 4294967295"),
    ({"prng": "philox"}, "one of 'threefry2x32', 'rbg', 'unsafe_rbg'"),
    ({"steps": 0}, "1 or more"), ({"log_every": 0}, "1 or more"),
    ({"epochs": 0.0}, "above 0"), ({"epochs": NAN}, "above 0"), ({"epochs": INF}, "above 0"),
    ({"batch_size": 0}, "1 to 1048576"), ({"batch_size": 10 ** 9}, "1 to 1048576"),
    ({"optim.lr": -1e-3}, "0 or more"), ({"optim.lr": NAN}, "0 or more"),
    ({"optim.ema": 2.0}, "0 to below 1"), ({"optim.ema": NAN}, "0 to below 1"),
    ({"optim.clip_norm": -1.0}, "0 or more"), ({"optim.clip_norm": INF}, "0 or more"),
    ({"optim.accumulate": 0}, "1 to 16777216"),
    ({"optim.optimizer.b1": 2.0}, "0 to below 1"), ({"optim.optimizer.b2": 1.0}, "0 to below 1"),
    ({"optim.optimizer.eps": -1e-8}, "0 or more"),
    ({"optim.optimizer.weight_decay": NAN}, "0 or more"),
    ({"optim.schedule.warmup": -1.0}, "0 or more"), ({"optim.schedule.warmup": INF}, "0 or more"),
    ({"optim.schedule.end": -0.1}, "0 or more"),
    ({"mesh.data": -2}, "-1 or more"),
    ({"checkpoint.every": 0}, "1 or more"), ({"checkpoint.keep": 0}, "1 or more"),
    ({"checkpoint.keep_every": -1}, "0 or more"), ({"checkpoint.patience": -1}, "0 or more"),
    ({"checkpoint.average": 0}, "1 or more"),
    ({"tokenizer.kind.vocab_size": 10 ** 12}, "1 to 16777216"),
    ({"data.smoothing": NAN}, "0 or more"), ({"data.window": -1}, "0 to 16777216"),
    ({"data.threads": -1}, "0 to 1024"), ({"data.workers": -1}, "0 to 1024"),
    ({"data.ops[0].max_length": 0}, "1 or more"), ({"data.ops[1].rate": 0.0}, "above 0 to 1"),
    ({"data.ops[2].max_segments": 0}, "1 to 16777216"),
    ({"decode.batch_size": 0}, "1 to 16777216"),
    ({"decode.max_target_length": -5}, "1 to 16777216"),
    ({"decode.method.alpha": NAN}, "finite"), ({"decode.method.beam": 10 ** 9}, "1 to 1024"),
    ({"evals.val.every": -1}, "0 or more"), ({"evals.val.limit": -1}, "0 or more"),
    ({"objective.label_smoothing": 2.0}, "0 to below 1"),
    ({"objective.label_smoothing": -1.0}, "0 to below 1"),
    ({"model.encoder.width": 0}, "1 to 16777216"),
    ({"model.encoder.num_layers": 10 ** 7}, "1 to 4096"),
    ({"model.decoder.block.attention.num_heads": -1}, "1 to 16777216"),
    ({"model.decoder.block.attention.scale": 0.0}, "above 0"),
    ({"model.decoder.block.dropout": 1.0}, "0 to below 1"),
    ({"model.decoder.block.residual.layer_scale": INF}, "finite"),
    ({"model.decoder.block.norm.eps": -1e-6}, "above 0"),
    ({"model.encoder.position.base": -1.0}, "above 0"),
    ({"model.embedding.output_scale": NAN}, "finite"),
])
def test_a_number_out_of_its_range_is_named(edits, valid):
  (key, value), = edits.items()
  assert refusal(lambda: check_config(run_config(edits))) == (
      f"config.{key}={value!r}: must be {valid}")


@pytest.mark.parametrize("key, section, place, valid", [
    ("optim.optimizer", optimizer("adafactor", decay_rate=0.0), "decay_rate=0.0", "above 0"),
    ("optim.optimizer", optimizer("muon", iterations=0), "iterations=0", "1 to 4096"),
    ("optim.optimizer", optimizer("sgd", momentum=1.0), "momentum=1.0", "0 to below 1"),
    ("optim.schedule", schedule("wsd", decay=1.5), "decay=1.5", "0 to 1"),
    ("optim.schedule", schedule("noam", warmup=0), "warmup=0", "1 or more"),
    ("tokenizer.kind", tokenizer("unigram", vocab_size=0), "vocab_size=0", "1 to 16777216"),
    ("decode.method", method("sample", temperature=-1.0), "temperature=-1.0", "0 or more"),
    ("decode.method", method("sample", top_p=1.5), "top_p=1.5", "above 0 to 1"),
    ("decode.method", method("sample", seed=-1), "seed=-1", "0 to 4294967295"),
    ("objective", objective("distill", temperature=NAN), "temperature=nan", "above 0"),
    ("objective", objective("classify", class_weights=(1.0, -1.0)), "class_weights[1]=-1.0",
     "0 or more"),
    ("objective", objective("distill_classes", weight=1.5), "weight=1.5", "0 to 1"),
    ("model", model("vit", image=dict(std=(0.5, 0.0, 0.5))), "image.std[1]=0.0", "above 0"),
    ("model", model("vit", patch_size=0), "patch_size=0", "1 to 16384"),
    ("model", model("vit", **{"decoder.masked": 1.0}), "decoder.masked=1.0", "0 to below 1"),
    ("model", model("encoder", **{"head.threshold": 0.0}), "head.threshold=0.0",
     "above 0 to below 1"),
    ("evals.val", evaluator("ngrams", source=("a",), discount=1.0), "discount=1.0",
     "above 0 to below 1"),
    ("data.ops", (op("images", channels=2),), "[0].channels=2", "one of 1, 3"),
    ("data.ops", (op("flip"), op("randaugment", magnitude=15.0)), "[1].magnitude=15.0", "0 to 10"),
    ("data.ops", (op("mask", split=(1.1, 0.0, -0.1)),), "[0].split[0]=1.1", "0 to 1"),
    ("data.ops", (op("inception_crop", area=(0.5, 1.5)),), "[0].area[1]=1.5", "above 0 to 1"),
    ("data.ops", (op("pad", lengths=(8, 0)),), "[0].lengths[1]=0", "1 to 16777216"),
    ("phases", ((0.5, 128, 64), (0.5, 0, 64)), "[1][1]=0", "1 to 16777216"),
    ("optim.lr_mults", (("head", 1.0), ("embed", -1.0)), "[1][1]=-1.0", "0 or more"),
    ("data.weights", (1.0, NAN), "[1]=nan", "0 or more"),
    ("profile", (0, 5), "[0]=0", "1 or more"),
])
def test_a_section_of_any_name_is_checked(key, section, place, valid):
  c = run_config({key: section})
  dot = "" if place.startswith("[") else "."
  assert refusal(lambda: check_config(c)) == (
      f"config.{key}{dot}{place}: must be {valid}")


@pytest.mark.parametrize("evals", [("val",), "val"])
def test_evaluations_are_a_section(evals):
  c = run_config({})
  with c.unlocked():
    del c.evals
    c.evals = evals
  assert refusal(lambda: check_config(c)) == (
      f"config.evals={evals!r} must be a section, with names of yours as its keys")


@pytest.mark.parametrize("name", ["nmt_base", "nmt_multi30k"])
def test_of_keys_that_follow_others_that_is_named_which_was_given(name):
  for edits in ({"model.encoder.block.dropout": 1.5}, {"model.encoder.width": 0},
                {"model.decoder.block.dropout": 1.5}):
    c = load_config(f"configs/{name}.py")
    common.apply(c, edits)
    (key, value), = edits.items()
    assert refusal(lambda c=c: check_config(c)).startswith(f"config.{key}={value}: must be ")


def test_it_is_told_before_anything_is_read_or_written(tmp_path):
  c = run_config({"data.train": ("text:nowhere",), "optim.ema": 2.0})
  assert "config.optim.ema" in refusal(lambda: loop.run(c, str(tmp_path / "w")))
  assert not (tmp_path / "w" / "config.json").exists()


def test_names_keys_and_settings_that_exclude_each_other():
  c = run_config()
  c.model.name = "encdek"
  assert refusal(lambda: check_config(c)) == (
      "config.model.name: unknown name 'encdek'; did you mean 'encdec'?")
  c = run_config()
  c.data.ops[1].rat = 0.5
  assert "config.data.ops[1].rat: unknown key; did you mean 'rate'?" == refusal(
      lambda: check_config(c))
  c = run_config()
  c.evals = {"val": 3}
  assert refusal(lambda: check_config(c)).startswith(
      "config.evals.val must be a section with a name: answers,")
  c = run_config({"decode.method.n_best": 5})
  assert "n_best=5 is more than beam=4" in refusal(lambda: check_config(c))


def test_a_constructor_that_is_built_by_itself_is_checked_too():
  cfg = configs.section(EVALS, "loss", source=("a",), every=-1)
  assert refusal(lambda: configs.build(EVALS, cfg, what="evals.val")) == (
      "evals.val.every=-1: must be 0 or more")
  cfg = model("encdec", vocab_size=5, **{"encoder.block.ffn.dim": 0})
  assert "model.encoder.block.ffn.dim=0" in refusal(
      lambda: configs.build(MODELS, cfg, what="model"))


def numbers(hint):
  """The number types in an annotated type, each with whether a range is declared."""
  if typing.get_origin(hint) is typing.Annotated:
    declared = any(isinstance(m, Within) for m in hint.__metadata__)
    yield from ((kind, declared or ranged) for kind, ranged in numbers(hint.__origin__))
  elif hint in (int, float):
    yield hint, False
  else:
    for part in typing.get_args(hint):
      yield from numbers(part) if part is not Ellipsis and not isinstance(part, (int, str)) else ()


def constructors():
  """All constructors that a config can name, by where they stand."""
  waiting, done = [("config", RunKeys)], {}
  while waiting:
    where, constructor = waiting.pop()
    if constructor in done:
      continue
    done[constructor] = where
    for key, field in configs.fields(constructor).items():
      hints = [field.type]
      while hints:
        hint = hints.pop()
        for m in getattr(hint, "__metadata__", ()):
          if isinstance(m, configs.OneOf):
            waiting += [(f"{where}.{key}:{n}", c) for n, c in m.registry.items()]
        if isinstance(hint, type) and hasattr(hint, "registry"):
          waiting += [(f"{where}.{key}:{n}", c) for n, c in hint.registry().items()]
        elif dataclasses.is_dataclass(hint):
          waiting.append((f"{where}.{key}", hint))
        hints += [h for h in typing.get_args(hint) if not isinstance(h, (int, str))]
  return done


# Whole numbers of any size, and why.
ANY = {"layers": "places in a list, from its end too"}


def test_every_whole_number_has_a_range_and_every_default_is_in_its_range():
  assert len(constructors()) > 100
  for constructor, where in constructors().items():
    for key, (hint, default) in configs.fields(constructor).items():
      assert key in ANY or all(ranged for kind, ranged in numbers(hint) if kind is int), (
          f"{where}.{key} has no range")
      assert not list(excluded(hint, default)), f"{where}.{key}={default}"


@pytest.mark.parametrize("name", ["bert", "nmt_base", "vit_b16", "mae", "modernbert", "glue"])
def test_shipped_configs_are_in_range(name):
  check_config(load_config(f"configs/{name}.py"))


@pytest.mark.parametrize("interval, words, inside, outside", [
    ("[0, 1)", "0 to below 1", (0, 0.999), (1, -1e-9, NAN, INF)),
    ("(0, 1]", "above 0 to 1", (1, 1e-9), (0, 1.001)),
    ("[1, inf)", "1 or more", (1, 10 ** 400), (0, INF, NAN)),
    ("(0, inf)", "above 0", (1e-300,), (0, -1.0, INF)),
    ("(-inf, inf)", "finite", (0, -1e300), (INF, -INF, NAN)),
    ("(-inf, 0]", "0 or less", (0, -5), (1, -INF)),
])
def test_intervals_in_words(interval, words, inside, outside):
  within = Within(interval)
  assert str(within) == words
  assert all(x in within for x in inside) and not any(x in within for x in outside)


def test_ranges_inside_of_types():
  assert list(excluded(tuple[Share, ...] | None, (0.5, 2, NAN)))[0] == ("[1]", 2, "0 to 1")
  assert not list(excluded(Share | None, None)) and not list(excluded(Share | str, "balanced"))
  assert list(excluded(float, NAN)) and not list(excluded(bool, True))
  assert isinstance(run_config().evals, ConfigDict)


def test_the_reference_is_what_the_declarations_say():
  spec = importlib.util.spec_from_file_location("keys_reference", ROOT / "docs" / "keys.py")
  reference = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(reference)
  text = reference.documents()
  assert text == (ROOT / "docs" / "keys.md").read_text(encoding="utf-8"), "run docs/keys.py"
  listed = (ROOT / "experiments" / "keys.txt").read_text(encoding="utf-8")
  assert listed == reference.sections(), "run docs/keys.py"
  assert "| `ema` | `0.0` | float, 0 to below 1 | decay of the average of the parameters" in text
  assert '### data.ops, name "mask"' in text and '### optim.schedule, name "wsd"' in text
