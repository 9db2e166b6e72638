"""Generated conversations: what is asked of a number, and its answer."""

import pytest

from jtx.data.sources.registry import open_source
from jtx.errors import ConfigError


def test_answers():
  found = {}
  for task in ("digits", "german", "letters", "reverse"):
    source = open_source(f"embedded:instructions/{task}:train", "")
    pairs = {m[0]["content"]: m[1]["content"] for m in (e["messages"] for e in source)}
    found[task] = next((q, a) for q, a in pairs.items() if "three hundred and " in q)
    words = found[task][0].split(": ")[1]
    number = int(next(a for q, a in found.values() if q.startswith("Write")))
    expected = {"digits": str(number), "letters": str(sum(c.isalpha() for c in words)),
                "reverse": words[::-1], "german": found[task][1]}
    assert found[task][1] == expected[task]
  assert found["german"][1].startswith("dreihundert")


def test_splits_have_no_number_in_common():
  asked = [{e["messages"][0]["content"] for e in open_source(f"embedded:instructions:{split}", "")}
           for split in ("train", "val", "test")]
  assert not asked[0] & asked[1] and not asked[0] & asked[2] and not asked[1] & asked[2]
  assert len(asked[0]) > 20_000 and len(asked[2]) > 1000


def test_preferences_differ():
  source = open_source("embedded:preferences:val", "")
  assert all(e["chosen"] != e["rejected"] for e in source)
  assert source[0]["chosen"][0] == open_source("embedded:instructions:val", "")[0]["messages"][1]


def test_unknown_tasks_and_splits():
  with pytest.raises(ConfigError, match="unknown task 'digit'; did you mean 'digits'"):
    open_source("embedded:instructions/digit:train", "")
  with pytest.raises(ConfigError, match="unknown split 'dev'"):
    open_source("embedded:preferences:dev", "")
