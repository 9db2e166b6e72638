"""Translation of texts: tokenising, length buckets and the jitted decoder."""

import functools
from typing import Any, Mapping, NamedTuple, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jtx.config import ConfigDict, build
from jtx.data import batching
from jtx.data.tokenizers.tokenizer import Tokenizer
from jtx.errors import ConfigError, DataError
from jtx.inference.decode import METHODS, Ends, Sample
from jtx.inference.generate import generate
from jtx.parallel import processes, sharding


class Hypothesis(NamedTuple):
  text: str
  score: float  # what the method orders by; see `jtx.inference.decode.Decoded`
  tokens: tuple[int, ...]  # without the end token
  log_probability: float  # of the tokens and, where it has one, of the end


class Writing(NamedTuple):
  """How a model reads and writes.

  One of another library has one tokenizer for both sides, by whose template texts have special
  tokens; those of a run of jtx are as its data had them.
  """
  start: int  # the token before the first of a target
  ends: Ends
  by_template: bool = True
  around: tuple[bool, bool] = (False, True)  # of a run: texts have a begin token, and an end token


def run_writing(tokenizer: Tokenizer, start: int | None = None,
                around: tuple[bool, bool] = (False, True)) -> Writing:
  """That of a run, by the tokenizer of its targets; without `start` they follow its begin token."""
  return Writing(tokenizer.bos_id if start is None else start,
                 Ends((tokenizer.eos_id,), tokenizer.pad_id), by_template=False, around=around)


