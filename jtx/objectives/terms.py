"""Terms of a distillation: each compares something of a student with the same of its teacher.

`TERMS` has them by name, as `distill.terms` of a config. Layers are counted as in
`features.layers`: 0 is the embeddings, the input of the stack, 1 the first layer, -1 the last.
"""

import dataclasses
from typing import Any, Callable, ClassVar, Mapping, NamedTuple

import jax
import jax.numpy as jnp

from jtx.errors import ConfigError, nearest
from jtx.nn.taps import BIASES, HIDDEN, PROJECTIONS, Layers, Tapped
from jtx.objectives.distances import (
    cosine_distance, pairs_divergence, pairs_squared, relation_logits, squared_distance)
from jtx.objectives.scored import scored
from jtx.objectives.sums import Batch
from jtx.ranges import NotNegative, Positive, Share, SizeOrNone

Widths = Mapping[str, tuple[int, int]]  # of learned maps by name: the student's, the teacher's

ALWAYS = 0.0, 1.0  # shares of the run between which something is in the loss

DISTANCES = {"squared": squared_distance, "cosine": cosine_distance}
PAIRS = {"scores": pairs_squared, "weights": pairs_divergence}
MAPS = ("auto", "learned", "none")
VECTORS = {"q": "query", "k": "key", "v": "value"}


class Both(NamedTuple):
  """A student and its teacher after their calls on a batch, as a term sees them."""
  ours: Tapped
  theirs: Tapped
  task: Any
  batch: Batch
  project: Callable[[str, jax.Array], jax.Array]  # by the learned map of this name


@dataclasses.dataclass(frozen=True, kw_only=True)
class Term:
  """The fields of all terms."""
  weight: NotNegative = 1.0  # of the term in the loss; 0 leaves it out
  during: tuple[Share, Share] = ALWAYS  # shares of the run between which it is in the loss

  taps: ClassVar[frozenset[str]] = frozenset()  # what is kept of layers: see `jtx.nn.taps`

  def __post_init__(self):
    check_during("during", self.during)

  def maps(self, ours: Any, theirs: Any) -> Widths:
    """The learned maps that it needs, of two models."""
    return {}

  def weights(self, task: Any, batch: Batch) -> jax.Array:
    """Weights of what is compared, known before the forward pass."""
    raise NotImplementedError

  def distance(self, both: Both) -> jax.Array:
    """Distances, of the shape of the weights."""
    raise NotImplementedError


