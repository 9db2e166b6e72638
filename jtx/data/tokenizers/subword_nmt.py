"""Byte-pair encoding with the merge files of subword-nmt."""

import functools
from typing import Any, Iterable, Sequence

import numpy as np

from jtx.data.tokenizers.tokenizer import SPECIALS, Tokenizer


class SubwordNmt(Tokenizer):
  """subword-nmt's BPE: `corn@@ ers`, words split at spaces.

  Sennrich et al. 2016, "Neural Machine Translation of Rare Words with Subword Units",
  arXiv:1508.07909, section 3.2; the merge file's version 0.2, where the end of a word is
  part of its last character, and 0.1, where it is a symbol of its own.

  Args:
    merges: the lines of the merge file, best first, without the version line.
    pieces: the vocabulary without the specials; other pieces are <unk>.
    version: 1 or 2, for a merge file of version 0.1 or 0.2.
  """

  kind = "subword_nmt"

  def __init__(self, merges: Sequence[str], pieces: Sequence[str], version: int = 2):
    self._merges, self._pieces, self._version = list(merges), list(pieces), version
    # The first of equal merges counts.
    self._rank = {tuple(m.split(" ")): i for i, m in reversed(list(enumerate(merges)))}
    self._names = [*SPECIALS, *pieces]
    self._id = {piece: i for i, piece in enumerate(pieces, len(SPECIALS))}
    self.vocab_size = len(self._names)
    self._split_word = functools.lru_cache(maxsize=1 << 17)(self._split_word_uncached)

  def segment(self, text: str) -> list[str]:
    """The pieces of `text`; all but a word's last end in "@@"."""
    return [piece for word in text.split(" ") if word for piece in self._split_word(word)]

  def _split_word_uncached(self, word: str) -> tuple[str, ...]:
    end = "</w>"
    parts = [*word[:-1], word[-1] + end] if self._version == 2 else [*word, end]
    while len(parts) > 1:
      best = min(zip(parts, parts[1:]), key=lambda pair: self._rank.get(pair, len(self._rank)))
      if best not in self._rank:
        break
      merged, i = [], 0
      while i < len(parts):
        if tuple(parts[i:i + 2]) == best:
          merged.append(parts[i] + parts[i + 1])
          i += 2
        else:
          merged.append(parts[i])
          i += 1
      parts = merged
    parts = parts[:-1] if parts[-1] == end else [*parts[:-1], parts[-1].removesuffix(end)]
    return (*(p + "@@" for p in parts[:-1]), parts[-1])

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    return [np.array([self._id.get(p, self.unk_id) for p in self.segment(t)], np.int32)
            for t in texts]

  def decode(self, ids: Iterable[int]) -> str:
    pieces = [self._names[i] for i in ids if i >= len(SPECIALS)]
    return (" ".join(pieces) + " ").replace("@@ ", "").rstrip(" ")

  def tokens(self, ids: Iterable[int]) -> list[str]:
    return [self._names[i] for i in ids]

  def state(self) -> dict[str, Any]:
    return {"merges": self._merges, "pieces": self._pieces, "version": self._version}
