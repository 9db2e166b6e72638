"""Sections made from constructors, edits of them, and what is refused."""

import dataclasses

import flax.linen as nn
from ml_collections import config_dict
import pytest

from jtx import config, config_files
from jtx.errors import ConfigError
from jtx.models import MODELS
from jtx.nn.block import BlockConfig
from jtx.nn.positions import POSITIONS, Learned, Position, Sinusoidal
from jtx.nn.rope import SCALINGS, Linear, Rope
from tests.helpers import encdec


@dataclasses.dataclass(frozen=True)
class Inner:
  depth: int = 2
  rate: float = 0.5


@dataclasses.dataclass(frozen=True)
class Thing:
  size: int
  inner: Inner = Inner(depth=3)
  label: str = "a"
  rate: float | None = None
  kinds: tuple[str, ...] = ("x",)
  flag: bool = False
  position: Position = Rope(base=7.0)


class Layer(nn.Module):
  features: int = 3


def function(data, *, width: int, scale: float = 1.0):
  return data, width, scale


REGISTRY = {"thing": Thing, "function": function, "layer": Layer}


# ------------------------------------------------------------------------ fields, section


def test_fields_of_every_kind_of_constructor():
  names = ["size", "inner", "label", "rate", "kinds", "flag", "position"]
  assert list(config.fields(Thing)) == names
  assert list(config.fields(Layer)) == ["features"]  # not Flax's own parent and name
  assert {k: f.type for k, f in config.fields(function).items()} == {"width": int, "scale": float}


def test_a_field_can_not_be_called_as_the_key_of_the_constructor():
  @dataclasses.dataclass(frozen=True)
  class Named(Inner):
    name: str = "x"
    parent: int = 3  # which is a field of every Linen module, but not of this

  def named(*, name="x"):
    return name

  for constructor in (Named, named):
    with pytest.raises(ConfigError, match=r"^tests.test_config.[Nn]amed has a field or argument"
                       " 'name', which is the key of a config that says which"):
      config.section({"named": constructor}, "named")
  only = dataclasses.make_dataclass("Only", [("parent", int, 3)])
  assert config.section({"only": only}, "only", parent=4).parent == 4
  assert list(config.fields(Layer)) == ["features"]


def test_a_section_holds_the_defaults():
  cfg = config.section(REGISTRY, "thing")
  assert cfg.to_dict() == {
      "name": "thing", "size": None, "inner": {"depth": 3, "rate": 0.5}, "label": "a", "rate": None,
      "kinds": ("x",), "flag": False,
      "position": {"name": "rope", "base": 7.0, "pairing": "half", "fraction": 1.0,
                   "scaling": {"name": "none"}, "local_base": None, "local_scaling": None}}


def test_what_may_be_unset_is_unset_again():
  cfg = config.section(REGISTRY, "thing", size=1, rate=0.5)
  assert config.edit(cfg, {"rate": None}).rate is None
  assert config.build(REGISTRY, cfg).rate is None


def test_an_unset_section_is_set():
  linear = config.section(SCALINGS, "linear", factor=8.0)
  cfg = config.section(REGISTRY, "thing", size=1, **{"position.local_scaling": linear})
  assert config.build(REGISTRY, cfg).position == Rope(base=7.0, local_scaling=Linear(factor=8.0))
  config.edit(cfg, {"position.local_scaling.factor": 2.0})
  assert config.build(REGISTRY, cfg).position.local_scaling == Linear(factor=2.0)


def test_a_section_without_a_name():
  assert config.fields_section(Inner, depth=9).to_dict() == {"depth": 9, "rate": 0.5}


def test_unset_keys_have_a_type():
  cfg = config.section(REGISTRY, "thing")
  assert cfg.get_type("size") is int and cfg.get_type("rate") is float
  with pytest.raises(TypeError):
    cfg.rate = "fast"
  cfg.rate = 0.25
  assert config.build(REGISTRY, config.edit(cfg, {"size": 1})).rate == 0.25


def test_sections_do_not_share_state():
  one, two = (config.section(REGISTRY, "thing") for _ in range(2))
  one.inner.depth = 100
  one.position.base = 100.0
  assert two.inner.depth == 3 and two.position.base == 7.0


