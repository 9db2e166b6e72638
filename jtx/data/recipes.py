"""The ops of a config by their stages, checked for what they declare."""

import dataclasses
import itertools
from typing import Any, Iterator, Mapping, NamedTuple, Sequence

from jtx.config import ConfigDict, build
from jtx.data.op import BatchOp, Column, ExampleOp, FormOp, ImageOp, LayoutOp, Op, Stage
from jtx.data.ops.image_layout import told_size
from jtx.data.ops.registry import OPS
from jtx.errors import ConfigError


def token_fields(columns: Mapping[str, Column]) -> tuple[str, ...]:
  """The columns that are tokens."""
  return tuple(name for name, column in columns.items() if column.kind == "tokens")


def field_of(name: str, column: Column) -> str | None:
  """The field that a column is as long as, or None for one number an example."""
  return {"tokens": name, "example": None, "array": None}.get(
      column.kind, column.kind.removeprefix("aligned:"))


class Recipe(NamedTuple):
  """The ops of a config, by their stage."""
  prepare: list[ExampleOp]  # an example, once
  form: FormOp | None  # documents: makes examples of them, others in every epoch
  layout: LayoutOp  # examples, into rows
  alter: list[BatchOp]  # a batch
  augment: Sequence[ImageOp] = ()  # an image, whenever it is read, to what the layout takes

  def bind(self, tokenizers: Mapping[str, Any]) -> "Recipe":
    """The recipe with what its ops need to know of the tokenizers."""
    return self._replace(form=self.form and self.form.bind(tokenizers),
                         alter=[op.bind(tokenizers) for op in self.alter],
                         augment=[op.bind(tokenizers) for op in self.augment])

  def with_length(self, length: int | None) -> "Recipe":
    """The recipe with rows of `length` tokens; None is what the layout says.

    Raises:
      ConfigError: examples may be longer than `length`, or are images.
    """
    if length is None:
      return self
    if self.augment:
      raise ConfigError("config.phases: is for rows of tokens, and data.ops make images; leave it"
                        " unset")
    if self.form is None and length < max(self.layout.lengths):
      raise ConfigError(f"config.phases: rows of {length} tokens are too short for examples of up"
                        f" to lengths={self.layout.lengths}, which the layout keeps; give it"
                        " the shortest phase's")
    lengths = (length,) * len(self.layout.fields)
    return self._replace(layout=dataclasses.replace(self.layout, lengths=lengths))

  @property
  def maker(self) -> ExampleOp | ImageOp | None:
    """The op that makes tokens."""
    return maker_of([*self.prepare, *self.augment])

  @property
  def names(self) -> tuple[str, ...] | None:
    """The classes or tags, where an op has them."""
    return None if self.namer is None else self.namer.names

  @property
  def namer(self) -> ExampleOp | ImageOp | None:
    """The op that has names of classes or tags."""
    return next((op for op in (*self.prepare, *self.augment) if op.named), None)

  def with_names(self, names: Sequence[str]) -> "Recipe":
    """The recipe with names of classes or tags, where an op has none yet."""
    named = lambda ops: [dataclasses.replace(op, names=tuple(names)) if op.named and not op.names
                         else op for op in ops]
    return self._replace(prepare=named(self.prepare), augment=named(self.augment))

  def prepared_columns(self) -> dict[str, Column]:
    """The columns that are kept of an example after the ops that run once.

    With a form these are the columns of documents that it reads, and else all that the ops make
    but for fields that the layout leaves out.
    """
    made = {name: column for op in (*self.prepare, *self.augment)
            for name, column in op.columns.items()}
    if self.form is not None:
      return {name: column for name, column in made.items() if name in self.form.needs}
    return {name: column for name, column in made.items()
            if field_of(name, column) in (None, *self.layout.fields)}

  def prepared_fields(self) -> tuple[str, ...]:
    """The fields of tokens among `prepared_columns`."""
    return self.layout.fields if self.form is None else token_fields(self.prepared_columns())

  def row_lengths(self) -> dict[str, int]:
    """The most tokens of each field that a row has."""
    return dict(zip(self.layout.fields, self.layout.lengths))

  def row_limits(self) -> dict[str, int]:
    """The most tokens of each field that an example may have; documents may be of any length."""
    return {} if self.form else self.row_lengths()

  def row_columns(self) -> dict[str, Column]:
    """The columns of the examples in a row."""
    return self.prepared_columns() if self.form is None else self.form.columns


