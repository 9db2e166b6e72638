"""Predictions of a trained model for every task of a head, as plain values for JSON.

An input is a dict. Which keys it needs depends on the head: `text`, and `second` for a pair
(classes, embeddings, masked tokens); `words` (tags); `question` and `context` (spans);
`prompt` and `choices` (multiple choice); `image`, a path, bytes of a file or an array (boxes).
Where a model fills in masked tokens, too, inputs that lack what its task needs are for that.
"""

import reprlib
from typing import Any, Callable, Mapping, NamedTuple, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jtx.data.tokenizers.tokenizer import Tokenizer
from jtx.errors import ConfigError, DataError
from jtx.inference.answers import best_answers
from jtx.inference.boxes import THRESHOLD, Detector
from jtx.inference.predictions import predicted, prediction
from jtx.inference.texts import Predictor, encode, text_vectors

Input = Mapping[str, Any]
Output = dict[str, Any]

TOP = 5  # tokens for a masked one, answers to a question
MAX_ANSWER = 30  # tokens


class Trained(NamedTuple):
  """A model that is ready for use."""
  model: nn.Module
  params: Any
  tokenizer: Tokenizer | None  # of texts
  labels: Sequence[str]  # of classes or tags
  max_length: int = 256  # tokens; longer texts are cut, contexts go through in windows
  stride: int | None = None  # tokens that windows share; None is 128, or a quarter if it is less
  max_question: int | None = None  # tokens; a longer question is cut
  # By how much having no answer must score higher than the best span; None is no matter by how much
  no_answer: float | None = None
  batch_size: int = 64
  ops: Sequence[Any] = ()  # of images: see `jtx.inference.images.ImagePredictor`
  threshold: float = THRESHOLD  # the least score of an object that is found

  def run(self, examples: Sequence[Mapping[str, Any]], **options: Any) -> list[np.ndarray]:
    return Predictor(self.model, self.params, batch_size=self.batch_size, **options)(examples)


def predict(trained: Trained, inputs: Sequence[Input], task: str | None = None) -> list[Output]:
  """The outputs of each input, in order.

  Args:
    trained: the model.
    inputs: of one kind.
    task: of `tasks_of` the model; None is the first whose needs all inputs have.

  Raises:
    DataError: an input lacks what the head needs; the sentence says which, counted from 1.
  """
  own = tasks_of(trained.model)
  task = task or next((name for name in own if all(HEADS[name][0].keys() <= x.keys()
                                                   for x in inputs)), own[0])
  needs, function = HEADS[task]
  for number, x in enumerate(inputs, 1):
    for key, kind in needs.items():
      if key not in x or not isinstance(x[key], kind):
        what = {str: "a text", list: "a list of texts"}.get(kind, "an image")
        has = f"{key}={reprlib.repr(x[key])}" if key in x else ", ".join(x) or "nothing"
        raise DataError(f"input {number}: a model whose head is for {task!r} needs {key!r}, {what};"
                        f" the input has {has}")
  return function(trained, inputs) if inputs else []


def tasks_of(model: nn.Module) -> tuple[str, ...]:
  """The keys of `HEADS` that say what the model predicts, its task's first."""
  task = model.head.task
  if "mlm" not in model.heads:
    return (task,)
  return ("mlm",) if task == "none" else (task, "mlm")


def task_of(model: nn.Module) -> str:
  """The first of them."""
  return tasks_of(model)[0]


def check_predicts(model: nn.Module, where: str) -> None:
  """Raises ConfigError where a model translates instead of predicting.

  Args:
    model: of any family.
    where: names its folder, for the sentence.
  """
  if "seq2seq" in model.heads:
    raise ConfigError(f"{where} holds a translator, which has nothing to predict; its command is"
                      " translate, and in Python jtx.Translator")


def check_translates(model: nn.Module, where: str) -> None:
  """Raises ConfigError where a model does not translate; see `check_predicts`."""
  if "seq2seq" not in model.heads:
    raise ConfigError(f"{where} holds a model with the head {task_of(model)!r} and no translator;"
                      " its command is predict")


