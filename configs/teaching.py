"""Terms of a distillation by the papers that have them, which several configs share."""

import functools
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from jtx import hub
from jtx.config import section
from jtx.errors import ConfigError
from jtx.objectives.terms import ALWAYS, TERMS

from . import common
from .arguments import choose

term = functools.partial(section, TERMS)

# Arguments that `teach` reads; a config adds its own.
TEACHER_ARGS = dict(
    teacher="",  # a Hugging Face folder, a name of its Hub, or a workdir; "" is none
    losses="",  # a key of LOSSES; "" is that of the config
)


class Losses(NamedTuple):
  """A recipe; shares are of the run."""
  terms: tuple[tuple[str, dict[str, Any]], ...]  # a key of TERMS, and its fields
  task_weight: float = 0.0  # of the task's own loss
  task_during: tuple[float, float] = ALWAYS
  # Layers are frozen from the first share on; the last one of them until then, and from it down to
  # the embeddings, one by one, until the second.
  unfreeze: tuple[float, float] | None = None


def _tinybert(**fields: Any) -> tuple[tuple[str, dict[str, Any]], ...]:
  return (("attention", fields), ("hidden", dict(map="learned", **fields)),
          ("embeddings", dict(map="learned", **fields)))


_MLM = (("soft", dict(temperature=2.0, weight=5.0)),)

LOSSES = {
    # Hinton et al. 2015, section 2: soft targets beside the labels
    "soft": Losses((("soft", dict(temperature=2.0)),), task_weight=1.0),
    # Sanh et al. 2019, section 3, with a learned map where widths differ
    "distilbert": Losses((*_MLM, ("hidden", dict(layers=((-1, -1),), compare="cosine"))),
                         task_weight=2.0),
    # Jiao et al. 2020, section 3.1: layers alone, on any text
    "tinybert": Losses(_tinybert()),
    # Section 3.2: on a task, layers first, then its predictions
    "tinybert_task": Losses((*_tinybert(during=(0.0, 0.8)), ("soft", dict(during=(0.8, 1.0))))),
    # All of its layers at once beside DistilBERT's weights of predictions and labels: few updates
    "tinybert_mlm": Losses((*_MLM, ("attention", dict(weight=3.0)), ("hidden", dict(weight=30.0)),
                            ("embeddings", dict(weight=30.0))), task_weight=2.0),
    # Wang et al. 2020 and 2021, section 3.1: of the last layer. The latter has 48 relation heads,
    # terms[0].heads, where both widths are multiples of 48
    "minilm": Losses((("relations", dict(relations=("qk", "vv"))),)),
    "minilm2": Losses((("relations", dict(relations=("qq", "kk", "vv"))),)),
    "minilm2_mlm": Losses((*_MLM, ("relations", dict(relations=("qq", "kk", "vv"), weight=10.0))),
                          task_weight=2.0),
    # Mukherjee and Awadallah 2020, section 3: hidden states, then predictions, then labels
    "xtremedistil": Losses((("hidden", dict(layers=((-1, -1),), map="learned", during=(0.0, 0.4))),
                            ("soft", dict(during=(0.4, 0.8)))),
                           task_weight=1.0, task_during=(0.8, 1.0), unfreeze=(0.4, 0.8)),
}


def edits(losses: str, model: ConfigDict) -> dict[str, Any]:
  """The edits by which a config has the terms of a paper.

  Args:
    losses: a key of LOSSES.
    model: the section of a student of one stack.
  """
  recipe = choose(LOSSES, losses, "losses")
  made = tuple(term(name, **fields) for name, fields in recipe.terms)
  result = {"distill.terms": made, "distill.task_weight": recipe.task_weight,
            "distill.task_during": recipe.task_during}
  if recipe.unfreeze:
    result["optim.frozen"] = unfreezing(model.name, model.stack.num_layers, *recipe.unfreeze)
  return result


def teach(c: ConfigDict, args: ConfigDict, losses: str) -> None:
  """Gives a config a teacher, where `args.teacher` names one.

  Args:
    c: to edit.
    args: of TEACHER_ARGS.
    losses: a key of LOSSES, where `args.losses` is "".

  Raises:
    ConfigError: losses and no teacher.
  """
  if not args.teacher:
    if args.losses:
      raise ConfigError(f"config argument losses={args.losses} is of a teacher: name its folder by"
                        " teacher")
    return
  c.distill.teacher = hub.place(args.teacher)
  common.apply(c, edits(args.losses or losses, c.model))


def unfreezing(name: str, num_layers: int, begin: float,
               end: float) -> tuple[tuple[str, float, float], ...]:
  """`optim.frozen` from `begin` on; the last layer is let go first, the embeddings last, at `end`.

  Heads are trained all the time (Mukherjee and Awadallah 2020, section 3).

  Args:
    name: of the stack, "encoder" or "decoder".
    num_layers: its depth.
    begin: a share of the run.
    end: likewise.
  """
  paths = [f"^{name}/layers/{i}/" for i in reversed(range(num_layers))]
  step = (end - begin) / (num_layers + 1)
  return tuple((path, begin, begin + i * step)
               for i, path in enumerate([*paths, "^(embed|.*_embedding)"], 1))
