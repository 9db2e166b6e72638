"""Translates a split and scores it: BLEU and chrF by sacreBLEU, and exact match."""

import dataclasses
from typing import Any, Iterator, Sequence

import numpy as np

from jtx.data.dataset import spread
from jtx.evals.task import Task
from jtx.figures.attention import attention_map
from jtx.inference.translate import Hypothesis, Translator, run_writing
from jtx.parallel import processes
from jtx.ranges import CountOrNone


@dataclasses.dataclass(frozen=True)
class Translation:
  """BLEU, chrF and exact match of the best target for each `src` against its `tgt`."""
  source: tuple[str, ...]  # the split: sources, as data.train has them
  every: CountOrNone = 0  # steps; 0 is at the end only
  limit: CountOrNone = 0  # examples, spread over the split; 0 is all
  samples: CountOrNone = 0  # translations to show
  picture: bool = False  # draw the attention in the longest of the samples
  lowercase: bool = False  # score without case, as sacreBLEU's -lc

  heads = frozenset({"seq2seq"})  # of the model
  keys = ("src", "tgt")  # of a batch
  numbers = ("exact_match", "bleu", "chrf")

  def __call__(self, task: Task, params: Any) -> Iterator[tuple[str, float | str]]:
    examples = task.data.examples(self.source, self.limit)
    sources, references = [e["src"] for e in examples], [e["tgt"] for e in examples]
    best = best_texts(task, params, sources)
    outputs = [hypothesis.text for hypothesis in best]
    yield from score(outputs, references, self.lowercase)
    shown = spread(range(len(examples)), self.samples)
    for i, place in enumerate(shown):
      wrong = "" if outputs[place] == references[place] else f" (not: {references[place]})"
      yield f"sample_{i}", f"{sources[place]} -> {outputs[place]}{wrong}"
    yield "predictions", (
        {"id": e["id"], "source": e["src"], "gold": e["tgt"], "prediction": h.text,
         "correct": h.text == e["tgt"], "scores": {"log_probability": h.log_probability}}
        for e, h in zip(examples, best))
    if self.picture:
      place = max(shown, key=lambda i: len(sources[i]), default=0)
      with processes.alone(params) as params:
        figure = picture(task, params, sources[place], outputs[place])
      yield "attention", figure


def best_texts(task: Task, params: Any, sources: Sequence[str]) -> list[Hypothesis]:
  """The best text for each source, found as `config.decode` says."""
  tokenizers = task.data.tokenizers
  writing = run_writing(tokenizers["tgt"], task.objective.bos_id, task.data.around)
  translator = Translator(task.model, params, tokenizers, task.config.decode, mesh=task.mesh,
                          writing=writing)
  return [hypotheses[0] for hypotheses in translator(sources)]


def picture(task: Task, params: Any, source: str, target: str) -> Any:
  """The last layer's cross-attention from a target to its source, mean over the heads."""
  ids, labels = {}, {}
  for field, text in (("src", source), ("tgt", target)):
    tokenizer = task.data.tokenizers[field]
    ids[field] = np.append(tokenizer.encode(text), tokenizer.eos_id).astype(np.int32)
    labels[field] = tokenizer.tokens(ids[field])
  batch = {}
  for field, tokens in ids.items():
    batch |= {field: tokens[None], f"{field}_segment_ids": np.ones((1, len(tokens)), np.int32),
              f"{field}_positions": np.arange(len(tokens), dtype=np.int32)[None]}
  weights = task.model.apply({"params": params}, task.objective.model_inputs(batch),
                             method="attention_weights")["cross"]
  return attention_map(np.asarray(weights[-1, 0].mean(0)), labels["tgt"], labels["src"],
                       xlabel="source", ylabel="target")


def score(outputs: list[str], references: list[str],
          lowercase: bool) -> Iterator[tuple[str, float | str]]:
  """BLEU and chrF in percent, their signatures, and the share of exact matches."""
  import sacrebleu
  bleu, chrf = sacrebleu.BLEU(lowercase=lowercase), sacrebleu.CHRF(lowercase=lowercase)
  yield "exact_match", sum(o == r for o, r in zip(outputs, references)) / len(references)
  yield "bleu", bleu.corpus_score(outputs, [references]).score
  yield "chrf", chrf.corpus_score(outputs, [references]).score
  yield "bleu_signature", str(bleu.get_signature())
  yield "chrf_signature", str(chrf.get_signature())
  yield "examples", len(references)
