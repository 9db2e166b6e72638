"""The bases of a benchmark's systems: what those on JAX, and those on PyTorch, have in common."""

import dataclasses
import functools
import os
import tempfile
import time
from typing import Any, Callable, Mapping, Sequence

import numpy as np

from benchmarks import harness


def padded(rows: Sequence[np.ndarray], value: int) -> np.ndarray:
  """[B, longest] int32."""
  out = np.full((len(rows), max(map(len, rows))), value, np.int32)
  for row, tokens in zip(out, rows):
    row[:len(tokens)] = tokens
  return out


class Turns:
  """The base of workers that go round batches; `step` starts an update with one.

  They have `batches`, and `units`, how much of what counts is in each.
  """

  number = 0  # updates so far
  compiled = True  # for each shape of batches

  def warm_up(self) -> float:
    """Seconds of an update with each shape of batches, and one more."""
    shape = lambda batch: tuple((name, x.shape) for name, x in batch.items())
    numbered = reversed([*enumerate(self.batches)]) if self.compiled else []
    first = {shape(batch): i for i, batch in numbered}
    start = time.perf_counter()
    for i in first.values():
      self.number = i
      self.updates(1)
    self.number = 0
    self.updates(1)
    return time.perf_counter() - start

  def turn(self, steps: int) -> float:
    """Units a second."""
    self.updates(1)  # not timed: while the others worked, a machine may have taken memory away
    start = time.perf_counter()
    units = self.updates(steps)
    return units / (time.perf_counter() - start)

  def updates(self, steps: int) -> float:
    """Makes updates; returns the units in their batches."""
    numbers = [(self.number + i) % len(self.batches) for i in range(steps)]
    self.number += steps
    for i in numbers:
      self.step(self.batches[i])
    self.synchronize()
    return sum(self.units[i] for i in numbers)


class Rows(Turns):
  """The base of a benchmark's sides, each in a process of its own, of batches whose rows count.

  A benchmark's own base has `noise`: of a size and a number, as many batches of `size.rows` of what
  counts. A side has `start`, which makes the model, and `placed`.

  Args:
    size: of the model and of a batch.
    state: tensors to start from; None draws them.
    hf_config: of the model, for `transformers`.
  """

  def __init__(self, size: Any, state: Mapping[str, np.ndarray] | None = None,
               hf_config: Mapping[str, Any] | None = None):
    self.size, self.hf = size, hf_config
    self.start(state)
    self.batches = [self.placed(batch) for batch in self.noise(size, 4)]
    self.units = [size.rows] * len(self.batches)


class JaxSide:
  """The base of workers that run JAX; they have `jax`."""

  def about(self) -> dict[str, str]:
    return {"jax": self.jax.__version__, "device": self.jax.devices()[0].device_kind}

  def reset_peak_memory(self) -> None:
    if self.jax.default_backend() == "cpu":
      harness.reset_peak_memory()

  def peak_memory(self) -> int:
    device = self.jax.devices()[0]
    if device.platform == "cpu":
      return harness.peak_memory()
    return device.memory_stats()["peak_bytes_in_use"]

  def matmul_peak(self) -> float:
    """FLOP/s of a large plain product in the dtype of the model."""
    import jax.numpy as jnp
    n, times, dtype = (2048, 1, jnp.float32) if self.jax.default_backend() == "cpu" else (
        8192, 10, jnp.bfloat16)
    x = self.jax.random.normal(self.jax.random.key(0), (n, n), dtype)  # of equal ones it is faster
    product = self.jax.jit(lambda x: x @ x)

    def products():  # several, since a device waits for its host between two calls
      self.jax.block_until_ready([product(x) for _ in range(times)])
    return times * 2 * n**3 / harness.fastest(products)


class JtxSide(JaxSide):
  """Our own side: it has `program`, a `jtx.train.program.Program`, `state` and `model` besides."""

  def step(self, batch: Any) -> None:
    self.state = self.program.step(self.state, batch)

  def synchronize(self) -> None:
    self.jax.block_until_ready(self.state)

  def trained(self) -> int:
    """How many parameters its updates change."""
    from flax.traverse_util import flatten_dict

    from jtx import build
    from jtx.parallel import sharding
    from jtx.train import optim
    params, example = self.state.params, self.batches[0]
    axes = sharding.logical_axes(
        build.abstract_params(self.model, self.program.objective, example))
    still = optim.untrained(self.program.config.optim, params, axes)
    params, axes, still = map(flatten_dict, (params, axes, still))
    return sum(x.size for path, x in params.items()
               if not still[path] and sharding.FIXED.isdisjoint(axes[path]))

  @functools.cached_property
  def sums(self) -> Callable[[Any, Any], Any]:
    """The objective's sums, of parameters and a batch, dropout off; compiled."""
    # Scanned layers compile sooner than unrolled ones, and compute the same.
    model = self.model.clone(stack=dataclasses.replace(self.model.stack, unroll=1))
    objective = self.program.objective
    return self.jax.jit(lambda params, batch: objective(model, params, batch, train=False))

  def weights(self, family: str) -> dict[str, Any]:
    """The parameters by the names of `transformers`, to start the peers from."""
    from jtx.interop import export
    from jtx.interop.families import FAMILIES
    params = self.jax.device_get(self.state.params)
    return export.tensors_of(FAMILIES[family], self.model, params)


