"""Rows that pair tensors of Hugging Face files with parameters, and their layouts.

A row is pure data; reading and writing reshape, transpose, split and join, so that every
number passes with its bits as they were.
"""

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
  axis: int = 0  # of the tensor, along which several parameters are joined
  heads: Callable[[Shape], int] = lambda s: s[0]  # their number, from the parameter's shape


# The same on both sides.
TABLE = Layout(lambda s: s, lambda x, s: x, lambda x: x)
# [N * H] in the file, [N, H] here.
VECTOR = Layout(lambda s: (math.prod(s),), lambda x, s: x.reshape(s), lambda x: x.reshape(-1))


def matrix(num_in: int) -> Layout:
  """[outputs, inputs] in the file; here the `num_in` input axes, then those of outputs."""
  return Layout(
      shape=lambda s: (math.prod(s[num_in:]), math.prod(s[:num_in])),
      read=lambda x, s: x.T.reshape(s),
      write=lambda x: x.reshape(math.prod(x.shape[:num_in]), -1).T,
      heads=lambda s: s[num_in])


def untransposed(num_in: int) -> Layout:
  """[inputs, outputs] in the file, as the Conv1D of GPT-2 has them, and here, by axes."""
  return Layout(
      shape=lambda s: (math.prod(s[:num_in]), math.prod(s[num_in:])),
      read=lambda x, s: x.reshape(s),
      write=lambda x: x.reshape(math.prod(x.shape[:num_in]), -1),
      axis=1, heads=lambda s: s[num_in])


class Row(NamedTuple):
  """A tensor and its parameters.

  `{i}` in the name is the number of a layer, for which `{layers}` in a path is the segment of the
  stack before it, such as `encoder/{layers}/ffn_norm/scale`; a path without it is of a stack of one
  segment. Where the name has no `{i}`, `{layers}` is the segment of the first layer. `{e}` is the
  number of an expert of the layer, which the parameter has as its next axis. `{s}` and `{b}` are
  the numbers of a stage and of a block in it, each with parameters of its own. Several paths are
  parameters that the file has as one tensor.
  """
  name: str
  paths: tuple[str, ...]
  layout: Layout
  # Several parameters are joined within each head, not one after the other: where some have fewer
  # heads than others, a head of those with the heads that it is for.
  by_head: bool = False


def dense(name: str, *paths: str, num_in: int = 1, transposed: bool = True,
          by_head: bool = False) -> tuple[Row, ...]:
  """A linear layer's weight and bias.

  Args:
    name: of the layer in the file.
    *paths: of ours; several are one layer in the file.
    num_in: axes of inputs, 2 where they are heads.
    transposed: the file has [outputs, inputs], as `torch.nn.Linear` has.
    by_head: see `Row`.
  """
  layout = matrix(num_in) if transposed else untransposed(num_in)
  return (Row(f"{name}.weight", tuple(f"{p}/kernel" for p in paths), layout, by_head),
          Row(f"{name}.bias", tuple(f"{p}/bias" for p in paths), VECTOR, by_head))


def norm(name: str, path: str) -> tuple[Row, ...]:
  return (Row(f"{name}.weight", (f"{path}/scale",), VECTOR),
          Row(f"{name}.bias", (f"{path}/bias",), VECTOR))


def table(name: str, path: str) -> tuple[Row, ...]:
  return (Row(name, (path,), TABLE),)


def renamed(rows: Iterable[Row], old: str, new: str) -> tuple[Row, ...]:
  """Rows of another prefix."""
  return tuple(row._replace(name=new + row.name.removeprefix(old)) for row in rows)


class Entry(NamedTuple):
  """One tensor and the places of its parameters: a path, and indices of a layer and an expert."""
  name: str
  places: tuple[tuple[str, tuple[int, ...]], ...]
  layout: Layout
  by_head: bool = False


def entries(rows: Iterable[Row], stacks: Mapping[str, Any],
            shapes: Mapping[str, Shape]) -> Iterator[Entry]:
  """The tensors of a model; rows whose parameters it does not have are left out.

  Of rows that share a parameter, such as a feed-forward layer's where a gate may be joined to its
  input, one of several parameters is taken before one of a single.

  Args:
    rows: of its family and heads.
    stacks: of the model, by their name in the parameter tree; each has `segments`.
    shapes: of its parameters, by path.
  """
  found = [Entry(name, tuple((p, index) for p in paths), row.layout, row.by_head)
           for row in rows for name, paths, index in expanded(row, stacks, shapes)
           if all(p in shapes for p in paths)]
  joined = {place for entry in found if len(entry.places) > 1 for place in entry.places}
  for entry in found:
    if len(entry.places) > 1 or entry.places[0] not in joined:
      yield entry


