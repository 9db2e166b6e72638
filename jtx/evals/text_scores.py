"""The registry of scores of texts that a model wrote, such as ROUGE, BLEU and exact match.

A score is a function of [N] texts and, of each, the right ones, and gives a number or several by
name. Those of classes are beside them in `jtx.evals.class_scores`, for texts that are labels.
A module of yours adds one by a row, `TEXT_SCORES["length"] = lambda predictions, references: ...`.
"""

import functools
from typing import Any, Callable, Mapping, Sequence

import numpy as np

from jtx.evals import class_scores, scores

Score = Callable[[Sequence[str], Sequence[Sequence[str]]], float | Mapping[str, Any]]
NO_NUMBER = -1.0  # what stands for a text that is none, as in T5's evaluation


def exact_match(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
  """The share of texts that are one of theirs, but for spaces around."""
  return float(np.mean([p.strip() in {r.strip() for r in rs}
                        for p, rs in zip(predictions, references)]))


def squad(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
  """Exact match and F1 of words of answers; see `jtx.evals.scores.squad_em_f1`."""
  found = scores.squad_em_f1(dict(enumerate(predictions)), dict(enumerate(references)))
  return {f"squad_{name}": value for name, value in found.items()}


def rouge(kind: str, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
  """The mean F1 of ROUGE in percent, the best over the references, with Porter's stems (Lin 2004).

  It is the package rouge-score's. Of "rougeLsum" a line is a sentence.
  """
  from rouge_score.rouge_scorer import RougeScorer
  scorer = RougeScorer([kind], use_stemmer=True)
  return 100 * float(np.mean([max(scorer.score(r, p)[kind].fmeasure for r in rs)
                              for p, rs in zip(predictions, references)]))


def corpus(kind: str, predictions: Sequence[str],
           references: Sequence[Sequence[str]]) -> dict[str, Any]:
  """BLEU or chrF of sacreBLEU in percent, and its signature."""
  import sacrebleu
  metric = {"bleu": sacrebleu.BLEU, "chrf": sacrebleu.CHRF}[kind]()
  most = max(map(len, references))
  streams = [[rs[i] if i < len(rs) else None for rs in references] for i in range(most)]
  return {kind: metric.corpus_score(predictions, streams).score,
          f"{kind}_signature": str(metric.get_signature())}


def correlation(score: Callable[..., float], predictions: Sequence[str],
                references: Sequence[Sequence[str]]) -> float:
  """Of the numbers that the texts are."""
  return score([number(p) for p in predictions], [number(rs[0]) for rs in references])


def number(text: str) -> float:
  try:
    value = float(text)
  except ValueError:
    return NO_NUMBER
  return value if np.isfinite(value) else NO_NUMBER


TEXT_SCORES: dict[str, Score] = {
    "exact_match": exact_match,
    "squad": squad,
    **{kind: functools.partial(rouge, kind)
       for kind in ("rouge1", "rouge2", "rougeL", "rougeLsum")},
    **{kind: functools.partial(corpus, kind) for kind in ("bleu", "chrf")},
    "pearson": functools.partial(correlation, scores.pearson),
    "spearman": functools.partial(correlation, scores.spearman),
}


def of_labels() -> tuple[str, ...]:
  """The names of the scores of classes that need no probabilities."""
  return tuple(name for name in class_scores.SCORES
               if name not in TEXT_SCORES and "probabilities" not in class_scores.arguments(name))


def outcome(predictions: Sequence[str], gold: Sequence[str],
            labels: Sequence[str]) -> class_scores.Outcome:
  """The classes of texts by their labels.

  A text that is no label counts as a wrong one: the one after the right one in the list.
  """
  places = {label: i for i, label in enumerate(labels)}
  right = np.array([places[g] for g in gold])
  wrong = (right + 1) % len(labels)
  found = [places.get(p.strip(), w) for p, w in zip(predictions, wrong.tolist())]
  return class_scores.Outcome(right, np.array(found), None, labels)