class ProgramSide(JtxSide):
  """Our own side, of batches with a row for each of what counts; it has `size` with `rows`."""

  def make(self, config: Any, outputs: int | None, example: Mapping[str, np.ndarray],
           changed: Callable[[Any], Any] = lambda objective: objective) -> None:
    """Builds the program of a config, whose objective may be `changed`."""
    import jax

    from jtx import build
    from jtx.parallel import sharding
    from jtx.train.program import Program
    self.jax, self.example = jax, example
    self.mesh = sharding.make_mesh(config.mesh)
    self.model, objective = build.make_model(config, {"head.outputs": outputs} if outputs else {})
    self.objective = changed(objective)
    self.program = Program(config, self.model, self.objective, example=example, mesh=self.mesh)
    self.state = self.program.init()

  def placed(self, batch: Mapping[str, np.ndarray]) -> Any:
    from jtx.parallel import sharding
    rows = len(next(iter(batch.values())))
    return sharding.to_device(batch, rows, sharding.batch_sharding(self.mesh))

  def hf_config(self) -> dict[str, Any]:
    from jtx.interop import export
    return export.hf_config(self.model)

  def loss(self) -> float:
    """Of the example, all terms with their weights."""
    sums = self.jax.jit(functools.partial(self.objective, self.model, train=False))(
        self.state.params, self.example)
    weights = self.objective.weights(self.example)
    return sum(float(sums[key][0] / weight) for key, weight in weights.items())

  def flops(self) -> float:
    """Matrix-product FLOPs of a row."""
    return self.program.flops(self.example) / self.size.rows


class TorchSide:
  """The base of workers that run PyTorch; they have `torch`, `device` and `model`."""

  compiled = False

  def open(self, dtype: str = "auto") -> None:
    """Brings PyTorch in. Weights are float32; products are of `dtype`, "auto" being as in jtx."""
    import torch
    self.torch = torch
    self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    self.low = dtype == "bfloat16" or dtype == "auto" and self.device.type == "cuda"

  def about(self) -> dict[str, str]:
    import transformers
    return {"torch": str(self.torch.__version__), "transformers": transformers.__version__,
            "attention": self.model.config._attn_implementation}

  def autocast(self):
    return self.torch.autocast(self.device.type, self.torch.bfloat16, enabled=self.low)

  def pretrained(self, make: Any, config: Any, state: Mapping[str, Any]) -> Any:
    """A model of a class of `transformers`, by files, whose names are not those in memory."""
    import safetensors.numpy
    with tempfile.TemporaryDirectory() as folder:
      config.save_pretrained(folder)
      safetensors.numpy.save_file(state, os.path.join(folder, "model.safetensors"),
                                  {"format": "pt"})
      return make.from_pretrained(folder)

  def start_training(self, dynamic: bool | None = None, **options: Any) -> None:
    """Makes `run`, the model as it is called, and `optimizer`, with these options.

    What is compiled is `dynamic` where batches are of many lengths.
    """
    self.model.to(self.device).train()
    self.optimizer = self.adamw(**options)
    compiled = lambda: self.torch.compile(self.model, dynamic=dynamic)
    self.run = compiled() if self.compiled else self.model

  def trained(self) -> int:
    """How many parameters its updates change; `transformers` keeps some of a model as they are."""
    return sum(p.numel() for p in self.model.parameters() if p.requires_grad)

  def synchronize(self) -> None:
    if self.device.type == "cuda":
      self.torch.cuda.synchronize()

  def adamw(self, **options: Any):
    """The optimiser of `model`; biases and norms do not decay."""
    plain = lambda p: p.ndim == 1
    groups = [{"params": [p for p in self.model.parameters() if plain(p) == is_plain],
               "weight_decay": 0.0 if is_plain else 0.01} for is_plain in (False, True)]
    return self.torch.optim.AdamW(groups, fused=True, **options)

  def update(self, loss, clip: float) -> None:
    loss.backward()
    self.torch.nn.utils.clip_grad_norm_(self.model.parameters(), clip)
    self.optimizer.step()
    self.optimizer.zero_grad(set_to_none=True)

  def matmul_peak(self) -> float:
    """FLOP/s of a large plain product in the dtype of the model."""
    n, times, dtype = (2048, 1, self.torch.float32) if self.device.type == "cpu" else (
        8192, 10, self.torch.bfloat16)
    x = self.torch.randn((n, n), dtype=dtype, device=self.device)

    def products():
      for _ in range(times):
        x @ x
      self.synchronize()
    return times * 2 * n**3 / harness.fastest(products)

  def reset_peak_memory(self) -> None:
    if self.device.type == "cuda":
      self.torch.cuda.reset_peak_memory_stats()
    else:
      harness.reset_peak_memory()

  def peak_memory(self) -> int:
    if self.device.type == "cuda":
      return self.torch.cuda.max_memory_allocated()
    return harness.peak_memory()


class TorchRows(TorchSide):
  """The base of a peer beside `Rows`, whose model answers with its loss; it has `clip_norm`."""

  def tensor(self, x: np.ndarray):
    return self.torch.from_numpy(np.ascontiguousarray(x)).to(self.device)

  def images(self, x: np.ndarray):
    """[B, H, W, C] as PyTorch has them."""
    return self.tensor(x.transpose(0, 3, 1, 2))

  def step(self, batch: Mapping[str, Any]) -> None:
    with self.autocast():
      loss = self.run(**batch).loss
    self.update(loss, self.clip_norm)

  def loss(self) -> float:
    """Of the first batch."""
    with self.torch.no_grad(), self.autocast():
      return float(self.model(**self.placed(self.noise(self.size, 1)[0])).loss)
