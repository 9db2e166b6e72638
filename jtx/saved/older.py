"""Configs of older workdirs, converted to today's keys when they are read.

Until layers became nested sections, `model.block` had twenty flat keys, and an encoder-decoder had
one width, block, position and pattern for both of its stacks. Whether a masked autoencoder predicts
normalised pixels was the objective's key. Keys that came later have in older configs the value that
changes nothing.
"""

from typing import Any, Mapping

from jtx.config import ConfigDict, completed
from jtx.config_files import from_plain, read_json
from jtx.data.ops.registry import OPS
from jtx.errors import ConfigError
from jtx.inference.decode import METHODS
from jtx.models import MODELS
from jtx.objectives import OBJECTIVES
from jtx.objectives.terms import TERMS

Section = dict[str, Any]

LATER = {"imports": [], "trackers": ["tensorboard"], "profile": [],
         "checkpoint": {"best": "", "patience": 0, "same_data": True},
         "tokenizer": {"delimiters": []}, "data": {"size_limit": 0}, "optim": {"frozen": []},
         "distill": {"teacher": "", "terms": [], "task_weight": 1.0, "task_during": [0.0, 1.0]}}

OF_RUNS = ("data", "optim", "distill")  # sections that a folder without a run has not

STACK = ("width", "num_layers", "block", "position", "position_at", "pattern", "window", "unroll",
         "remat")
# Keys of a flat block -> path of today's.
BLOCK = {
    "num_heads": "attention.num_heads", "num_kv_heads": "attention.num_kv_heads",
    "head_dim": "attention.head_dim", "v_head_dim": "attention.v_head_dim",
    "score": "attention.score", "attention_dropout": "attention.dropout",
    "kernel": "attention.kernel", "ffn_dim": "ffn.dim", "activation": "ffn.activation",
    "gated": "ffn.gated", "ffn_dropout": "ffn.dropout", "norm": "norm.kind",
    "norm_position": "norm.position", "norm_eps": "norm.eps", "attention_norm": "norm.attention",
    "dropout": "dropout", "init_std": "init_std", "residual": "residual",
}
TIES = {"all": ["source", "output", "positions"], "output": ["output", "positions"],
        "none": ["positions"]}


def read(path: str) -> ConfigDict:
  """The config of a workdir that a file holds.

  Raises:
    ConfigError: the file is missing, is no config, or has what is no longer possible.
  """
  return of_plain(read_json(path, missing="no run was started there"), path)


def of_plain(values: Mapping[str, Any], path: str) -> ConfigDict:
  """The config that plain JSON values are, with today's keys; errors name the path."""
  plain = with_moved(with_later(values))
  if not is_older(plain):
    return from_plain(plain)
  try:
    config = from_plain(converted(plain))
  except KeyError as e:
    raise ConfigError(f"{path}: has no model.{e.args[0]}, as configs of its kind have") from e
  config.model = completed(MODELS, config.model, "config.model")
  return config


def with_defaults(config: ConfigDict) -> ConfigDict:
  """The config with the fields that its constructors have got since it was written."""
  full = lambda registry, section: (completed(registry, section) if section.name in registry
                                    else section)
  for key, registry in (("model", MODELS), ("objective", OBJECTIVES)):
    if key in config:
      config[key] = full(registry, config[key])
  if "data" in config:
    config.data.ops = tuple(full(OPS, op) for op in config.data.ops)
  if "texts" in config:
    config.texts.ops = tuple(full(OPS, op) for op in config.texts.ops)
  for section in (config, config["texts"] if "texts" in config else {}):
    if decode := section["decode"] if "decode" in section else None:
      decode.method = full(METHODS, decode.method)
  if "distill" in config:
    config.distill.terms = tuple(full(TERMS, term) for term in config.distill.terms)
  return config


def with_later(config: Mapping[str, Any]) -> Section:
  """A config with the keys that it lacks, and those of a section that it has.

  A folder without a run has no section of data, by which it is known.
  """
  later = {key: value for key, value in LATER.items() if key not in OF_RUNS or "data" in config}
  result = {**later, **config}
  for name, section in LATER.items():
    if isinstance(section, dict) and name in config:
      result[name] = {**section, **config[name]}
  return result


