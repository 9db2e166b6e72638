"""Pairs of answers: what is none is told by its example, in validation before training."""

import json

import pytest

from jtx.data.ops.messages import EncodeMessages
from jtx.data.ops.preferences import EncodePreferences
from jtx.data.tokenizers.characters import Characters
from jtx.errors import DataError
from tests.data.image_files import error_of

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
GOOD = {"prompt": "a", "chosen": "b", "rejected": "ab"}
ASK, SAY = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}


@pytest.mark.parametrize("edits, reason", [
    ({"chosen": 3}, "has chosen=3, which is neither a text nor a list of messages"),
    ({"prompt": 3, "chosen": 4, "rejected": 5}, "has prompt=3, which is neither"),
    ({"chosen": None}, "has chosen=None, which is neither"),
    ({"rejected": {"a": 1}}, "has rejected={'a': 1}, which is neither"),
    ({"chosen": "ab"}, "has one answer as 'chosen' and as 'rejected', so neither is preferred"),
    ({"prompt": ""}, "has an empty 'prompt'"),
    ({"prompt": [ASK]}, "has a 'chosen' that is str, and a 'prompt' that is list"),
    ({"prompt": [{**ASK, "role": "robot"}], "chosen": [SAY], "rejected": [{**SAY, "content": "c"}]},
     "has the role 'robot' at message 1; valid are"),
    ({"prompt": [ASK], "chosen": ["b"], "rejected": [SAY]}, "has the message 'b', number 2"),
    ({"prompt": [ASK], "chosen": [ASK], "rejected": [SAY]}, "has no message of the role"),
])
def test_what_is_no_pair(edits, reason):
  op, example = EncodePreferences(template=TEMPLATE), {"id": 8, **GOOD, **edits}
  tokenizer = Characters("ab")
  for call in (lambda: op([dict(example)], {"text": tokenizer}), lambda: op.texts_of(example, "")):
    assert error_of(DataError, call).startswith(f"op encode_preferences: example 8 {reason}")
  assert op.misfit(example).startswith(reason)
  assert op.misfit(GOOD) == op.misfit({"text": "a text to be looked at"}) == ""


def test_conversations_are_looked_at_before_training():
  op = EncodeMessages(template=TEMPLATE)
  assert op.misfit({"messages": [ASK, SAY]}) == op.misfit({"text": "a"}) == ""
  assert op.misfit({"messages": [ASK]}).startswith("has no message of the role 'assistant'")
  assert op.misfit({"messages": json.loads("[3]")}) == (
      "has the message 3, number 1, which lacks a role or a content")


@pytest.mark.parametrize("template", [
    "hello", "{{ messages[0].content }}",
    "{% for m in messages %}{% generation %}{% endgeneration %}{{ m.content }}{% endfor %}"])
def test_a_template_that_writes_no_answer(template):
  op = EncodeMessages(template=template)
  assert error_of(DataError, op, [{"id": 8, "messages": [ASK, SAY]}], {
      "text": Characters("abehlo")}) == (
          "op encode_messages: example 8 has messages of which the chat template writes no answer,"
          " so there is nothing to learn")
