"""Sources of Parquet and Arrow files, and of folders that `datasets` wrote with save_to_disk."""

from typing import Any, Iterator, Mapping, Sequence

from jtx import storage
from jtx.data.sources import files
from jtx.data.sources.columns import ColumnsSource, Piece, with_pyarrow
from jtx.errors import DataError

PIECE_BYTES = 32 << 20  # of a row group, before it is compressed, that are decoded at a time
PIECE_ROWS = 1 << 14
BUFFER = 1 << 20  # bytes of a column that are read at a time


def _features(metadata: Mapping[bytes, bytes] | None) -> Mapping[str, Any]:
  """The features that `datasets` writes into a schema."""
  try:
    return storage.parse_json((metadata or {})[b"huggingface"].decode("utf-8"))["info"]["features"]
  except (KeyError, TypeError, ValueError):
    return {}


class ParquetReader:
  """A Parquet file, whose pieces are row groups, or stretches of large ones.

  Stretches are quick in order only, since each is decoded after those before it. The file is read
  and not mapped, because what is mapped counts as the process's memory.
  """

  def __init__(self, path: str, paths: Sequence[str] | None):
    self._arrow = with_pyarrow()
    source = files.File(path)
    self._file = self._arrow.parquet.ParquetFile(
        source.stream() if storage.is_remote(path) else path, buffer_size=BUFFER, pre_buffer=False)
    self._paths = paths and list(paths)
    self.columns = tuple(self._file.schema_arrow.names)
    self.features = _features(self._file.schema_arrow.metadata)
    self._group, self._next, self._batches = -1, 0, iter(())

  def pieces(self) -> Iterator[tuple[int, int, int, int]]:
    for g in range(self._file.metadata.num_row_groups):
      group = self._file.metadata.row_group(g)
      rows = group.num_rows
      count = max(-(-group.total_byte_size // PIECE_BYTES), -(-rows // PIECE_ROWS), 1)
      size = max(-(-rows // count), 1)
      yield from ((g, number, min(size, rows - start), size)
                  for number, start in enumerate(range(0, rows, size)))

  def read(self, piece: Piece) -> Any:
    if piece.group != self._group or piece.number < self._next:
      self._group, self._next = piece.group, 0
      self._batches = self._file.iter_batches(piece.size, [piece.group], self._paths,
                                              use_threads=False)
    for self._next in range(self._next + 1, piece.number + 2):
      found = [next(self._batches)]
      while sum(batch.num_rows for batch in found) < piece.size:
        if (batch := next(self._batches, None)) is None:
          break
        found.append(batch)
    return self._arrow.Table.from_batches(found)


class ArrowReader:
  """A file of Arrow's IPC format (Feather V2), or of its stream; a record batch is a piece.

  On this machine it is mapped, and what is not compressed is not copied.
  """

  def __init__(self, path: str, paths: Sequence[str] | None):
    self._arrow = with_pyarrow()
    source = files.File(path)
    self._is_file = source.read(0, 6) == b"ARROW1"
    self._open = source.stream if storage.is_remote(path) else (
        lambda: self._arrow.memory_map(path))
    schema = self._opened().schema
    self.columns, self.features = tuple(schema.names), _features(schema.metadata)
    top = {name.partition(".")[0] for name in paths or ()} | set(paths or ())
    self._included = paths and [i for i, name in enumerate(self.columns) if name in top]
    self._reader = self._opened(self._included)
    # Those of a stream are found one after the other; they are mapped, too.
    self._batches = None if self._is_file else list(self._reader)

  def _opened(self, included: Sequence[int] | None = None) -> Any:
    """A reader of some columns, or of all."""
    ipc = self._arrow.ipc
    opener = ipc.open_file if self._is_file else ipc.open_stream
    return opener(self._open(), options=ipc.IpcReadOptions(included_fields=included))

  def pieces(self) -> Iterator[tuple[int, int, int, int]]:
    if self._is_file:  # of which each batch is decompressed to count its rows, or one column of it
      reader = self._opened([0])
      batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
    else:
      batches = self._batches
    yield from ((i, 0, batch.num_rows, batch.num_rows) for i, batch in enumerate(batches))

  def read(self, piece: Piece) -> Any:
    batch = (self._reader.get_batch(piece.group) if self._is_file else
             self._batches[piece.group])
    return self._arrow.Table.from_batches([batch])


class ParquetSource(ColumnsSource):
  """Rows of Parquet files."""

  endings = (".parquet", ".pq")
  reader = ParquetReader


class ArrowSource(ColumnsSource):
  """Rows of Arrow files, or of a folder of `Dataset.save_to_disk`."""

  endings = (".arrow", ".feather", ".ipc")
  reader = ArrowReader

  def found(self, path: str) -> tuple[list[str], Mapping[str, Any]]:
    if not files.is_folder(path):
      return super().found(path)
    names = set(files.walked(path, 1))
    if "dataset_dict.json" in names:
      splits = _json(path, "dataset_dict.json", "splits")
      raise DataError(f"{path}: has the splits {', '.join(splits)}; name one, as in"
                      f" arrow:{path.rstrip('/')}/{splits[0]}")
    if "state.json" not in names:
      return super().found(path)
    found = [storage.join(path, file["filename"])
             for file in _json(path, "state.json", "_data_files")]
    info = "dataset_info.json"
    return found, (_json(path, info, "features") or {}) if info in names else {}


def _json(folder: str, name: str, key: str) -> Any:
  """A value of a file that `datasets` wrote.

  Raises:
    DataError: it is no JSON object with that key.
  """
  path = storage.join(folder, name)
  try:
    return storage.parse_json(files.read(path).decode("utf-8"))[key]
  except (ValueError, KeyError, TypeError) as e:
    raise DataError(f"{path}: is not what save_to_disk writes; it has no {key!r}") from e
