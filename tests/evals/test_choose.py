"""Which evaluations a command asks for."""

from ml_collections import ConfigDict
import pytest

from configs import common
from jtx.errors import ConfigError
from jtx.evals import choose


def config(**evals):
  return ConfigDict({"evals": ConfigDict(evals)})


LOSS = common.evaluator("loss", source=("text:val",))
TRANSLATION = common.evaluator("translation", source=("text:val",), every=5)
CLASSES = common.evaluator("classification", source=("tsv:dev.tsv",))
OTHERS = common.evaluator("classification", source=("tsv:de.tsv",), every=3)


def test_the_configs_own_are_chosen_by_name():
  c = config(dev=CLASSES, de=OTHERS)
  assert choose.chosen(c, frozenset()) == c.evals
  assert choose.chosen(c, frozenset(), ["de"]) == ConfigDict({"de": OTHERS})


def test_other_sources_and_scores(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "my-test.tsv").write_text("a\tb\n")
  c = config(dev=CLASSES, de=OTHERS, speed=common.evaluator("throughput"))
  found = choose.chosen(c, frozenset(), ["my-test.tsv", "b.tsv"], ["f1"],
                        lambda file: f"tsv:{file}")
  assert list(found) == ["my_test"]  # both classify, so one does
  assert found.my_test.source == (f"tsv:{tmp_path}/my-test.tsv", "tsv:b.tsv")
  assert found.my_test.scores == ("f1",) and c.evals.dev.scores == ("accuracy",)
  found = choose.chosen(config(val=LOSS, test=TRANSLATION), frozenset(), ["text:a.en,a.de"])
  assert {name: (e.name, e.source) for name, e in found.items()} == {
      "a_val": ("loss", ("text:a.en,a.de",)), "a_test": ("translation", ("text:a.en,a.de",))}


def test_without_evaluations_the_models_head_says_which():
  found = choose.chosen(config(), frozenset({"tags"}), ["conll:a.conll"])
  assert found.a.name == "tagging" and found.a.source == ("conll:a.conll",)
  assert not choose.chosen(config(), frozenset({"tags"}))
  with pytest.raises(ConfigError, match="no evaluator is for a model with the heads mae"):
    choose.chosen(config(), frozenset({"mae"}), ["a"])


def test_scores_that_nothing_has():
  with pytest.raises(ConfigError, match=r"--scores=f1: no evaluation can have scores; config.evals"
                                        r" has val \(loss\)"):
    choose.chosen(config(val=LOSS), frozenset(), (), ["f1"])


def test_scores_of_images_whose_evaluation_has_none():
  c = config(val=common.evaluator("images", source=("images:val",)), loss=LOSS)
  found = choose.chosen(c, frozenset({"classes"}), ["images:test"], ["macro_f1"])
  assert {name: e.name for name, e in found.items()} == {
      "test_val": "classification", "test_loss": "loss"}
  assert (found.test_val.source, found.test_val.scores) == (("images:test",), ("macro_f1",))
  with pytest.raises(ConfigError, match="no evaluation can have scores"):
    choose.chosen(c, frozenset({"mae"}), ["images:test"], ["macro_f1"])


def test_predictions_where_there_is_only_a_loss():
  c = config(dev=common.evaluator("loss", source=("tsv:dev.tsv",)))
  found = choose.chosen(c, frozenset({"choice"}), predictions=True)
  assert list(found) == ["dev", "predictions"] and found.predictions.name == "choices"
  assert found.predictions.source == ("tsv:dev.tsv",)
  with_own = config(dev=CLASSES)
  assert choose.chosen(with_own, frozenset({"classes"}), predictions=True) == with_own.evals
