"""Labels of examples: classes and numbers."""

import re

import numpy as np
import pytest

from jtx.data.op import Column
from jtx.data.ops.labels import Label, Number
from jtx.data.ops.text import Fields
from jtx.errors import ConfigError, DataError
from tests.data.ops.encoders import check_columns, fails


def test_label_by_name_and_by_number():
  op = Label(key="gold", names=("no", "yes", "1"))
  done = op([{"id": i, "gold": v} for i, v in enumerate(["yes", "no", 2, np.int64(1), "1"])], None)
  assert [e["label"] for e in done] == [1, 0, 2, 1, 2]
  check_columns(op, done)
  assert op.columns == {"label": Column("example")}


@pytest.mark.parametrize("value, said", [
    ("maybe", "gold='maybe'; valid are no, yes, or their numbers 0 to 1"),
    (2, "gold=2; valid are no, yes, or their numbers 0 to 1"),
    (True, "gold=True; valid are no, yes, or their numbers 0 to 1"),
    (None, "gold=None; valid are no, yes, or their numbers 0 to 1"),
    (-1, "gold=-1; valid are no, yes, or their numbers 0 to 1 (-1 stands for an unknown label)"),
    ("-1",
     "gold='-1'; valid are no, yes, or their numbers 0 to 1 (-1 stands for an unknown label)"),
])
def test_label_outside_of_its_names(value, said):
  op = Label(key="gold", names=("no", "yes"))
  assert fails(DataError, op, {"id": 7, "gold": value}) == f"op label: example 7 has {said}"


def test_many_names_are_not_all_listed():
  shown = ", ".join(f"n{i}" for i in range(20))
  op = Label(names=tuple(f"n{i}" for i in range(190)))
  assert fails(DataError, op, {"id": 7, "label": "x"}) == (
      f"op label: example 7 has label='x'; valid are {shown} and 170 more, or their"
      " numbers 0 to 189")
  assert op.misfit({"label": "x"}) == (
      f"'label' is 'x', but in the data of the run it is a label, one of {shown} and 170 more")
  numbers = Label(names=("none", *(f"{i / 100}" for i in range(20))))
  hinted = r" and 1 more.*; for a number that is to be predicted take the op 'number', .* names=$"
  assert re.search(hinted, numbers.misfit({"label": "7.5"}))
  assert re.search(hinted, fails(DataError, numbers, {"id": 7, "label": "7.5"}))


def test_label_without_key_or_names():
  assert fails(DataError, Label(), {"id": 7, "text": "a", "l": 1}) == (
      "op label: example 7 has no 'label'; it has text, l")
  with pytest.raises(ConfigError, match="op label: names has a more than once"):
    Label(names=("a", "b", "a"))
  assert fails(ConfigError, Label(names=()), {"id": 7, "label": "a"}) == (
      "op label: names is empty; it must name the classes in order")


def test_names_that_are_numbers_are_looked_up():
  op = Label(names=("1", "2", "3"))
  done = op([{"id": 0, "label": v} for v in (3, "3", 1, np.int64(2), 2.0, np.float32(1))], None)
  assert [e["label"] for e in done] == [2, 2, 0, 1, 1, 0]
  for value in (0, 4, 1.5, True):
    assert fails(DataError, op, {"id": 7, "label": value}) == (
        f"op label: example 7 has label={value!r}; valid are 1, 2, 3")
  op = Label(names=("false", "true"))
  done = op([{"id": 0, "label": v} for v in (True, False, "true", np.bool_(True), 0)], None)
  assert [e["label"] for e in done] == [1, 0, 1, 1, 0]


class Rows(list):
  name = "rows"


class Known(Rows):
  def names_of(self, key):
    return {"label": ("pos", "neg")}.get(key)


def collected(*values, key="label", ops=(), kind=Rows):
  return Label(key=key).collect_names([kind({key: v} for v in values)], ops)


