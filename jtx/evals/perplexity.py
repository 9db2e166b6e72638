"""Perplexity of a whole split by overlapping windows; bits a byte, nats a character and a word."""

import dataclasses
import math
from typing import Any, Iterator

from jtx.data import recipes
from jtx.data.ops.documents import Windows
from jtx.data.pipeline import eval_batches
from jtx.errors import ConfigError
from jtx.evals.loss import perplexity, total_sums
from jtx.evals.task import Task
from jtx.objectives.lm import Lm
from jtx.ranges import CountOrNone, Size


@dataclasses.dataclass(frozen=True)
class Perplexity:
  """Every token is predicted once, from all that its window has before it.

  Windows hold `context` tokens of a document, or of the running text where the op `documents` has
  `running`, and begin `stride` tokens apart: the first predicts all of its tokens, each other one
  the last `stride`, from context - stride tokens at least. A document's first token is predicted
  where `tokenize` puts a begin token before it; the end token is where there is one.

  It yields `nll` and `accuracy` a token, `perplexity` exp(nll), and the nats of all tokens over
  what the texts have: `bits_per_byte` of UTF-8, `nats_per_character`, `nats_per_word` (between
  white space); and the number of `tokens` that were predicted.
  """
  source: tuple[str, ...]  # the split: sources, as data.train has them
  context: Size  # tokens of a window
  stride: Size  # tokens from a window to the next
  every: CountOrNone = 0  # steps; 0 is at the end only

  heads = frozenset({"lm"})  # of the model
  keys = ("text_next",)  # of a batch

  def __post_init__(self):
    if self.stride > self.context:
      raise ConfigError(f"evals: perplexity has stride={self.stride}, and windows of"
                        f" context={self.context} that begin further apart would leave tokens out")

  def check_model(self, model: Any) -> None:
    """Raises ConfigError where the windows are longer than the model's inputs."""
    if model.longest is not None and self.context > model.longest:
      raise ConfigError(f"evals: perplexity has context={self.context}, and the model takes"
                        f" {model.longest} tokens at most")

  def __call__(self, task: Task, params: Any) -> Iterator[tuple[str, float]]:
    data = task.data
    documents = data.prepare(self.source)
    recipe = data.recipe._replace(alter=[], form=Windows(data.recipe.form, self.context,
                                                         self.stride)).with_length(self.context)
    objective = task.objective if isinstance(task.objective, Lm) else Lm()
    totals = total_sums(task, params, objective,
                        eval_batches(documents, recipe, task.batch_size, task.rows))
    (nats, tokens), hits = totals["nll"], totals["accuracy"][0]
    yield "nll", nats / tokens
    yield "perplexity", perplexity(nats / tokens)
    yield "accuracy", hits / tokens
    size = [0, 0, 0]
    kept, maker = set(documents.ids.tolist()), recipes.maker_of(data.ops)
    for example in data.examples(self.source):
      for text in maker.texts_of(example, "text") if example["id"] in kept else ():
        size = [n + len(part) for n, part in zip(size, (text.encode(), text, text.split()))]
    for name, number, unit in zip(("bits_per_byte", "nats_per_character", "nats_per_word"), size,
                                  (math.log(2), 1.0, 1.0)):
      if number:
        yield name, nats / unit / number
    yield "tokens", int(tokens)
