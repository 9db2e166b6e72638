"""UTF-8 bytes as tokens."""

import json
from typing import Any, Iterable, Sequence

import numpy as np
import tokenizers as hf

from jtx.data.tokenizers.encodings import told
from jtx.data.tokenizers.tokenizer import SPECIALS, Tokenizer


BYT5_SPECIALS = ("<pad>", "</s>", "<unk>")
BYT5_SIZE = 384  # a round number; what is behind the bytes stands for nothing
UTF8_END = 0xF5  # bytes from here on are in no text


class Bytes(Tokenizer):
  """UTF-8 bytes (Xue et al. 2022, ByT5, arXiv:2105.13626): id = byte + 4.

  Sentinels are the bytes that no text has, from the last one down, as in ByT5.

  Args:
    byt5: the paper's own ids: <pad> 0, which also starts a decoder, </s> 1, <unk> 2, and byte + 3.
  """

  kind = "bytes"

  def __init__(self, byt5: bool = False):
    self.byt5 = byt5
    self.names = BYT5_SPECIALS if byt5 else SPECIALS
    self.low = len(self.names)  # the id of byte 0
    self.vocab_size = BYT5_SIZE if byt5 else self.low + 256
    if byt5:
      self.pad_id, self.bos_id, self.eos_id, self.unk_id = 0, 0, 1, 2
    self.sentinel_ids = range(self.low + 255, self.low + UTF8_END - 1, -1)
    self.special_ids = frozenset(range(self.low + 256, self.vocab_size))

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    with told(texts):
      return [np.frombuffer(t.encode("utf-8"), np.uint8).astype(np.int32) + self.low
              for t in texts]

  def decode(self, ids: Iterable[int]) -> str:
    inside = range(self.low, self.low + 256)
    return bytes(int(i) - self.low for i in ids if int(i) in inside).decode("utf-8",
                                                                          errors="replace")

  def tokens(self, ids: Iterable[int]) -> list[str]:
    return [self._name(int(i)) for i in ids]

  def _name(self, i: int) -> str:
    if i < self.low:
      return self.names[i]
    byte = i - self.low
    return f"<unused_{byte - 256}>" if byte > 255 else _byte_name(byte)

  def model(self) -> dict[str, Any]:
    """Byte-level BPE without merges."""
    byte_level = hf.pre_tokenizers.ByteLevel(add_prefix_space=False)
    unused = [self._name(i) for i in range(self.low + 256, self.vocab_size)]
    pieces = [*self.names, *map(_byte_level_name, range(256)), *unused]
    backend = hf.Tokenizer(hf.models.BPE(vocab={name: i for i, name in enumerate(pieces)},
                                         merges=[]))
    backend.pre_tokenizer = byte_level
    backend.add_special_tokens([*self.names, *unused])
    return json.loads(backend.to_str())

  def state(self) -> dict[str, Any]:
    return {"byt5": True} if self.byt5 else {}


def _byte_level_name(byte: int) -> str:
  """The character that GPT-2's byte-level BPE writes for a byte: itself if it can be seen."""
  seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
  if byte in seen:
    return chr(byte)
  return chr(0x100 + sorted(set(range(0x100)) - set(seen)).index(byte))


def _byte_name(byte: int) -> str:
  return chr(byte) if 0x20 < byte < 0x7F else f"0x{byte:02X}"
