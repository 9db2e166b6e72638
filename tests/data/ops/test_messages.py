"""Conversations as tokens, of which the assistant's are learnt."""

import json

import numpy as np
import pytest

from jtx.data.ops.messages import EncodeMessages
from jtx.data.packing import Pack
from jtx.data.pipeline import eval_batches
from jtx.data.prepared import prepare, texts
from jtx.data.recipes import Recipe
from jtx.data.sources.registry import open_source
from jtx.data.tokenizers.characters import Characters, UnknownCharacters
from jtx.data.tokenizers.files import from_json, read_tokenizer
from jtx.data.tokenizers.kinds import bpe, byte_bpe
from jtx.data.tokenizers.utf8 import Bytes
from jtx.errors import ConfigError, DataError
from jtx.objectives.lm import next_tokens

TEMPLATE = ("{{ bos_token }}{% for m in messages %}{{ m.role + ':' + m.content }}"
            "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
            "{% if add_generation_prompt %}assistant:{% endif %}")
CHAT = [{"role": "user", "content": "Hi?"}, {"role": "assistant", "content": "Ö <b>"},
        {"role": "user", "content": "a"}, {"role": "assistant", "content": ""}]
TEXT = "<bos>user:Hi?assistant:Ö <b><eos>user:aassistant:<eos>"
CORPUS = [TEXT[5:], "assistant user Hi? Ö <b> a b c"]


def written(folder, *lines):
  (folder / "chats.jsonl").write_text("".join(
      (line if isinstance(line, str) else json.dumps({"messages": line})) + "\n" for line in lines))
  return open_source("jsonl:chats.jsonl", str(folder))


def encoded(tokenizer, messages=CHAT, **fields):
  op = EncodeMessages(**{"template": TEMPLATE, **fields})
  example, = op([{"id": 3, "messages": messages}], {"text": tokenizer})
  return example


@pytest.mark.parametrize("tokenizer", [
    Bytes(), Characters("".join(sorted(set("".join(CORPUS))))),
    byte_bpe(iter(CORPUS), vocab_size=300), bpe(iter(CORPUS), vocab_size=60)],
    ids=lambda t: t.kind)
def test_special_tokens_and_answers(tokenizer):
  for again in (tokenizer, from_json(tokenizer.to_json())):
    e = encoded(again)
    assert e["text"][0] == again.bos_id and (e["text"] == again.eos_id).sum() == 2
    assert e["text"].dtype == np.int32 and len(e["text"]) == len(e["text_answers"])
    answered = e["text"][e["text_answers"] == 1]
    assert answered.tolist()[-2:] == [again.eos_id] * 2
    assert again.decode(answered).strip() == "Ö <b>"
    assert again.decode(e["text"]).replace(" ", "") == TEXT.replace(" ", "").replace(
        "<bos>", "").replace("<eos>", "")


def test_exact_tokens_of_bytes():
  e = encoded(Bytes())
  ids = lambda text: Bytes().encode(text).tolist()
  assert e["text"].tolist() == [1, *ids("user:Hi?assistant:Ö <b>"), 2, *ids("user:aassistant:"), 2]
  flags = [0] * 19 + [1] * 7 + [0] * 16 + [1]
  assert e["text_answers"].tolist() == flags


def test_the_loss_is_on_answers(tmp_path):
  source = written(tmp_path, CHAT, CHAT[:2])
  recipe = Recipe([EncodeMessages(TEMPLATE)], None, Pack(("text",), (80,)), [])
  prepared = prepare([source], recipe, {"text": Bytes()})
  batch, = eval_batches(prepared, recipe, 1)
  predicted = np.asarray(next_tokens(batch))
  answer = [*Bytes().encode("Ö <b>"), 2]
  assert predicted[predicted >= 0].tolist() == [*answer, 2, *answer]
  # A tokenizer is trained on what the template writes, without names of special tokens.
  written_of = lambda messages: "".join(f"{m['role']}:{m['content']}" for m in messages)
  assert sorted(texts([source], recipe.prepare, ("text",))) == sorted(
      map(written_of, (CHAT, CHAT[:2])))


def test_the_tokenizers_own_template(tmp_path):
  content = byte_bpe(iter(CORPUS), vocab_size=300).model()
  roles = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
  (tmp_path / "tokenizer.json").write_text(json.dumps(content))
  write = lambda **more: (tmp_path / "tokenizer_config.json").write_text(json.dumps(roles | more))
  named = [{"name": "tools", "template": "x"}, {"name": "default", "template": TEMPLATE}]
  for template in (TEMPLATE, named):
    write(chat_template=template)
    tokenizer = read_tokenizer(tmp_path)
    assert tokenizer.chat_template == TEMPLATE == from_json(tokenizer.to_json()).chat_template
    np.testing.assert_array_equal(encoded(tokenizer, template="")["text"],
                                  encoded(tokenizer)["text"])
  (tmp_path / "chat_template.jinja").write_text("of the file")
  assert read_tokenizer(tmp_path).chat_template == "of the file"
  (tmp_path / "chat_template.jinja").unlink()
  write(chat_template=3)
  with pytest.raises(DataError, match="tokenizer_config.json: its chat_template is neither a text"):
    read_tokenizer(tmp_path)
  write()
  with pytest.raises(ConfigError, match="the tokenizer brings no chat template; set template, in"):
    encoded(read_tokenizer(tmp_path), template="")


@pytest.mark.parametrize("line, message", [
    ('{"messages": [', "chats.jsonl:2: not valid JSON"),
    ("[1]", "chats.jsonl:2: a line must be a JSON object"),
    ('{"text": "a"}', "line 2: op encode_messages: example 1 has no 'messages'; it has text"),
    ([{"role": "bot", "content": "x"}], "line 2: op encode_messages: example 1 has the role 'bot'"
     " at message 1; valid are system, user, assistant"),
    (CHAT[:1], "line 2: .* has no message of the role 'assistant', so there is nothing to learn"),
    ([*CHAT, {"role": "user", "content": "<eos>"}], "line 2: .* has the text '<eos>' at message 5,"
     " which is the name of a special token"),
    ([{"role": "assistant", "content": "refuse"}],
     r"line 2: .* has messages of which the chat template refuses it \(no\)"),
])
def test_bad_lines_are_named(tmp_path, line, message):
  template = ("{% if messages[0].content == 'refuse' %}{{ raise_exception('no') }}{% endif %}"
              + TEMPLATE)
  recipe = Recipe([EncodeMessages(template)], None, Pack(("text",), (80,)), [])
  with pytest.raises(DataError, match=message):
    prepare([written(tmp_path, CHAT, line)], recipe, {"text": Bytes()})


def test_bad_templates_and_unknown_characters():
  with pytest.raises(ConfigError, match="op encode_messages: the chat template is not valid Jinja"):
    encoded(Bytes(), template="{{")
  with pytest.raises(UnknownCharacters, match="'H'"):
    encoded(Characters("abc:"))
  plain = encoded(Bytes(), [{"role": "assistant", "content": "<unk>"}])
  assert Bytes().unk_id in plain["text"].tolist()
