"""The arguments of a config file, as in `--config=configs/bert.py:large,seq=512`."""

from typing import Any, Mapping, Sequence

from ml_collections import ConfigDict
from ml_collections.config_flags import config_path

from jtx.config import edit
from jtx.errors import ConfigError, nearest

# Arguments that name data, in whose place `tiny` takes what jtx brings.
DATA = ("corpus", "train", "val", "dev", "others")


def parse_args(arg: str, **defaults: Any) -> ConfigDict:
  """The arguments of `--config=file.py:arg`: "large,seq=512,tiny", typed by `defaults`.

  A bare word sets the bool of that name, or else the first argument. `given` is added, the names of
  those that are not left as they are.

  Raises:
    ConfigError: an unknown argument, a value of another type, or data beside `tiny`.
  """
  args, given = ConfigDict(defaults), []
  first = next(iter(defaults))
  for word in filter(None, (arg or "").split(",")):
    key, equals, value = word.partition("=")
    if not equals:
      key, value = (key, "true") if isinstance(defaults.get(key), bool) else (first, key)
    if key not in defaults:
      raise ConfigError(f"config argument {word!r}: {nearest(key, defaults)}")
    given.append(key)
    kind = type(defaults[key])
    try:
      args[key] = {"true": True, "false": False}[value.lower()] if kind is bool else kind(value)
    except (KeyError, ValueError):
      raise ConfigError(f"config argument {word!r}: {value!r} is not a {kind.__name__}") from None
  for key in DATA:
    if key in defaults and args[key] != defaults[key]:
      refuse_beside_tiny(args, key)
  args.given = tuple(given)
  return args


def refuse_beside_tiny(args: ConfigDict, key: str) -> None:
  """Raises ConfigError where `tiny` would train on other data than the argument `key` names."""
  if args.get("tiny"):
    raise ConfigError(f"config argument {key}={args[key]!r} has no place beside tiny, which trains"
                      " on data that jtx brings; for a few steps on your own, leave out tiny and"
                      " give --config.steps=4")


def or_wikipedia(args: ConfigDict) -> tuple[str, str]:
  """The sources of `corpus` and `val`: without a corpus the English Wikipedia, a hundredth for val.

  A corpus without val leaves nothing to evaluate on, and val is "".
  """
  pages = "tfds:wikipedia/20230601.en:train"
  return args.corpus or f"{pages}[1%:]", args.val or ("" if args.corpus else f"{pages}[:1%]")


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


def check_brought(args: ConfigDict, asked: ConfigDict, brought: ConfigDict,
                  keys: Mapping[str, Sequence[str]]) -> None:
  """Raises ConfigError where an argument that was given is not what the model of `init` has.

  Args:
    args: with `init`.
    asked: the config's model as the arguments alone would have it.
    brought: that which `init` brings.
    keys: of the model, that an argument is for.
  """
  for name, paths in keys.items():
    for path in paths if name in args.given else ():
      ours, theirs = (config_path.get_value(path, model) for model in (asked, brought))
      if ours != theirs:
        raise ConfigError(f"config argument {name}={args[name]}: the model that init={args.init}"
                          f" brings has {path}={theirs}, not {ours}; leave out {name}")


def check_range(key: str, value: int, least: int, most: int | None = None, of: str = "") -> None:
  """Raises ConfigError where an argument is out of its range, of what `of` says."""
  if value < least or most is not None and value > most:
    valid = f"{least} or more" if most is None else f"{least} to {most}"
    raise ConfigError(f"config argument {key}={value}: must be {valid}{of}")


def check_depth(args: ConfigDict, layers: int) -> None:
  """Raises ConfigError where `freeze` and `decay` do not fit a model of so many layers."""
  check_range("freeze", args.freeze, 0, layers, ", the layers of the model")
  if not 0 < args.decay <= 1:
    raise ConfigError(f"config argument decay={args.decay}: must be above 0, and 1 at most")


def adapt(c: ConfigDict, args: ConfigDict) -> None:
  """Makes a config train adapters of rank `args.lora`, and the head, of the model of `args.init`.

  Raises:
    ConfigError: there is no such model, or another argument says which layers are trained.
  """
  if not args.lora:
    return
  check_range("lora", args.lora, 0)
  if c.optim.lr_mults:
    *first, last = (name for name in ("freeze", "decay", "features") if name in args)
    raise ConfigError(f"config arguments {', '.join(first)} and {last} have no place beside lora,"
                      " with which the encoder stays as it is")
  if not args.init:
    raise ConfigError(f"config argument lora={args.lora} adapts a trained model: name its folder"
                      " by init")
  edit(c, {"model.lora.rank": args.lora})


def packed_rows(batch: int, pack: int) -> int:
  """The rows of a batch of so many examples, of which a row has `pack` at most.

  Raises:
    ConfigError: they do not divide.
  """
  check_range("pack", pack, 1, of=" examples of a row")
  if batch % pack:
    raise ConfigError(f"config argument pack={pack}: a batch of {batch} examples can't be made of"
                      f" rows of {pack}")
  return batch // pack