def by_word(model: nn.Module) -> bool:
  """Whether its inputs are lists of words."""
  return "words" in HEADS[task_of(model)][0]


def of_text(trained: Trained, inputs: Sequence[Input], special: bool = False) -> list[dict]:
  """The tokens of `text`, and of `second` where all inputs have one."""
  pairs = {"second" in x for x in inputs}
  if len(pairs) > 1:
    number = next(i for i, x in enumerate(inputs, 1) if "second" not in x)
    raise DataError(f"input {number} has no 'second', which others have")
  second = [x["second"] for x in inputs] if pairs == {True} else None
  return encode(trained.tokenizer, [x["text"] for x in inputs], second, trained.max_length, special,
                both_orders=bool(trained.model.head.both_orders))


def embeddings(trained: Trained, inputs: Sequence[Input]) -> list[Output]:
  """The head's vector; the normalised mean of hidden states where there is no head."""
  options = {}
  if trained.model.head.task == "none":
    options = dict(function=mean_vectors, by_token=False)
  return [{"embedding": v.tolist()} for v in trained.run(of_text(trained, inputs), **options)]


def token_embeddings(trained: Trained, inputs: Sequence[Input]) -> list[Output]:
  """The vector of every token."""
  examples = of_text(trained, inputs)
  return [{"tokens": trained.tokenizer.tokens(e["text"]), "embeddings": v.tolist()}
          for e, v in zip(examples, trained.run(examples))]