class Translator:
  """Translates lists of texts with one compiled program for each bucket of source lengths.

  Args:
    model: an encoder-decoder, or an `Ensemble` of some.
    params: its parameters.
    tokenizers: of `src` and `tgt`; or of `text`, of both, for a model that comes with `writing`.
    options: the config's `decode` section.
    mesh: to split batches over; None is one device.
    writing: the model's; None is that of a run whose targets follow the begin token.

  Raises:
    ConfigError: the tokenizers are of other fields.
  """

  def __init__(self, model: nn.Module, params, tokenizers: Mapping, options: ConfigDict, mesh=None,
               writing: Writing | None = None):
    if writing is not None and writing.by_template and len(tokenizers) == 1:
      tokenizers = dict.fromkeys(("src", "tgt"), *tokenizers.values())
    if not {"src", "tgt"} <= tokenizers.keys():
      raise ConfigError(f"the model's data has texts of {', '.join(tokenizers)}, and no 'src' that"
                        " is translated to 'tgt': fine-tune it on pairs first")
    self.model, self.params, self.tokenizers, self.options = model, params, tokenizers, options
    self.method = build(METHODS, options.method, what="decode.method")
    self.writing = writing or run_writing(tokenizers["tgt"])
    self.batch_size, self.sharding = options.batch_size, None
    if mesh is not None:
      self.batch_size = sharding.padded_batch(options.batch_size, mesh)
      self.sharding = sharding.batch_sharding(mesh)

  def encoded(self, side: str, texts: Sequence[str], limit: int) -> list[tuple[np.ndarray, bool]]:
    """Tokens, up to `limit` of each text with the special ones, and whether it has any of its own.

    Args:
      side: "src" or "tgt".
      texts: to encode.
      limit: of tokens.
    """
    tokenizer = self.tokenizers[side]
    if self.writing.by_template:
      found = tokenizer.encode_texts(list(texts), max_length=limit)
      return [(e.ids, bool((e.text >= 0).any())) for e in found]
    before, after = ([token] * given for given, token in zip(
        self.writing.around, (tokenizer.bos_id, tokenizer.eos_id)))
    room = limit - len(before) - len(after)
    return [(np.array([*before, *ids[:room], *after], np.int32), len(ids) > 0)
            for ids in tokenizer.encode_batch(list(texts))]

  def too_long(self, texts: Sequence[str]) -> list[tuple[int, int]]:
    """(index, tokens) of the texts that exceed `max_source_length` and will be cut."""
    lengths = [len(ids) for ids, _ in self.encoded("src", texts, batching.NO_LIMIT)]
    return [(i, n) for i, n in enumerate(lengths) if n > self.options.max_source_length]

  def __call__(self, texts: Sequence[str]) -> list[list[Hypothesis]]:
    """The `n_best` translations of each text, best first, in the order given.

    A text of no tokens is translated by an empty one.
    """
    found = self.encoded("src", texts, self.options.max_source_length)
    tokens, some = [ids for ids, _ in found], [i for i, (_, real) in enumerate(found) if real]
    results = [[Hypothesis("", 0.0, (), 0.0)] * self.method.n_best for _ in texts]
    for group in batching.groups([len(tokens[i]) for i in some], self.batch_size):
      numbers = [some[i] for i in group]
      for i, hypotheses in zip(numbers, self.batch([tokens[i] for i in numbers], numbers)):
        results[i] = hypotheses
    return results

  def batch(self, tokens: Sequence[np.ndarray], numbers: Sequence[int]) -> list[list[Hypothesis]]:
    """Translates up to a batch of token sequences; `numbers` seed their draws."""
    size = self.batch_size
    length = batching.bucket(max(map(len, tokens)), self.options.max_source_length)
    batch = batching.pad("src", tokens, size, length, pad_id=self.tokenizers["src"].pad_id)
    keys = None
    if isinstance(self.method, Sample):
      seeds = jnp.array([*numbers, *[0] * (size - len(numbers))])
      keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(self.method.seed), seeds)
    batch["prompt"] = np.full((size, 1), self.writing.start, np.int32)
    batch["present"] = batch["src_segment_ids"].any(1)
    if self.sharding is not None:
      batch = sharding.spread(batch, size, self.sharding)
    target_length = self.options.max_target_length
    if not self.writing.by_template:
      target_length = min(2 * length + batching.MIN_BUCKET, target_length)
    out = processes.to_host(generate(
        self.model, self.method, target_length, self.writing.ends,
        params=self.params, prompt=batch.pop("prompt"), present=batch.pop("present"), batch=batch,
        keys=keys))
    return [[self.hypothesis(ids, score) for ids, score in zip(*row)]
            for row in zip(out.tokens[:len(tokens)], out.scores)]

  def scores(self, texts: Sequence[str], targets: Sequence[str]) -> list[float]:
    """The log-probability of a target given each text, that of its end included.

    Args:
      texts: the sources, cut as translations cut them.
      targets: one for each.

    Raises:
      DataError: a target has more tokens than the model has positions.
    """
    source = [ids for ids, _ in self.encoded("src", texts, self.options.max_source_length)]
    target = [ids for ids, _ in self.encoded("tgt", targets, batching.NO_LIMIT)]
    longest = self.model.longest or batching.NO_LIMIT
    for i, ids in enumerate(target):
      if len(ids) > longest:
        raise DataError(f"target {i + 1} has {len(ids)} tokens, and the model {longest} positions")
    results = [0.0] * len(source)
    lengths = [max(len(a), len(b)) for a, b in zip(source, target, strict=True)]
    for group in batching.groups(lengths, self.batch_size):
      batch = {}
      for side, tokens in (("src", source), ("tgt", target)):
        some = [tokens[i] for i in group]
        length = batching.bucket(max(map(len, some)), longest)
        batch |= batching.pad(side, some, self.batch_size, length,
                              pad_id=self.tokenizers[side].pad_id)
      batch["tgt_in"] = np.pad(batch["tgt"][:, :-1], ((0, 0), (1, 0)),
                               constant_values=self.writing.start)
      if self.sharding is not None:
        batch = sharding.spread(batch, self.batch_size, self.sharding)
      found = processes.to_host(target_scores(self.model, self.params, batch))
      for i, score in zip(group, found):
        results[i] = float(score)
    return results

  def hypothesis(self, ids: np.ndarray, score: np.ndarray) -> Hypothesis:
    ends = np.flatnonzero(np.isin(ids, self.writing.ends.ids))
    length = int(ends[0]) + 1 if len(ends) else len(ids)
    ids = ids[:ends[0]] if len(ends) else ids
    return Hypothesis(self.tokenizers["tgt"].decode(ids), float(score), tuple(ids.tolist()),
                      self.method.log_probability(float(score), length))


@functools.partial(jax.jit, static_argnums=0)
def target_scores(model: nn.Module, params: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
  """The log-probability [B] of the targets of a batch; of rows of padding 0."""
  hidden = model.apply({"params": params}, batch)
  log_p = jax.nn.log_softmax(model.apply({"params": params}, hidden, method="logits"))
  own = jnp.take_along_axis(log_p, batch["tgt"][..., None], -1)[..., 0]
  return jnp.where(batch["tgt_segment_ids"] > 0, own, 0).sum(-1)
