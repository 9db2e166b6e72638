"""Reading tokenizers from files, and those of a run from its folder."""

import json
import os
from typing import Any, Mapping

import tokenizers as hf

from jtx import hub, storage
from jtx.config_files import write_json
from jtx.data.tokenizers import declared, sentencepiece
from jtx.data.tokenizers.characters import Characters
from jtx.data.tokenizers.huggingface import HuggingFace
from jtx.data.tokenizers.subword_nmt import SubwordNmt
from jtx.data.tokenizers.tokenizer import Tokenizer
from jtx.data.tokenizers.utf8 import Bytes
from jtx.errors import DataError

SPARSE = 1_000_000  # ids without a token that any vocabulary may have
TOKENIZER_FILE = "tokenizer.json"  # in a workdir: one object, field -> tokenizer

KINDS = {c.kind: c for c in (HuggingFace, Bytes, Characters, SubwordNmt)}


def from_json(text: str, where: str = "the tokenizer of a run") -> Tokenizer:
  """The tokenizer of which `Tokenizer.to_json` gave this.

  Raises:
    DataError: it is damaged; the sentence begins with `where`.
  """
  try:
    state = storage.parse_json(text)
    return KINDS[state.pop("kind")](**state)
  except Exception as e:  # `tokenizers` raises bare Exceptions
    raise DataError(f"{where}: is damaged ({e})") from e


def read_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
  """The tokenizer of a file: of jtx, of Hugging Face (tokenizer.json), BERT or SentencePiece.

  Args:
    path: the file, or the folder of a tokenizer.json or, without one, of a vocab.txt, a
      spiece.model or a source.spm, or a name of the Hugging Face Hub, of a model that has one of
      these (see `jtx.hub`). A file that ends in .model is of SentencePiece's kind Unigram, as T5
      has it; `extra_ids` of a tokenizer_config.json beside it is the number of its sentinels. One
      that ends in .spm is of that kind, too, and of one side of a Marian; its ids are those of the
      vocab.json beside it. A file that ends in .txt is a vocabulary: a WordPiece a line, the line
      number (from 0) is the id, "##" starts a piece inside a word. Whether it lowercases is set by
      `do_lower_case` in a tokenizer_config.json beside it (`strip_accents` and
      `tokenize_chinese_chars` are read there too); without that key it does unless a piece outside
      of brackets has a capital letter. Special tokens and their roles are those that such a file
      declares; see `jtx.data.tokenizers.declared`. Texts of a tokenizer.json that puts nothing
      around them get a first and a last token, unless `path` is the folder of a model of Hugging
      Face, which then reads texts without.

  Raises:
    DataError: the file is missing, is none of these, or is that of a run with several.
  """
  path = hub.tokenizer_folder(os.fspath(path))
  folder = path if storage.is_folder(path) else None
  if folder is not None:
    path = _file_in(folder)
  if path.endswith(".txt"):
    return _bert(path)
  if path.endswith((".model", ".spm")):
    return _sentencepiece(path)
  text = _read(path)
  try:
    state = storage.parse_json(text)
  except ValueError as e:
    raise DataError(f"{path}: not a tokenizer, not valid JSON ({e})") from e
  if isinstance(state, dict) and state.get("kind") in KINDS:
    return from_json(text, path)
  if isinstance(state, dict) and "model" in state:
    if isinstance(state["model"], dict) and isinstance(state["model"].get("vocab"), (dict, list)):
      _check_number(path, len(state["model"]["vocab"]))
    try:
      backend = hf.Tokenizer.from_str(text)
    except Exception as e:  # `tokenizers` raises bare Exceptions
      raise DataError(f"{path}: not a tokenizer that this version reads ({e})") from e
    told = declared.read(os.path.dirname(path))
    if _takes_options(state, told.config, os.path.join(os.path.dirname(path), declared.CONFIG)):
      backend = hf.Tokenizer.from_str(json.dumps(state))
    of_model = folder is not None and "model_type" in declared.read_object(
        os.path.join(folder, "config.json"))
    ends = not of_model or backend.num_special_tokens_to_add(False) > 0
    return _foreign(backend, told, path, ends)
  if isinstance(state, dict) and state and all(map(_is_saved, state.values())):
    if len(set(state.values())) > 1:
      raise DataError(f"{path}: is of a run whose {' and '.join(state)} have a tokenizer each")
    return from_json(next(iter(state.values())), path)
  raise DataError(f"{path}: neither a tokenizer that jtx saved nor a tokenizer.json")


