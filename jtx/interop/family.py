"""The declaration of a model type of Hugging Face: attributes, names of tensors, architectures."""

import dataclasses
import re
from typing import Any, Callable, Iterable, Mapping, NamedTuple, Sequence, Set

from jtx.interop.tables import Row
from jtx.models.heads import TASKS

Heads = Set[str]  # as `jtx.models.contract.Model.heads`


def type_of(name: str) -> str:
  """The `model_type` of config.json, given the name of a family."""
  return name.split()[0]


def task_of(heads: Heads) -> str:
  """The task among the heads, of `jtx.models.heads.TASKS`."""
  return next((name for name in TASKS if name in heads), "none")


def stored(heads: Heads) -> frozenset[str]:
  """The heads as files have them, in which tasks that differ in what outputs mean are one."""
  return frozenset((TASKS[head].stored_as or head) if head in TASKS else head for head in heads)


def pretraining(heads: Heads) -> frozenset[str]:
  """The heads that have no task of `TASKS`, such as that of a masked language model."""
  return frozenset(heads) - TASKS.keys() - {"distilled", "projected"}


@dataclasses.dataclass(frozen=True)
class Attributes:
  """The attributes of config.json that a model type has beside those of all."""
  read: Mapping[str, tuple[str, Any]]  # kind and the class's default
  fixed: Mapping[str, tuple] = dataclasses.field(default_factory=dict)  # with the only values that
  # jtx can compute
  free: frozenset[str] = frozenset()  # that do not change what is computed
  aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)  # other names of them
  written: Mapping[str, str] = dataclasses.field(default_factory=dict)  # the names that are written
  # where these are others
  # Objects in config.json, whose attributes are here SECTION.NAME -> the name of an object that
  # older files have beside it, whose values win
  sections: Mapping[str, str] = dataclasses.field(default_factory=dict)

  @property
  def of_text(self) -> str | None:
    """What the names of attributes of texts begin with, "" or "SECTION."; None without texts."""
    prefixes = ("", *(f"{section}." for section in self.sections))
    return next((prefix for prefix in prefixes if f"{prefix}vocab_size" in self.read), None)


@dataclasses.dataclass(frozen=True)
class Names:
  """The tensors of a model type by their names in files."""
  prefix: str  # of the names of the base model's tensors, in files of models with a head
  trunk: tuple[Row, ...]  # layers and embeddings
  heads: Mapping[str, tuple[Row, ...]]  # by name; a parameter of several heads is the last one's
  tied: Mapping[str, str] = dataclasses.field(default_factory=dict)  # second names of a tensor ->
  # the first; where `tie_word_embeddings` is false, they are tensors of their own
  copies: Mapping[str, str] = dataclasses.field(default_factory=dict)  # the same, of any model
  buffers: frozenset[str] = frozenset()  # tensors of files that are no parameters; "{i}" as in rows
  spellings: Mapping[str, str] = dataclasses.field(default_factory=dict)  # of names in some files:
  # regular expression -> what is written in its place
  base: Heads = frozenset({"embedding"})  # of the base model, whose names have no prefix
  written: Callable[[Any], Mapping[str, str]] = lambda model: {}  # parts of names that the files of
  # a model have in place of the rows'
  # Names of modules of `transformers` that are not those of files, as PEFT has them: regular
  # expression -> what stands in its place. Several names are of modules for each parameter of a
  # tensor; with none, its parameters are in no linear layer.
  modules: Mapping[str, str | tuple[str, ...]] = dataclasses.field(default_factory=dict)

  def rows_of(self, heads: Heads) -> tuple[Row, ...]:
    """The rows of heads alone."""
    heads = stored(heads)
    rows = {row.paths: row for name in self.heads if name in heads for row in self.heads[name]}
    return tuple(rows.values())

  def rows_for(self, heads: Heads) -> tuple[Row, ...]:
    """The rows of a model with these heads."""
    return self.trunk + self.rows_of(heads)

  def pattern(self, *, heads: bool) -> re.Pattern[str]:
    """Matches the names of the trunk's tensors, or of any head's."""
    rows = [r for rows in self.heads.values() for r in rows] if heads else self.trunk
    return matching(row.name for row in rows)


def matching(names: Iterable[str]) -> re.Pattern[str]:
  """Matches names, in which "{i}" and the like are the numbers of any layer, expert or block."""
  number = lambda name: re.sub(r"\\{[iesb]\\}", r"\\d+", re.escape(name))
  return re.compile("|".join(sorted({number(n) for n in names})))


class SideFiles(NamedTuple):
  """Files beside config.json that have a part of what the model type's attributes are."""
  read: Callable[[str], dict[str, Any]]  # attributes, given the directory
  # config.json, and the contents of the others by name, given all attributes and the image ops
  split: Callable[[Mapping[str, Any], Sequence[Any]], tuple[dict[str, Any], dict[str, Any]]]
  # The ops that make a model's arrays of files, given the directory and the model's `image`.
  image_ops: Callable[[str, Any], Sequence[Any]]


@dataclasses.dataclass(frozen=True)
class Family:
  """A model type of Hugging Face, or of another library."""
  architectures: Mapping[str, Heads]  # the heads of each
  attributes: Attributes
  names: Names
  trunk: Callable[[Mapping[str, Any], Heads], dict[str, Any]]  # fields of the model with heads
  values: Callable[[Any], dict[str, Any]]  # the attributes of a model
  head: Callable[[Mapping[str, Any], Heads], dict[str, Any]] | None = None  # fields of its `head`
  model: str = "encoder"  # of `jtx.models.MODELS`
  side_files: SideFiles | None = None
  generates: bool = False  # its folders may have generation_config.json
  pads_left: bool = False  # its classes take a row's last token for the text's, so padding is first
  # Raises ConfigError where `transformers` would not use a tokenizer of these special ids as jtx
  check_ids: Callable[[Mapping[str, int | None]], None] = lambda ids: None
  # Attributes that the tensors of a folder correct: from config.json and whether two tensors are
  # equal, None where the first is absent.
  resolved: Callable[[Mapping[str, Any], Callable[[str, str], bool | None]],
                     Mapping[str, Any]] | None = None

  def architecture(self, heads: Heads) -> str | None:
    """The name of the architecture with these heads."""
    heads = stored(heads)
    return next((name for name, own in self.architectures.items() if own == heads), None)
