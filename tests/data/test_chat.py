"""Conversations by templates: the text, where answers are, and templates that are refused."""

import pytest

from jtx.data import chat
from jtx.errors import DataError

CHATML = """{% for message in messages %}
{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}
{%- endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\n' }}
{%- endif %}"""
# The form of Llama 2: a system message goes into the user's first, and roles must take turns.
LLAMA = """{% if messages[0]['role'] == 'system' %}
{% set system = messages[0]['content'] %}{% set rest = messages[1:] %}
{% else %}{% set system = none %}{% set rest = messages %}{% endif %}
{% for message in rest %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('roles must take turns') }}
{% endif %}
{% set before = '<<SYS>>' + system + '<</SYS>>' if system and loop.first else '' %}
{% set content = before + message['content'] %}
{% if message['role'] == 'user' %}
{{ bos_token + '[INST] ' + content | trim + ' [/INST]' -}}
{% else %}
{{ ' ' + content | trim + ' ' + eos_token }}
{%- endif %}
{% endfor %}"""
MARKED = """{% for message in messages %}
{% if message.role == 'assistant' %}
A: {% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}

{% else %}
{{ message | tojson }}
{% endif %}
{% endfor %}"""
NAMES = {"bos_token": "<s>", "eos_token": "</s>"}
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " Hi? "},
            {"role": "assistant", "content": "Ho."}, {"role": "user", "content": "<b>"},
            {"role": "assistant", "content": "Ü"}]


def answers_of(rendered):
  return [rendered.text[a:b] for a, b in rendered.answers]


def test_chatml():
  template = chat.Template(CHATML)
  rendered = template.with_answers(MESSAGES)
  assert rendered.text == template(MESSAGES) == (
      "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Hi? <|im_end|>\n"
      "<|im_start|>assistant\nHo.<|im_end|>\n<|im_start|>user\n<b><|im_end|>\n"
      "<|im_start|>assistant\nÜ<|im_end|>\n")
  assert answers_of(rendered) == ["Ho.<|im_end|>\n", "Ü<|im_end|>\n"]
  assert template(MESSAGES[:2], prompt=True).endswith("Hi? <|im_end|>\n<|im_start|>assistant\n")


def test_a_template_that_ignores_the_prompt():
  template = chat.Template(LLAMA, NAMES)
  rendered = template.with_answers(MESSAGES)
  assert rendered.text == ("<s>[INST] <<SYS>>Be brief.<</SYS>> Hi? [/INST] Ho. </s>"
                           "<s>[INST] <b> [/INST] Ü </s>")
  assert answers_of(rendered) == [" Ho. </s>", " Ü </s>"]
  with pytest.raises(DataError, match=r"the chat template refuses it \(roles must take turns\)"):
    template(MESSAGES[2:])


def test_marked_answers():
  rendered = chat.Template(MARKED, NAMES).with_answers(MESSAGES[1:])
  assert rendered.text == ('{"role": "user", "content": " Hi? "}\nA: Ho.</s>\n'
                           '{"role": "user", "content": "<b>"}\nA: Ü</s>\n')
  assert answers_of(rendered) == ["Ho.</s>", "Ü</s>"]
  assert chat.Template(MARKED, NAMES)(MESSAGES[1:]) == rendered.text


def test_an_answer_that_later_messages_change_can_not_be_told():
  source = CHATML.replace("message['content'] +", "(message['content'] if loop.last else '') +")
  with pytest.raises(DataError, match="message 3 in another way, or what is before it, when more"):
    chat.Template(source).with_answers(MESSAGES)


@pytest.mark.parametrize("source, message", [
    ("{% for m in messages %}\n{{ m.role }", "is not valid Jinja in its line 2"),
    ("{% generation %}", "is not valid Jinja in its line 1"),
    ("{{ messages.x.y }}", "refuses it"),
    ("{{ [].__class__.__base__.__subclasses__() }}", "refuses it .*unsafe"),
    ("{{ messages.append(1) }}", "refuses it .*append"),
    ("{{ 1 / 0 }}", "refuses it"),
    ("{% include 'x' %}", "refuses it"),
])
def test_templates_that_fail_or_are_not_safe(source, message):
  with pytest.raises(DataError, match=message):
    chat.Template(source)(MESSAGES)


@pytest.mark.parametrize("messages, reason", [
    (MESSAGES, ""),
    ([], "has messages=[], which is no list of messages"),
    ("hi", "has messages='hi', which is no list of messages"),
    (["hi"], "has the message 'hi', number 1, which lacks a role or a content"),
    ([*MESSAGES, {"role": "user"}],
     "has the message {'role': 'user'}, number 6, which lacks a role or a content"),
    ([{"role": "human", "content": "x"}],
     "has the role 'human' at message 1; valid are system, user, assistant"),
    ([{"role": "user", "content": ["x"]}], "has the content ['x'] at message 1, which is no text"),
    (MESSAGES[:2], "has no message of the role 'assistant', so there is nothing to learn"),
])
def test_what_a_conversation_is(messages, reason):
  assert chat.check(messages) == reason