def build_ops(configs: Sequence[ConfigDict]) -> Recipe:
  """The ops of a config's `data.ops`.

  Raises:
    ConfigError: an unknown op or key, not one layout, not one op that makes tokens, or an op out
      of its place.
  """
  ops = [build(OPS, c, what=f"data.ops[{i}]") for i, c in enumerate(configs)]
  names = [c.name for c in configs]
  what = f"data.ops ({', '.join(names)})"
  for name, op in zip(names, ops):
    if not isinstance(op, Op):
      raise ConfigError(f"{what}: {name!r} does not say when it runs; derive it from a class of"
                        " jtx.data.op")
  layouts = places_of(ops, Stage.LAYOUT)
  if len(layouts) != 1:
    raise ConfigError(f"{what}: needs one layout, 'pack' or 'pad', or 'images' for images")
  of_kind = _image_recipe if any(op.of_images for op in ops) else _text_recipe
  return of_kind(ops, names, layouts[0], what)


def places_of(ops: Sequence[Op], stage: Stage) -> list[int]:
  return [i for i, op in enumerate(ops) if op.stage is stage]


def _check_places(ops: Sequence[Op], names: Sequence[str], at: int, what: str) -> None:
  """Raises ConfigError where an op stands on the wrong side of the layout, which is at `at`."""
  for i, (name, op) in enumerate(zip(names, ops)):
    if i > at and op.stage is not Stage.BATCH:
      raise ConfigError(f"{what}: {name!r} does not work on batches, so it stands before the"
                        " layout")
    if i < at and op.stage is Stage.BATCH:
      raise ConfigError(f"{what}: {name!r} works on batches, so it stands after the layout")


def _image_recipe(ops: list[Any], names: list[str], at: int, what: str) -> Recipe:
  """The recipe of ops of which one at least works on images; `at` is the layout's place."""
  image_op = next(name for name, op in zip(names, ops) if op.of_images)
  for name, op in zip(names, ops):
    if not op.of_images:
      raise ConfigError(f"{what}: {name!r} is for texts and {image_op!r} for images, so they have"
                        " no place in one list")
  _check_places(ops, names, at, what)
  if [i for i, op in enumerate(ops) if op.opens] != [0]:
    raise ConfigError(f"{what}: needs one 'decode_image', as its first op")
  first, layout = ops[0], ops[at]
  if first.channels != layout.channels:
    raise ConfigError(f"{what}: {names[0]!r} has channels={first.channels}, but {names[at]!r} has"
                      f" channels={layout.channels}")
  sized = [i for i, op in enumerate(ops[:at]) if op.output_size is not None]
  if sized and layout.output_size is None:
    raise ConfigError(f"{what}: {names[sized[-1]]!r} makes images of one size, and {names[at]!r} is"
                      " for images of any shape; leave it out")
  for i in sized[-1:]:
    if not layout.takes(ops[i].output_size):
      raise ConfigError(f"{what}: {names[i]!r} has {told_size(ops[i].output_size)}, but"
                        f" {names[at]!r} has {told_size(layout.output_size)}")
  for why in _not_by_size(ops, names, sized) if layout.by_size else ():
    raise ConfigError(f"{what}: {names[at]!r} has shapes={layout.shapes}, and {why}")
  makers = [i for i, op in enumerate(ops) if token_fields(op.columns)]
  if len(makers) > 1:
    raise ConfigError(f"{what}: there is one {names[makers[0]]!r} at most")
  if makers and layout.output_size is None:
    raise ConfigError(f"{what}: {names[makers[0]]!r} makes tokens beside an image, and rows of"
                      f" {names[at]!r} have several images; use 'images'")
  for i in makers:
    ops[at] = layout = dataclasses.replace(layout, fields=ops[i].fields, lengths=(ops[i].length,))
  if layout.output_size is not None and layout.max_segments > 1 and not makers:
    raise ConfigError(f"{what}: max_segments={layout.max_segments} of {names[at]!r} is for images"
                      " with texts, which 'caption' makes tokens of")
  return Recipe(prepare=[], form=None, layout=layout, alter=[], augment=ops)


def _not_by_size(ops: Sequence[Op], names: Sequence[str], sized: Sequence[int]) -> Iterator[str]:
  """Why batches can't have a shape by their images' sizes, if so; `sized` ops make one size."""
  for i in sized[-1:]:
    yield f"{names[i]!r} makes all images of one size; leave out one of them"
  if ops[0].min_side:
    yield (f"{names[0]!r} has min_side={ops[0].min_side}, with which the size of an image is not"
           " known before it is read; leave out one of them")


