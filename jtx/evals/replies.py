"""Replies of a language model on a split: the share that is the expected answer, word by word."""

import dataclasses
from typing import Any, Iterator, Mapping

from absl import logging
import numpy as np

from jtx.data.op import TOKENIZER
from jtx.errors import ConfigError
from jtx.evals.task import Record, Task
from jtx.inference.continuations import Continuation, Limits, TextGenerator
from jtx.ranges import Count, CountOrNone, Size

SAMPLES = 5  # replies that the log shows


@dataclasses.dataclass(frozen=True)
class Replies:
  """The likeliest reply to every conversation before its last answer, against that answer.

  Examples are those of ops that mark answers in `text_answers`, such as `encode_messages`. A reply
  ends at the end token; an answer, at the first one that it has.
  """
  source: tuple[str, ...]  # the split: sources, as data.train has them
  every: CountOrNone = 0  # steps; 0 is at the end only
  max_new_tokens: Size = 128  # tokens of a reply, at most
  batch_size: Count = 64  # conversations at a time

  heads = frozenset({"lm"})  # of the model
  keys = ("text", "text_answers")  # of a batch

  def check_model(self, model: Any) -> None:
    """Raises ConfigError where a reply may be longer than the model's inputs."""
    if model.longest is not None and self.max_new_tokens >= model.longest:
      raise ConfigError(f"evals: replies has max_new_tokens={self.max_new_tokens}, and the model"
                        f" takes {model.longest} tokens, its prompt among them")

  def __call__(self, task: Task, params: Any) -> Iterator[tuple[str, Any]]:
    tokenizer = task.data.tokenizers[TOKENIZER]
    examples = task.data.encoded(self.source)
    parts = [split(e, tokenizer.eos_id) for e in examples]
    run = TextGenerator(task.model, params, tokenizer, mesh=task.mesh, batch_size=self.batch_size,
                        limits=Limits(max_new_tokens=self.max_new_tokens))
    if cut := sum(len(prompt) > run.room for prompt, _ in parts):
      logging.warning("%s: %d of %d prompts leave less room than max_new_tokens=%d; of these the"
                      " last %d tokens are read", ", ".join(self.source), cut, len(parts),
                      self.max_new_tokens, run.room)
    replies = [best[0] for best in run([prompt[-run.room:] for prompt, _ in parts])]
    gold = [told(run, prompt, answer) for prompt, answer in parts]
    correct = [reply.text.strip() == text.strip() for reply, text in zip(replies, gold)]
    yield "exact_match", float(np.mean(correct))
    yield "examples", len(examples)
    for number, (reply, text) in enumerate(zip(replies[:SAMPLES], gold), 1):
      yield f"sample_{number}", f"{reply.text!r} for {text!r}"
    yield "predictions", records(examples, replies, gold)


def told(run: TextGenerator, prompt: np.ndarray, answer: np.ndarray) -> str:
  """The text of an answer, with U+FFFD for what the vocabulary lacks, which no reply can be."""
  places = np.flatnonzero(answer == run.tokenizer.unk_id)
  if not len(places):
    return run.behind(prompt, answer)
  pieces = np.split(answer, sorted({*places, *(places + 1)}))
  return "".join("\ufffd" if run.tokenizer.unk_id in piece else run.tokenizer.decode(piece)
                 for piece in pieces if len(piece))


def split(example: Mapping[str, Any], end: int) -> tuple[np.ndarray, np.ndarray]:
  """The tokens before the last answer, and those of the answer up to its end token."""
  ids, marks = example["text"], np.asarray(example["text_answers"], bool)
  starts = np.flatnonzero(np.diff(marks.astype(np.int8), prepend=0) == 1)
  start = int(starts[-1]) if len(starts) else len(ids)
  answer = ids[start:][marks[start:]]
  ends = np.flatnonzero(answer == end)
  return ids[:start], answer[:ends[0]] if len(ends) else answer


def records(examples: list[Mapping[str, Any]], replies: list[Continuation],
            gold: list[str]) -> Iterator[Record]:
  for e, reply, text in zip(examples, replies, gold):
    yield {"id": e["id"], "gold": text, "prediction": reply.text,
           "correct": reply.text.strip() == text.strip(), "scores": {"log_prob": reply.score}}