def test_unknown_constructor():
  with pytest.raises(ConfigError, match="unknown name 'thingy'; did you mean 'thing'?"):
    config.section(REGISTRY, "thingy")
  with pytest.raises(ConfigError, match="valid are: thing, function, layer"):
    config.section(REGISTRY, "zzz")


# --------------------------------------------------------------------------------- edits


@pytest.mark.parametrize("edits", [
    {"inner": {"depth": 5}}, {"inner.depth": 5}, {"inner": config_dict.ConfigDict({"depth": 5})}])
def test_nested_edits_keep_the_rest(edits):
  cfg = config.section(REGISTRY, "thing", **edits)
  assert cfg.inner.to_dict() == {"depth": 5, "rate": 0.5}


def test_an_int_is_a_float():
  assert config.section(REGISTRY, "function", scale=2).scale == 2.0


def test_a_section_replaces_another():
  learned = config.section(POSITIONS, "learned", max_length=9)
  cfg = config.section(REGISTRY, "thing", size=1, position=learned)
  assert config.build(REGISTRY, cfg).position == Learned(max_length=9)
  assert "base" not in cfg.position


def one_sentence(error) -> str:
  assert "\n" not in str(error.value)
  return str(error.value)


@pytest.mark.parametrize("edits, message", [
    ({"sise": 3}, "thing.sise: unknown key; did you mean 'size'?"),
    ({"zzz": 3}, "thing.zzz: unknown key; valid are: "),
    ({"inner": {"dept": 3}}, "thing.inner.dept: unknown key; did you mean 'depth'?"),
    ({"inner.dept": 3}, "thing.inner.dept: unknown key; did you mean 'depth'?"),
    ({"position": {"bas": 3.0}}, "thing.position.bas: unknown key; did you mean 'base'?"),
    ({"size": "3"}, "thing.size: '3' is not a int"),
    ({"size": 1.5}, "thing.size: 1.5 is not a int"),
    ({"label": 3}, "thing.label: 3 is not a str"),
    ({"flag": 1}, "thing.flag: 1 is not a bool"),
    ({"inner.depth": True}, "thing.inner.depth: True is not a int"),
    ({"kinds": "xyz"}, "thing.kinds: 'xyz' is not a tuple"),
    ({"inner": 3}, "thing.inner: 3 is not a ConfigDict"),
    ({"size": True}, "thing.size: True is not a int"),
    ({"label": None}, "thing.label: None is not a str"),
])
def test_edits_that_are_refused(edits, message):
  with pytest.raises(ConfigError) as error:
    config.section(REGISTRY, "thing", **edits)
  assert one_sentence(error).startswith(message)


def sections():
  """A config with a tuple of sections."""
  cfg = config.ConfigDict()
  cfg.steps = tuple(config.section(REGISTRY, "thing", size=size) for size in (1, 2))
  return cfg


def test_an_item_of_a_tuple_is_edited_by_its_place():
  cfg = config.edit(sections(), {"steps[1].inner.depth": 7, "steps[1]": {"label": "b"}})
  assert (cfg.steps[1].inner.depth, cfg.steps[1].label, cfg.steps[1].size) == (7, "b", 2)
  assert cfg.steps[0] == sections().steps[0]
  other = config.section(REGISTRY, "function", scale=2.0)
  cfg = config.edit(sections(), {"steps[0]": other})
  assert [step.name for step in cfg.steps] == ["function", "thing"]


@pytest.mark.parametrize("edits, message", [
    ({"steps[2].size": 3}, "config.steps[2]: there is no such section; steps has 2 items"),
    ({"stops[0].size": 3}, "config.stops[0]: there is no such section; stops has 0 items"),
    ({"steps[0]": 3}, "config.steps[0] is a section; edit a key of it, as config.steps[0].KEY"),
    ({"steps[0].sise": 3}, "config.steps[0].sise: unknown key; did you mean 'size'?"),
])
def test_edits_of_items_that_are_refused(edits, message):
  with pytest.raises(ConfigError) as error:
    config.edit(sections(), edits)
  assert one_sentence(error) == message


# --------------------------------------------------------------------------------- build


