"""Texts that an encoder-decoder writes for a split, scored as the task is."""

import dataclasses
from typing import Any, Iterator, Mapping, Sequence

from jtx.data.dataset import spread
from jtx.errors import ConfigError, DataError, nearest
from jtx.evals import class_scores, text_scores
from jtx.evals.task import Task
from jtx.evals.text_scores import TEXT_SCORES
from jtx.evals.translation import best_texts
from jtx.ranges import CountOrNone


@dataclasses.dataclass(frozen=True)
class Texts:
  """The best text for each `src` against its `tgt`, as in Raffel et al. 2020, section 2.4.

  Raises:
    ConfigError: scores that are unknown, or that need labels where there are none.
  """
  source: tuple[str, ...]  # the split: sources, as data.train has them
  scores: tuple[str, ...] = ("exact_match",)  # of jtx/evals/text_scores.py
  labels: tuple[str, ...] = ()  # the texts of classes, in order; the last of two is the positive
  references: str = ""  # the key of an example's right texts, if there may be several; else `tgt`
  every: CountOrNone = 0  # steps; 0 is at the end only
  limit: CountOrNone = 0  # examples, spread over the split; 0 is all
  samples: CountOrNone = 0  # texts to show

  heads = frozenset({"seq2seq"})  # of the model
  keys = ("src", "tgt")  # of a batch

  def __post_init__(self):
    of_labels = text_scores.of_labels()
    for name in self.scores:
      if name not in TEXT_SCORES and name not in of_labels:
        raise ConfigError(f"evals: scores={self.scores} has {name!r};"
                          f" {nearest(name, (*TEXT_SCORES, *of_labels))}")
      if name not in TEXT_SCORES:
        if len(self.labels) < 2:
          raise ConfigError(f"evals: the score {name!r} is of classes; labels has the texts of two"
                            f" at least, and is {self.labels}")
        class_scores.check(name, len(self.labels), False)

  def __call__(self, task: Task, params: Any) -> Iterator[tuple[str, Any]]:
    examples = task.data.examples(self.source, self.limit)
    best = best_texts(task, params, [e["src"] for e in examples])
    texts, references = [h.text for h in best], [self.right(e) for e in examples]
    yield from self.score(texts, references)
    for i, place in enumerate(spread(range(len(examples)), self.samples)):
      right = texts[place] in references[place]
      wrong = "" if right else f" (not: {references[place][0]})"
      yield f"sample_{i}", f"{examples[place]['src']} -> {texts[place]}{wrong}"
    yield "predictions", (
        {"id": e["id"], "source": e["src"], "gold": rs[0] if len(rs) == 1 else rs,
         "prediction": h.text, "correct": h.text in rs,
         "scores": {"log_probability": h.log_probability}}
        for e, h, rs in zip(examples, best, references))

  def right(self, example: Mapping[str, Any]) -> list[str]:
    """The right texts of an example.

    Raises:
      DataError: it has none.
    """
    if not self.references:
      return [example["tgt"]]
    found = example.get(self.references)
    texts = [f.get("text") if isinstance(f, Mapping) else f for f in
             ([found] if isinstance(found, str) else found or ())]
    if not texts or not all(isinstance(text, str) for text in texts):
      raise DataError(f"{', '.join(self.source)}: example {example['id']} has no texts"
                      f" {self.references!r}, which evals name as its references; the op template"
                      " keeps the keys that its `keep` has")
    return texts

  def score(self, texts: Sequence[str],
            references: Sequence[Sequence[str]]) -> Iterator[tuple[str, Any]]:
    """The scores of texts, and how many there are."""
    found = None
    for name in self.scores:
      if name in TEXT_SCORES:
        value = TEXT_SCORES[name](texts, references)
        yield from value.items() if isinstance(value, Mapping) else [(name, value)]
        continue
      if found is None:
        gold = [rs[0].strip() for rs in references]
        for text in gold:
          if text not in self.labels:
            raise DataError(f"{', '.join(self.source)}: the target {text!r} is none of the labels"
                            f" {', '.join(self.labels)}")
        found = text_scores.outcome(texts, gold, self.labels)
      yield name, class_scores.compute(name, found)
    yield "examples", len(texts)
