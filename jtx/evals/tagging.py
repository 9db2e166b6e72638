"""Token classification on a split: accuracy of the tags, and F1 of entities."""

import dataclasses
from typing import Any, Iterator, Mapping, Sequence

import numpy as np

from jtx.errors import DataError, listed
from jtx.evals import scores
from jtx.evals.task import Record, Task
from jtx.inference.texts import Predictor
from jtx.ranges import CountOrNone


@dataclasses.dataclass(frozen=True)
class Tagging:
  """A word's tag is the likeliest at its first token.

  A word without one, cut off or of characters that the tokenizer drops, is tagged "O" where
  entities are scored, and is wrong where tags are.
  """
  source: tuple[str, ...]  # the split: sources, as data.train has them
  entities: bool = False  # tags are IOB: score entities too
  every: CountOrNone = 0  # steps; 0 is at the end only

  heads = frozenset({"tags"})  # of the model
  keys = ()  # of a batch

  def check_data(self, data: Any) -> None:
    """Raises DataError where the split can't be used, or tags of the training data are not IOB."""
    data.check(self.source)
    for tag in data.labels if self.entities else ():
      try:
        scores.entity_tag(tag)
      except DataError as e:
        raise DataError(f"entities=True is of IOB tags, and in the training data the {e}") from e

  def __call__(self, task: Task, params) -> Iterator[tuple[str, float]]:
    examples = task.data.encoded(self.source)
    outputs = Predictor(task.model, params, mesh=task.mesh)(examples)
    yield from self.score(examples, outputs, task.data.labels)
    yield "predictions", records(examples, outputs, task.data.labels)

  def score(self, examples: Sequence[Mapping[str, Any]], outputs: Sequence[np.ndarray],
            names: Sequence[str]) -> Iterator[tuple[str, float]]:
    """Scores of the outputs [T, tags] of each example."""
    if self.entities and "O" not in names:
      raise DataError(f"{', '.join(self.source)}: entities are scored of IOB tags, and the tags"
                      f" have no 'O': {listed(names)}")
    predictions = [tags_of(e, logits, names) for e, logits in zip(examples, outputs)]
    references = [e["word_tags"] for e in examples]
    flat = lambda rows: [tag or "" for row in rows for tag in row]
    yield "accuracy", scores.accuracy(flat(predictions), flat(references))
    if self.entities:
      filled = [[tag or "O" for tag in row] for row in predictions]
      yield from scores.entity_f1(filled, references).items()
    yield "sentences", len(examples)
    yield "words", sum(map(len, references))


def tags_of(example: Mapping[str, Any], logits: np.ndarray,
            names: Sequence[str]) -> list[str | None]:
  """The likeliest tag of each word, by logits [T, tags]; None of a word without a token."""
  tags: list[str | None] = [None] * len(example["word_tags"])
  for place in (example["tags"] >= 0).nonzero()[0]:
    tags[example["text_words"][place]] = names[int(logits[place].argmax())]
  return tags


def records(examples: Sequence[Mapping[str, Any]], outputs: Sequence[np.ndarray],
            names: Sequence[str]) -> Iterator[Record]:
  for e, logits in zip(examples, outputs):
    tags = tags_of(e, logits, names)
    yield {"id": e["id"], "words": list(e["words"]), "gold": e["word_tags"], "prediction": tags,
           "correct": tags == e["word_tags"]}
