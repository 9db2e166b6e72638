"""The table of head tasks: what the outputs of a model's head are."""

from typing import Any, NamedTuple

from jtx.errors import ConfigError


class Task(NamedTuple):
  """A kind of outputs."""
  by_token: bool = False  # one for every token, else for every text or image
  outputs: int | None = None  # their number, where it is always the same
  labelled: bool = False  # they are the data's labels, whose number follows from the data
  scored: bool = True  # False: vectors themselves, or nothing
  stored_as: str | None = None  # another task, whose parameters are the same
  trained_as: str | None = None  # another task, whose objectives and evaluators serve this one too


TASKS: dict[str, Task] = {
    "none": Task(scored=False),  # there is no head
    "embedding": Task(scored=False),  # the pooled vector itself
    "token_embeddings": Task(by_token=True, scored=False),  # a vector a token
    # a score a label, of which an example may have any number
    "multi_label": Task(labelled=True, stored_as="classes"),
    "classes": Task(labelled=True),  # a score a class, or one number
    "tags": Task(by_token=True, labelled=True),  # a score a tag
    "boxes": Task(labelled=True),  # of an image: a class and a box of every query
    "span": Task(by_token=True, outputs=2),  # scores of a span's start and its end
    "choice": Task(outputs=1),  # one score: of several texts, the highest is the answer
    # class 0: the second text follows the first; 1: it is a random one
    "next_sentence": Task(outputs=2),
    # class 0: the texts are in order; 1: they are swapped (ALBERT)
    "sentence_order": Task(outputs=2),
    # one score a token: above 0, another was in its place (ELECTRA)
    "replaced": Task(by_token=True, outputs=1),
}


def heads_of(task: str, projection: int = 0) -> frozenset[str]:
  """The heads, as `contract.Model.heads` names them, that a head for this task is."""
  names = {task, TASKS[task].trained_as, "projected" if projection else None}
  return frozenset(names - {"none", None})


def only_pools(head: Any) -> bool:
  """Whether a head of texts gives pooled hidden states, and has no parameters."""
  return head.task == "embedding" and head.transform == "none" and not head.projection


EMBEDDINGS = ("embedding", "token_embeddings")  # tasks whose outputs are vectors
_VECTORS = f"head.task={' or '.join(map(repr, EMBEDDINGS))}"


def check_threshold(task: str, threshold: float) -> None:
  """Raises ConfigError where the field `threshold` of a head can't be used."""
  if threshold != 0.5 and task != "multi_label":
    raise ConfigError(f"head.threshold={threshold} goes with head.task='multi_label', not {task!r}")


def check_text_head(head: Any) -> None:
  """Raises ConfigError where fields of a head of texts, a HeadConfig, do not go together."""
  task = TASKS[head.task]
  check_threshold(head.task, head.threshold)
  if head.both_orders and (task.by_token or not task.labelled):
    raise ConfigError(f"head.both_orders is for classes of pairs, not head.task={head.task!r}")
  if head.norm and head.transform == "none":
    raise ConfigError("head.norm=True goes with a head.transform")
  if head.projection and head.task not in EMBEDDINGS:
    raise ConfigError(f"head.projection={head.projection} goes with {_VECTORS}, not {head.task!r}")
  if not (head.output_bias or task.scored or head.projection):
    raise ConfigError(f"head.output_bias=False: head.task={head.task!r} has no outputs")
  if not head.use_bias and head.transform == "none":
    raise ConfigError("head.use_bias=False goes with a head.transform")
  if head.normalize and head.task not in EMBEDDINGS:
    raise ConfigError(f"head.normalize=True goes with {_VECTORS}, not {head.task!r}")