def mean_vectors(model: nn.Module, params: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
  return text_vectors("mean", True, model, params, batch)


def multi_labels(trained: Trained, inputs: Sequence[Input]) -> list[Output]:
  outputs = trained.run(of_text(trained, inputs))
  labels = trained.labels or [f"LABEL_{i}" for i in range(trained.model.head.outputs)]
  return [predicted(trained.model.head, x, labels)._asdict() for x in outputs]


def classes(trained: Trained, inputs: Sequence[Input]) -> list[Output]:
  outputs = trained.run(of_text(trained, inputs))
  if trained.model.head.outputs == 1:
    return [{"value": float(x[0])} for x in outputs]
  labels = trained.labels or [f"LABEL_{i}" for i in range(len(outputs[0]))]
  return [prediction(x, labels)._asdict() for x in outputs]


def tags(trained: Trained, inputs: Sequence[Input]) -> list[Output]:
  """A tag a word; None for a word that is cut off or has no token."""
  encodings = trained.tokenizer.encode_texts([list(x["words"]) for x in inputs], words=True,
                                             max_length=trained.max_length)
  examples = [{"text": e.ids, "text_types": e.types} for e in encodings]
  results = []
  for x, encoding, outputs in zip(inputs, encodings, trained.run(examples)):
    found: list[str | None] = [None] * len(x["words"])
    first = (np.diff(encoding.word, prepend=-1) != 0) & (encoding.word >= 0)
    for place in np.flatnonzero(first):
      number = int(outputs[place].argmax())
      found[encoding.word[place]] = trained.labels[number] if trained.labels else f"LABEL_{number}"
    results.append({"words": list(x["words"]), "tags": found})
  return results


def answers(trained: Trained, inputs: Sequence[Input]) -> list[Output]:
  """The best span of the context, or "" where there is none; the score of that, and of others."""
  stride = min(128, trained.max_length // 4) if trained.stride is None else trained.stride
  groups = trained.tokenizer.encode_windows(
      [x["question"] for x in inputs], [x["context"] for x in inputs],
      max_length=trained.max_length, stride=stride, max_first=trained.max_question)
  examples = [{"text": e.ids, "text_types": e.types, "context": x["context"],
               "text_offsets": np.where(e.text[:, None] == 1, e.offsets, -1)}
              for x, windows in zip(inputs, groups) for e in windows]
  outputs = trained.run(examples)
  results, start = [], 0
  for windows in groups:
    place = slice(start, start + len(windows))
    start = place.stop
    best = best_answers(examples[place], outputs[place], 20, MAX_ANSWER)[:TOP]
    none = min(float(o[0].sum()) for o in outputs[place])
    answered = best and (trained.no_answer is None or none - best[0].score <= trained.no_answer)
    results.append({"answer": best[0].text if answered else "", "no_answer_score": none,
                    "n_best": [a._asdict() for a in best]})
  return results


def choices(trained: Trained, inputs: Sequence[Input]) -> list[Output]:
  pairs = [(x["prompt"], choice) for x in inputs for choice in x["choices"]]
  first, second = zip(*pairs)
  outputs = trained.run(encode(trained.tokenizer, first, second, trained.max_length))
  results, start = [], 0
  for x in inputs:
    logits = np.array([float(o[0]) for o in outputs[start:start + len(x["choices"])]])
    start += len(logits)
    best = prediction(logits, list(range(len(logits))))
    results.append({"choice": best.label, "scores": list(best.scores.values())})
  return results


def orders(trained: Trained, inputs: Sequence[Input]) -> list[Output]:
  """The probability that the second text follows the first, or is in its place."""
  return [{"in_order": prediction(x, (True, False)).scores[True]}
          for x in trained.run(of_text(trained, inputs))]


def replaced(trained: Trained, inputs: Sequence[Input]) -> list[Output]:
  """The probability of every token that another was in its place."""
  examples = of_text(trained, inputs)
  return [{"tokens": trained.tokenizer.tokens(e["text"]),
           "replaced": (1 / (1 + np.exp(-np.float64(outputs[:len(e["text"]), 0])))).tolist()}
          for e, outputs in zip(examples, trained.run(examples))]


def masked_tokens(trained: Trained, inputs: Sequence[Input]) -> list[Output]:
  """The likeliest tokens for each mask in a text."""
  mask = trained.tokenizer.mask_id
  if mask is None:
    raise ConfigError("the model fills in masked tokens, and its tokenizer has no mask")
  examples = of_text(trained, inputs, special=True)
  results = []
  top = trained.run(examples, function=top_tokens, by_token=True)
  for e, values in zip(examples, top):
    masks = []
    for place in np.flatnonzero(e["text"] == mask):
      log_p, ids = values[place, :TOP], values[place, TOP:].astype(int)
      tokens = trained.tokenizer.tokens(ids)
      masks.append({token: float(np.exp(p)) for token, p in zip(tokens, log_p)})
    results.append({"masks": masks})
  return results


def top_tokens(model: nn.Module, params: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
  """[B, T, 2 TOP]: log-probabilities of the likeliest tokens, then their ids."""
  _, states = model.apply({"params": params}, batch, method="masked_states")
  log_p = jax.nn.log_softmax(model.apply({"params": params}, states, method="mlm_logits"))
  best, ids = jax.lax.top_k(log_p, TOP)
  return jnp.concatenate([best, ids.astype(jnp.float32)], -1)  # ids are exact up to 2^24


def boxes(trained: Trained, inputs: Sequence[Input]) -> list[Output]:
  """The objects of `image`, best first, with their boxes in pixels of the file."""
  labels = trained.labels or [f"LABEL_{i}" for i in range(trained.model.head.outputs)]
  detect = Detector(trained.model, trained.params, trained.ops, labels,
                    batch_size=trained.batch_size)
  return [{"objects": [x._asdict() for x in found]}
          for found in detect([x["image"] for x in inputs], trained.threshold)]


TEXT = {"text": str}
PAIR = {"text": str, "second": str}
# task -> what an input needs, and the function of it
HEADS: dict[str, tuple[dict[str, type], Callable[[Trained, Sequence[Input]], list[Output]]]] = {
    "none": (TEXT, embeddings),
    "embedding": (TEXT, embeddings),
    "token_embeddings": (TEXT, token_embeddings),
    "multi_label": (TEXT, multi_labels),
    "classes": (TEXT, classes),
    "tags": ({"words": list}, tags),
    "span": ({"question": str, "context": str}, answers),
    "choice": ({"prompt": str, "choices": list}, choices),
    "next_sentence": (PAIR, orders),
    "sentence_order": (PAIR, orders),
    "replaced": (TEXT, replaced),
    "mlm": (TEXT, masked_tokens),
    "boxes": ({"image": object}, boxes),
}
