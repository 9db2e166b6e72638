"""Files that are larger than memory: how much a process that reads them takes above its start."""

import json
import random
import subprocess
import sys

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

READ = """
import json, random, sys
from jtx.data.sources import arrow
from jtx.data.sources.registry import open_source
import pyarrow.feather, pyarrow.parquet

spec, arrow.PIECE_BYTES = sys.argv[1], int(sys.argv[2])

def own():  # bytes of memory that are no pages of a file
  return next(int(line.split()[1]) for line in open("/proc/self/status") if "RssAnon" in line) << 10

start, most = own(), 0
source = open_source(spec)
total = 0
for i in range(len(source)):
  total += len(source[i]["text"])
  if i % 50 == 0:
    most = max(most, own() - start)
for i in random.Random(0).sample(range(len(source)), 10):
  assert source[i]["number"] == i
  most = max(most, own() - start)
held = pyarrow.default_memory_pool().max_memory()
print(json.dumps({"rows": len(source), "total": total, "above": most, "held": held}))
"""


def write(path, megabytes, group):
  """A file of rows of 10 KB, `group` of them a row group or a record batch; its rows."""
  rng, rows = random.Random(0), megabytes * 100
  noise = rng.randbytes(1 << 20).hex()
  texts = lambda start, stop: [noise[(i * 7919) % (1 << 20):][:10_000] for i in range(start, stop)]
  schema = pa.schema([("text", pa.large_string()), ("number", pa.int64())])
  table = lambda start: pa.table({"text": texts(start, min(start + group, rows)),
                                  "number": range(start, min(start + group, rows))}, schema)
  if path.suffix == ".parquet":
    # A page is decoded as a whole; pyarrow looks at its size only after a batch of rows.
    with pa.parquet.ParquetWriter(path, schema, use_dictionary=False,
                                  write_batch_size=64) as writer:
      for start in range(0, rows, group):
        writer.write_table(table(start), row_group_size=group)
  else:
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.OSFile(str(path), "wb") as f, pa.ipc.new_file(f, schema, options=options) as writer:
      for start in range(0, rows, group):
        writer.write_table(table(start), max_chunksize=group)
  return rows


@pytest.mark.slow
@pytest.mark.parametrize("kind, name, group", [
    ("parquet", "a.parquet", 100), ("parquet", "a.parquet", 1 << 20), ("arrow", "a.feather", 100)])
def test_memory_is_a_fraction_of_the_file(tmp_path, kind, name, group):
  """With pieces of 1 MB. With those of 32 MB, 10 GB were read with 0.6 GB above the start."""
  rows = write(tmp_path / name, 160, group)
  size = (tmp_path / name).stat().st_size
  done = subprocess.run([sys.executable, "-c", READ, f"{kind}:{tmp_path / name}", str(1 << 20)],
                        capture_output=True, text=True, check=True)
  result = json.loads(done.stdout)
  assert result["rows"] == rows and result["total"] == rows * 10_000
  assert result["held"] < size / 10
  assert result["above"] < size / 2  # with what pyarrow keeps to use again
