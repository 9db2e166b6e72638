"""RoPE in config.json: `rope_parameters`, or `rope_theta` and `rope_scaling` of older files."""

from typing import Any, Mapping

from jtx.config import section
from jtx.errors import nearest
from jtx.interop.attributes import need
from jtx.nn.rope import SCALINGS, Rope, Scaling

ATTRIBUTES = {
    "rope_parameters": ("rope", None),
    "rope_scaling": ("rope", None),
    "rope_theta": ("positive", 10_000.0),
}
ORIGINAL = "original_max_position_embeddings"
# rope_type -> ours of `SCALINGS`, and its fields by their keys
TYPES: dict[str, tuple[str, dict[str, str]]] = {
    "default": ("none", {}),
    "linear": ("linear", {"factor": "factor"}),
    "llama3": ("llama3", {"factor": "factor", "low_freq_factor": "low",
                          "high_freq_factor": "high", ORIGINAL: "original_length"}),
    "yarn": ("yarn", {"factor": "factor", "beta_fast": "fast", "beta_slow": "slow",
                      "attention_factor": "attention", ORIGINAL: "original_length"}),
}


def given(values: Mapping[str, Any]) -> dict[str, Any]:
  """The parameters of RoPE in the new spelling, from attributes in either."""
  new, old = values["rope_parameters"], values["rope_scaling"]
  need(new is None or old is None or new == old,
       f"rope_parameters={new!r} and rope_scaling={old!r} are two spellings of one")
  return {"rope_theta": values["rope_theta"], **(new or old or {})}


def fields(parameters: Mapping[str, Any], longest: int | None,
           fraction: float | None = None) -> dict[str, Any]:
  """The fields `base`, `scaling` and `fraction` of `Rope`.

  Args:
    parameters: in the new spelling.
    longest: `max_position_embeddings`, which is the original length where none is given.
    fraction: `partial_rotary_factor` where it is not given; None is a model type without one.

  Raises:
    ConfigError: what jtx can't compute; the sentence names the key.
  """
  parameters = {key: value for key, value in parameters.items() if value is not None}
  kinds = [parameters.pop(key) for key in ("rope_type", "type") if key in parameters]
  kind = kinds[0] if kinds else "default"
  need(kind in TYPES, f"rope_parameters.rope_type={kind!r}: {nearest(str(kind), TYPES)}")
  name, keys = TYPES[kind]
  result = {"base": number("rope_theta", parameters.pop("rope_theta"))}
  if "partial_rotary_factor" in parameters:
    share = number("partial_rotary_factor", parameters.pop("partial_rotary_factor"))
    need(fraction is not None or share == 1,
         f"rope_parameters.partial_rotary_factor={share}: the model type turns whole heads")
    fraction = share
  if ORIGINAL in keys and ORIGINAL not in parameters:
    parameters[ORIGINAL] = longest
  if kind == "yarn" and "truncate" in parameters:
    need(parameters.pop("truncate") is True,
         "rope_parameters.truncate is not what jtx computes, which is true")
  for key, value in parameters.items():
    need(key in keys, f"rope_parameters.{key}={value!r} is not known to jtx and might change the"
         " computation")
  of_scaling = {keys[key]: number(key, value) for key, value in parameters.items()}
  if "original_length" in of_scaling:
    of_scaling["original_length"] = int(of_scaling["original_length"])
  return {**result, "scaling": section(SCALINGS, name, **of_scaling),
          "fraction": 1.0 if fraction is None else fraction}


def number(key: str, value: Any) -> float:
  need(isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0,
       f"rope_parameters.{key}={value!r} is not a number above 0")
  return float(value)


def parameters(base: float, scaling: Scaling, fraction: float | None = None) -> dict[str, Any]:
  """The inverse of `fields`, in the new spelling.

  Raises:
    ConfigError: config.json has no such scaling.
  """
  ours = next(name for name, kind in SCALINGS.items() if kind is type(scaling))
  kinds = [theirs for theirs, (name, _) in TYPES.items() if name == ours]
  need(bool(kinds), f"has no RoPE scaled by {ours!r}")
  values = {key: getattr(scaling, field) for key, field in TYPES[kinds[0]][1].items()}
  share = {} if fraction is None else {"partial_rotary_factor": fraction}
  return {"rope_type": kinds[0], "rope_theta": base, **share,
          **{key: value for key, value in values.items() if value is not None}}


def of(position: Any) -> Rope:
  """The position of a stack, which must be RoPE."""
  need(isinstance(position, Rope), f"has RoPE, not {type(position).__name__}")
  return position
