"""Pairs of answers to a prompt, of which one is preferred."""

import dataclasses
from typing import Any

import numpy as np

from jtx.data import chat
from jtx.data.example import Example
from jtx.data.op import TOKENIZER, Column, ExampleOp
from jtx.data.ops.labels import value_of
from jtx.data.ops.messages import EncodeMessages
from jtx.errors import ExampleError

ANSWERS = ("chosen", "rejected")
KEYS = ("prompt", *ANSWERS)


def _reason(prompt: Any, *answers: Any) -> str:
  """Why these are no pair of answers, a clause; "" where they are one."""
  for key, value in zip(KEYS, (prompt, *answers)):
    if not isinstance(value, (str, list, tuple)):
      return f"has {key}={value!r}, which is neither a text nor a list of messages"
    if isinstance(value, str) != isinstance(prompt, str):
      return (f"has a {key!r} that is {type(value).__name__}, and a 'prompt' that is"
              f" {type(prompt).__name__}; both are texts, or lists of messages")
  if answers[0] == answers[1]:
    return "has one answer as 'chosen' and as 'rejected', so neither is preferred"
  if not prompt:
    return "has an empty 'prompt'"
  talks = [] if isinstance(prompt, str) else [[*prompt, *answer] for answer in answers]
  return next(filter(None, map(chat.check, talks)), "")


@dataclasses.dataclass(frozen=True)
class EncodePreferences(ExampleOp):
  """A prompt and two answers: `chosen` and `rejected` [T], each the prompt and the answer.

  `chosen_answers` and `rejected_answers` are 1 for the tokens of the answer and of the end. The
  example's `prompt`, `chosen` and `rejected` are texts, or lists of messages, which a chat template
  writes as `encode_messages` does. `preferred` is 1.
  """
  template: str = ""  # of messages, in Jinja; "" is the tokenizer's own

  columns = {name: column for answer in ANSWERS for name, column in {
      answer: Column("tokens"), f"{answer}_answers": Column(f"aligned:{answer}", "uint8")}.items()}
  columns["preferred"] = Column("example")
  tokenizer_fields = (TOKENIZER,)

  def texts_of(self, example: Example, field: str) -> list[str]:
    prompt, *answers = self._values(example)
    if isinstance(prompt, str):
      return [prompt, *answers]
    whole = EncodeMessages(template=self.template)
    return [text for answer in answers for text in whole.texts_of(
        {"id": example["id"], "messages": [*prompt, *answer]}, field)]

  def __call__(self, examples: list[Example], tokenizers) -> list[Example]:
    tokenizer = tokenizers[TOKENIZER]
    for e in examples:
      prompt, *answers = self._values(e)
      of_kind = self._texts if isinstance(prompt, str) else self._messages
      for name, answer in zip(ANSWERS, answers):
        e[name], e[f"{name}_answers"] = of_kind(tokenizer, prompt, answer, e)
      e["preferred"] = 1
    return examples

  def misfit(self, example: Example) -> str:
    return _reason(*map(example.get, KEYS)) if set(KEYS) & set(example) else ""

  def _values(self, example: Example) -> list[Any]:
    """The prompt and the two answers."""
    values = [value_of("encode_preferences", example, key) for key in KEYS]
    if reason := _reason(*values):
      raise ExampleError("encode_preferences", example["id"], reason)
    return values

  def _texts(self, tokenizer: Any, prompt: str, answer: str,
             example: Example) -> tuple[np.ndarray, np.ndarray]:
    del example
    parts = tokenizer.encode_batch([prompt, answer])
    before = [*tokenizer.begin_ids(), *parts[0]]
    ids = np.array([*before, *parts[1], tokenizer.eos_id], np.int32)
    return ids, (np.arange(len(ids)) >= len(before)).astype(np.uint8)

  def _messages(self, tokenizer: Any, prompt: list, answer: list,
                example: Example) -> tuple[np.ndarray, np.ndarray]:
    """Of a conversation, whose last answer is that of the pair."""
    whole = {"id": example["id"], "messages": [*prompt, *answer]}
    (found,) = EncodeMessages(template=self.template)([whole], {TOKENIZER: tokenizer})
    marks = found["text_answers"]
    starts = np.flatnonzero(np.diff(marks, prepend=0) == 1)
    last = np.arange(len(marks)) >= (starts[-1] if len(starts) else len(marks))
    return found["text"], (marks * last).astype(np.uint8)
