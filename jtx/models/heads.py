"""The table of head tasks: what the outputs of a model's head are."""

from typing import NamedTuple

from jtx.errors import ConfigError


class Task(NamedTuple):
  """A kind of outputs."""
  by_token: bool = False  # one for every token, else for every text or image
  outputs: int | None = None  # their number, where it is always the same
  labelled: bool = False  # they are the data's labels, whose number follows from the data
  scored: bool = True  # False: the pooled vector itself, or nothing
  stored_as: str | None = None  # another task, whose parameters are the same
  trained_as: str | None = None  # another task, whose objectives and evaluators serve this one too


TASKS: dict[str, Task] = {
    "none": Task(scored=False),  # there is no head
    "embedding": Task(scored=False),  # the pooled vector itself
    # a score a label, of which an example may have any number
    "multi_label": Task(labelled=True, stored_as="classes"),
    "classes": Task(labelled=True),  # a score a class, or one number
    "tags": Task(by_token=True, labelled=True),  # a score a tag
    "span": Task(by_token=True, outputs=2),  # scores of a span's start and its end
    "choice": Task(outputs=1),  # one score: of several texts, the highest is the answer
    # class 0: the second text follows the first; 1: it is a random one
    "next_sentence": Task(outputs=2),
    # class 0: the texts are in order; 1: they are swapped (ALBERT)
    "sentence_order": Task(outputs=2),
    # one score a token: above 0, another was in its place (ELECTRA)
    "replaced": Task(by_token=True, outputs=1),
}


def heads_of(task: str) -> frozenset[str]:
  """The heads, as `contract.Model.heads` names them, that a head for this task is."""
  return frozenset({task, TASKS[task].trained_as} - {"none", None})


def check_threshold(task: str, threshold: float) -> None:
  """Raises ConfigError where the field `threshold` of a head can't be used."""
  if threshold != 0.5 and task != "multi_label":
    raise ConfigError(f"head.threshold={threshold} goes with head.task='multi_label', not {task!r}")
