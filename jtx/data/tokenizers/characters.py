"""Characters as tokens."""

import json
import re
from typing import Any, Iterable, Sequence

import numpy as np
import tokenizers as hf

from jtx.data.tokenizers.encodings import told
from jtx.data.tokenizers.tokenizer import SPECIALS, Tokenizer
from jtx.errors import DataError

SHOWN = 5  # unknown characters that an error names


class UnknownCharacters(DataError):
  """A text has characters that a vocabulary lacks."""


class Characters(Tokenizer):
  """Characters: id = place in `characters` + 4.

  Args:
    characters: the vocabulary, each once.
    unknown: others are <unk>; else a text that has one is an error.
  """

  kind = "characters"

  def __init__(self, characters: str, unknown: bool = False):
    self.characters, self.unknown = characters, unknown
    codes = _codes(characters)
    self._order = np.argsort(codes)
    self._sorted = codes[self._order]
    self.vocab_size = len(SPECIALS) + len(characters)

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    """The ids of each text, `[T]` int32.

    Raises:
      UnknownCharacters: a text has some, and `unknown` is not set.
    """
    with told(texts):
      return [self._encode(text) for text in texts]

  def _encode(self, text: str) -> np.ndarray:
    codes = _codes(text)
    at = np.minimum(np.searchsorted(self._sorted, codes), len(self._sorted) - 1)
    known = self._sorted[at] == codes
    if not known.all() and not self.unknown:
      found = sorted({text[i] for i in np.flatnonzero(~known)})
      names = ", ".join(f"{c!r} (U+{ord(c):04X})" for c in found[:SHOWN])
      more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
      raise UnknownCharacters(f"has characters that the tokenizer does not know: {names}{more}; it"
                              " takes them as <unk> with tokenizer.kind.unknown=True")
    return np.where(known, self._order[at] + len(SPECIALS), self.unk_id).astype(np.int32)

  def encode_marked(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
    found = super().encode_marked(texts)
    if not self.unknown:
      names = "|".join(map(re.escape, SPECIALS))
      for text in texts:
        self._encode(re.sub(names, "", text))  # raises where a character is unknown
    return found

  def decode(self, ids: Iterable[int]) -> str:
    return "".join(self.characters[i - len(SPECIALS)] for i in ids if i >= len(SPECIALS))

  def tokens(self, ids: Iterable[int]) -> list[str]:
    low = len(SPECIALS)
    return [SPECIALS[i] if i < low else self.characters[i - low] for i in ids]

  def model(self) -> dict[str, Any]:
    """BPE without merges."""
    pieces = {name: i for i, name in enumerate([*SPECIALS, *self.characters])}
    backend = hf.Tokenizer(hf.models.BPE(vocab=pieces, merges=[], unk_token=SPECIALS[self.unk_id]))
    backend.decoder = hf.decoders.Fuse()
    backend.add_special_tokens(list(SPECIALS))
    return json.loads(backend.to_str())

  def state(self) -> dict[str, Any]:
    return {"characters": self.characters, "unknown": self.unknown}


def _codes(text: str) -> np.ndarray:
  """The code points of a text, [T]; of half a surrogate pair there is none."""
  return np.frombuffer(text.encode("utf-32-le"), np.uint32)
