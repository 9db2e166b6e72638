"""Random spans of tokens, and what stands in a text for those that are hidden.

Masks are bool [T], True for hidden tokens ("noise"); a span is a longest run of them.
"""

from typing import Sequence

import numpy as np

from jtx.errors import ConfigError


def counts(length: int, rate: float, mean_length: float) -> tuple[int, int]:
  """How many of `length` tokens are hidden, and in how many spans.

  Raffel et al. 2020, section 3.3.4; numbers are rounded as the authors' code does.
  """
  length = max(length, 2)
  noise = min(max(round(length * rate), 1), length - 1)
  return noise, min(max(round(noise / mean_length), 1), length - noise)


def span_lengths(inputs: int, rate: float = 0.15, mean_length: float = 3.0) -> tuple[int, int]:
  """Tokens of a text whose inputs fill a row of `inputs` tokens, and a row for its targets.

  An end token counts to both. At rates up to a half the targets' row is not the longer one: a text
  is a token shorter where it would be, as in the authors' code.

  Raises:
    ConfigError: the row is too short for any text.
  """
  def sizes(length: int) -> tuple[int, int]:
    noise, spans = counts(length, rate, mean_length)
    return length - noise + spans + 1, noise + spans + 1

  length = 1
  while sizes(length + 1)[0] <= inputs:
    length += 1
  if length == 1:
    raise ConfigError(f"inputs={inputs}: no text is short enough for rows of so few tokens")
  targets = sizes(length)[1]
  if rate <= 0.5 and targets > inputs:
    length, targets = length - 1, targets - 1
  return length, targets


def parts(total: int, number: int, rng: np.random.Generator) -> np.ndarray:
  """[number] positive sizes that add up to `total`; every such list has the same probability."""
  cuts = np.sort(rng.choice(total - 1, number - 1, replace=False)) + 1
  return np.diff(cuts, prepend=0, append=total)


def random_spans(length: int, rate: float, mean_length: float,
                 rng: np.random.Generator) -> np.ndarray:
  """A mask that begins with kept tokens, ends in hidden ones, and has numbers by `counts`."""
  noise, spans = counts(length, rate, mean_length)
  kept = max(length, 2) - noise
  sizes = np.stack([parts(kept, spans, rng), parts(noise, spans, rng)], 1).reshape(-1)
  return np.repeat(np.arange(2 * spans) % 2 == 1, sizes)[:length]


def random_tokens(length: int, rate: float, rng: np.random.Generator) -> np.ndarray:
  """A mask of as many tokens as `counts` says, all sets of which are equally likely."""
  mask = np.zeros(length, bool)
  mask[rng.choice(length, min(counts(length, rate, 1.0)[0], length), replace=False)] = True
  return mask


def begins(mask: np.ndarray) -> np.ndarray:
  """[T] bool: where spans begin."""
  return mask & ~np.concatenate([[False], mask[:-1]])


def hide_spans(tokens: np.ndarray, mask: np.ndarray, sentinels: Sequence[int]) -> np.ndarray:
  """The tokens, in which the i-th span is the i-th sentinel.

  Raises:
    ConfigError: there are fewer sentinels than spans.
  """
  first = begins(mask)
  result = tokens.copy()
  result[first] = _first(sentinels, first.sum())
  return result[~mask | first]


def hidden_spans(tokens: np.ndarray, mask: np.ndarray, sentinels: Sequence[int]) -> np.ndarray:
  """The hidden tokens, each span behind its sentinel; see `hide_spans`."""
  first = begins(mask)
  places = np.cumsum(first)[mask] + np.arange(mask.sum())  # a sentinel before each span
  result = np.zeros(mask.sum() + first.sum(), tokens.dtype)
  result[places] = tokens[mask]
  result[places[first[mask]] - 1] = _first(sentinels, first.sum())
  return result


def _first(sentinels: Sequence[int], number: int) -> np.ndarray:
  if number > len(sentinels):
    raise ConfigError(f"{number} spans need as many sentinels, and there are {len(sentinels)}")
  return np.asarray(sentinels[:number])
