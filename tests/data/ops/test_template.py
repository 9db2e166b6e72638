"""Inputs and targets by templates."""

import pytest

from jtx.config import ConfigError
from jtx.data.ops.template import Template
from jtx.errors import ExampleError

EXAMPLE = {"id": 7, "sentence": "a {fine} film", "label": 1, "score": "2.51", "task": "b",
           "translation": {"de": "Haus"}, "answers": [{"text": "x"}, {"text": "y"}]}


def written(source, target="", **example):
  result, = Template((("", source, target),))([EXAMPLE | example], None)
  assert result.keys() == {"id", "src", "tgt"} and result["id"] == 7
  return result["src"], result["tgt"]


def test_values_stand_in_their_places():
  assert written("sst2 sentence: {sentence}", "{label:0=bad|1=good}") == (
      "sst2 sentence: a {fine} film", "good")
  assert written("{{{label}}} {translation.de}", "{answers.1.text}") == ("{1} Haus", "y")


@pytest.mark.parametrize("value, text", [
    ("2.51", "2.6"), (2.5, "2.4"), (0, "0.0"), ("5", "5.0"), (-0.31, "-0.4"), ("2.7", "2.8")])
def test_numbers_are_rounded_to_a_multiple(value, text):
  # 2.5 / 0.2 is just below 12.5 in binary, as in Raffel et al.'s STS-B: an even multiple.
  assert written("", "{score:/0.2}", score=value)[1] == text


def test_an_example_says_of_which_task_it_is():
  op = Template((("a", "a: {label}", "{sentence}"), ("b", "b: {score}", "{label}")),
                keep=("answers", "more"))
  result, = op([dict(EXAMPLE)], None)
  assert result == {"id": 7, "src": "b: 2.51", "tgt": "1", "answers": EXAMPLE["answers"]}
  with pytest.raises(ExampleError, match=r"has the task 'c'; valid are a, b, given by"
                     r" columns\[task='NAME'"):
    op([EXAMPLE | {"task": "c"}], None)


@pytest.mark.parametrize("source, what", [
    ("{title}", "has no 'title'; it has sentence, label, score"),
    ("{answers.2.text}", "has no 'answers.2.text'"),
    ("{translation.fr}", "has no 'translation.fr'; it has de"),
    ("{translation}", "has a 'translation' that is {'de': 'Haus'}, neither text nor a number"),
    ("{label:0=no|2=yes}", "has a 'label' that is 1; the template has words for 0, 2"),
    ("{sentence:/0.5}", "has a 'sentence' that is 'a {fine} film', and no number"),
])
def test_examples_that_do_not_fit(source, what):
  with pytest.raises(ExampleError) as e:
    written(source)
  assert what in str(e.value) and "7" in str(e.value)


@pytest.mark.parametrize("source, what", [
    ("a {text", "a brace that is meant is written twice"),
    ("a } b", "a brace that is meant is written twice"),
    ("a {}", "braces hold the name of a value"),
    ("a {text!r}", "braces hold the name of a value"),
    ("{label:0}", "'0' is not VALUE=WORD|VALUE=WORD, each value once"),
    ("{label:0=a|0=b}", "'0=a|0=b' is not VALUE=WORD|VALUE=WORD, each value once"),
    ("{score:/0}", "'/0' is not / and a number above 0"),
    ("{score:/x}", "'/x' is not / and a number above 0"),
])
def test_templates_that_are_none(source, what):
  with pytest.raises(ConfigError) as e:
    Template((("mine", source, ""),))
  assert what in str(e.value) and "of the task 'mine'" in str(e.value)


def test_names_of_tasks():
  with pytest.raises(ConfigError, match="two of the tasks a, a have one name"):
    Template((("a", "", ""), ("a", "", "")))
  with pytest.raises(ConfigError, match="tasks is empty"):
    Template(())
