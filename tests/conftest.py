"""Runs the tests on eight CPU devices; the variables must be set before JAX is imported.

Modules that a test calls are programs of their own: see `jitted`.
"""

import contextlib
import functools
import gc
import os
import pathlib
import time

os.environ["JAX_PLATFORMS"] = "cpu"
# A test runs its program once, on a few numbers: compiling costs more than it gains. The emitters
# of fusions alone are half of it; `make train` has them. Compiling parts of a program in parallel
# costs a quarter more, where the other cores have tests of their own.
os.environ["XLA_FLAGS"] = " ".join([
    os.environ.get("XLA_FLAGS", ""), "--xla_force_host_platform_device_count=8",
    "--xla_llvm_disable_expensive_passes=true", "--xla_backend_optimization_level=0",
    "--xla_cpu_use_fusion_emitters=false", "--xla_cpu_parallel_codegen_split_count=1"])

# The peers' threads: each worker has a core, and sums in one thread are the same every time.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Traced programs stay alive in caches: looking through all of them for garbage takes seconds.
gc.set_threshold(100_000, 50, 100)

# Compiling is half of what slow tests cost. Many build the same program, and so does the next
# session. A program's key is its code, flags and processor; old ones are of code of before.
COMPILED = pathlib.Path(__file__).parents[1] / "build" / "compiled"
FORTNIGHT = 14 * 24 * 3600
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
  COMPILED.mkdir(mode=0o700, parents=True, exist_ok=True)
  for old in COMPILED.iterdir():
    with contextlib.suppress(FileNotFoundError):  # removed by another session
      if time.time() - old.stat().st_mtime > FORTNIGHT:
        old.unlink()
  os.environ["JAX_COMPILATION_CACHE_DIR"] = str(COMPILED)
  os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
  os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

import jax
import numpy as np
import pytest
from flax import linen as nn


# The programs that the present test has called, so that a second call with arrays of the same
# shapes does not trace again. What a test replaces in jtx may be part of them: see `replaced`.
PROGRAMS = {}


def program_of(method, module, tree, leaves, places):
  """The program of a call, one for all calls that differ by the values of arrays only."""

  def program(arrays):
    args, kwargs = jax.tree.unflatten(tree, [arrays.get(i, leaf) for i, leaf in enumerate(leaves)])
    return method(module, *args, **kwargs)

  fixed = tuple((type(leaf), leaf) for i, leaf in enumerate(leaves) if i not in places)
  try:
    return PROGRAMS.setdefault((method, module, tree, fixed, tuple(places)), jax.jit(program))
  except TypeError:  # a field or an argument without a hash
    return jax.jit(program)


def jitted(method):
  """`apply` or `init_with_output` as one program of its arrays, as in `jtx.train` and users' code.

  Without it every operation of every shape is a program: half of what such a test costs. What the
  test traces itself, and what returns other than arrays, is called as it is.
  """

  @functools.wraps(method)
  def call(self, *args, **kwargs):
    leaves, tree = jax.tree.flatten((args, kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, (jax.Array, np.ndarray))]
    if self.scope is not None or any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
      return method(self, *args, **kwargs)
    arrays = {i: leaves[i] for i in places}
    leaves = [None if i in arrays else leaf for i, leaf in enumerate(leaves)]
    try:
      return program_of(method, self, tree, leaves, places)(arrays)
    except TypeError as e:
      if "not a valid JAX type" not in str(e):
        raise
      return method(self, *args, **kwargs)

  return call


def replaced(setattr_of):
  """`monkeypatch.setattr`, after which no program of before is called."""

  @functools.wraps(setattr_of)
  def call(*args, **kwargs):
    PROGRAMS.clear()
    return setattr_of(*args, **kwargs)

  return call


nn.Module.apply = jitted(nn.Module.apply)
nn.Module.init_with_output = jitted(nn.Module.init_with_output)
pytest.MonkeyPatch.setattr = replaced(pytest.MonkeyPatch.setattr)


@pytest.fixture(autouse=True)
def own_programs():
  """Each test begins without programs of others."""
  PROGRAMS.clear()


def pytest_collection_modifyitems(items):
  """The longest tests begin first: at the end no worker is left alone with one of them."""
  items.sort(key=lambda item: item.get_closest_marker("long") is None)
