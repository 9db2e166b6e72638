"""Evaluators: what a config's `evals` section names, each a key of `EVALS`.

An evaluator is a frozen dataclass of its config. Called with a `Task` and parameters, it
goes over its split once and yields (name, value): numbers for the metrics, and strings
(samples, signatures) for the log.
"""

from jtx.evals.loss import Loss
from jtx.evals.translation import Translation

EVALS = {
    "loss": Loss,
    "translation": Translation,
}
