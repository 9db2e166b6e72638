"""Special tokens of a Hugging Face tokenizer: those that its folder declares, others by name.

tokenizer_config.json is read; where it has no `added_tokens_decoder`, special_tokens_map.json and
added_tokens.json too, as `transformers` does.
"""

import os
from typing import Any, Mapping, NamedTuple, Set

import tokenizers as hf

from jtx import storage
from jtx.config_files import read_json
from jtx.data.tokenizers.encodings import MASKS
from jtx.errors import ConfigError, DataError

CONFIG, MAP, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
TEMPLATE = "chat_template.jinja"
# What tokenizers call the tokens of each role, best first, where nothing is declared.
NAMES = {
    "pad": ("<pad>", "[PAD]", "</s>", "<|endoftext|>", "<unk>"),  # GPT-1 has no other than <unk>
    # Where nothing begins a text, T5's decoder begins with padding.
    "bos": ("<bos>", "<s>", "[CLS]", "<|endoftext|>", "<pad>", "<unk>"),
    "eos": ("<eos>", "</s>", "[SEP]", "<|endoftext|>", "<unk>"),
    "unk": ("<unk>", "[UNK]", "<|endoftext|>"),
}
LIKE = {"bos": "cls", "eos": "sep"}  # the role that stands in for another
AROUND = ("start", "delimiter", "extract")  # of tokens that fine-tuning adds: see `delimited`
ROLES = (*NAMES, *LIKE.values(), "mask", *AROUND)
EXTRA = ("extra_special_tokens", "additional_special_tokens")
FLAGS = ("lstrip", "rstrip", "normalized", "single_word", "special")


class Declared(NamedTuple):
  """What a folder says of its tokenizer."""
  config: Mapping[str, Any] = {}  # the content of tokenizer_config.json and special_tokens_map.json
  roles: Mapping[str, str] = {}  # role -> the token's name
  listed: tuple[hf.AddedToken, ...] = ()  # added tokens, with their flags
  named: tuple[hf.AddedToken, ...] = ()  # tokens that are added unless they are there


def read(folder: str) -> Declared:
  """What the files beside a tokenizer.json or vocab.txt declare.

  Raises:
    DataError: they can't be used.
  """
  config = read_object(os.path.join(folder, CONFIG))
  where = os.path.join(folder, CONFIG)
  older = {}
  if "added_tokens_decoder" not in config:
    config |= read_object(os.path.join(folder, MAP))
    older = read_object(os.path.join(folder, ADDED))
  found = {role: _token(where, config[f"{role}_token"]) for role in ROLES
           if config.get(f"{role}_token") is not None}
  extra = next((config[key] for key in EXTRA if config.get(key)), [])
  if not isinstance(extra, (list, dict)):
    raise DataError(f"{where}: {extra!r} is no list of special tokens")
  extra = [*(value for key, value in config.items() if key.endswith("_token")
             and key.removesuffix("_token") not in ROLES and isinstance(value, str)),
           *(extra.values() if isinstance(extra, dict) else extra)]
  extra = [_token(where, token) for token in extra]
  special = {token.content for token in (*found.values(), *extra)}
  in_order = lambda ids: [ids[i] for i in sorted(ids)]
  listed = in_order({_number(where, i): _token(where, token, special) for i, token in
                     _mapping(where, config.get("added_tokens_decoder")).items()})
  older = in_order({_number(where, i): _token(where, name, special) for name, i in older.items()})
  return Declared(config, {role: token.content for role, token in found.items()},
                  tuple(listed), (*older, *found.values(), *extra))


def add(backend: hf.Tokenizer, declared: Declared) -> None:
  """Adds the declared tokens that a tokenizer lacks, with the ids that `transformers` gives them.

  Of one that it has, the flags become those that are listed.
  """
  known = {token.content: repr(token) for token in backend.get_added_tokens_decoder().values()}
  for token in declared.listed:
    if known.get(token.content) != repr(token):
      known[token.content] = repr(token)
      backend.add_tokens([token])
  for token in declared.named:
    if token.content not in known:
      known[token.content] = repr(token)
      backend.add_tokens([token])


