"""The base classes of data ops, which declare their stage and the columns that they read and make.

A config's `data.ops` lists ops in order. An op is a frozen dataclass, whose fields are its config
keys, of one of the classes below. `jtx.data.recipes.build_ops` goes by what an op declares, so a
new op needs no change there.
"""

import enum
from typing import Any, ClassVar, Mapping, NamedTuple, Sequence

import numpy as np

from jtx.data.example import Example

TOKENIZER = "text"  # the field whose tokenizer the ops for encoders take


class Column(NamedTuple):
  """A value that an op puts into an example for the model."""
  # "tokens"; "aligned:FIELD", as long as FIELD's tokens, or FIELD itself of what is no token;
  # "example", one number, or as many as `shape` says; or "array", where an example is a row.
  kind: str
  dtype: str = "int32"
  shape: tuple[int, ...] = ()  # of an array, of what an example has, or of each that is aligned
  fill: int = 0  # of an array where there is no example


class Stage(enum.Enum):
  """When an op runs, and on what."""
  EXAMPLE = "example"  # texts, once before training
  FORM = "form"  # documents, of which it forms other examples in every epoch
  IMAGE = "image"  # an image, whenever it is read
  LAYOUT = "layout"  # examples, of which it makes rows
  BATCH = "batch"  # a batch, anew whenever it is read


class Op:
  """The declarations of an op."""
  stage: ClassVar[Stage]
  of_images = False  # works on images, and not on texts
  columns: ClassVar[Mapping[str, Column]] = {}  # that it makes for the model
  needs: ClassVar[tuple[str, ...]] = ()  # columns that it reads
  counted: ClassVar[tuple[str, ...]] = ()  # fields whose tokens it counts
  both_orders = False  # makes a pair of texts in both orders: `swapped` beside `text`
  named = False  # has `names` of classes or tags; () is for those of the training sources
  names_key: ClassVar[str] = "head.outputs"  # the model's field that is the number of these

  @property
  def number_of_names(self) -> int:
    """As far as it is known without the training sources; else 0."""
    return len(self.names)

  def collect_names(self, sources: Sequence[Any], ops: Sequence[Any]) -> tuple[str, ...]:
    """The `names` that training sources have.

    Args:
      sources: of the run.
      ops: that run over an example before this one does.
    """
    raise NotImplementedError


class ExampleOp(Op):
  """Runs once over all examples, in chunks, and may drop some or make several of one.

  It is deterministic, so the examples that are left have the same numbers in every run.
  """
  stage = Stage.EXAMPLE
  tokenizer_fields: ClassVar[tuple[str, ...]] = ()  # with a tokenizer each
  renames = False  # makes the fields that the ops after it read, of other keys
  # Of an op that makes tokens: what a prediction needs, and the keys of an example that have it.
  inputs: Mapping[str, str | tuple[str, ...]] = {}

  def __call__(self, examples: list[Example], tokenizers: Mapping[str, Any]) -> list[Example]:
    raise NotImplementedError

  def texts_of(self, example: Example, field: str) -> list[str]:
    """The texts of an example that a tokenizer of `field` is trained on."""
    raise NotImplementedError

  def misfit(self, example: Example) -> str:
    """Why an example to be predicted is not of the run's form, a clause; "" where it is."""
    del example
    return ""


class FormOp(Op):
  """Forms examples of documents, right before the layout; see `jtx.data.ops.forms`.

  `needs` are columns of the documents, and `columns` those of the examples, which may have other
  fields, and several.
  """
  stage = Stage.FORM
  start_role = "bos"  # of the token that starts a decoder, "bos" or "eos", where it makes targets

  def bind(self, tokenizers: Mapping[str, Any]) -> "FormOp":
    """The op with what it needs to know of the tokenizers."""
    raise NotImplementedError

  def form(self, documents: Any, numbers: np.ndarray, lengths: Mapping[str, int],
           rng: np.random.Generator) -> Any:
    """The examples of some documents, a `jtx.data.ops.forms.Formed`.

    Args:
      documents: Prepared.
      numbers: of the documents, in the order of the window.
      lengths: the most tokens of each field that an example may have.
      rng: a function of the seed and the window.
    """
    raise NotImplementedError("bind it to the tokenizers first")


class ImageOp(Op):
  """Changes an example of an image, each time anew; see `jtx.data.ops.image`."""
  stage = Stage.IMAGE
  of_images = True
  opens = False  # makes a Pillow image of a file or an array, as the first op does
  # Of an op that makes tokens beside the image: their fields, as of an `ExampleOp`.
  tokenizer_fields: ClassVar[tuple[str, ...]] = ()
  # Height and width, if it makes images of one size.
  output_size: ClassVar[tuple[int, int] | None] = None

  @property
  def evaluated(self) -> tuple["ImageOp", ...]:
    """The ops that do what this one does in evaluation; none where it only draws at random."""
    return ()

  def bind(self, tokenizers: Mapping[str, Any]) -> "ImageOp":
    """The op with what it needs to know of the tokenizers."""
    del tokenizers  # most need nothing
    return self

  def sized(self, size: tuple[int, int],
            generator: np.random.Generator | None) -> tuple[int, int]:
    """The width and height that `augment` makes of `size`, with a generator in the same state.

    An op that changes sizes tells it here; else the layout can't choose a shape of a batch by it.
    """
    del generator  # most change none
    return size

  def augment(self, example: Example, generator: np.random.Generator | None) -> Example:
    """The example after the op.

    Args:
      example: with its "image" and "path".
      generator: in training, a function of the seed and the row; None is for evaluation, in
        which an op that draws at random does what stands in its place, or nothing.
    """
    raise NotImplementedError


class LayoutOp(Op):
  """Makes rows of examples; see `jtx.data.packing`.

  Beside what is declared here it has, as a field or constant,

    fields        of tokens
    lengths       of a row, in tokens of each field
    max_segments  examples of a row, at most
    group         whether a batch has examples of similar length
  """
  stage = Stage.LAYOUT
  fold = 1  # rows of the plan that are laid into one when a batch is made
  by_size = False  # lengths are the height and width of an image after all ops before the layout

  @property
  def counted(self) -> tuple[str, ...]:
    return self.fields

  def number(self, size: tuple[int, int]) -> int:
    """The length of an image of a height and width in pixels, where rows have several images."""
    raise NotImplementedError

  def fit(self, lengths: np.ndarray | None) -> "LayoutOp":
    """The layout of a batch whose rows are of `lengths` [rows, fields]; None is the largest."""
    raise NotImplementedError

  def rank(self, lengths: np.ndarray) -> np.ndarray:
    """[examples]: by which a batch has similar ones, of `lengths` [examples, fields]."""
    return lengths.max(1)

  def plan(self, lengths: np.ndarray) -> list[list[int]]:
    """Rows of indices into `lengths` [examples, fields], none of which exceeds a row."""
    raise NotImplementedError


class BatchOp(Op):
  """Alters a batch; what it draws is drawn anew for every row in every epoch."""
  stage = Stage.BATCH

  def bind(self, tokenizers: Mapping[str, Any]) -> "BatchOp":
    """The op with what it needs to know of the tokenizers."""
    raise NotImplementedError

  def alter(self, batch: dict[str, np.ndarray],
            generators: Sequence[np.random.Generator]) -> dict[str, np.ndarray]:
    """The batch after the op; a generator a row."""
    raise NotImplementedError("bind it to the tokenizers first")
