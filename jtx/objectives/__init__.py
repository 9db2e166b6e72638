"""Losses. A config's `objective.name` is a key of `OBJECTIVES`.

An objective is a frozen dataclass of its config with three pure functions:
`model_inputs(batch)`; `weights(batch)`, the divisor of each loss term, known before the
forward pass so that accumulated gradients are exact; and a call, which returns sums and
weights of the loss terms and of metrics. Its `unit` says what the loss is a mean of.
"""

from jtx.objectives.classify import Classify
from jtx.objectives.distill import Distill
from jtx.objectives.distill_classes import DistillClasses
from jtx.objectives.mae import Mae
from jtx.objectives.mlm import Mlm
from jtx.objectives.multiple_choice import MultipleChoice
from jtx.objectives.seq2seq import Seq2Seq
from jtx.objectives.span import Span
from jtx.objectives.tag import Tag

OBJECTIVES = {
    "classify": Classify,
    "distill": Distill,
    "distill_classes": DistillClasses,
    "mae": Mae,
    "mlm": Mlm,
    "multiple_choice": MultipleChoice,
    "seq2seq": Seq2Seq,
    "span": Span,
    "tag": Tag,
}