def _text_recipe(ops: list[Any], names: list[str], at: int, what: str) -> Recipe:
  """The recipe of ops that work on texts; `at` is the layout's place."""
  forms = places_of(ops, Stage.FORM)
  if forms not in ([], [at - 1]):
    raise ConfigError(f"{what}: {names[forms[0]]!r} forms examples of documents; there is one such"
                      " op at most, right before the layout")
  _check_places(ops, names, at, what)
  prepare = ops[:at - len(forms)]
  makers = [i for i, op in enumerate(prepare) if token_fields(op.columns)]
  if len(makers) != 1:
    valid = ", ".join(repr(name) for name, op in OPS.items()
                      if op.stage is Stage.EXAMPLE and op.columns)
    raise ConfigError(f"{what}: needs one op that makes tokens, such as {valid}, before the"
                      " layout")
  form = ops[forms[0]] if forms else None
  _check_fields(ops, names, makers[0], forms)
  if form is not None and (ops[at].group or ops[at].fold > 1):
    told = "group=True" if ops[at].group else f"max_segments={ops[at].fold} of {names[at]!r}"
    raise ConfigError(f"{what}: {told} is for examples, and {names[forms[0]]!r} fills its rows")
  made = {name: column for op in prepare for name, column in op.columns.items()}
  for i in (*forms, *range(at + 1, len(ops))):
    if not set(ops[i].needs) <= set(made if form is None or i in forms else form.columns):
      raise ConfigError(f"{what}: {names[i]!r} needs {_needed(ops[i].needs)}")
  if len(ops) > at + 2:
    raise ConfigError(f"{what}: there is one op at most that works on batches")
  return Recipe(prepare, form, ops[at], ops[at + 1:])


def _check_fields(ops: Sequence[Op], names: Sequence[str], maker: int,
                  forms: Sequence[int]) -> None:
  """Raises ConfigError where an op counts tokens of fields that are not made before it.

  Args:
    ops: all of them.
    names: theirs.
    maker: the place of the op that makes tokens.
    forms: the place of the op that forms examples, if there is one.
  """
  makers = [maker]
  for i in forms:
    # A form of other fields than those that it reads is the one to name.
    if set(token_fields(ops[i].columns)) != set(token_fields(ops[maker].columns)):
      makers.append(i)
  for i, (name, op) in enumerate(zip(names, ops)):
    if op.counted and i < maker:
      raise ConfigError(f"data.ops: {name!r} counts tokens, so it stands after {names[maker]!r}")
    at = max((m for m in makers if m < i), default=maker)
    made = token_fields(ops[at].columns)
    if not set(op.counted) <= set(made):
      raise ConfigError(f"data.ops: {name!r} has fields={op.counted}, but {names[at]!r} makes only"
                        f" {made}")


def _needed(needs: Sequence[str]) -> str:
  """A clause on the op that always makes some columns; on the columns, where none does."""
  makers = [repr(name) for name, op in OPS.items()
            if op.stage is Stage.EXAMPLE and isinstance(op.columns, Mapping)
            and set(needs) <= op.columns.keys()]
  return f"what {' or '.join(makers)} makes" if makers else f"columns {', '.join(needs)}"


def text_ops(ops: Sequence[ExampleOp]) -> list[ExampleOp]:
  """The ops before the one that makes tokens."""
  return list(itertools.takewhile(lambda op: not token_fields(op.columns), ops))


def line_ops(ops: Sequence[ExampleOp]) -> list[ExampleOp]:
  """Those of `text_ops` for a line that stands alone, which has no fields yet."""
  return [op for op in text_ops(ops) if not op.renames]


def cleaned(ops: Sequence[ExampleOp], fields: Sequence[str], texts: Sequence[str]) -> list[str]:
  """Lines as `line_ops` leave the first of these fields; "" of one that they drop."""
  results = []
  for text in texts:
    examples = [{"id": 0, **dict.fromkeys(fields, text)}]
    for op in ops:
      examples = op(examples, {})
    results.append(examples[0][fields[0]] if examples else "")
  return results


def model_keys(ops: Sequence[Op], layout: LayoutOp) -> dict[str, Any]:
  """Keys that a model leaves unset: `max_side` of patches, `head.both_orders` of pairs of texts."""
  if hasattr(layout, "max_side"):
    return {"max_side": layout.max_side}
  maker = maker_of(ops)
  return {} if maker is None else {"head.both_orders": maker.both_orders}


def maker_of(ops: Sequence[ExampleOp]) -> ExampleOp | None:
  """The op that makes tokens."""
  return next((op for op in ops if token_fields(op.columns)), None)
