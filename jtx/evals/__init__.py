"""Evaluators: what a config's `evals` section names, each a key of `EVALS`.

An evaluator is a frozen dataclass of its config. Called with a `Task` and parameters, it goes over
its split once and yields (name, value): numbers for the metrics, strings (samples, signatures) and
tables for the log and the results, figures, and as `predictions` an iterator with a
`jtx.evals.task.Record` of each example, for who asks for them. Its `heads` and `keys` are what it
needs of the model and of batches, as of an objective; `check_model`, where it has one, tells what
else it needs, and `check_data` looks at its split, where it reads other columns than data.ops do.
Where its fields tell the names of all its scores, `numbers` are these.
"""

from jtx.evals.answers import Answers
from jtx.evals.choices import Choices
from jtx.evals.classification import Classification, MultiLabel
from jtx.evals.detection import Detection
from jtx.evals.embeddings import Similarity
from jtx.evals.image_text import ImageText
from jtx.evals.images import Images, Probes, Throughput
from jtx.evals.loss import Loss
from jtx.evals.ngrams import Ngrams
from jtx.evals.perplexity import Perplexity
from jtx.evals.pictures import Pictures
from jtx.evals.replies import Replies
from jtx.evals.retrieval import Bm25, LateInteraction, Retrieval
from jtx.evals.tagging import Tagging
from jtx.evals.targets import Targets
from jtx.evals.texts import Texts
from jtx.evals.translation import Translation
from jtx.evals.zero_shot import ZeroShot

EVALS = {
    "answers": Answers,
    "bm25": Bm25,
    "choices": Choices,
    "classification": Classification,
    "detection": Detection,
    "image_text": ImageText,
    "images": Images,
    "late_interaction": LateInteraction,
    "loss": Loss,
    "multi_label": MultiLabel,
    "ngrams": Ngrams,
    "perplexity": Perplexity,
    "pictures": Pictures,
    "probes": Probes,
    "replies": Replies,
    "retrieval": Retrieval,
    "similarity": Similarity,
    "tagging": Tagging,
    "targets": Targets,
    "texts": Texts,
    "throughput": Throughput,
    "translation": Translation,
    "zero_shot": ZeroShot,
}