def _foreign(backend: hf.Tokenizer, told: declared.Declared, path: str,
             ends: bool = True) -> Tokenizer:
  """A tokenizer of others, with what the files beside it declare."""
  declared.add(backend, told)
  roles = declared.roles(backend, told, path)
  largest, number = max(backend.get_vocab().values()), backend.get_vocab_size()
  if largest > SPARSE + 2 * number:
    raise DataError(f"{path}: has the id {largest}, and {number} tokens; ids count from 0")
  return HuggingFace(backend, [roles[role] for role in declared.NAMES], roles,
                     declared.chat_template(told, os.path.dirname(path)), ends=ends,
                     truncation_side=declared.truncation_side(told, os.path.dirname(path)))


def _takes_options(state: dict[str, Any], config: Mapping[str, Any], where: str) -> bool:
  """Puts what a tokenizer_config.json sets for its class into the content of a tokenizer.json.

  In `transformers` it wins where the two differ, and so do the class's defaults.

  Args:
    state: the content, which is changed.
    config: that of the other file.
    where: that file, for errors.

  Returns:
    Whether anything is changed.
  """
  kind = _class_of(config)
  edits = []
  if kind in _LIKE_BERT and (state.get("normalizer") or {}).get("type") == "BertNormalizer":
    options = _options(config, {**_BERT_OPTIONS, "do_lower_case": True}, where)
    edits = [(state["normalizer"], ours, options[key]) for key, ours in (
        ("do_lower_case", "lowercase"), ("strip_accents", "strip_accents"),
        ("tokenize_chinese_chars", "handle_chinese_chars"))]
  elif kind in _LIKE_GPT2:
    space = _options(config, {"add_prefix_space": False}, where)["add_prefix_space"]
    parts = (state.get(key) or {} for key in ("pre_tokenizer", "post_processor"))
    edits = [(part, "add_prefix_space", space) for part in parts if "add_prefix_space" in part]
  edits = [(part, key, value) for part, key, value in edits if part.get(key) != value]
  for part, key, value in edits:
    part[key] = value
  return bool(edits)


def _sentencepiece(path: str) -> Tokenizer:
  told = declared.read(os.path.dirname(path))
  if path.endswith(".spm"):
    ids = declared.read_object(os.path.join(os.path.dirname(path), "vocab.json"))
    return _foreign(sentencepiece.marian_backend(_bytes(path), path, ids), told, path)
  number = told.config["extra_ids"] if "extra_ids" in told.config else None
  if not isinstance(number, int | None) or isinstance(number, bool):
    raise DataError(f"{os.path.join(os.path.dirname(path), declared.CONFIG)}: extra_ids is"
                    f" {number!r}, and not a number of sentinels")
  return _foreign(sentencepiece.backend_of(_bytes(path), path, number), told, path)


def _bytes(path: str) -> bytes:
  try:
    return storage.read_bytes(path)
  except OSError as e:
    raise DataError(f"{path}: {e.strerror}") from e


def _check_number(path: str, number: int) -> None:
  """Raises DataError where a vocabulary has more tokens than the model that lies beside it."""
  config = os.path.join(os.path.dirname(path), "config.json")
  found = declared.read_object(config).get("vocab_size")
  if isinstance(found, int) and number > found:
    raise DataError(f"{path}: has {number} tokens, and the model of {config} has embeddings of"
                    f" {found} (its vocab_size)")


def _is_saved(text: Any) -> bool:
  """Whether `to_json` wrote it."""
  return isinstance(text, str) and text.startswith('{"kind": ')


def _read(path: str) -> str:
  try:
    return storage.read_text(path)
  except OSError as e:
    raise DataError(f"{path}: {e.strerror}") from e
  except UnicodeDecodeError as e:
    raise DataError(f"{path}: not a tokenizer, not valid UTF-8 ({e.reason})") from e


def _file_in(folder: str) -> str:
  for name in ("tokenizer.json", "vocab.txt", "spiece.model", "source.spm"):
    path = os.path.join(folder, name)
    if storage.exists(path):
      return path
  raise DataError(f"{folder}: has neither a tokenizer.json nor a vocab.txt, nor a spiece.model, nor"
                  " a source.spm")


# Classes that split a text as BERT does, without "Tokenizer" and "TokenizerFast".
_LIKE_BERT = ("Bert", "DistilBert", "Electra", "LayoutLM", "MobileBert", "RealmBert", "SqueezeBert")
# Those that have an option for a space before a text.
_LIKE_GPT2 = ("Bart", "Deberta", "GPT2", "GPTNeoX", "Longformer", "Roberta")
# The roles of its special tokens, where no file declares them, and those without which it is none.
_BERT_NAMES = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
_BERT_NEEDS = ("pad", "unk", "cls", "sep")
# Keys of tokenizer_config.json and what they are if absent; None is decided by the vocabulary,
# and for the accents by whether it lowercases.
_BERT_OPTIONS = {"do_lower_case": None, "strip_accents": None, "tokenize_chinese_chars": True}


