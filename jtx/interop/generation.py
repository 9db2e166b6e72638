"""Generation settings of Hugging Face: generation_config.json, or the same keys in config.json."""

import dataclasses
import os
from typing import Any, Callable, Mapping

from jtx import storage
from jtx.config import ConfigDict
from jtx.config_files import read_json
from jtx.errors import ConfigError
from jtx.interop.attributes import GENERATION
from jtx.interop.files import CONFIG
from jtx.ranges import Within

FILE = "generation_config.json"


@dataclasses.dataclass(frozen=True)
class Generation:
  """How a model generates, where its folder tells it.

  Forced and suppressed tokens are ids. A start token is the first input of a decoder, a forced
  first or last one is what it must answer there.
  """
  start: int | None = None  # None: the tokenizer's
  end: tuple[int, ...] = ()  # any of them ends a text
  pad: int | None = None
  forced_first: int | None = None
  forced_last: int | None = None  # where a text reaches the longest length
  max_length: int | None = None  # tokens, the start token among them
  max_new: int | None = None  # tokens behind the start token; goes before `max_length`
  min_length: int = 0  # tokens, likewise
  min_new: int | None = None
  beams: int = 1
  length_penalty: float = 1.0  # exponent of the length that a score is divided by
  early_stop: bool | str = False  # a search ends with so many beams; "never": as none is better
  no_repeat: int = 0  # n of the n-grams that come once; 0 is none
  bad_words: tuple[tuple[int, ...], ...] = ()  # sequences that are never generated
  suppressed: tuple[int, ...] = ()  # tokens that are never generated
  repetition_penalty: float = 1.0
  samples: bool = False  # draws tokens; what follows is without effect where it searches
  temperature: float = 1.0
  top_k: int = 50  # 0 is all
  top_p: float = 1.0
  min_p: float = 0.0

  @property
  def most(self) -> int | None:
    """Tokens behind the start token at most; None is not told."""
    if self.max_new is not None or self.max_length is None:
      return self.max_new
    return self.max_length - 1

  @property
  def least(self) -> int:
    """Tokens behind the start token before the end."""
    return max(self.min_length - 1, 0) if self.min_new is None else self.min_new


def _is_int(value: Any) -> bool:
  return isinstance(value, int) and not isinstance(value, bool)


def _ids(value: Any) -> tuple[int, ...] | None:
  """One id or a list of them; None where it is neither."""
  values = value if isinstance(value, list) else [value]
  return tuple(values) if all(_is_int(v) and v >= 0 for v in values) else None


def _one_id(value: Any) -> int | None:
  ids = _ids(value)
  return ids[0] if ids is not None and len(ids) == 1 else None


def _count(value: Any) -> int | None:
  return value if _is_int(value) and value >= 0 else None


def _size(value: Any) -> int | None:
  return value if _is_int(value) and value >= 1 else None


def _number(value: Any) -> float | None:
  return float(value) if isinstance(value, float) or _is_int(value) else None


def _within(interval: str) -> Callable[[Any], float | None]:
  """Reads a number of an interval."""
  return lambda value: number if (number := _number(value)) is not None \
      and number in Within(interval) else None


def _flag(value: Any) -> bool | None:
  return value if isinstance(value, bool) else None


def _sequences(value: Any) -> tuple[tuple[int, ...], ...] | None:
  sequences = [_ids(v) if isinstance(v, list) and v else None for v in value] \
      if isinstance(value, list) else [None]
  return None if None in sequences else tuple(sequences)


def _stop(value: Any) -> bool | str | None:
  return value if isinstance(value, bool) or value == "never" else None


# key -> our field, how it is read (None is no value of its kind), and what a value must be
KEYS: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "decoder_start_token_id": ("start", _one_id, "an id"),
    "eos_token_id": ("end", _ids, "an id, or a list of ids"),
    "pad_token_id": ("pad", _one_id, "an id"),
    "forced_bos_token_id": ("forced_first", _one_id, "an id"),
    "forced_eos_token_id": ("forced_last", _one_id, "an id"),
    "max_length": ("max_length", _size, "a whole number of 1 or more"),
    "max_new_tokens": ("max_new", _size, "a whole number of 1 or more"),
    "min_length": ("min_length", _count, "a whole number of 0 or more"),
    "min_new_tokens": ("min_new", _count, "a whole number of 0 or more"),
    "num_beams": ("beams", _size, "a whole number of 1 or more"),
    "length_penalty": ("length_penalty", _number, "a number"),
    "early_stopping": ("early_stop", _stop, "true, false or 'never'"),
    "no_repeat_ngram_size": ("no_repeat", _count, "a whole number of 0 or more"),
    "bad_words_ids": ("bad_words", _sequences, "a list of lists of ids"),
    "suppress_tokens": ("suppressed", _ids, "a list of ids"),
    "repetition_penalty": ("repetition_penalty", _within("(0, inf)"), "a number above 0"),
    "do_sample": ("samples", _flag, "true or false"),
    "temperature": ("temperature", _within("[0, inf)"), "a number of 0 or more"),
    "top_k": ("top_k", _count, "a whole number of 0 or more"),
    "top_p": ("top_p", _within("(0, 1]"), "a number above 0, and 1 at most"),
    "min_p": ("min_p", _within("[0, 1]"), "a number of 0 to 1"),
}
# The class's decoder_start_token_id of a model type that has one; of others it is bos_token_id.
STARTS = {"bart": 2, "marian": 58100, "mt5": 0, "pegasus": 0, "umt5": 0}
IDS = ("decoder_start_token_id", "eos_token_id", "pad_token_id")
# Keys that do not change what is generated, given those above.
FREE = frozenset({"_from_model_config", "transformers_version", "use_cache", "bos_token_id",
                  "output_attentions", "output_hidden_states", "output_scores",
                  "return_dict_in_generate"})
