"""Reading comprehension: a question and its context, in overlapping windows."""

import dataclasses
from typing import Any, Mapping

import numpy as np

from jtx.data.example import Example, check_text
from jtx.data.op import TOKENIZER, Column, ExampleOp
from jtx.data.ops.finetune import MAX_SPECIALS, texts_at
from jtx.data.ops.labels import value_of
from jtx.data.tokenizers.encodings import Encoding
from jtx.errors import ConfigError, ExampleError
from jtx.ranges import Size, SizeOrNone


@dataclasses.dataclass(frozen=True)
class EncodeWindows(ExampleOp):
  """A question and its context, in windows: `text`, `text_types` [T], `start` and `end`.

  An example becomes one example a window, all with its id; windows overlap by `stride`
  tokens. `start` and `end` are the places in `text` of the first and last token of the first
  answer, or 0 and 0 (the first special token) where the window does not hold all of it.
  Beside the columns an example keeps its `context`, has `answers` as a list of `text` and
  `answer_start`, and gets `text_offsets` [T, 2] int32: first character of a token in the context
  and the one after the last, -1 outside of it. A token's characters may begin with a space.
  """
  max_length: Size = 384  # tokens of a window with question and special tokens
  stride: SizeOrNone = 128  # tokens
  max_question: Size = 64  # tokens; a longer question is cut

  tokenizer_fields = (TOKENIZER,)
  inputs = {"question": "question", "context": "context"}

  def __post_init__(self):
    least = self.max_question + self.stride + MAX_SPECIALS
    if self.max_length <= least:
      raise ConfigError(f"op encode_windows: max_length={self.max_length} must be more than"
                        f" {least}, the sum of max_question={self.max_question},"
                        f" stride={self.stride} and {MAX_SPECIALS} special tokens; make it longer,"
                        " or these shorter, by keys of the op such as"
                        " --config.data.ops[0].max_question")

  @property
  def columns(self) -> dict[str, Column]:
    return {"text": Column("tokens"), "text_types": Column("aligned:text"),
            "start": Column("example"), "end": Column("example")}

  def texts_of(self, example: Example, field: str) -> list[str]:
    del field
    return texts_at("encode_windows", example, ("question", "context"))

  def __call__(self, examples: list[Example], tokenizers) -> list[Example]:
    check_text("encode_windows", ("question", "context"), examples)
    encodings = tokenizers[TOKENIZER].encode_windows(
        [e["question"] for e in examples], [e["context"] for e in examples],
        max_length=self.max_length, stride=self.stride, max_first=self.max_question)
    results = []
    for e, windows in zip(examples, encodings):
      answers = _answers(e)
      answer = _span(answers[0], e) if answers else None
      for number, window in enumerate(windows):
        ends = (number == 0, number == len(windows) - 1)
        start, end = _place(answer, window, *ends)
        offsets = np.where(window.text[:, None] == 1, window.offsets, -1)
        results.append({**e, "answers": answers, "text": window.ids, "text_types": window.types,
                        "text_offsets": offsets, "start": np.int32(start), "end": np.int32(end)})
    return results


def _answers(example: Example) -> list[dict[str, Any]]:
  """The answers as a list of `text` and `answer_start`.

  Raises:
    DataError: one lacks either.
  """
  answers = value_of("encode_windows", example, "answers")
  if isinstance(answers, Mapping) and isinstance(answers.get("text"), str):
    answers = [answers]
  if isinstance(answers, Mapping):  # TFDS and `datasets` have a dict of lists
    answers = [dict(zip(answers, values)) for values in zip(*answers.values())]
  for answer in answers or ():
    if not isinstance(answer, Mapping) or not isinstance(answer.get("text"), str) or (
        not isinstance(answer.get("answer_start"), (int, np.integer))):
      raise ExampleError("encode_windows", example["id"], f"has the answer {answer!r}; an answer"
                         " has a text and its answer_start, the number of its first character")
  return list(answers or ())


def _span(answer: Mapping[str, Any], example: Example) -> tuple[int, int] | None:
  """First character of an answer and the one after the last; None if it is white space."""
  text, start = answer["text"], answer["answer_start"]
  if example["context"][start:start + len(text)] != text:
    raise ExampleError("encode_windows", example["id"], f"has the answer {text!r}, which is"
                       f" not at character {start} of its context; ops must not change the context")
  # No token begins with white space that the tokenizer drops.
  start += len(text) - len(text.lstrip())
  return (start, start + len(text.strip())) if text.strip() else None


def _place(answer: tuple[int, int] | None, window: Encoding, is_first: bool,
           is_last: bool) -> tuple[int, int]:
  """Places of an answer's first and last token in a window, or (0, 0)."""
  places = np.flatnonzero(window.text == 1)
  if answer is None or not len(places):
    return 0, 0
  # A window has the text from its first token on, and up to its last; what the tokenizer drops
  # before the first token of all belongs to the first window.
  if not is_first and answer[0] < window.offsets[places[0], 0]:
    return 0, 0
  if not is_last and answer[1] > window.offsets[places[-1], 1]:
    return 0, 0
  inside = places[(window.offsets[places, 0] < answer[1]) & (window.offsets[places, 1] > answer[0])]
  return (int(inside[0]), int(inside[-1])) if len(inside) else (0, 0)
