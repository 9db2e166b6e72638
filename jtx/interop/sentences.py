"""The files by which `sentence-transformers` makes vectors of a model's hidden states.

modules.json lists the steps, of which jtx has three: the model, pooling, and length 1.
"""

import os
from typing import Any, Mapping

from jtx import storage
from jtx.config_files import read_json
from jtx.errors import ConfigError, DataError
from jtx.models.decoder import Decoder
from jtx.models.encoder import Encoder
from jtx.models.heads import only_pools
from jtx.models.text_head import HeadConfig

MODULES, POOLING = "modules.json", "1_Pooling/config.json"
LENGTH, SETTINGS = "sentence_bert_config.json", "config_sentence_transformers.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
POOLS = {"first": "cls", "last": "lasttoken", "mean": "mean"}  # ours -> theirs
OLD_KEYS = {"first": "pooling_mode_cls_token", "last": "pooling_mode_lasttoken",
            "mean": "pooling_mode_mean_tokens"}  # of files before version 6
NONE_OF_OURS = ("pooling_mode_max_tokens", "pooling_mode_mean_sqrt_len_tokens",
                "pooling_mode_weightedmean_tokens")
PREFIX = "sentence_transformers.models."
MODEL_STEP, POOLING_STEP, UNIT_STEP = "Transformer", "Pooling", "Normalize"
UNENDING = 10**6  # lengths from which on a tokenizer's says that there is none


def is_pooled(model: Any) -> bool:
  """Whether a model's output is pooled hidden states, which these files can tell."""
  return isinstance(model, (Encoder, Decoder)) and only_pools(model.head)


def without_pooling(model: Any) -> Any:
  """The model of hidden states, which has the same parameters; any other as it is."""
  return model.clone(head=HeadConfig()) if is_pooled(model) else model


def files(model: Any, max_length: int | None) -> dict[str, Any]:
  """The contents of the files by name; none of a model that does not pool.

  Args:
    model: with the head.
    max_length: tokens that a text is cut to; None is what the model takes.

  Raises:
    ConfigError: the library has no such pooling.
  """
  if not is_pooled(model):
    return {}
  if model.head.pool not in POOLS:
    raise ConfigError(f"model.head.pool={model.head.pool!r} has no name in sentence-transformers,"
                      f" which has {', '.join(POOLS)}")
  steps = [("", MODEL_STEP), ("1_Pooling", POOLING_STEP)]
  steps += [("2_Normalize", UNIT_STEP)] * model.head.normalize
  length = max_length if model.longest is None else min(max_length or model.longest, model.longest)
  modes = {key: pool == model.head.pool for pool, key in OLD_KEYS.items()}
  return {
      MODULES: [{"idx": i, "name": str(i), "path": path, "type": PREFIX + name}
                for i, (path, name) in enumerate(steps)],
      POOLING: {"word_embedding_dimension": model.stack.width, **modes,
                **dict.fromkeys(NONE_OF_OURS, False)},
      LENGTH: {"max_seq_length": length, "do_lower_case": False},
      SETTINGS: {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"},
  }


def read_head(directory: str) -> HeadConfig | None:
  """The head that a folder's files describe; None of a folder without them.

  Raises:
    ConfigError: they ask for what jtx can't compute.
    DataError: they are not of the library's form.
  """
  path = os.path.join(directory, MODULES)
  if not storage.exists(path):
    return None
  try:
    steps = [(step["type"].rpartition(".")[2], step["path"])
             for step in storage.parse_json(storage.read_text(path))]
    outside = [place for _, place in steps if os.path.basename(place) != place]
  except (ValueError, KeyError, TypeError, AttributeError):
    raise DataError(f"{path} is not a list of modules with a type and a path each") from None
  if outside:
    raise DataError(f"{path}: {outside[0]!r} is no folder beside it")
  names = [name for name, _ in steps]
  if names not in ([MODEL_STEP, POOLING_STEP], [MODEL_STEP, POOLING_STEP, UNIT_STEP]):
    raise ConfigError(f"{path}: the modules {', '.join(names) or 'none'} are not what jtx computes,"
                      f" which is {MODEL_STEP}, {POOLING_STEP} and, if wanted, {UNIT_STEP};"
                      " architecture= opens the model alone")
  _check_settings(directory)
  pool = _pool_of(os.path.join(directory, steps[1][1], "config.json"))
  return HeadConfig(task="embedding", pool=pool, normalize=UNIT_STEP in names)


def _pool_of(path: str) -> str:
  config = read_json(path, missing=f"{MODULES} names its folder")
  if "pooling_mode" in config:
    mode = config["pooling_mode"]
    found = [pool for pool, name in POOLS.items() if mode in (name, [name], (name,))]
  else:
    mode = [key for key, value in config.items() if key.startswith("pooling_mode_") and value]
    found = [pool for pool, key in OLD_KEYS.items() if mode == [key]]
  if not found:
    raise ConfigError(f"{path}: pooling by {mode!r} is not what jtx computes; valid is one of"
                      f" {', '.join(POOLS.values())}")
  return found[0]


def _check_settings(directory: str) -> None:
  """Raises ConfigError where texts are changed before they are tokenised."""
  for name, key in ((LENGTH, "do_lower_case"), (SETTINGS, "default_prompt_name")):
    path = os.path.join(directory, name)
    config = read_json(path, missing="") if storage.exists(path) else {}
    if key in config and config[key]:
      raise ConfigError(f"{path}: {key}={config[key]!r} is not what jtx computes, which takes texts"
                        " as they are; architecture= opens the model alone")


def max_length(texts: Mapping[str, bytes]) -> int | None:
  """The tokens that texts are cut to by a folder's files, by name; None where they do not tell.

  Raises:
    DataError: a file is not JSON.
  """
  if SETTINGS not in texts and LENGTH not in texts:
    return None
  for name, key in ((LENGTH, "max_seq_length"), (TOKENIZER_CONFIG, "model_max_length")):
    try:
      content = storage.parse_json(texts[name].decode("utf-8")) if name in texts else {}
    except ValueError as e:
      raise DataError(f"{name}: not valid JSON ({e})") from None
    value = content[key] if isinstance(content, dict) and key in content else None
    if isinstance(value, int) and 0 < value < UNENDING:
      return value
  return None