def test_build_a_dataclass():
  cfg = config.section(REGISTRY, "thing", size=4, inner={"rate": 0.1}, kinds=("y", "z"))
  assert config.build(REGISTRY, cfg) == Thing(4, Inner(3, 0.1), kinds=("y", "z"))


def test_build_a_function_with_what_is_not_config():
  cfg = config.section(REGISTRY, "function", width=4)
  assert config.build(REGISTRY, cfg, "data") == ("data", 4, 1.0)
  assert config.build(REGISTRY, config.section(REGISTRY, "layer"), name="n").name == "n"


def test_lists_become_tuples():
  cfg = config.section(REGISTRY, "thing", size=4)
  cfg = config_dict.ConfigDict({**cfg.to_dict(), "kinds": ["p", "q"]})
  assert config.build(REGISTRY, cfg).kinds == ("p", "q")


@pytest.mark.parametrize("changes, message", [
    ({}, "model.size must be set"),
    ({"size": 1, "sizes": 2}, "model.sizes: unknown key; did you mean 'size'?"),
    ({"size": 1, "name": "thin"}, "model.name: unknown name 'thin'; did you mean 'thing'?"),
    ({"size": 1, "position": {"name": "ropes"}},
     "model.position.name: unknown name 'ropes'; did you mean 'rope'?"),
    ({"size": 1, "position": {"name": "rope", "bases": 1.0}},
     "model.position.bases: unknown key; did you mean 'base'?"),
    ({"size": 1, "features": 3, "width": 2},
     "model.features: unknown key of model.name='thing', but of layer; valid are: size, inner,"
     " label, rate, kinds, flag, position; a section of another name is given whole, as"
     " model='{\"name\": \"thing\", ...}'"),
    ({"size": 1, "inner": {"depths": 1}}, "model.inner.depths: unknown key; did you mean 'depth'?"),
])
def test_builds_that_are_refused(changes, message):
  cfg = config_dict.ConfigDict({**config.section(REGISTRY, "thing").to_dict(), **changes})
  with pytest.raises(ConfigError) as error:
    config.build(REGISTRY, cfg, what="model")
  assert one_sentence(error) == message


def test_a_missing_required_key():
  with pytest.raises(ConfigError, match="model.width must be set"):
    config.build(REGISTRY, config_dict.ConfigDict({"name": "function"}), "data", what="model")


# ---------------------------------------------------------------------------- real ones


def test_a_model_is_its_section():
  cfg = config.section(MODELS, "encdec", vocab_size=10)
  built = config.build(MODELS, cfg, what="model")
  assert built == encdec(vocab_size=10)
  for stack in (built.encoder, built.decoder):
    assert stack.position == Sinusoidal() and stack.block == BlockConfig()


@pytest.mark.parametrize("name", POSITIONS)
def test_every_position_can_be_chosen(name):
  stack = dict(position=config.section(POSITIONS, name))
  built = config.build(MODELS, config.section(
      MODELS, "encdec", vocab_size=10, encoder=stack, decoder=stack), what="model")
  assert type(built.encoder.position) is type(built.decoder.position) is POSITIONS[name]


def test_a_section_survives_json(tmp_path):
  cfg = config.section(MODELS, "encdec", vocab_size=10, encoder=dict(
      pattern=("global", "local"), window=3, position=config.section(POSITIONS, "t5")))
  path = str(tmp_path / "config.json")
  config_files.save(cfg, path)
  assert config.build(MODELS, config_files.load(path)) == config.build(MODELS, cfg)


def test_bad_files(tmp_path):
  path = tmp_path / "config.json"
  with pytest.raises(ConfigError, match="config.json does not exist"):
    config_files.load(str(path))
  path.write_text("{")
  with pytest.raises(ConfigError, match="config.json is not valid JSON"):
    config_files.load(str(path))
  path.write_text("[]")
  with pytest.raises(ConfigError, match="top level must be a JSON object"):
    config_files.load(str(path))


def test_flatten():
  cfg = config_dict.ConfigDict({"a": {"b": 1}, "c": (2, config_dict.ConfigDict({"d": 3}))})
  assert config_files.flatten(cfg) == {"a.b": 1, "c[0]": 2, "c[1].d": 3}