@pytest.mark.parametrize("values, names", [
    (("no", "yes", "no", "maybe"), ("maybe", "no", "yes")),
    (("10", "9", "-1", "9"), ("-1", "9", "10")),
    ((2, 0, 1, 2), ("0", "1", "2")),
    ((5.0, 1.0), ("1", "5")),
    ((True, False), ("false", "true")),
    ((["a", "c"], [], ["b", "a"]), ("a", "b", "c")),
])
def test_names_are_collected(values, names):
  assert collected(*values) == names


def test_names_are_those_that_a_source_knows():
  assert collected(0, 1, kind=Known) == ("pos", "neg")
  assert collected(0, 1, kind=Known, key="other") == ("0", "1")
  two = [Known([{"label": 0}]), Rows([{"label": 1}])]
  assert Label().collect_names(two, ()) == ("pos", "neg")
  other = Known([])
  other.names_of = lambda key: ("neg", "pos")
  assert fails(DataError, lambda _, __: Label().collect_names([two[0], other], ()), {}) == (
      "op label: the training sources have other classes each, pos, neg and neg, pos")
  ops = [Fields(keep=("label=stars.value",))]
  source = [Rows([{"stars": {"value": 4}}, {"stars": {"value": 2}}])]
  assert Label().collect_names(source, ops) == ("2", "4")


@pytest.mark.parametrize("values, said", [
    ((1, None), "rows: op label: example 1 has label=None, which is no class, but empty"),
    (("", "a"), "rows: op label: example 0 has label='', which is no class, but empty"),
    ((1.5, 2.0), "rows: op label: example 0 has label=1.5, which is no class; for a number that"
                 " is to be predicted take the op 'number', as the config classify.py does with"
                 " names="),
    (tuple(f"text {i}" for i in range(51)), "op label: all 51 examples have another 'label', so it"
                                            " is no class; is another column that of the classes?"),
])
def test_labels_that_are_no_classes(values, said):
  assert fails(DataError, lambda _, __: collected(*values), {}) == said


def test_a_header_that_was_read_as_an_example():
  assert fails(DataError, lambda _, __: collected("label", "a", "b", "a", "b", key="1"), {}) == (
      "rows: the '1' of its first line, 'label', is that of no other line, so the line looks like a"
      " header; tables with a header are read by table: or csv: (if it is a class, write all"
      " classes in order into the names of 'label')")
  assert collected("label", "a", "b", "a", "b") == ("a", "b", "label")  # a key of a header
  assert collected("x", "a", "b", "a", key="1") == ("a", "b", "x")


def test_number():
  op = Number(key="score", scale=0.2)
  done = op([{"id": i, "score": v} for i, v in enumerate(["4.5", 3, " 1e1 "])], None)
  np.testing.assert_allclose([e["label"] for e in done], [0.9, 0.6, 2.0], rtol=1e-6)
  check_columns(op, done)
  assert op.columns == {"label": Column("example", "float32")}
  for value in ("high", "nan", "inf", None, ""):
    assert fails(DataError, op, {"id": 4, "score": value}) == (
        f"op number: example 4 has score={value!r}, which is not a finite number")


def test_a_number_beyond_the_limit():
  op = Number(key="score", scale=0.2, limit=1.0)
  rows = [{"id": i, "score": v} for i, v in enumerate(["-5", 5.000001, 0])]
  np.testing.assert_allclose([e["label"] for e in op(rows, None)], [-1, 1, 0], atol=1e-6)
  assert fails(DataError, op, {"id": 4, "score": "7.5"}) == (
      "op number: example 4 has score='7.5', which times scale=0.2 is 1.5, and must be from -1 to"
      " 1; set scale so that all numbers are, such as 0.2 for scores from 0 to 5")
  assert op.misfit({"score": 7}) == ("'score' is 7, but in the data of the run it is a number,"
                                     " which times 0.2 is from -1 to 1")
  assert op.misfit({"score": 5}) == op.misfit({}) == Number(key="score").misfit({"score": 7}) == ""