# Keys whose only value that can be read is the one that changes nothing.
FIXED = {"num_return_sequences": 1, "num_beam_groups": 1, "diversity_penalty": 0.0,
         "encoder_no_repeat_ngram_size": 0, "encoder_repetition_penalty": 1.0, "typical_p": 1.0,
         "epsilon_cutoff": 0.0, "eta_cutoff": 0.0, "renormalize_logits": False,
         "remove_invalid_values": False}


def read_generation(directory: str) -> Generation:
  """The settings of a folder; those of config.json where it has no generation_config.json.

  Where a text begins and ends is told by config.json, too, if the other file does not.

  Raises:
    ConfigError: a key that is not known, or a value that can't be used.
  """
  paths, (config, own) = _paths(directory), _contents(directory)
  keys = KEYS.keys() | FIXED.keys() | GENERATION if own is None else IDS
  found = {key: value for key, value in (config or {}).items() if key in keys}
  found = parse(found, paths[0])
  return found if own is None else parse(own, paths[1], found)


def _paths(directory: str) -> list[str]:
  return [os.path.join(directory, name) for name in (CONFIG, FILE)]


def _contents(directory: str) -> list[dict[str, Any] | None]:
  """Those of config.json and of generation_config.json, where they are."""
  return [read_json(p, missing="") if storage.exists(p) else None for p in _paths(directory)]


def start_id(directory: str) -> int | None:
  """The first input of an encoder-decoder's decoder; None where the folder does not tell.

  Without decoder_start_token_id it is that of the model type's class, else bos_token_id.

  Raises:
    ConfigError: as `read_generation`, or bos_token_id is no id.
  """
  start, contents = read_generation(directory).start, _contents(directory)
  if start is None:
    start = STARTS.get((contents[0] or {}).get("model_type"))
  for path, content in zip(reversed(_paths(directory)), reversed(contents)):
    value = (content or {}).get("bos_token_id")
    if start is None and value is not None and (start := _one_id(value)) is None:
      raise ConfigError(f"{path}: bos_token_id={value!r} is not an id")
  return start


def end_ids(directory: str) -> tuple[int, ...]:
  """The tokens that end a text, of generation_config.json or config.json; () where neither tells.

  Raises:
    ConfigError: they are no ids.
  """
  for name in (FILE, CONFIG):
    path = os.path.join(directory, name)
    value = read_json(path, missing="").get("eos_token_id") if storage.exists(path) else None
    if value is not None:
      if not (ids := _ids(value)):
        raise ConfigError(f"{path}: eos_token_id={value!r} is not an id, or a list of ids")
      return ids
  return ()


def written(decode: ConfigDict, start: int, tokenizer: Any) -> dict[str, Any]:
  """The content of generation_config.json for a run of translations.

  Its length penalty is |Y|^alpha there, also where the run's is ((5 + |Y|) / 6)^alpha, and a target
  that runs out of length counts as finished there.

  Args:
    decode: the config's section.
    start: the first input of a target.
    tokenizer: of targets.
  """
  method = decode.method
  content = {"decoder_start_token_id": start, "eos_token_id": tokenizer.eos_id,
             "pad_token_id": tokenizer.pad_id,
             "max_length": decode.max_target_length + 1}  # the start token is one of them
  if tokenizer.has_begin:
    content["bos_token_id"] = tokenizer.bos_id
  if method.repetition_penalty != 1:
    content["repetition_penalty"] = method.repetition_penalty
  if method.name == "sample":
    drawn = ("temperature", "top_k", "top_p", "min_p")
    return content | ({"do_sample": True} | {name: method[name] for name in drawn}
                      if method.temperature else {})
  stops = True if method.early_stop else "never" if method.hopeful else False
  return content | {"num_beams": method.beam, "length_penalty": method.alpha,
                    "early_stopping": stops}


def parse(content: Mapping[str, Any], where: str, default: Generation = Generation(),
          ) -> Generation:
  """The settings of the content of a file; null is as if a key were absent.

  Args:
    content: of generation_config.json.
    where: the file, for errors.
    default: what is not told.

  Raises:
    ConfigError: as `read_generation`.
  """
  found = {}
  for key, value in content.items():
    if value is None or key in FREE:
      continue
    if key in FIXED:
      if value != FIXED[key] or isinstance(value, bool) != isinstance(FIXED[key], bool):
        raise ConfigError(f"{where}: {key}={value!r} is not what jtx does, which is {FIXED[key]!r}")
      continue
    if key not in KEYS:
      raise ConfigError(f"{where}: {key!r}={value!r} is not known to jtx and might change what is"
                        " generated; remove it if it does not")
    field, convert, expected = KEYS[key]
    found[field] = convert(value)
    if found[field] is None:
      raise ConfigError(f"{where}: {key}={value!r} is not {expected}")
  result = dataclasses.replace(default, **found)
  if result.samples and result.beams > 1:
    raise ConfigError(f"{where}: do_sample=True with num_beams={result.beams} draws beams, and jtx"
                      " searches by beams or draws: remove one of them")
  if result.samples and not result.temperature:
    raise ConfigError(f"{where}: do_sample=True with temperature={result.temperature!r} draws"
                      " nothing: do_sample=False takes the likeliest token")
  return result
