"""Losses, each a key of `OBJECTIVES`, as `objective.name` of a config; see `contract.py`."""

from jtx.objectives.bilm import BiLm
from jtx.objectives.classify import Classify
from jtx.objectives.contrastive import Contrastive, LateInteraction
from jtx.objectives.cosine import Cosine
from jtx.objectives.detection import Detection
from jtx.objectives.distill import Distill
from jtx.objectives.distill_classes import DistillClasses
from jtx.objectives.dpo import Dpo
from jtx.objectives.electra import ReplacedTokens
from jtx.objectives.image_text import ImageText
from jtx.objectives.lm import Lm
from jtx.objectives.mae import Mae
from jtx.objectives.mlm import Mlm
from jtx.objectives.multi_label import MultiLabel
from jtx.objectives.multiple_choice import MultipleChoice
from jtx.objectives.plm import Plm
from jtx.objectives.seq2seq import Seq2Seq
from jtx.objectives.span import Span
from jtx.objectives.tag import Tag

OBJECTIVES = {
    "bilm": BiLm,
    "classify": Classify,
    "contrastive": Contrastive,
    "cosine": Cosine,
    "detection": Detection,
    "distill": Distill,
    "distill_classes": DistillClasses,
    "dpo": Dpo,
    "electra": ReplacedTokens,
    "image_text": ImageText,
    "late_interaction": LateInteraction,
    "lm": Lm,
    "mae": Mae,
    "mlm": Mlm,
    "multi_label": MultiLabel,
    "multiple_choice": MultipleChoice,
    "plm": Plm,
    "seq2seq": Seq2Seq,
    "span": Span,
    "tag": Tag,
}
