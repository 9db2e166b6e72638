"""Config sections made from constructors, and constructors called with config sections.

Every registry of jtx is a plain dict from a name to a constructor: a Linen module,
a dataclass, or a function with keyword arguments. A constructor's fields are the keys
of its config section, so a section can neither miss a key nor carry one that nothing
reads. `section` makes one, `build` calls the constructor with it.
"""

import copy
import dataclasses
import inspect
import re
import types
import typing
from typing import Annotated, Any, Callable, Mapping

import ml_collections
from ml_collections import config_dict

from jtx.errors import ConfigError, nearest
from jtx.ranges import excluded, plain

ConfigDict = ml_collections.ConfigDict
Registry = Mapping[str, Callable[..., Any]]


class OneOf(typing.NamedTuple):
  """Declared with a section that names a constructor: `Annotated[ConfigDict, OneOf(OPS)]`."""
  registry: Registry


class Field(typing.NamedTuple):
  type: Any  # with its range, as in jtx/ranges.py
  default: Any  # inspect.Parameter.empty where the constructor requires a value


def fields(constructor: Callable[..., Any]) -> dict[str, Field]:
  """The configurable fields of `constructor`, in order.

  These are a dataclass's init fields (a Linen module's without `parent` and `name`), or
  a function's keyword-only arguments. What a caller passes by position is not config.

  Raises:
    ConfigError: one of them has the name of the key that says which constructor is meant.
  """
  result = _fields(constructor)
  if "name" in result:
    raise ConfigError(f"{constructor.__module__}.{constructor.__name__} has a field or argument"
                      " 'name', which is the key of a config that says which constructor is meant;"
                      " call it otherwise")
  return result


def _fields(constructor: Callable[..., Any]) -> dict[str, Field]:
  hints = typing.get_type_hints(constructor, include_extras=True)
  if dataclasses.is_dataclass(constructor):
    linen = any(kind.__module__ == "flax.linen.module" for kind in constructor.__mro__)
    result = {}
    for f in dataclasses.fields(constructor):
      if not f.init or f.metadata.get("config") is False:
        continue
      if linen and f.name in ("parent", "name"):
        continue
      default = f.default
      if f.default_factory is not dataclasses.MISSING:
        default = f.default_factory()
      if default is dataclasses.MISSING:
        default = inspect.Parameter.empty
      result[f.name] = Field(hints[f.name], default)
    return result
  return {
      name: Field(hints.get(name, Any), p.default)
      for name, p in inspect.signature(constructor).parameters.items()
      if p.kind is inspect.Parameter.KEYWORD_ONLY
  }


def lookup(registry: Registry, name: str, what: str) -> Callable[..., Any]:
  """`registry[name]`; raises ConfigError that names the nearest valid name."""
  if name not in registry:
    raise ConfigError(f"{what}: unknown name {name!r}; {nearest(name, registry)}")
  return registry[name]


def _plain_type(hint: Any) -> Any:
  """The one concrete type of `hint`: `int` for `int | None`, `tuple` for `tuple[str, ...]`."""
  if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
    hint = next(a for a in typing.get_args(hint) if a is not type(None))
  return plain(hint)


def section(registry: Registry, name: str, /, **edits: Any) -> ConfigDict:
  """The config section of the constructor called `name`: its defaults, then `edits`.

  A field without a default, or whose default is None, becomes a placeholder: unset, of
  a known type, and settable from the command line. A field that is itself a dataclass
  becomes a nested section.
  """
  result = ConfigDict({"name": name})
  _fill(result, lookup(registry, name, "config"))
  return edit(result, edits, where=name)


def completed(registry: Registry, cfg: ConfigDict, what: str = "config") -> ConfigDict:
  """The section `cfg` with the defaults of the keys that it lacks, in nested sections too."""
  return _complete(section(registry, cfg.name), cfg, lookup(registry, cfg.name, what), what)


def _complete(result: ConfigDict, cfg: ConfigDict, constructor: Callable[..., Any],
              what: str) -> ConfigDict:
  known = fields(constructor)
  for key in cfg:
    kind = _plain_type(known[key].type) if key in known else None
    if isinstance(cfg[key], ConfigDict) and hasattr(kind, "registry"):
      result[key] = completed(kind.registry(), cfg[key], f"{what}.{key}")
    elif isinstance(cfg[key], ConfigDict) and dataclasses.is_dataclass(kind):
      _complete(result[key], cfg[key], kind, f"{what}.{key}")
    else:
      edit(result, {key: cfg[key]}, what)
  return result


def fields_section(constructor: Callable[..., Any], **edits: Any) -> ConfigDict:
  """As `section`, for a constructor that is not chosen by name."""
  result = ConfigDict()
  _fill(result, constructor)
  return edit(result, edits, where=constructor.__name__)


