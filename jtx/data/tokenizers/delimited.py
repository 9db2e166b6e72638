"""Tokens around and between texts, as GPT's fine-tuning adds them (Radford et al. 2018, 3.3)."""

import json
from typing import Sequence

import tokenizers as hf

from jtx.data.tokenizers import declared, encodings
from jtx.data.tokenizers.huggingface import HuggingFace
from jtx.data.tokenizers.tokenizer import Tokenizer
from jtx.errors import ConfigError


def delimited(tokenizer: Tokenizer, names: Sequence[str]) -> Tokenizer:
  """A tokenizer that encodes a text as START text EXTRACT, a pair as START a DELIMITER b EXTRACT.

  Args:
    tokenizer: of which all ids stay what they are.
    names: of the three tokens; those that it lacks get the next ids. () is the tokenizer itself.

  Raises:
    ConfigError: there are not three, or the kind of tokenizer has no tokenizer.json.
  """
  if not names:
    return tokenizer
  if len(names) != len(declared.AROUND) or not all(names):
    raise ConfigError(f"tokenizer.delimiters={tuple(names)} must name three tokens: before a text,"
                      " between two, and behind the last")
  backend = hf.Tokenizer.from_str(json.dumps(tokenizer.model()))
  backend.add_special_tokens(list(names))
  ids = [backend.token_to_id(name) for name in names]
  backend.post_processor = encodings.template(backend, *ids)
  specials = [tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id]
  roles = tokenizer.roles or declared.guessed_roles(backend, specials)
  return HuggingFace(backend, specials, {**roles, **dict(zip(declared.AROUND, ids))},
                     tokenizer.chat_template, truncation_side=tokenizer.truncation_side)
