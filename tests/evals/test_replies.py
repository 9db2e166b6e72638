"""Replies of a small decoder: prompts that leave no room, and what is refused before training."""

import types

import numpy as np
import pytest

from jtx.data.tokenizers.kinds import characters
from jtx.errors import ConfigError
from jtx.evals.replies import Replies, told
from jtx.inference.continuations import Limits, TextGenerator
from jtx.nn.positions import Learned
from tests.helpers import block, decoder
from tests.models.test_contract import drawn

TOKENIZER = characters(iter(["abcdefgh"]))
MODEL = decoder(vocab_size=TOKENIZER.vocab_size, width=8, num_layers=1,
                position=Learned(max_length=16), block=block(num_heads=2, ffn_dim=12, dropout=0.0))
PARAMS = drawn(MODEL)


def example(number, prompt, answer):
  ids = [TOKENIZER.encode(text) for text in (prompt, answer)]
  return {"id": number, "text": np.concatenate(ids),
          "text_answers": np.repeat([0, 1], list(map(len, ids)))}


def test_a_prompt_without_room_for_its_reply_is_read_from_its_end(caplog):
  """Of sixteen positions a reply takes up to six, of which the last is not read again."""
  prompts = ["abc", "abcdefghabcdefg"]
  task = types.SimpleNamespace(model=MODEL, mesh=None, data=types.SimpleNamespace(
      tokenizers={"text": TOKENIZER},
      encoded=lambda source: [example(i, prompt, "a") for i, prompt in enumerate(prompts)]))
  results = dict(Replies(("jsonl:dev",), max_new_tokens=6)(task, PARAMS))
  run = TextGenerator(MODEL, PARAMS, TOKENIZER, limits=Limits(max_new_tokens=6))
  expected = run([TOKENIZER.encode(text[-11:]) for text in prompts])
  assert [row["prediction"] for row in results["predictions"]] == [x[0].text for x in expected]
  assert ("jsonl:dev: 1 of 2 prompts leave less room than max_new_tokens=6; of these the last 11"
          " tokens are read") in caplog.text


def test_an_answer_with_an_unknown_character_is_no_reply():
  tokenizer = characters(iter(["abcdefgh"]), unknown=True)
  run = TextGenerator(MODEL, PARAMS, tokenizer, limits=Limits(max_new_tokens=4))
  for text, expected in (("bad", "bad"), ("Zbad", "\ufffdbad"), ("bZZad", "b\ufffd\ufffdad"),
                         ("badZ", "bad\ufffd"), ("Z", "\ufffd")):
    assert told(run, tokenizer.encode("a"), tokenizer.encode(text)) == expected


def test_replies_that_no_prompt_leaves_room_for():
  with pytest.raises(ConfigError) as e:
    Replies(("jsonl:dev",), max_new_tokens=16).check_model(MODEL)
  assert str(e.value) == ("evals: replies has max_new_tokens=16, and the model takes 16 tokens, its"
                          " prompt among them")
  Replies(("jsonl:dev",), max_new_tokens=15).check_model(MODEL)


@pytest.mark.parametrize("options, key", [
    (dict(limits=Limits(max_new_tokens=0)), "max_new_tokens=0"),
    (dict(batch_size=0), "batch_size=0")])
def test_nothing_to_generate_is_refused(options, key):
  with pytest.raises(ConfigError, match=f"{key}: valid are whole numbers from 1"):
    TextGenerator(MODEL, PARAMS, TOKENIZER, **options)
