"""Labels of examples: classes and numbers."""

import numpy as np
import pytest

from jtx.data.op import Column
from jtx.data.ops.labels import Label, Number
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


def test_label_without_key_or_names():
  assert fails(DataError, Label(), {"id": 7, "text": "a", "l": 1}) == (
      "op label: example 7 has no 'label'; it has text, l")
  with pytest.raises(ConfigError, match="op label: names has a more than once"):
    Label(names=("a", "b", "a"))
  with pytest.raises(ConfigError, match="op label: names is empty"):
    Label(names=())


def test_number():
  op = Number(key="score", scale=0.2)
  done = op([{"id": i, "score": v} for i, v in enumerate(["4.5", 3, " 1e1 "])], None)
  np.testing.assert_allclose([e["label"] for e in done], [0.9, 0.6, 2.0], rtol=1e-6)
  check_columns(op, done)
  assert op.columns == {"label": Column("example", "float32")}
  for value in ("high", "nan", "inf", None, ""):
    assert fails(DataError, op, {"id": 4, "score": value}) == (
        f"op number: example 4 has score={value!r}, which is not a finite number")
