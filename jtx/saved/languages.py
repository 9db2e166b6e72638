"""Languages of a translator that has many: mBART's, by the codes among its tokenizer's tokens.

A source has its code where the tokenizer's template has one: behind its end (Liu et al. 2020), or
before its first token (mBART-50; Tang et al. 2020). A target begins behind its code, or with it.
"""

import dataclasses
import re
from typing import Any, Mapping

from jtx.data.tokenizers.huggingface import HuggingFace
from jtx.data.tokenizers.tokenizer import Tokenizer
from jtx.errors import ConfigError, nearest
from jtx.inference.translate import Writing

CODE = re.compile(r"[a-z]{2,3}_([A-Z]{2}|[A-Z][a-z]{3})")  # such as de_DE


def codes(tokenizer: Tokenizer) -> dict[str, int]:
  """The ids of the codes among the special tokens."""
  ids = sorted(tokenizer.special_ids)
  return {name: i for name, i in zip(tokenizer.tokens(ids), ids) if CODE.fullmatch(name)}


def between(tokenizers: Mapping[str, Tokenizer], writing: Writing | None, source: str,
            target: str) -> tuple[Mapping[str, Tokenizer], Writing | None]:
  """Tokenizers of `src` and `tgt`, and how a model writes, from one language to another.

  Args:
    tokenizers: of a folder.
    writing: as the folder tells it.
    source: code of the sources; "" is that of the tokenizer's template.
    target: code of the targets; "" is what `writing` has.

  Raises:
    ConfigError: there are no such codes.
  """
  if not source and not target:
    return tokenizers, writing
  tokenizer = next(iter(tokenizers.values()))
  known = codes(tokenizer) if writing is not None and writing.by_template else {}
  for flag, code in (("source_language", source), ("target_language", target)):
    if code and not known:
      raise ConfigError(f"{flag}={code!r}: the tokenizer of this folder has no codes of languages")
    if code and code not in known:
      raise ConfigError(f"{flag}={code!r}: {nearest(code, known)}")
  sides = {"src": in_language(tokenizer, source, known),
           "tgt": in_language(tokenizer, target, known)}
  if not target:
    return sides, writing
  begins = {"start": known[target]} if writing.start in known.values() else {}
  rules = dataclasses.replace(writing.ends.rules, **begins or {"forced_first": known[target]})
  return sides, writing._replace(**begins, ends=writing.ends._replace(rules=rules))


def in_language(tokenizer: HuggingFace, code: str, known: Mapping[str, int]) -> HuggingFace:
  """The tokenizer with another code in its template; "" changes nothing.

  Raises:
    ConfigError: its template has none.
  """
  if not code:
    return tokenizer
  state = tokenizer.state()
  template = state["model"].get("post_processor") or {}
  special = template.get("special_tokens", {})
  old = [name for name in special if name in known]
  if len(old) != 1:
    raise ConfigError(f"the template of the tokenizer has {len(old)} codes of languages, in whose"
                      f" place {code} would be; it must have one")
  put = lambda name: code if name == old[0] else name
  parts = {part: [_renamed(token, put) for token in template[part]] for part in ("single", "pair")}
  tokens = {put(name): value if name != old[0] else dict(id=code, ids=[known[code]], tokens=[code])
            for name, value in special.items()}
  state["model"]["post_processor"] = {**template, **parts, "special_tokens": tokens}
  return HuggingFace(**state)


def _renamed(token: Mapping[str, Any], put) -> dict[str, Any]:
  """A token of a template, with another name where it is a special one."""
  return {kind: {**value, "id": put(value["id"])} if kind == "SpecialToken" else value
          for kind, value in token.items()}
