"""What the generated sentences say of themselves is true of them."""

import pickle

import pytest

from jtx.data.sources.registry import open_source
from jtx.data.sources.sentences import BY_THE_SEA, INLAND, NAMES, TAGS, VERBS
from jtx.errors import ConfigError


@pytest.mark.parametrize("split", ["train", "val"])
def test_every_column_fits_the_sentence(split):
  source = open_source(f"embedded:sentences:{split}")
  assert len(source) == {"train": 2000, "val": 200}[split]
  for i in range(len(source)):
    e = source[i]
    who, verb, whom, preposition, town, stop = e["words"]
    assert who in NAMES and whom in NAMES and who != whom and verb in VERBS
    assert (preposition, stop) == ("in", ".") and e["text"] == " ".join(e["words"])
    assert e["label"] == ("1" if town in BY_THE_SEA else "0") and town in BY_THE_SEA + INLAND
    assert e["tags"] == [TAGS[1], "O", TAGS[1], "O", TAGS[2], "O"]
    (answer,) = e["answers"]
    start = answer["answer_start"]
    assert e["context"][start:start + len(town)] == answer["text"] == town
    endings = [e["ending_0"], e["ending_1"]]
    assert endings[e["answer"]] == town and endings[1 - e["answer"]] == who


def test_both_classes_and_both_endings_are_common_and_splits_differ():
  train, val = (open_source(f"embedded:sentences:{s}") for s in ("train", "val"))
  for key, one in (("label", "1"), ("answer", 1)):
    share = sum(train[i][key] == one for i in range(len(train))) / len(train)
    assert 0.45 < share < 0.55
  assert [train[i] for i in range(20)] != [val[i] for i in range(20)]
  assert pickle.loads(pickle.dumps(train))[7] == train[7]


@pytest.mark.parametrize("spec, message", [
    ("embedded:sentences:test", "embedded:sentences:test: unknown name 'test'"),
    ("embedded:sentences/short:train", "embedded:sentences/short: it has no subsets"),
])
def test_what_there_is_not(spec, message):
  with pytest.raises(ConfigError, match=message):
    open_source(spec)