def _bert(path: str) -> Tokenizer:
  """BERT's WordPiece (Devlin et al. 2019, section 3) with the vocabulary of a file."""
  pieces = _read(path).removesuffix("\n").split("\n")
  _check_number(path, len(pieces))
  ids: dict[str, int] = {}
  for number, piece in enumerate(p.removesuffix("\r") for p in pieces):
    if not piece or piece in ids:
      what = "names no piece" if not piece else f"has {piece!r} once more"
      raise DataError(f"{path}:{number + 1}: {what}; a vocabulary has one piece a line")
    ids[piece] = number
  told = declared.read(os.path.dirname(path))
  names = _BERT_NAMES | told.roles
  missing = [name for role, name in names.items() if role in _BERT_NEEDS and name not in ids]
  if missing:
    raise DataError(f"{path}: not a vocabulary of BERT, it has no {', '.join(missing)}")
  options = _bert_options(told.config, os.path.join(os.path.dirname(path), declared.CONFIG))
  if options["do_lower_case"] is None:
    options["do_lower_case"] = not any(
        p != p.lower() for p in ids if not (p.startswith("[") and p.endswith("]")))
  backend = _bert_backend(ids, options, names)
  return _foreign(backend, told._replace(roles={
      role: name for role, name in names.items() if role in told.roles or name in ids}), path)


def _bert_options(config: Mapping[str, Any], path: str) -> dict[str, bool | None]:
  """`_BERT_OPTIONS` with what the content of a tokenizer_config.json sets."""
  if _class_of(config, "Bert") not in _LIKE_BERT:
    raise DataError(f"{path}: tokenizer_class {config['tokenizer_class']!r} does not split texts as"
                    " BERT does; a tokenizer.json beside it would be read instead")
  return _options(config, _BERT_OPTIONS, path)


def _class_of(config: Mapping[str, Any], default: str = "") -> str:
  """The class that a tokenizer_config.json names, without "Tokenizer" and "TokenizerFast"."""
  kind = config.get("tokenizer_class") or default
  return str(kind).removesuffix("Fast").removesuffix("Tokenizer")


def _options(config: Mapping[str, Any], defaults: Mapping[str, bool | None],
             path: str) -> dict[str, bool | None]:
  """Keys that are true or false, or what they are if absent."""
  options = {key: config.get(key, default) for key, default in defaults.items()}
  for key, value in options.items():
    if not isinstance(value, bool) and value is not defaults[key]:
      raise DataError(f"{path}: {key} is {value!r}; valid are true and false")
  return options


def _bert_backend(ids: dict[str, int], options: dict[str, bool | None],
                  names: Mapping[str, str]) -> hf.Tokenizer:
  """BERT's steps; `names` are those of the special tokens by their roles."""
  backend = hf.Tokenizer(hf.models.WordPiece(ids, unk_token=names["unk"],
                                             max_input_chars_per_word=100))
  backend.normalizer = hf.normalizers.BertNormalizer(
      clean_text=True, lowercase=options["do_lower_case"],
      strip_accents=options["strip_accents"],
      handle_chinese_chars=options["tokenize_chinese_chars"])
  backend.pre_tokenizer = hf.pre_tokenizers.BertPreTokenizer()
  backend.decoder = hf.decoders.WordPiece()
  backend.add_special_tokens([name for name in names.values() if name in ids])
  first, last = names["cls"], names["sep"]
  backend.post_processor = hf.processors.TemplateProcessing(
      single=[first, "$A", last], pair=[first, "$A", last, "$B:1", f"{last}:1"],
      special_tokens=[(name, ids[name]) for name in {first: 0, last: 0}])
  return backend


# ---------------------------------------------------------------------------- of a run


def save_tokenizers(texts: Mapping[str, str], workdir: str) -> None:
  """Writes the tokenizers of a run, field -> `Tokenizer.to_json`."""
  write_json(dict(texts), os.path.join(workdir, TOKENIZER_FILE))


def load_tokenizers(workdir: str) -> dict[str, str] | None:
  """The tokenizers of a run, as `save_tokenizers` wrote them, or None."""
  path = os.path.join(workdir, TOKENIZER_FILE)
  if not storage.exists(path):
    return None
  try:
    return storage.parse_json(storage.read_text(path))
  except ValueError as e:
    raise DataError(f"{path}: is not a JSON object of tokenizers ({e})") from e