def expanded(row: Row, stacks: Mapping[str, Any], shapes: Mapping[str, Shape],
             ) -> Iterator[tuple[str, list[str], tuple[int, ...]]]:
  """The names of a row's tensors, the paths of their parameters, and the indices into these."""
  stack, has_segments, _ = row.paths[0].partition("/{layers}")
  if "{s}" in row.name:
    for s, b in blocks_of(row.paths[0], shapes):
      yield row.name.format(s=s, b=b), [p.format(s=s, b=b) for p in row.paths], ()
    return
  if "{i}" not in row.name and not has_segments:
    yield row.name, list(row.paths), ()
    return
  if has_segments:
    layers = layers_of(stacks[stack].segments) if stack in stacks else []
    layers = layers if "{i}" in row.name else layers[:1]
  else:
    number = shapes[row.paths[0]][0] if row.paths[0] in shapes else 0
    layers = [("", j) for j in range(number)]
  for i, (segment, j) in enumerate(layers):
    paths = [p.format(layers=segment) for p in row.paths]
    if "{e}" not in row.name:
      yield row.name.format(i=i), paths, (j,)
    elif paths[0] in shapes:
      for e in range(shapes[paths[0]][1]):
        yield row.name.format(i=i, e=e), paths, (j, e)


def blocks_of(path: str, shapes: Mapping[str, Shape]) -> list[tuple[int, int]]:
  """The numbers `{s}` and `{b}` in a path of all parameters that there are, in order."""
  pattern = re.escape(path).replace(r"\{s\}", r"(\d+)").replace(r"\{b\}", r"(\d+)")
  found = (re.fullmatch(pattern, name) for name in shapes)
  return sorted((int(m[1]), int(m[2])) for m in found if m)


def layers_of(segments: Sequence[Any]) -> list[tuple[str, int]]:
  """Where each layer of a stack is: the name of its segment, and the index in it."""
  return [("layers" if len(segments) == 1 else f"layers_{s}", j)
          for s, segment in enumerate(segments) for j in range(segment.num_layers)]


def place_shapes(entry: Entry, shapes: Mapping[str, Shape]) -> list[Shape]:
  return [shapes[p][len(index):] for p, index in entry.places]


def tensor_shape(entry: Entry, shapes: Mapping[str, Shape]) -> Shape:
  """The shape that the tensor has in a file."""
  parts, axis = [entry.layout.shape(s) for s in place_shapes(entry, shapes)], entry.layout.axis
  if len(parts) == 1:  # which may be a number, without axes
    return parts[0]
  return (*parts[0][:axis], sum(p[axis] for p in parts), *parts[0][axis + 1:])


def split(entry: Entry, tensor: np.ndarray, shapes: Sequence[Shape]) -> list[np.ndarray]:
  """The tensor of each parameter out of that of all, given the parameters' shapes."""
  if len(shapes) == 1:
    return [tensor]
  axis, sizes = entry.layout.axis, [entry.layout.shape(s)[entry.layout.axis] for s in shapes]
  if not entry.by_head:
    return np.split(tensor, np.cumsum(sizes)[:-1], axis)
  heads = groups(entry, shapes)
  by_head = tensor.reshape(*tensor.shape[:axis], heads, -1, *tensor.shape[axis + 1:])
  parts = np.split(by_head, np.cumsum([size // heads for size in sizes])[:-1], axis + 1)
  return [part.reshape(*tensor.shape[:axis], size, *tensor.shape[axis + 1:])
          for part, size in zip(parts, sizes)]


def groups(entry: Entry, shapes: Sequence[Shape]) -> int:
  """The number of groups in which a tensor that is joined by heads has its parts."""
  heads = [entry.layout.heads(s) for s in shapes]
  if any(number % min(heads) for number in heads):
    raise DataError(f"tensor {entry.name!r} is joined by heads, of which its parts have"
                    f" {' and '.join(map(str, heads))}")
  return min(heads)


def join(entry: Entry, parts: Sequence[np.ndarray], shapes: Sequence[Shape]) -> np.ndarray:
  """The inverse of `split`."""
  axis, tensor = entry.layout.axis, parts[0]
  if len(parts) == 1:
    return tensor
  if not entry.by_head:
    return np.concatenate(parts, axis)
  heads = groups(entry, shapes)
  by_head = [p.reshape(*p.shape[:axis], heads, -1, *p.shape[axis + 1:]) for p in parts]
  return np.concatenate(by_head, axis + 1).reshape(
      *tensor.shape[:axis], -1, *tensor.shape[axis + 1:])


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
  own = place_shapes(entry, shapes)
  for (path, index), shape, part in zip(entry.places, own, split(entry, tensor, own)):
    part = entry.layout.read(part, shape).astype(np.float32)
    if not index:
      params[path] = np.asarray(part, order="C")
    else:
      params.setdefault(path, np.zeros(shapes[path], np.float32))[index] = part


def write(entry: Entry, params: Mapping[str, np.ndarray]) -> np.ndarray:
  """The tensor of a file, from the flat `params`."""
  own = [params[p][index] for p, index in entry.places]
  parts = [entry.layout.write(x) for x in own]
  return np.asarray(join(entry, parts, [x.shape for x in own]), order="C")
