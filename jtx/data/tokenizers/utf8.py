"""UTF-8 bytes as tokens."""

import json
from typing import Any, Iterable, Sequence

import numpy as np
import tokenizers as hf

from jtx.data.tokenizers.encodings import told
from jtx.data.tokenizers.tokenizer import SPECIALS, Tokenizer


class Bytes(Tokenizer):
  """UTF-8 bytes (Xue et al. 2022, ByT5, arXiv:2105.13626): id = byte + 4."""

  kind = "bytes"
  vocab_size = len(SPECIALS) + 256

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    with told(texts):
      return [np.frombuffer(t.encode("utf-8"), np.uint8).astype(np.int32) + len(SPECIALS)
              for t in texts]

  def decode(self, ids: Iterable[int]) -> str:
    low = len(SPECIALS)
    return bytes(int(i) - low for i in ids if i >= low).decode("utf-8", errors="replace")

  def tokens(self, ids: Iterable[int]) -> list[str]:
    return [SPECIALS[i] if i < len(SPECIALS) else _byte_name(int(i) - len(SPECIALS)) for i in ids]

  def model(self) -> dict[str, Any]:
    """Byte-level BPE without merges."""
    byte_level = hf.pre_tokenizers.ByteLevel(add_prefix_space=False)
    pieces = {name: i for i, name in enumerate(SPECIALS)}
    for byte in range(256):
      pieces[_byte_level_name(byte)] = byte + len(SPECIALS)
    backend = hf.Tokenizer(hf.models.BPE(vocab=pieces, merges=[]))
    backend.pre_tokenizer = byte_level
    backend.add_special_tokens(list(SPECIALS))
    return json.loads(backend.to_str())

  def state(self) -> dict[str, Any]:
    return {}


def _byte_level_name(byte: int) -> str:
  """The character that GPT-2's byte-level BPE writes for a byte: itself if it can be seen."""
  seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
  if byte in seen:
    return chr(byte)
  return chr(0x100 + sorted(set(range(0x100)) - set(seen)).index(byte))


def _byte_name(byte: int) -> str:
  return chr(byte) if 0x20 < byte < 0x7F else f"0x{byte:02X}"
