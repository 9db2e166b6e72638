"""Texts that go on from prompts: tokenising, batches of few shapes, stop strings, streams."""

import dataclasses
from typing import Any, Iterator, NamedTuple, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jtx.data import batching, chat
from jtx.data.chat import Message, Template
from jtx.data.packing import Pack
from jtx.data.tokenizers.tokenizer import Tokenizer
from jtx.errors import ConfigError, DataError
from jtx.inference.decode import Beam, Ends, Sample, cache_lengths
from jtx.inference.generate import apart, go_on, grow, prefill
from jtx.inference.predictions import check_counts
from jtx.parallel import processes, sharding

STOP_EVERY = 8  # tokens, after which stop strings are looked for
UNFINISHED = "\ufffd"  # what a decoded text ends with in the midst of a character


class Continuation(NamedTuple):
  """What a model says behind a prompt."""
  text: str
  tokens: tuple[int, ...]  # without the end token
  score: float  # log-probability; by beam search divided by the length penalty
  log_probs: tuple[float, ...] | None  # of each token and of the end; None by beam search


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
  """Where a prompt begins, and a continuation ends: at tokens or strings, or after so many."""
  max_new_tokens: int = 128
  stop: tuple[str, ...] = ()  # not part of the text
  begin_ids: tuple[int, ...] | None = None  # before a prompt; None is those of the tokenizer
  end_ids: tuple[int, ...] = ()  # () is the tokenizer's end token


