"""Conversations as text, by chat templates in Jinja as Hugging Face's tokenizers have them.

A template may come from others, so it runs in Jinja's sandbox. It gets `messages`, dicts with a
`role` and a `content`, `add_generation_prompt`, and the names of special tokens (`bos_token`,
`eos_token` ...); `raise_exception(text)` refuses a conversation. It gets no `strftime_now`, since
what a run trains on is no function of the day; templates that ask for it have a date in its place.
"""

import functools
import json
import re
from typing import Any, Mapping, NamedTuple, NoReturn, Sequence

import jinja2
import jinja2.ext
import jinja2.sandbox

from jtx.errors import DataError

ROLES = ("system", "user", "assistant")
ANSWER = "assistant"  # the role whose messages a model learns
# Noncharacters of Unicode, which stand around what {% generation %} marks until it is rendered.
OPEN, CLOSE = "\ufdd0", "\ufdd1"

Message = Mapping[str, str]


class Rendered(NamedTuple):
  text: str
  answers: tuple[tuple[int, int], ...]  # first character of each answer, the one after the last


class Template:
  """A chat template.

  Args:
    source: in Jinja.
    names: of special tokens by the variable that a template has them in, such as "eos_token".

  Raises:
    DataError: it is no template.
  """

  def __init__(self, source: str, names: Mapping[str, str] = {}):
    self._names = dict(names)
    self._marks = re.search(r"{%-?\s*generation\b", source) is not None
    self._template = _compiled(source)

  def __call__(self, messages: Sequence[Message], prompt: bool = False) -> str:
    """The text of a conversation; with `prompt`, and of what comes before an answer to it.

    Raises:
      DataError: the template can't take it.
    """
    return re.sub(f"[{OPEN}{CLOSE}]", "", self._render(messages, prompt))

  def with_answers(self, messages: Sequence[Message]) -> Rendered:
    """The text, and where in it the assistant's answers are.

    These are what the template has between {% generation %} and {% endgeneration %}. Without such
    marks an answer is what its message adds to the prompt before it.

    Raises:
      DataError: the template can't take it, or neither tells where an answer is.
    """
    if self._marks:
      return _marked(self._render(messages))
    text, answers = self(messages), []
    for i, message in enumerate(messages):
      if message["role"] == ANSWER:
        before, whole = self(messages[:i], prompt=True), self(messages[:i + 1])
        if not whole.startswith(before) or not text.startswith(whole):
          raise DataError(f"the chat template writes message {i + 1} in another way, or what is"
                          " before it, when more follows, so its answer can't be told apart; mark"
                          " it in the template by {% generation %} and {% endgeneration %}")
        answers.append((len(before), len(whole)))
    return Rendered(text, tuple(answers))

  def _render(self, messages: Sequence[Message], prompt: bool = False) -> str:
    try:
      return self._template.render(messages=[dict(m) for m in messages],
                                   add_generation_prompt=prompt, **self._names)
    except Exception as e:  # a template can raise whatever Python can
      raise DataError(f"the chat template refuses it ({e})") from e


def _marked(text: str) -> Rendered:
  """A text without the marks of answers, and where these were."""
  parts, answers, length = [], [], 0
  for part in re.split(f"([{OPEN}{CLOSE}])", text):
    if part == OPEN:
      answers.append((length, length))
    elif part == CLOSE:
      answers[-1] = answers[-1][0], length
    else:
      parts.append(part)
      length += len(part)
  return Rendered("".join(parts), tuple(answers))


class _Generation(jinja2.ext.Extension):
  """The tags {% generation %} and {% endgeneration %}, which stand around an answer."""
  tags = {"generation"}

  def parse(self, parser: Any) -> Any:
    line = next(parser.stream).lineno
    body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
    return jinja2.nodes.CallBlock(self.call_method("_around"), [], [], body).set_lineno(line)

  def _around(self, caller: Any) -> str:
    return OPEN + caller() + CLOSE


@functools.lru_cache(64)
def _compiled(source: str) -> jinja2.Template:
  environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
      trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"])
  environment.filters["tojson"] = _to_json
  environment.globals["raise_exception"] = _refuse
  try:
    return environment.from_string(source)
  except jinja2.TemplateError as e:
    line = f" in its line {e.lineno}" if isinstance(e, jinja2.TemplateSyntaxError) else ""
    raise DataError(f"the chat template is not valid Jinja{line} ({e})") from e


def _to_json(value: Any, indent: int | None = None) -> str:
  return json.dumps(value, ensure_ascii=False, indent=indent)  # Jinja's own is for web pages


def _refuse(message: str) -> NoReturn:
  raise jinja2.TemplateError(message)


def check(messages: Any, answered: bool = True) -> str:
  """Why a value is no conversation, or none with an answer, a clause; "" where it is one."""
  if not isinstance(messages, (list, tuple)) or not messages:
    return f"has messages={messages!r}, which is no list of messages"
  for number, message in enumerate(messages, 1):
    if not isinstance(message, Mapping) or not {"role", "content"} <= message.keys():
      return f"has the message {message!r}, number {number}, which lacks a role or a content"
    if message["role"] not in ROLES:
      return (f"has the role {message['role']!r} at message {number}; valid are"
              f" {', '.join(ROLES)}")
    if not isinstance(message["content"], str):
      return f"has the content {message['content']!r} at message {number}, which is no text"
  if answered and not any(message["role"] == ANSWER for message in messages):
    return f"has no message of the role {ANSWER!r}, so there is nothing to learn"
  return ""
