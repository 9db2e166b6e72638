"""Tokenizers of the `tokenizers` package of Hugging Face."""

import functools
import json
import re
from typing import Any, Iterable, Mapping, Sequence

import numpy as np
import tokenizers as hf

from jtx.data.tokenizers import declared
from jtx.data.tokenizers.encodings import before_text, found_in_texts, has_template, told
from jtx.data.tokenizers.tokenizer import SPECIALS, Tokenizer


SENTINEL = re.compile(r"\u2581?<extra_id_(\d+)>")  # of T5; mT5 writes it as a word


class HuggingFace(Tokenizer):
  """A tokenizer of the `tokenizers` package.

  The name of a special token in a text is the token where it has no role, as `transformers` has
  it; the names of those that have one are text.

  Args:
    model: the content of its tokenizer.json, or the tokenizer, which is then this one's own.
    specials: the ids of pad, bos, eos and unk.
    roles: the id of each role of `declared.ROLES`; None is what `specials` and names tell, and
      that all special tokens have a role.
    chat_template: in Jinja; "" is none.
    ends: whether a first and a last token stand around texts where its template adds nothing.
    truncation_side: at which end `encode_texts` cuts texts.
  """

  kind = "huggingface"

  def __init__(self, model: dict[str, Any] | hf.Tokenizer, specials: Sequence[int],
               roles: Mapping[str, int] | None = None, chat_template: str = "", *,
               ends: bool = True, truncation_side: str = "right"):
    is_made = isinstance(model, hf.Tokenizer)
    self._backend = model if is_made else hf.Tokenizer.from_str(json.dumps(model))
    self._backend.no_padding()
    self._backend.no_truncation()
    # The name of a token with a role in a text is text ...
    self._backend.encode_special_tokens = True
    self.pad_id, self.bos_id, self.eos_id, self.unk_id = specials
    self.chat_template, self.has_ends = chat_template, ends
    self.truncation_side = truncation_side
    self.vocab_size = self._backend.get_vocab_size()
    # ... and unknown text to a model that has the name among its pieces, as Unigram may.
    self._text_id = np.arange(1 + max(self._backend.get_vocab().values()), dtype=np.int32)
    found = self._backend.get_added_tokens_decoder()
    self.special_ids = frozenset(i for i, t in found.items() if t.special)
    guessed = declared.guessed_roles(self._backend, list(specials))
    self.roles = guessed if roles is None else {**roles}
    self.mask_id = self.roles.get("mask")
    if roles is not None:
      self.named_ids = self.special_ids - set(self.roles.values())
    self._told = bool(self.named_ids) or self.roles != guessed
    self._text_id[[self.pad_id, self.bos_id, self.eos_id,
                   *(self.special_ids - self.named_ids)]] = self.unk_id
    self._reader = self._backend
    if self.named_ids:
      self._reader = hf.Tokenizer.from_str(json.dumps(found_in_texts(self.model(), self.named_ids)))
      self._reader.encode_special_tokens = True

  @functools.cached_property
  def sentinel_ids(self) -> Sequence[int]:
    found = {int(match[1]): i for name, i in self._backend.get_vocab().items()
             if (match := SENTINEL.fullmatch(name))}
    return tuple(found[number] for number in sorted(found))

  def begin_ids(self) -> tuple[int, ...]:
    """Those of the template of its file; without one, <bos> of a tokenizer that jtx trained."""
    if not self._backend.num_special_tokens_to_add(False):
      if has_template(self.model()):
        return ()
      return (self.bos_id,) if self._backend.id_to_token(self.bos_id) == SPECIALS[1] else ()
    return before_text(self._backend)

  def text_ids(self) -> np.ndarray:
    return self._text_id

  def model(self) -> dict[str, Any]:
    return json.loads(self._backend.to_str())

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    with told(texts):
      encodings = self._reader.encode_batch_fast(list(texts), add_special_tokens=False)
    return [self._text_id[np.array(e.ids, np.int32)] for e in encodings]

  def decode(self, ids: Iterable[int]) -> str:
    return self._backend.decode([int(i) for i in ids])

  def decode_batch(self, batch: Iterable[Iterable[int]]) -> list[str]:
    return self._backend.decode_batch([[int(i) for i in ids] for ids in batch])

  def tokens(self, ids: Iterable[int]) -> list[str]:
    return [self._backend.id_to_token(int(i)) for i in ids]

  def state(self) -> dict[str, Any]:
    more = {"roles": self.roles} if self._told else {}
    if self.chat_template:
      more["chat_template"] = self.chat_template
    more |= {} if self.has_ends else {"ends": False}
    more |= {"truncation_side": "left"} if self.truncation_side == "left" else {}
    return {"model": self.model(),
            "specials": [self.pad_id, self.bos_id, self.eos_id, self.unk_id], **more}
