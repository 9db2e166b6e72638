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


def hold_out_folders(args: ConfigDict) -> None:
  """Sets `corpus` and `val` where they are not: the last twentieth of the folders is for `val`.

  Without a corpus it is the documentation of Python's library.

  Raises:
    ConfigError: the corpus has no folders.
  """
  if not args.corpus:
    args.corpus, args.val = "embedded:pydocs:train", args.val or "embedded:pydocs:val"
  elif not args.val:
    if not args.corpus.startswith("documents:"):
      raise ConfigError(f"config argument corpus={args.corpus!r}: only of documents:PATH can"
                        " folders be held out; give val, a source to evaluate on")
    args.corpus, args.val = (f"{args.corpus}:folders{part}" for part in ("[:95%]", "[95%:]"))


def choose(table: dict[str, Any], name: str, what: str) -> Any:
  """`table[name]`, or a ConfigError that names the nearest."""
  if name not in table:
    raise ConfigError(f"config argument {what}={name!r}: {nearest(name, table)}")
  return table[name]


def packed_rows(batch: int, pack: int) -> int:
  """The rows of a batch of so many examples, of which a row has `pack` at most.

  Raises:
    ConfigError: they do not divide.
  """
  if pack < 1:
    raise ConfigError(f"config argument pack={pack}: must be 1 or more examples of a row")
  if batch % pack:
    raise ConfigError(f"config argument pack={pack}: a batch of {batch} examples can't be made of"
                      f" rows of {pack}")
  return batch // pack
