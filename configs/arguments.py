"""The arguments of a config file, as in `--config=configs/bert.py:large,seq=512`."""

from typing import Any

from ml_collections import ConfigDict

from jtx.errors import ConfigError, nearest


def parse_args(arg: str, **defaults: Any) -> ConfigDict:
  """The arguments of `--config=file.py:arg`: "large,seq=512,tiny", typed by `defaults`.

  A bare word sets the bool of that name, or else the first argument.

  Raises:
    ConfigError: an unknown argument, or a value of another type.
  """
  args = ConfigDict(defaults)
  first = next(iter(defaults))
  for word in filter(None, (arg or "").split(",")):
    key, equals, value = word.partition("=")
    if not equals:
      key, value = (key, "true") if isinstance(defaults.get(key), bool) else (first, key)
    if key not in defaults:
      raise ConfigError(f"config argument {word!r}: {nearest(key, defaults)}")
    kind = type(defaults[key])
    try:
      args[key] = {"true": True, "false": False}[value.lower()] if kind is bool else kind(value)
    except (KeyError, ValueError):
      raise ConfigError(f"config argument {word!r}: {value!r} is not a {kind.__name__}") from None
  return args


def choose(table: dict[str, Any], name: str, what: str) -> Any:
  """`table[name]`, or a ConfigError that names the nearest."""
  if name not in table:
    raise ConfigError(f"config argument {what}={name!r}: {nearest(name, table)}")
  return table[name]