class TextGenerator:
  """Continues prompts with programs that are compiled once a shape.

  Args:
    model: a `jtx.models.generative.Generative` without a source.
    params: its parameters.
    tokenizer: of its texts.
    method: of search or sampling.
    limits: of every continuation.
    batch_size: prompts at a time.
    mesh: to split batches over; None is one device.

  Raises:
    ConfigError: the model has not that many positions, or the tokenizer can't make a stop string.
  """

  def __init__(self, model: nn.Module, params: Any, tokenizer: Tokenizer, *,
               method: Beam | Sample = Sample(temperature=0.0), limits: Limits = Limits(),
               batch_size: int = 32, mesh=None):
    self.model, self.params, self.tokenizer = model, params, tokenizer
    self.apart = apart(model, params)
    self.method, self.limits, self.batch_size, self.sharding = method, limits, batch_size, None
    self.ends = Ends(limits.end_ids or (tokenizer.eos_id,), tokenizer.pad_id)
    check_counts(max_new_tokens=limits.max_new_tokens, batch_size=batch_size)
    # The last token is not read again, so it needs no position.
    self.room = (model.longest or batching.NO_LIMIT) - limits.max_new_tokens + 1
    if self.room < 1:
      raise ConfigError(f"max_new_tokens={limits.max_new_tokens} is more than the model has"
                        f" positions: {model.longest}")
    for stop in limits.stop:
      if not stop or stop not in tokenizer.decode(tokenizer.encode(stop)):
        raise ConfigError(f"stop={stop!r}: the model's tokenizer can't make it, so no text would"
                          " ever have it")
    if limits.stop and isinstance(method, Beam):
      raise ConfigError("stop strings go with sampling and greedy search, not with beam search")
    if mesh is not None:
      self.batch_size = sharding.padded_batch(batch_size, mesh)
      self.sharding = sharding.batch_sharding(mesh)

  def prompts(self, texts: Sequence[str], names: Sequence[str] | None = None) -> list[np.ndarray]:
    """The tokens of prompts.

    Args:
      texts: of the prompts.
      names: by which errors call them; None is "prompt 1" and so on.

    Raises:
      DataError: an empty prompt, or one that is too long for the model.
    """
    names = names or [f"prompt {i + 1}" for i in range(len(texts))]
    begin = self.limits.begin_ids
    begin = self.tokenizer.begin_ids() if begin is None else begin
    results = []
    for name, text, ids in zip(names, texts, self.tokenizer.encode_batch(list(texts))):
      if not text or not len(ids):
        raise DataError(f"{name} is empty: there is nothing to go on from")
      results.append(self.check(np.array([*begin, *ids], np.int32), name))
    return results

  def check(self, ids: np.ndarray, name: str) -> np.ndarray:
    """A prompt's tokens [P].

    Raises:
      DataError: they are too many for the model.
    """
    if len(ids) > self.room:
      raise DataError(f"{name} has {len(ids)} tokens: the model has {self.model.longest} positions,"
                      f" and max_new_tokens={self.limits.max_new_tokens} leaves {self.room} for a"
                      " prompt")
    return ids

  def of_messages(self, template: Template, messages: Sequence[Message],
                  name: str = "the conversation") -> np.ndarray:
    """The tokens of a conversation, up to where its next answer begins.

    Raises:
      DataError: it is none, or too long for the model.
    """
    if reason := chat.check(messages, answered=False):
      raise DataError(f"{name} {reason}")
    try:
      text = template(messages, prompt=True)
    except DataError as e:
      raise DataError(f"{name}: {e}") from None
    return self.check(self.tokenizer.encode_marked([text])[0][0], name)

  def __call__(self, prompts: Sequence[np.ndarray],
               seeds: Sequence[int | None] | None = None) -> list[list[Continuation]]:
    """The `method.n_best` continuations of each prompt, in the order given.

    Args:
      prompts: of `prompts`.
      seeds: of each prompt's draws; None is its number after the method's own seed.
    """
    results: list[Any] = [None] * len(prompts)
    keys = self.keys(len(prompts), seeds)
    for group in batching.groups([len(p) for p in prompts], self.batch_size):
      *_, last = self.run([prompts[i] for i in group], keys and [keys[i] for i in group],
                          STOP_EVERY if self.limits.stop else None)
      for i, found in zip(group, last):
        results[i] = found
    return results

  def stream(self, prompt: np.ndarray, seed: int | None = None) -> Iterator[str]:
    """The continuation of a prompt, in pieces as they come.

    Raises:
      ConfigError: with beam search, or several continuations: these are known at the end only.
    """
    if isinstance(self.method, Beam) or self.method.n_best > 1:
      raise ConfigError("a stream has one continuation, of greedy search or of a sample")
    told = ""
    for (best,), in self.run([prompt], self.keys(1, [seed]), 1):
      text = best.text[:len(best.text) - self.held_back(best.text)]
      if len(text) > len(told):
        yield text[len(told):]
        told = text
    if len(best.text) > len(told):
      yield best.text[len(told):]

  def held_back(self, text: str) -> int:
    """The number of last characters that may yet change or be part of a stop string."""
    held = len(text) - len(text.rstrip(UNFINISHED))
    for stop in self.limits.stop:
      held = max([held, *(n for n in range(1, len(stop)) if text.endswith(stop[:n]))])
    return held

  def keys(self, number: int, seeds: Sequence[int | None] | None) -> list[jax.Array] | None:
    """A random key for each prompt; None where nothing is drawn."""
    if isinstance(self.method, Beam) or not self.method.temperature:
      return None
    seeds = seeds or [None] * number
    own = jax.random.key(self.method.seed)
    return [jax.random.fold_in(own, i) if seed is None else jax.random.key(seed)
            for i, seed in enumerate(seeds)]

  def run(self, prompts: Sequence[np.ndarray], keys: Sequence[jax.Array] | None,
          every: int | None) -> Iterator[list[list[Continuation]]]:
    """The continuations of up to a batch of prompts, every so many tokens and at the end."""
    limit = self.limits.max_new_tokens
    carry = self.begin(prompts, keys)
    index, going = 0, True
    for length in cache_lengths(limit, carry.state.prompt):
      carry = grow(length, carry)
      end = length if length == limit else length - 1  # a step writes the place behind its own
      while index < end and going:
        until = end if every is None else min(end, index + every)
        carry = go_on(self.model, self.method, self.ends, self.apart, carry, jnp.array(until))
        index, going = until, not processes.to_host(self.method.done(carry)).all()
        if every is not None:
          found, stopped = self.read(prompts, carry)
          if stopped.any():
            carry = carry._replace(ended=carry.ended | jnp.asarray(stopped))
            going = not processes.to_host(self.method.done(carry)).all()
          yield found
    yield self.read(prompts, carry)[0]

  def begin(self, prompts: Sequence[np.ndarray], keys: Sequence[jax.Array] | None) -> Any:
    """The carry behind the prompts of a batch."""
    size = self.batch_size
    if self.sharding is None:
      size = min(size, 1 << (len(prompts) - 1).bit_length())
    length = batching.bucket(max(map(len, prompts)), self.room, least=32, steps=4)
    rows = [*prompts, *[prompts[0][:1]] * (size - len(prompts))]
    batch = {"prompt_lengths": np.array([len(row) for row in rows], np.int32),
             "present": np.arange(size) < len(prompts)}
    if self.sharding is None:
      batch |= packed(rows, length, self.ends.pad_id)
    else:
      batch["prompt"] = batching.pad("text", rows, size, length, pad_id=self.ends.pad_id)["text"]
      batch = sharding.spread(batch, size, self.sharding)
    if keys is not None:
      keys = jnp.stack([*keys, *[keys[0]] * (size - len(prompts))])
    return prefill(self.model, self.method, self.limits.max_new_tokens, self.ends,
                   params=self.apart, batch={}, keys=keys, **batch)

  def read(self, prompts: Sequence[np.ndarray],
           carry: Any) -> tuple[list[list[Continuation]], np.ndarray]:
    """The continuations so far, and which of them [B, n] a stop string ends."""
    decoded = processes.to_host(self.method.result(carry))
    log_probs = getattr(carry, "log_probs", None)
    if log_probs is not None:
      log_probs = processes.to_host(log_probs)
    made = int(carry.index)
    stopped = np.zeros(decoded.scores.shape, bool)
    results: list[list[Continuation]] = [[] for _ in prompts]
    for b, prompt in enumerate(prompts):
      for n, score in enumerate(decoded.scores[b]):
        ids = decoded.tokens[b, n, :made]
        end = next(iter(np.flatnonzero(np.isin(ids, self.ends.ids))), made)
        probs = None if log_probs is None else log_probs[b, n, :end + 1]
        found = Continuation(self.behind(prompt, ids[:end]), tuple(ids[:end].tolist()),
                             float(score), None if probs is None else tuple(probs.tolist()))
        cut = self.cut(prompt, found)
        stopped[b, n] = cut is not found
        results[b].append(cut)
    return results, stopped

  def cut(self, prompt: np.ndarray, found: Continuation) -> Continuation:
    """The same up to the first stop string, and to the token that completes it."""
    places = [place for stop in self.limits.stop if (place := found.text.find(stop)) >= 0]
    if not places:
      return found
    tokens = next(part for n in range(1, len(found.tokens) + 1) if any(
        stop in self.behind(prompt, part := found.tokens[:n]) for stop in self.limits.stop))
    log_probs = found.log_probs[:len(tokens)]
    return Continuation(found.text[:min(places)], tokens, sum(log_probs), log_probs)

  def behind(self, prompt: np.ndarray, ids: Sequence[int]) -> str:
    """The text of tokens as it stands behind the prompt's."""
    whole, before = self.tokenizer.decode([*prompt, *ids]), self.tokenizer.decode(prompt)
    return whole[len(before):] if whole.startswith(before) else self.tokenizer.decode(ids)


def packed(prompts: Sequence[np.ndarray], length: int, pad_id: int) -> dict[str, np.ndarray]:
  """Prompts of B texts in as few rows of a length as they fit into, the longest first.

  Returns:
    `prompt [r, length]`, of few r, so that there are few shapes; and `prompt_starts [B]` among the
    tokens of all rows.
  """
  order = sorted(range(len(prompts)), key=lambda i: -len(prompts[i]))
  layout = Pack(("text",), (length,), max_segments=len(prompts), open_rows=len(prompts))
  plan = layout.plan(np.array([[len(prompts[i])] for i in order]))
  number = batching.bucket(len(plan), len(prompts), least=1, steps=8)
  rows = np.full((number, length), pad_id, np.int32)
  starts = np.zeros(len(prompts), np.int32)
  for r, row in enumerate(plan):
    at = 0
    for i in (order[n] for n in row):
      rows[r, at:at + len(prompts[i])] = prompts[i]
      starts[i] = r * length + at
      at += len(prompts[i])
  return {"prompt": rows, "prompt_starts": starts}
