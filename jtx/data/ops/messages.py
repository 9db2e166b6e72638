"""Conversations for language models, which learn the assistant's answers."""

import dataclasses
from typing import Any

import numpy as np

from jtx.data import chat
from jtx.data.example import Example
from jtx.data.op import TOKENIZER, Column, ExampleOp
from jtx.data.ops.labels import value_of
from jtx.data.tokenizers.tokenizer import Tokenizer
from jtx.errors import ConfigError, DataError, ExampleError


@dataclasses.dataclass(frozen=True)
class EncodeMessages(ExampleOp):
  """A conversation as `text` [T], and `text_answers` [T], 1 for tokens of the assistant's answers.

  `messages` are a list of objects with a `role` (system, user or assistant) and a `content`. A
  chat template writes them as text (see `jtx.data.chat`), in which names of special tokens are
  these tokens; a content must not have one.
  """
  template: str = ""  # in Jinja; "" is the tokenizer's own
  messages: str = "messages"  # key of the example

  columns = {"text": Column("tokens"), "text_answers": Column("aligned:text", "uint8")}
  tokenizer_fields = (TOKENIZER,)

  def texts_of(self, example: Example, field: str) -> list[str]:
    del field
    messages = self._messages(example)
    if not self.template:
      return [message["content"] for message in messages]
    # A tokenizer that is trained on them knows what the template writes, too.
    return [chat.Template(self.template)(messages)]

  def __call__(self, examples: list[Example], tokenizers) -> list[Example]:
    tokenizer = tokenizers[TOKENIZER]
    template = self.template_of(tokenizer)
    rendered = [self._rendered(e, template, tokenizer) for e in examples]
    encoded = tokenizer.encode_marked([r.text for r in rendered])
    for e, r, (ids, offsets) in zip(examples, rendered, encoded):
      e["text"], e["text_answers"] = ids, np.zeros(len(ids), np.uint8)
      for start, stop in r.answers:
        # Between them may be tokens of no character, as tokenizers have spaces.
        places = np.flatnonzero((offsets[:, 0] < stop) & (offsets[:, 1] > start))
        e["text_answers"][places.min(initial=len(ids)):places.max(initial=-1) + 1] = 1
    return examples

  def template_of(self, tokenizer: Tokenizer) -> chat.Template:
    """The template with the names of a tokenizer's special tokens.

    Raises:
      ConfigError: there is none, or it is no template.
    """
    source = self.template or tokenizer.chat_template
    if not source:
      raise ConfigError("op encode_messages: the tokenizer brings no chat template; set template,"
                        " in Jinja, as tokenizer_config.json has it")
    try:
      return chat.Template(source, tokenizer.special_names())
    except DataError as e:
      raise ConfigError(f"op encode_messages: {e}") from e

  def misfit(self, example: Example) -> str:
    return chat.check(example[self.messages]) if self.messages in example else ""

  def _messages(self, example: Example) -> list[dict[str, Any]]:
    messages = value_of("encode_messages", example, self.messages)
    if reason := chat.check(messages):
      raise ExampleError("encode_messages", example["id"], reason)
    return messages

  def _rendered(self, example: Example, template: chat.Template,
                tokenizer: Tokenizer) -> chat.Rendered:
    messages = self._messages(example)
    for number, message in enumerate(messages, 1):
      for name in tokenizer.control_names():
        if name in message["content"]:
          raise ExampleError("encode_messages", example["id"], f"has the text {name!r} at message"
                             f" {number}, which is the name of a special token; write it in another"
                             " way")
    try:
      rendered = template.with_answers(messages)
    except DataError as e:
      raise ExampleError("encode_messages", example["id"], f"has messages of which {e}") from e
    if not any(stop > start for start, stop in rendered.answers):
      raise ExampleError("encode_messages", example["id"], "has messages of which the chat template"
                         " writes no answer, so there is nothing to learn")
    return rendered