def check_during(key: str, during: tuple[float, float]) -> None:
  if len(during) != 2 or not during[0] < during[1]:
    raise ConfigError(f"distill.{key}={during}: two shares of the run, the first below the second")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Soft(Term):
  """Soft targets: the divergence of scores from the teacher's (Hinton et al. 2015, section 2).

  Of classes, tags, choices and tokens it is the KL divergence of the softmax, of labels that do not
  exclude one another that of sigmoids, and of numbers the squared error. It is a mean over what the
  task's own loss is a mean of.
  """
  temperature: Positive = 1.0  # that scores are divided by; the divergence is times its square

  def weights(self, task, batch):
    return scored(task, batch)[0]

  def distance(self, both):
    ours, theirs = both.ours.scores, both.theirs.scores
    if ours.shape != theirs.shape:
      raise ConfigError(f"distill.teacher has {theirs.shape[-1]} outputs, and the model"
                        f" {ours.shape[-1]}: 'soft' needs as many")
    return scored(both.task, both.batch)[1](theirs, ours, self.temperature)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfTokens(Term):
  """A mean over the tokens of a stack; over images, of the mean of an image's tokens."""
  stack: str = ""  # "encoder" or "decoder" of a model that has both; "" is its last, or only one

  def weights(self, task, batch):
    if "image" in batch:
      number = batch["image"].shape[0]
      return batch.get("real", jnp.ones((number, 1)))[:, :1].astype(jnp.float32)
    inputs = task.model_inputs(batch)
    key = "src" if self.stack == "encoder" else "tgt"
    segments = inputs.get(f"{key}_segment_ids", inputs.get("text_segment_ids"))
    return (segments > 0).astype(jnp.float32)

  def distance(self, both):
    ours, theirs = (tapped.layers[self.stack_of(tapped)] for tapped in (both.ours, both.theirs))
    if ours.tokens != theirs.tokens:
      raise ConfigError(f"distill.teacher makes {theirs.tokens[1]} tokens of what the student makes"
                        f" {ours.tokens[1]} of; {name_of(self)!r} compares them one by one")
    values = sum(self.between(ours, theirs, pair, both.project) for pair in self.pairs(
        ours.config.num_layers, theirs.config.num_layers))
    return values.mean(1, keepdims=True) if "image" in both.batch else values

  def stack_of(self, model: Any) -> str:
    """The name of the stack of a model."""
    names = [*model.stacks]
    if not names or self.stack and self.stack not in names:
      raise ConfigError(f"distill.terms: stack={self.stack!r} of {name_of(self)!r}: student and"
                        f" teacher must have it, and one has {', '.join(names) or 'no layers'}")
    return self.stack or names[-1]

  def pairs(self, ours: int, theirs: int) -> tuple[tuple[int, int], ...]:
    """Layers that are compared, of the student and of the teacher, of the depths of both."""
    raise NotImplementedError

  def between(self, ours: Layers, theirs: Layers, pair: tuple[int, int],
              project: Callable[[str, jax.Array], jax.Array]) -> jax.Array:
    """[B, T], of a pair of layers."""
    raise NotImplementedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfLayers(OfTokens):
  """A sum over pairs of layers."""
  # (layer of the student, of the teacher); () is evenly: of 4 and 12 layers (1, 3), (2, 6) ...
  layers: tuple[tuple[int, int], ...] = ()

  first: ClassVar[int] = 1  # layer

  def pairs(self, ours, theirs):
    if not self.layers:
      if theirs % ours:
        raise ConfigError(f"distill.terms: layers are unset, and the teacher's {theirs} layers are"
                          f" no multiple of the student's {ours}; name pairs of them")
      return tuple((i, i * theirs // ours) for i in range(1, ours + 1))
    return tuple(tuple(self._counted(i, depth, whose) for i, depth, whose in zip(
        pair, (ours, theirs), ("student", "teacher"))) for pair in self.layers)

  def _counted(self, i: int, depth: int, whose: str) -> int:
    number = depth + 1 + i if i < 0 else i
    if not self.first <= number <= depth:
      raise ConfigError(f"distill.terms: layers={self.layers}: the {whose} has no layer {i}; they"
                        f" are {self.first} to {depth}, or from the end -1 to"
                        f" {self.first - depth - 1}")
    return number


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hidden(OfLayers):
  """Hidden states, the student's through a learned matrix (TinyBERT, equation 8)."""
  compare: str = "squared"  # the mean square of the difference; or 1 - the "cosine"
  map: str = "auto"  # "learned" to the teacher's width; "none"; "auto" learns one if widths differ
  shared: bool = True  # one map for all pairs of layers

  taps = frozenset({HIDDEN})
  first = 0

  def __post_init__(self):
    super().__post_init__()
    for key, known in (("compare", DISTANCES), ("map", MAPS)):
      if getattr(self, key) not in known:
        raise ConfigError(f"distill.terms: {key}={getattr(self, key)!r}:"
                          f" {nearest(getattr(self, key), known)}")

  def maps(self, ours, theirs):
    a, b = (model.stacks[self.stack_of(model)] for model in (ours, theirs))
    widths = a.width, b.width
    if self.map == "none" and widths[0] != widths[1]:
      raise ConfigError(f"distill.terms: map='none', and the student is {widths[0]} wide and the"
                        f" teacher {widths[1]}; leave it 'auto'")
    if self.map == "none" or self.map == "auto" and widths[0] == widths[1]:
      return {}
    return {self._map(pair): widths for pair in self.pairs(a.num_layers, b.num_layers)}

  def _map(self, pair: tuple[int, int]) -> str:
    return "map" if self.shared else f"map_{pair[0]}_{pair[1]}"

  def between(self, ours, theirs, pair, project):
    a, b = ours.hidden[pair[0]], theirs.hidden[pair[1]]
    return DISTANCES[self.compare](project(self._map(pair), a), b)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Embeddings(Hidden):
  """The inputs of the first layers, the student's through a learned matrix (TinyBERT, equation 9).

  It is 'hidden' of the layers (0, 0), with a map of its own.
  """
  layers: tuple[tuple[int, int], ...] = ((0, 0),)  # (layer of the student, of the teacher)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attention(OfLayers):
  """Attention of every head to the tokens that a token sees, the mean over heads.

  Both models need as many heads in a layer.
  """
  # Squared difference of logits (TinyBERT, equation 7); or "weights", their divergence (MiniLM)
  compare: str = "scores"

  taps = frozenset({BIASES})

  def __post_init__(self):
    super().__post_init__()
    if self.compare not in PAIRS:
      raise ConfigError(f"distill.terms: compare={self.compare!r}: {nearest(self.compare, PAIRS)}")

  def between(self, ours, theirs, pair, project):
    a, b = ours.logits(pair[0] - 1), theirs.logits(pair[1] - 1)
    if a.shape != b.shape:
      raise ConfigError(f"distill.terms: 'attention' needs as many heads, and the student has"
                        f" {a.shape[1]} and the teacher {b.shape[1]}; 'relations' do not")
    return PAIRS[self.compare](b, a, ours.allowed(pair[0] - 1)).mean(1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Relations(OfLayers):
  """Relations of a text's tokens: softmax(a . b / sqrt(d)) of queries, keys or values.

  The divergence from the teacher's, a mean over relation heads and a sum over relations. ("qq",
  "kk", "vv") is of MiniLMv2 (Wang et al. 2021, section 3.1), ("qk", "vv") of MiniLM (Wang et al.
  2020, section 3.1).
  """
  relations: tuple[str, ...] = ("qq", "kk", "vv")  # two each of q, k and v
  heads: SizeOrNone = 0  # relation heads, which both widths are split into; 0 is the teacher's own
  layers: tuple[tuple[int, int], ...] = ((-1, -1),)  # (layer of the student, of the teacher)

  taps = frozenset({PROJECTIONS})

  def __post_init__(self):
    super().__post_init__()
    for name in self.relations:
      if len(name) != 2 or set(name) - VECTORS.keys():
        raise ConfigError(f"distill.terms: relations={self.relations}: {name!r} is not two of q, k"
                          " and v")
    if not self.relations:
      raise ConfigError("distill.terms: relations=() compares nothing")

  def between(self, ours, theirs, pair, project):
    heads = self.heads or theirs.query.shape[3]
    total = 0.0
    for relation in self.relations:
      a, b = (relation_logits(*(getattr(side, VECTORS[letter])[layer - 1] for letter in relation),
                              heads, "distill.terms: relations")
              for side, layer in zip((ours, theirs), pair))
      total += pairs_divergence(b, a, ours.allowed(pair[0] - 1)).mean(1)
    return total


TERMS: dict[str, Callable[..., Term]] = {
    "soft": Soft,
    "hidden": Hidden,
    "embeddings": Embeddings,
    "attention": Attention,
    "relations": Relations,
}


def name_of(term: Term) -> str:
  """The name of a term in `TERMS`."""
  return next(name for name, kind in TERMS.items() if kind is type(term))
