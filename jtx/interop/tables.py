"""Rows that pair tensors of Hugging Face files with parameters, and what a family declares.

A row is pure data; reading and writing reshape, transpose, split and join, so that every
number passes with its bits as they were.
"""

import dataclasses
import math
import re
from typing import Any, Callable, Iterable, Iterator, Mapping, NamedTuple, Sequence

import numpy as np

from jtx.errors import DataError

Shape = tuple[int, ...]


class Layout(NamedTuple):
  """How a tensor lies in a file; our parameters have inputs first and heads as an axis."""
  shape: Callable[[Shape], Shape]  # of the tensor, from the parameter's
  read: Callable[[np.ndarray, Shape], np.ndarray]  # the parameter, of that shape
  write: Callable[[np.ndarray], np.ndarray]  # the tensor


# The same on both sides.
TABLE = Layout(lambda s: s, lambda x, s: x, lambda x: x)
# [N * H] in the file, [N, H] here.
VECTOR = Layout(lambda s: (math.prod(s),), lambda x, s: x.reshape(s), lambda x: x.reshape(-1))


def matrix(num_in: int) -> Layout:
  """[outputs, inputs] in the file; here the `num_in` input axes, then those of outputs."""
  return Layout(
      shape=lambda s: (math.prod(s[num_in:]), math.prod(s[:num_in])),
      read=lambda x, s: x.T.reshape(s),
      write=lambda x: x.reshape(math.prod(x.shape[:num_in]), -1).T)


class Row(NamedTuple):
  """A tensor and its parameters.

  `{i}` in the name is the number of a layer, for which `{layers}` in a path is the segment
  of the stack; a path without it is of a stack of one segment. Of several paths the tensors lie one after the other, along the first axis.
  """
  name: str
  paths: tuple[str, ...]
  layout: Layout


def dense(name: str, *paths: str, num_in: int = 1) -> tuple[Row, ...]:
  """A linear layer's weight and bias; `num_in` is 2 where its inputs are heads."""
  return (Row(f"{name}.weight", tuple(f"{p}/kernel" for p in paths), matrix(num_in)),
          Row(f"{name}.bias", tuple(f"{p}/bias" for p in paths), VECTOR))


def norm(name: str, path: str) -> tuple[Row, ...]:
  return (Row(f"{name}.weight", (f"{path}/scale",), VECTOR),
          Row(f"{name}.bias", (f"{path}/bias",), VECTOR))


def table(name: str, path: str) -> tuple[Row, ...]:
  return (Row(name, (path,), TABLE),)


def renamed(rows: Iterable[Row], old: str, new: str) -> tuple[Row, ...]:
  """Rows of another prefix."""
  return tuple(row._replace(name=new + row.name.removeprefix(old)) for row in rows)


@dataclasses.dataclass(frozen=True)
class Family:
  """What jtx knows of a model type. Heads are known by their task, see `jtx.models.encoder`.

  The head of pretraining is that of a masked language model, or MAE's decoder.
  """
  prefix: str  # of the names of the base model's tensors, in files of models with a head
  architectures: Mapping[str, tuple[bool, str]]  # name -> whether it has the head of pretraining,
  # and the task of its other head
  attributes: Mapping[str, tuple[str, Any]]  # that are read: kind and the class's default
  fixed: Mapping[str, tuple]  # attributes with the only values that jtx can compute
  free: frozenset[str]  # attributes that do not change what is computed
  trunk: Callable[[Mapping[str, Any], bool], dict[str, Any]]  # fields of the model, given whether
  # it has the head of pretraining
  head: Callable[[Mapping[str, Any], str], dict[str, Any]]  # fields of its head, given the task
  values: Callable[[Any], dict[str, Any]]  # the attributes of a model
  rows: tuple[Row, ...]
  mlm_rows: tuple[Row, ...]  # of the head of pretraining
  head_rows: Mapping[str, tuple[Row, ...]]  # by task
  tied: Mapping[str, str]  # second names of a tensor -> the first
  buffers: frozenset[str] = frozenset()  # tensors of files that are no parameters
  spellings: Mapping[str, str] = dataclasses.field(default_factory=dict)  # of names in some files:
  # regular expression -> what is written in its place
  model: str = "encoder"  # of `jtx.models.MODELS`

  def rows_for(self, mlm: bool, task: str) -> tuple[Row, ...]:
    rows = self.rows + (self.mlm_rows if mlm else ())
    return rows if task == "none" else rows + self.head_rows[task]

  def architecture(self, mlm: bool, task: str) -> str | None:
    """The name of the architecture with these heads."""
    return next((n for n, heads in self.architectures.items() if heads == (mlm, task)), None)

  def pattern(self, *, heads: bool) -> re.Pattern[str]:
    """Matches the names of the trunk's tensors, or of any head's."""
    rows = self.rows
    if heads:
      rows = self.mlm_rows + tuple(r for rows in self.head_rows.values() for r in rows)
    names = {re.escape(row.name).replace(r"\{i\}", r"\d+") for row in rows}
    return re.compile("|".join(sorted(names)))