def roles(backend: hf.Tokenizer, declared: Declared, path: str) -> dict[str, int]:
  """The id of each role; a mask is not in all vocabularies.

  Args:
    backend: with all declared tokens.
    declared: of its folder.
    path: of the tokenizer's file, for errors.

  Raises:
    DataError: nothing says which token has a role, and none has a name that tells it.
  """
  found = {role: backend.token_to_id(name) for role, name in declared.roles.items()}
  for role, names in NAMES.items():
    if role in LIKE and role not in found and LIKE[role] in found:
      found[role] = found[LIKE[role]]
    if role not in found:
      ids = [i for i in map(backend.token_to_id, names) if i is not None]
      if not ids:
        raise DataError(f"{path}: its vocabulary has none of the special tokens {', '.join(names)},"
                        f" and no {CONFIG} beside it declares its {role}_token")
      found[role] = ids[0]
  return guessed_roles(backend, [found[role] for role in NAMES]) | found


def guessed_roles(backend: hf.Tokenizer, specials: list[int]) -> dict[str, int]:
  """The roles of a tokenizer of which no more is known than the ids of pad, bos, eos and unk."""
  result = dict(zip(NAMES, map(int, specials)))
  result |= {role: result[other] for other, role in LIKE.items()}
  added = {token.content: i for i, token in backend.get_added_tokens_decoder().items()}
  return result | {"mask": added[name] for name in reversed(MASKS) if name in added}


def chat_template(declared: Declared, folder: str) -> str:
  """The chat template of a folder: its own file, or what is declared; "" where there is none.

  Raises:
    DataError: it is no text.
  """
  path = os.path.join(folder, TEMPLATE)
  if storage.exists(path):
    try:
      return storage.read_text(path)
    except (OSError, UnicodeDecodeError) as e:
      raise DataError(f"{path}: can't be read ({e})") from e
  found = declared.config.get("chat_template") or ""
  if isinstance(found, list):  # of named ones
    found = next((t.get("template") for t in found if isinstance(t, dict)
                  and t.get("name") == "default"), "")
  if not isinstance(found, str):
    raise DataError(f"{os.path.join(folder, CONFIG)}: its chat_template is neither a text nor a"
                    " list of named ones")
  return found


def truncation_side(declared: Declared, folder: str) -> str:
  """At which end texts are cut that are too long, "right" where nothing is declared.

  Raises:
    DataError: it is neither "left" nor "right".
  """
  side = declared.config.get("truncation_side") or "right"
  if side not in ("left", "right"):
    raise DataError(f"{os.path.join(folder, CONFIG)}: truncation_side is {side!r}; valid are"
                    " 'left' and 'right'")
  return side


def read_object(path: str) -> dict[str, Any]:
  """The JSON object of a file; {} where there is none.

  Raises:
    DataError: it is no JSON object.
  """
  try:
    return read_json(path, missing="") if storage.exists(path) else {}
  except ConfigError as e:
    raise DataError(str(e)) from e


def _mapping(where: str, value: Any) -> dict[str, Any]:
  if not isinstance(value or {}, dict):
    raise DataError(f"{where}: added_tokens_decoder is not an object of tokens by their ids")
  return value or {}


def _number(where: str, value: Any) -> int:
  try:
    return int(value)
  except (TypeError, ValueError):
    raise DataError(f"{where}: an added token has the id {value!r}, which is no number") from None


def _token(where: str, token: Any, special: Set[str] | None = None) -> hf.AddedToken:
  """A token of its name, or of an object with its flags.

  Args:
    where: the file, for errors.
    token: as JSON has it.
    special: names of special tokens; others are what their flags say. None: it is special.
  """
  flags = token if isinstance(token, dict) else {"content": token}
  content = flags.get("content")
  given = {key: flags[key] for key in FLAGS if key in flags}
  if not isinstance(content, str) or not content or not all(
      isinstance(value, bool) for value in given.values()):
    raise DataError(f"{where}: {token!r} is no token, which is its text, or an object with its"
                    " content and flags")
  if special is None or content in special:
    given["special"] = True
  return hf.AddedToken(content, **given)