def _fill(cfg: ConfigDict, constructor: Callable[..., Any]) -> None:
  for key, (hint, default) in fields(constructor).items():
    kind = _plain_type(hint)
    if dataclasses.is_dataclass(kind) and isinstance(default, kind):
      values = edits_of(default)
      # A section already where it is one of several constructors, chosen by name.
      cfg[key] = values if isinstance(values, ConfigDict) else fields_section(kind, **values)
    elif isinstance(default, (ConfigDict, dict)):
      cfg[key] = ConfigDict(default).copy_and_resolve_references()
    elif kind is ConfigDict:
      continue  # for the config to choose
    elif default is None or default is inspect.Parameter.empty:
      # A section, where the field is one of several constructors.
      cfg[key] = config_dict.placeholder(ConfigDict if dataclasses.is_dataclass(kind) else kind)
    else:
      cfg[key] = default


def edits_of(value: Any) -> Any:
  """A dataclass as `edit` takes it: its fields, or a section where it is chosen by name."""
  if isinstance(value, ConfigDict):
    return value.copy_and_resolve_references()  # a default of all that are made
  if not dataclasses.is_dataclass(value):
    return value
  if hasattr(value, "registry"):
    return section_of(value.registry(), value)
  return {key: edits_of(getattr(value, key)) for key in fields(type(value))}


def section_of(registry: Registry, value: Any) -> ConfigDict:
  """The section that builds a dataclass of the registry again."""
  name = next(n for n, constructor in registry.items() if constructor is type(value))
  return section(registry, name, **{key: edits_of(getattr(value, key))
                                    for key in fields(type(value))})


def _may_be_unset(cfg: ConfigDict, key: str) -> bool:
  """Whether a key was made as a placeholder, which a value has been put into."""
  held = dict(cfg.items(preserve_field_references=True))[key]
  return isinstance(held, config_dict.FieldReference)


def edit(cfg: ConfigDict, edits: Mapping[str, Any], where: str = "config") -> ConfigDict:
  """Sets existing keys of `cfg`; nested mappings edit nested sections.

  A key may be a path, as on the command line: `model.stack.width`, `data.ops[4].rate`.

  Raises:
    ConfigError: a key that `cfg` does not have, or a value of another type.
  """
  for key, value in edits.items():
    if "." in key:
      head, rest = key.split(".", 1)
      key, value = head, {rest: value}
    path = f"{where}.{key}"
    if place := re.fullmatch(r"(\w+)\[(\d+)\]", key):
      _edit_item(cfg, place[1], int(place[2]), value, path)
      continue
    if key not in cfg:
      raise ConfigError(f"{path}: unknown key; {nearest(key, cfg.keys())}")
    old = cfg[key]
    if isinstance(value, ConfigDict) and "name" in value:
      value = copy.deepcopy(value)  # where it is given to two keys, each is edited alone
      if _may_be_unset(cfg, key):
        with cfg.unlocked():
          del cfg[key]  # its type is the constructor's, and no section is of that
          cfg[key] = value
      else:
        cfg[key] = value  # another constructor, with keys of its own
    elif isinstance(old, ConfigDict) and isinstance(value, (Mapping, ConfigDict)):
      edit(old, value, path)
    else:
      kind = cfg.get_type(key)
      wrong = f"{path}: {value!r} is not a {kind.__name__}"
      # ml_collections itself takes a bool for an int, and None for anything.
      if (kind is bool) != isinstance(value, bool) and value is not None:
        raise ConfigError(wrong)
      if value is None and old is not None and not _may_be_unset(cfg, key):
        raise ConfigError(wrong)
      try:
        cfg[key] = value
      except TypeError as e:
        raise ConfigError(wrong) from e
  return cfg


def _edit_item(cfg: ConfigDict, key: str, i: int, value: Any, path: str) -> None:
  """Edits section `i` of the tuple at `key`, or puts another in its place."""
  items = cfg[key] if key in cfg else ()
  if not isinstance(items, tuple) or i >= len(items) or not isinstance(items[i], ConfigDict):
    raise ConfigError(f"{path}: there is no such section; {key} has"
                      f" {len(items) if isinstance(items, tuple) else 'no'} items")
  if isinstance(value, ConfigDict) and "name" in value:
    cfg[key] = (*items[:i], value, *items[i + 1:])
  elif isinstance(value, (Mapping, ConfigDict)):
    edit(items[i], value, path)
  else:
    raise ConfigError(f"{path} is a section; edit a key of it, as {path}.KEY")


def build(registry: Registry, cfg: ConfigDict, /, *args: Any, what: str = "config",
          **extra: Any) -> Any:
  """Calls the constructor that `cfg.name` names with the rest of `cfg` as keywords.

  Args:
    registry: name to constructor.
    cfg: a section as `section` makes it.
    *args: passed through before the keywords.
    what: where the section stands in the config, for error messages.
    **extra: keywords that are not config.

  Raises:
    ConfigError: an unknown name, an unknown key, or a required key that is unset.
  """
  constructor = _constructor_of(registry, cfg, what)
  return constructor(*args, **kwargs_of(constructor, cfg, what), **extra)


