"""Questions and their contexts in windows."""

import pytest

from jtx.data.ops.windows import EncodeWindows
from jtx.errors import ConfigError, DataError
from tests.data.ops.encoders import answer_of, check_columns, fails, pieces


def question(context, text=None, at=None, **edits):
  answers = [] if text is None else [{"text": text, "answer_start": at}]
  return {"id": 6, "question": "x y", "context": context, "answers": answers, **edits}


OP = EncodeWindows(max_length=11, stride=2, max_question=4)  # 6 tokens of context a window


def test_windows_are_examples_with_the_places_of_the_answer(tokenizers):
  context = "a b c d e f as bs c"
  done = OP([question(context, "f as", 10)], tokenizers)
  assert [pieces(e["text"]) for e in done] == [
      "[CLS]xy[SEP]abcdef[SEP]", "[CLS]xy[SEP]efa##sb##s[SEP]", "[CLS]xy[SEP]b##sc[SEP]"]
  # In the first window only "f" of it is there, in the last nothing.
  assert [(int(e["start"]), int(e["end"])) for e in done] == [(0, 0), (5, 7), (0, 0)]
  assert answer_of(done[1]) == "f as"
  assert [e["id"] for e in done] == [6] * 3
  assert done[1]["text_types"].tolist() == [0] * 4 + [1] * 7
  assert done[1]["text_offsets"].tolist() == [[-1, -1]] * 4 + [
      [8, 9], [10, 11], [12, 13], [13, 14], [15, 16], [16, 17]] + [[-1, -1]]
  check_columns(OP, done)


@pytest.mark.parametrize("answer, at, places", [
    ("a", 0, [(4, 4), (0, 0), (0, 0)]),
    ("f", 10, [(9, 9), (5, 5), (0, 0)]),  # the last token of a window, the second of the next
    ("e", 8, [(8, 8), (4, 4), (0, 0)]),  # the first token of a window
    ("c", 18, [(0, 0), (0, 0), (6, 6)]),
    ("a", 12, [(0, 0), (6, 6), (0, 0)]),  # a piece with another right behind it
    ("s", 13, [(0, 0), (7, 7), (0, 0)]),  # inside a word, a piece
    (" f ", 9, [(9, 9), (5, 5), (0, 0)]),  # its white space is no token's
    ("b c d e f as", 2, [(0, 0)] * 3),  # longer than any window
])
def test_where_an_answer_is(tokenizers, answer, at, places):
  done = OP([question("a b c d e f as bs c", answer, at)], tokenizers)
  assert [(int(e["start"]), int(e["end"])) for e in done] == places


def test_windows_without_an_answer_and_with_several(tokenizers):
  done = OP([question("a b"), question("a b", "b", 2), question(""), question("a  b", "  ", 1)],
            tokenizers)
  assert [(int(e["start"]), int(e["end"])) for e in done] == [(0, 0), (5, 5), (0, 0), (0, 0)]
  several = question("a b a")
  several["answers"] = [{"text": "a", "answer_start": 4}, {"text": "a", "answer_start": 0}]
  assert int(OP([several], tokenizers)[0]["start"]) == 6  # the first that is given
  several["answers"] = {"answer_start": [2, 0], "text": ["b", "a"]}  # as TFDS has them
  [e] = OP([several], tokenizers)
  assert int(e["start"]) == 5
  assert e["answers"] == [{"answer_start": 2, "text": "b"}, {"answer_start": 0, "text": "a"}]


def test_a_long_question_is_cut(tokenizers):
  [e] = OP([question("a", question="x y z x y z")], tokenizers)
  assert pieces(e["text"]) == "[CLS]xyzx[SEP]a[SEP]"


def test_windows_errors(tokenizers):
  assert fails(DataError, OP, question("a b", "c", 2), tokenizers=tokenizers) == (
      "op encode_windows: example 6 has the answer 'c', which is not at character 2 of its context;"
      " ops must not change the context")
  assert fails(DataError, OP, {"id": 1, "question": "x"}) == (
      "op encode_windows: example 1 has no text 'context'; its texts are: question")
  said = r"more than 10, the sum of .*; make it longer, .* such as --config\.data\.ops\[0\]\.max_q"
  with pytest.raises(ConfigError, match=said):
    EncodeWindows(max_length=10, stride=2, max_question=4)