def with_moved(config: Mapping[str, Any]) -> Section:
  """A config with `normalize` of the objective "mae" where it is now, in the model's decoder."""
  objective = dict(config.get("objective", {}))
  if objective.get("name") != "mae" or "normalize" not in objective:
    return dict(config)
  model = dict(config["model"])
  model["decoder"] = {**model["decoder"], "normalize": objective.pop("normalize")}
  return {**config, "model": model, "objective": objective}


def is_older(config: Mapping[str, Any]) -> bool:
  """Whether a config of a workdir, as plain JSON values, has the flat keys."""
  return "model" in config and "block" in config["model"]


def converted(config: Mapping[str, Any]) -> Section:
  """A config with the flat keys as today's has them, plain JSON values both."""
  if "optim" in config and config["optim"]["schedule"]["name"] == "noam":
    config = {**config, "optim": noam(config["optim"], config["model"]["width"])}
  return {**config, "model": CONVERT[config["model"]["name"]](dict(config["model"]))}


def noam(optim: Mapping[str, Any], width: int) -> Section:
  """The schedule takes its width from the model now; where it had another, the rate makes up."""
  schedule = dict(optim["schedule"])
  own = schedule.pop("width", width)
  return {**optim, "schedule": schedule, "lr": optim["lr"] * (width / own) ** 0.5}


def block(flat: Mapping[str, Any]) -> Section:
  nested: Section = {"attention": {}, "ffn": {}, "norm": {}}
  for key, value in flat.items():
    if key in BLOCK:
      section, _, name = BLOCK[key].rpartition(".")
      (nested[section] if section else nested)[name] = value
  nested["attention"]["biases"] = (
      ["query", "key", "value", "out"] if flat["attention_bias"] else [])
  nested["ffn"]["bias"] = flat["use_bias"]
  nested["norm"]["bias"] = flat["use_bias"] or flat["norm"] == "rmsnorm"  # which has none
  return nested


def position(flat: Mapping[str, Any]) -> Section:
  """RoPE's two factors are now a kind of scaling."""
  if flat["name"] != "rope":
    return dict(flat)
  nested = {k: v for k, v in flat.items() if k not in ("linear_scale", "ntk_scale")}
  factors = {"linear": flat["linear_scale"], "ntk": flat["ntk_scale"]}
  scaled = {name: factor for name, factor in factors.items() if factor != 1.0}
  if len(scaled) > 1:
    raise ConfigError(f"position: linear_scale and ntk_scale are both set ({scaled}), which is no"
                     " longer possible")
  name, factor = next(iter(scaled.items()), ("none", None))
  return nested | {"scaling": {"name": name, **({"factor": factor} if scaled else {})}}


def split(model: Section) -> tuple[Section, Section]:
  """The fields that are now those of a stack, and the others."""
  stack = {key: model[key] for key in STACK if key in model}
  stack["block"], stack["position"] = block(model["block"]), position(model["position"])
  return stack, {key: value for key, value in model.items() if key not in STACK}


def encoder(model: Section) -> Section:
  stack, rest = split(model)
  stack |= {"causal": rest.pop("causal"), "share": rest.pop("share_layers")}
  if "local" not in stack["pattern"] and "global_tokens" not in stack["pattern"]:
    if "local_base" in stack["position"]:
      stack["position"]["local_base"] = None  # it was ignored
  embedding = {"types": rest.pop("num_token_types"), "width": rest.pop("embedding_width")}
  if rest["head"]["transform"] == "none":
    rest["head"] = {**rest["head"], "use_bias": True}  # it was ignored
  return rest | {"stack": stack, "embedding": embedding}


def encdec(model: Section) -> Section:
  stack, rest = split(model)
  number = rest.pop("num_decoder_layers")
  embedding = {"tie": TIES[rest.pop("share_embeddings")], "scale": rest.pop("scale_embeddings"),
               "output_bias": rest.pop("output_bias")}
  decoder = {**stack, "num_layers": number or stack["num_layers"], "causal": True}
  return rest | {"encoder": stack, "decoder": decoder, "embedding": embedding}


def vit(model: Section) -> Section:
  stack, rest = split(model)
  if stack["position"].get("init") == "sincos":
    stack["position"].pop("init_std")  # it was ignored
  if stack["position"]["name"] in ("none", "relative", "rope_2d"):
    stack["position_at"] = "stem"  # where they add nothing to embeddings
  return rest | {"stack": stack}


CONVERT = {"encoder": encoder, "encdec": encdec, "vit": vit}