def kwargs_of(constructor: Callable[..., Any], cfg: ConfigDict, what: str) -> dict[str, Any]:
  """The keywords for `constructor` from `cfg`; nested dataclass fields are built."""
  known = fields(constructor)
  kwargs = {}
  for key in known_keys(cfg, known, what):
    if key == "name":
      continue
    value = cfg[key]
    check_value(known[key].type, value, f"{what}.{key}")
    kind = _plain_type(known[key].type)
    if isinstance(value, ConfigDict) and hasattr(kind, "registry"):
      value = build(kind.registry(), value, what=f"{what}.{key}")
    elif isinstance(value, ConfigDict) and dataclasses.is_dataclass(kind):
      value = kind(**kwargs_of(kind, value, f"{what}.{key}"))
    elif isinstance(value, list):
      value = tuple(value)
    if value is None and known[key].default is inspect.Parameter.empty:
      raise ConfigError(f"{what}.{key} must be set")
    kwargs[key] = value
  for key, field in known.items():
    if key not in kwargs and field.default is inspect.Parameter.empty:
      raise ConfigError(f"{what}.{key} must be set")
  return kwargs


def known_keys(cfg: ConfigDict, known: Mapping[str, Field], what: str) -> list[str]:
  """The keys of a section in the order of its constructor's fields.

  Where a section's keys follow another's, as a decoder's follow the encoder's, that one's field
  comes first, and so does an error that names the key which was given.

  Raises:
    ConfigError: an unknown key.
  """
  for key in cfg:
    if key != "name" and key not in known:
      raise ConfigError(f"{what}.{key}: unknown key; {nearest(key, known)}")
  return [key for key in known if key in cfg]


def check(constructor: Callable[..., Any], cfg: ConfigDict, what: str) -> None:
  """Checks a section, and all inside it, as `build` would, but calls no constructor.

  Fields without a value are left out: they may come from the data.

  Args:
    constructor: whose fields are the keys of `cfg`.
    cfg: the section.
    what: where it stands, for error messages.

  Raises:
    ConfigError: an unknown key or name, or a number that is out of its field's range.
  """
  known = fields(constructor)
  for key in known_keys(cfg, known, what):
    hint, value, place = known[key].type, cfg[key], f"{what}.{key}"
    kind = _plain_type(hint)
    if isinstance(value, ConfigDict) and hasattr(kind, "registry"):
      _check_named(kind.registry(), value, place)
    elif isinstance(value, ConfigDict) and dataclasses.is_dataclass(kind):
      check(kind, value, place)
    else:
      _check_sections(hint, value, place)
      check_value(hint, value, place)


def _check_sections(hint: Any, value: Any, what: str) -> None:
  """Checks the sections in `value` whose constructors' registry its type declares."""
  one_of = next((m for m in getattr(hint, "__metadata__", ()) if isinstance(m, OneOf)), None)
  if one_of:
    _check_named(one_of.registry, value, what)
  elif typing.get_origin(hint) is dict:
    if not isinstance(value, (Mapping, ConfigDict)):
      raise ConfigError(f"{what}={value!r} must be a section, with names of yours as its keys")
    for name, item in value.items():
      _check_sections(typing.get_args(hint)[1], item, f"{what}.{name}")
  elif typing.get_origin(hint) is tuple and isinstance(value, (tuple, list)):
    for i, item in enumerate(value):
      _check_sections(typing.get_args(hint)[0], item, f"{what}[{i}]")


def _check_named(registry: Registry, cfg: ConfigDict, what: str) -> None:
  if not isinstance(cfg, ConfigDict) or "name" not in cfg:
    raise ConfigError(f"{what} must be a section with a name: {', '.join(registry)}")
  check(_constructor_of(registry, cfg, what), cfg, what)


def _constructor_of(registry: Registry, cfg: ConfigDict, what: str) -> Callable[..., Any]:
  """That of a section's name; refuses keys of another name, as where `name` alone was changed."""
  constructor = lookup(registry, cfg.name, f"{what}.name")
  known = fields(constructor)
  for key in (key for key in cfg if key != "name" and key not in known):
    if others := [name for name in registry if key in fields(registry[name])]:
      raise ConfigError(f"{what}.{key}: unknown key of {what}.name={cfg.name!r}, but of"
                        f" {', '.join(others)}; valid are: {', '.join(known)}; a section of another"
                        f" name is given whole, as {what}='{{\"name\": \"{cfg.name}\", ...}}'")
  return constructor


def check_value(hint: Any, value: Any, what: str) -> None:
  """Raises ConfigError where a number in `value` is not in the range that its type declares."""
  for place, number, valid in excluded(hint, value):
    raise ConfigError(f"{what}{place}={number!r}: must be {valid}")