class Entry(NamedTuple):
  """One tensor and the places of its parameters: a path, and an index into stacked layers."""
  name: str
  places: tuple[tuple[str, int | None], ...]
  layout: Layout


def entries(rows: Iterable[Row], segments: Sequence[Any],
            shapes: Mapping[str, Shape]) -> Iterator[Entry]:
  """The tensors of a model; rows whose parameters it does not have are left out.

  Args:
    rows: of its family and heads.
    segments: of its stack.
    shapes: of its parameters, by path.
  """
  layers = [("layers" if len(segments) == 1 else f"layers_{s}", j)
            for s, segment in enumerate(segments) for j in range(segment.num_layers)]
  for row in rows:
    expanded = [(row.name, row.paths, None)]
    if "{i}" in row.name:
      own = layers
      if "{layers}" not in row.paths[0]:
        own = [("", j) for j in range(shapes[row.paths[0]][0] if row.paths[0] in shapes else 0)]
      expanded = [(row.name.format(i=i), [p.format(layers=name) for p in row.paths], j)
                  for i, (name, j) in enumerate(own)]
    for name, paths, index in expanded:
      if all(p in shapes for p in paths):
        yield Entry(name, tuple((p, index) for p in paths), row.layout)


def place_shapes(entry: Entry, shapes: Mapping[str, Shape]) -> list[Shape]:
  return [shapes[p] if index is None else shapes[p][1:] for p, index in entry.places]


def tensor_shape(entry: Entry, shapes: Mapping[str, Shape]) -> Shape:
  """What the tensor's shape in a file must be."""
  parts = [entry.layout.shape(s) for s in place_shapes(entry, shapes)]
  return (sum(p[0] for p in parts), *parts[0][1:])


def read(entry: Entry, tensor: np.ndarray, shapes: Mapping[str, Shape],
         params: dict[str, np.ndarray]) -> None:
  """Puts a tensor into the flat `params`, float32.

  Raises:
    DataError: its shape is not the model's.
  """
  expected = tensor_shape(entry, shapes)
  if tensor.shape != expected:
    raise DataError(f"tensor {entry.name!r} has shape {list(tensor.shape)}, and config.json asks"
                    f" for {list(expected)}")
  start = 0
  for (path, index), shape in zip(entry.places, place_shapes(entry, shapes)):
    length = entry.layout.shape(shape)[0]
    part = entry.layout.read(tensor[start:start + length], shape).astype(np.float32)
    start += length
    if index is None:
      params[path] = np.ascontiguousarray(part)
    else:
      params.setdefault(path, np.zeros(shapes[path], np.float32))[index] = part


def write(entry: Entry, params: Mapping[str, np.ndarray]) -> np.ndarray:
  """The tensor of a file, from the flat `params`."""
  parts = [entry.layout.write(params[p] if index is None else params[p][index])
           for p, index in entry.places]
  return np.ascontiguousarray(parts[0] if len(parts) == 1 else np.concatenate(parts))
