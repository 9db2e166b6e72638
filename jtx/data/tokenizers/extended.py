"""More tokens for a trained vocabulary, learned on texts of a domain; and what two have in common.

All ids stay what they are. New tokens are pairs of those that the vocabulary has, joined most
frequent first, as byte-pair encoding goes on (Sennrich et al. 2016, section 3.2).
"""

import collections
import heapq
import json
from typing import Any, Iterable, Iterator, NamedTuple

import tokenizers as hf

from jtx.data.tokenizers import declared
from jtx.data.tokenizers.huggingface import HuggingFace
from jtx.data.tokenizers.tokenizer import Tokenizer
from jtx.errors import ConfigError, DataError

KINDS = ("WordPiece", "BPE")
LEAST = 2  # occurrences of a new token in the texts


class Extended(NamedTuple):
  """A tokenizer with more tokens than another."""
  tokenizer: Tokenizer
  first: int  # id of the first new token
  pieces: tuple[tuple[int, ...], ...]  # ids that each new token was before


class Overlap(NamedTuple):
  """What two vocabularies have in common, special tokens left out."""
  first: int  # tokens of one
  second: int  # of the other
  shared: int  # of both

  @property
  def share(self) -> float:
    """Of the tokens of the smaller one, those that both have."""
    return self.shared / max(min(self.first, self.second), 1)


def extend(tokenizer: Tokenizer, texts: Iterable[str], size: int) -> Extended:
  """A tokenizer with up to `size` more tokens, which are frequent in texts.

  Args:
    tokenizer: of WordPiece or byte-pair encoding.
    texts: of the domain.
    size: tokens to add, at most.

  Raises:
    ConfigError: a tokenizer of another kind.
    DataError: the texts have no two neighbouring pieces twice.
  """
  content = tokenizer.model()
  model = content["model"]
  if model["type"] not in KINDS:
    raise ConfigError(f"a tokenizer of {model['type']} can't get more tokens: its pieces have"
                      f" probabilities, which sum to one; only one of {' or '.join(KINDS)} can")
  backend = hf.Tokenizer.from_str(json.dumps(content))
  prefix = model["continuing_subword_prefix"] or ""
  vocab, first = backend.get_vocab(), 1 + max(backend.get_vocab().values())
  pieces: dict[str, tuple[int, ...]] = {name: (i,) for name, i in vocab.items()}
  merges = []
  for a, b in _frequent_pairs(_split_words(backend, texts, model["unk_token"]), prefix):
    if len(merges) == size:
      break
    if (name := a + b.removeprefix(prefix)) in pieces:
      continue
    pieces[name] = pieces[a] + pieces[b]
    merges.append((a, b))
    model["vocab"][name] = first + len(merges) - 1
  if not merges:
    raise DataError("the texts have no two pieces of a word beside each other more than once, so no"
                    " token can be added")
  if "merges" in model:
    model["merges"] += [list(pair) for pair in merges]
  specials = [tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id]
  roles = tokenizer.roles or declared.guessed_roles(backend, specials)
  new = HuggingFace(content, specials, roles, tokenizer.chat_template, ends=tokenizer.has_ends,
                    truncation_side=tokenizer.truncation_side)
  return Extended(new, first, tuple(list(pieces.values())[len(vocab):]))


def _split_words(backend: hf.Tokenizer, texts: Iterable[str], unknown: str | None,
                 ) -> dict[tuple[str, ...], int]:
  """How often each word is in the texts, by its pieces; those with unknown pieces are left out."""
  counts: collections.Counter[str] = collections.Counter()
  for text in texts:
    if backend.normalizer is not None:
      text = backend.normalizer.normalize_str(text)
    split = [(text, None)] if backend.pre_tokenizer is None else (
        backend.pre_tokenizer.pre_tokenize_str(text))
    counts.update(word for word, _ in split)
  words: dict[tuple[str, ...], int] = collections.defaultdict(int)
  for word, count in counts.items():
    found = tuple(token.value for token in backend.model.tokenize(word))
    if len(found) > 1 and unknown not in found:
      words[found] += count
  return words


def _frequent_pairs(words: dict[tuple[str, ...], int], prefix: str) -> Iterator[tuple[str, str]]:
  """Neighbouring pieces, most frequent first; each is joined in the words after it was given."""
  split, counts = [list(word) for word in words], list(words.values())
  number: collections.Counter[tuple[str, str]] = collections.Counter()
  places: dict[tuple[str, str], set[int]] = collections.defaultdict(set)
  for i, word in enumerate(split):
    for pair in zip(word, word[1:]):
      number[pair] += counts[i]
      places[pair].add(i)
  heap = [(-n, pair) for pair, n in number.items()]
  heapq.heapify(heap)
  while heap:
    minus, pair = heapq.heappop(heap)
    if -minus != number[pair] or -minus < LEAST:
      continue  # the count is an older one
    yield pair
    changed = set()
    for i in places.pop(pair):
      old, split[i] = split[i], _joined(split[i], pair, prefix)
      for sign, word in ((-1, old), (1, split[i])):
        for other in zip(word, word[1:]):
          number[other] += sign * counts[i]
          places[other].add(i)
          changed.add(other)
    del number[pair]
    for other in changed - {pair}:
      heapq.heappush(heap, (-number[other], other))


def _joined(word: list[str], pair: tuple[str, str], prefix: str) -> list[str]:
  result: list[str] = []
  for piece in word:
    if result and (result[-1], piece) == pair:
      result[-1] += piece.removeprefix(prefix)
    else:
      result.append(piece)
  return result


def overlap(first: Tokenizer, second: Tokenizer) -> Overlap:
  """What the vocabularies of two tokenizers have in common (Beltagy et al. 2019, section 3).

  Raises:
    ConfigError: they are of different kinds, which write their pieces in different ways.
  """
  kinds = [_kind(t) for t in (first, second)]
  if kinds[0] != kinds[1]:
    raise ConfigError(f"vocabularies of {kinds[0]} and of {kinds[1]} can't be compared: they write"
                      " pieces in different ways")
  a, b = (set(t.tokens(t.plain_ids())) for t in (first, second))
  return Overlap(len(a), len(b), len(a & b))


def _kind(tokenizer: Tokenizer) -> str:
  model: dict[str, Any] = tokenizer.model()
  return f"{model['model']['type']} of bytes" if "ByteLevel" in json.dumps(
      model["pre_tokenizer"]) else model["model"]["type"]
