"""Ahead-of-time compiles: a config's real train step for chips that are not here, and a report.

XLA's compilers for TPUs and NVIDIA GPUs, which the extras `aot` and `aot-gpu` bring, run on any
machine. What they say of memory is what the chips would say; what is said here of time is an
estimate.
"""

from collections.abc import Iterator, Mapping, Sequence
import itertools
import math
import time
from typing import Any

from absl import logging
import jax

from jtx import build
from jtx.compile import cycles, hlo, kernels, runs, topologies
from jtx.compile.declared import declared_data
from jtx.config import ConfigDict
from jtx.data import pipeline
from jtx.errors import ConfigError
from jtx.nn.layers import compute_dtype
from jtx.parallel import sharding
from jtx.train import flops, phases, progress
from jtx.train.program import Program
from jtx.train.teacher import taught, with_teacher


def report(config: ConfigDict, topology: str, *, slices: int = 1, vocab_size: int | None = None,
           outputs: int | None = None, ops: int = 0) -> dict[str, Any]:
  """Compiles the config's train step, and tells what it takes on each device.

  Of a config in phases it is the one with the most tokens a batch.

  Args:
    config: of a run. None of its data is read.
    topology: as for `topologies.devices`.
    slices: of that topology.
    vocab_size: where the config leaves it to the data.
    outputs: classes or tags, where the config leaves them to the data.
    ops: rows of each table of where the compiler's cycles go (`cycles.summary`).

  Raises:
    ConfigError: the config can't be used, or the mesh does not fit the topology.
  """
  kind, chip = topologies.kind_of(topology), topologies.chip(topology)
  if ops and kind not in cycles.CLOCKS:
    raise ConfigError(f"--ops={ops} --topology={topology}: only the compiler for TPUs tells cycles;"
                      f" use a topology of {', '.join(cycles.CLOCKS)}, or no --ops")
  program, arguments, phase = train_step(config, topology, slices, vocab_size, outputs)
  mesh, state = program.mesh, arguments[0]
  with jax.set_mesh(mesh):
    lowered = program.jitted_step.lower(*arguments)
  result = {
      "topology": topology + (f" x {slices}" if slices > 1 else ""), "devices": mesh.size,
      "device_kind": mesh.devices.flat[0].device_kind,
      "mesh": {axis: n for axis, n in mesh.shape.items() if n > 1},
      "batch": phase.batch_size, "length": phase.length,
      "parameters": sum(x.size for x in jax.tree.leaves(program.whole(state.params))),
      "replicated": program.replicated_dimensions,
      "flops_per_step": program.flops_per_step,
      "flops_per_chip": program.flops_per_step / mesh.size,
      "bytes": held_bytes(program, state),
  }
  costs, text = compiled_costs(lowered, topology, ops, kind_shares(program.model))
  result["bytes"] |= costs.pop("bytes", {})
  return result | costs | (
      _traffic_and_time(program, arguments, text, chip) if text is not None else {})


def kind_shares(model: Any) -> runs.Shares:
  """Of each segment of a model's stacks, by its modules, the shares of the kinds of layers."""
  found = {}
  for stack, config in model.stacks.items():
    several = len(config.segments) > 1
    for i, segment in enumerate(config.segments):
      found[stack, f"layers_{i}" if several else "layers"] = segment.kinds[2]
  return found


def compiled_costs(lowered: jax.stages.Lowered, topology: str, ops: int = 0,
                   shares: runs.Shares = {}) -> tuple[dict[str, Any], str | None]:
  """What the compiler says of a lowered program, and the compiled text, None if it does not fit.

  Args:
    lowered: for devices of the topology.
    topology: as for `topologies.devices`.
    ops: rows of each table of where the compiler's cycles go (`cycles.summary`).
    shares: of branches that kinds of layers choose, as for `runs.times_of`.
  """
  kind, chip = topologies.kind_of(topology), topologies.chip(topology)
  start = time.monotonic()
  try:
    compiled = lowered.compile(topologies.compiler_options(topology))
  except jax.errors.JaxRuntimeError as e:
    if "RESOURCE_EXHAUSTED" not in str(e):
      raise
    return {"fits": False, "compile_s": time.monotonic() - start,
            "why": " ".join(str(e).split())[:400]}, None
  result = {"compile_s": time.monotonic() - start}
  memory, text = compiled.memory_analysis(), compiled.as_text()
  result["bytes"] = {
      "activations": max(memory.peak_memory_in_bytes - memory.argument_size_in_bytes, 0),
      "peak": memory.peak_memory_in_bytes, "chip": chip and chip.memory}
  result["fits"] = chip is None or memory.peak_memory_in_bytes <= chip.memory
  if kind in cycles.CLOCKS:
    device = topologies.devices(topology)[0].device_kind
    clock, peak = cycles.CLOCKS[kind], progress.peak_flops(device)
    rates = cycles.Rates(peak / clock, chip.bandwidth / clock)
    result["ops"] = cycles.summary(text, rates, ops, shares)
    result["ops"]["seconds"] = result["ops"]["cycles"] / clock
  return result, text


def train_step(config: ConfigDict, topology: str, slices: int = 1, vocab_size: int | None = None,
               outputs: int | None = None) -> tuple[Any, tuple[Any, ...], Any]:
  """The program of a run on a topology, the abstract arguments of its step, and their phase.

  Of a config in phases it is the one with the most tokens a batch. Arguments are those of `report`.
  """
  mesh = sharding.make_mesh(config.mesh, topologies.devices(topology, slices))
  phase = max(phases.phases(config), key=lambda p: (p.length or 1) * p.batch_size)
  phases.check_batches(config, mesh)
  recipe, info = declared_data(config, vocab_size, outputs)
  # Weights of classes are numbers in the program, whichever they are.
  shares = lambda: (0.5,) * info["head.outputs"]
  model, objective = build.make_model(config, info, shares)
  phases.check_lengths(config, recipe, model)
  objective, extra = with_teacher(taught(config, objective), mesh, abstract=True)
  example = pipeline.example_batch(recipe.with_length(phase.length), phase.batch_size)
  if config.epochs is not None:
    config = config.copy_and_resolve_references()  # of the schedule only; the step is the same
    config.steps = max(config.steps, 1)
    config.lock()
  program = Program(config, model, objective, example=example, mesh=mesh, extra=extra)
  place = lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s)
  state = jax.tree.map(place, program.abstract_state, program.shardings)
  batch = {k: place(v, sharding.batch_sharding(mesh)) for k, v in example.items()}
  return program, (state, batch, program.extra, program.seed), phase


def _traffic_and_time(program: Any, arguments: tuple[Any, ...], text: str,
                      chip: topologies.Chip | None) -> dict[str, Any]:
  """The traffic of a compiled step; its kernels and an estimate of its time, of a known chip."""
  found = hlo.traffic(text)
  sent = sum(t.sent for t in found.values())
  with jax.set_mesh(program.mesh):
    width = compute_dtype(program.model.dtype).itemsize
    done = flops.count(program.jitted_step, *arguments) / program.mesh.size
  result = {
      "collectives": {kind: t._asdict() for kind, t in found.items()}, "sent_bytes": sent,
      "least_sent_bytes": least_sent(arguments[0].params, width, program.config.optim.accumulate)}
  if chip:
    result["kernels"] = {name: k._asdict() for name, k in kernels.kernels(text).items()}
  peak = progress.peak_flops(program.mesh.devices.flat[0].device_kind)
  if chip and peak:
    moved = hlo.moved(text, kind_shares(program.model))
    parts = {"arithmetic": done / peak, "memory": moved / chip.bandwidth,
             "network": sent / chip.links}
    step = max(parts.values())
    # Neither what is computed again nor what a kernel skips is of use.
    useful = min(program.flops_per_step / program.mesh.size, done)
    result["estimate"] = {"step_s": step, "bound_by": max(parts, key=parts.get), "seconds": parts,
                          "utilisation": useful / peak / step}
  return result


def held_bytes(program: Program, state: Any) -> dict[str, int]:
  """Bytes on one device of what a step is given, by kind."""
  extra = {"base": {}, **program.extra}
  frozen = extra.pop("base")  # beside adapters
  return {"parameters": local_bytes(state.params), "optimizer": local_bytes(state.opt_state),
          "average": local_bytes(state.ema), "frozen": local_bytes(frozen),
          "teacher": local_bytes(extra)}


def local_bytes(tree: Any) -> int:
  """Bytes of abstract arrays on one device."""
  return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
             for x in jax.tree.leaves(tree))


def least_sent(params: Any, width: int, parts: int = 1) -> float:
  """Bytes that a device must send in a step for the parameters to be where they are.

  A parameter that is sharded over `fsdp` or `context` is gathered for the forward pass and again
  for the backward pass, and its gradient reduced and scattered (Rajbhandari et al. 2020, section
  7.2), for every part of the batch anew, since no device has room for the whole; over axes of the
  tokens that hold copies of it, the gradient is reduced and gathered, once. What `tensor` and
  `context` send of activations is not counted.

  Args:
    params: abstract arrays with shardings.
    width: bytes of a number that is sent.
    parts: of a batch, whose gradients are accumulated.
  """
  ring = lambda n: (n - 1) / n
  total = 0.0
  for x in jax.tree.leaves(params):
    sizes, spec = dict(x.sharding.mesh.shape), x.sharding.spec
    split = {a for part in spec if part for a in ((part,) if isinstance(part, str) else part)}
    shards, copies = (math.prod(n for a, n in sizes.items()
                                if a != "tensor" and (a in split) == wanted)
                      for wanted in (True, False))
    whole = math.prod(x.sharding.shard_shape(x.shape)) * shards * width
    total += whole * 3 * parts * ring(shards) + whole / shards * 2 * ring(copies)
  return total


# ------------------------------------------------------------------------------- search


def meshes(config: ConfigDict, number: int) -> Iterator[dict[str, int]]:
  """The shapes of `number` devices that the batch of a config can be split over, without `context`.

  Those that send least come first: more of `fsdp`, then of `tensor`.
  """
  rows = [p.batch_size // config.optim.accumulate for p in phases.phases(config)]
  divisors = [n for n in range(1, number + 1) if number % n == 0]
  for tensor, data in itertools.product(divisors, divisors):
    fsdp, left = divmod(number, tensor * data)
    if not left and all(n % (data * fsdp) == 0 for n in rows):
      yield {"data": data, "fsdp": fsdp, "tensor": tensor, "context": config.mesh.context}


def search(config: ConfigDict, topology: str, *, slices: int = 1,
           **options: Any) -> list[dict[str, Any]]:
  """Reports of all of `meshes`: those that fit, by estimated time of a step, then the others.

  Args:
    config: of a run; of its mesh only `context` stays.
    topology: as for `topologies.devices`.
    slices: of that topology.
    **options: others of `report`.
  """
  results = []
  for shape in meshes(config, len(topologies.devices(topology, slices))):
    edited = config.copy_and_resolve_references()
    with edited.unlocked():
      edited.mesh.update(shape)
    try:
      results.append(report(edited, topology, slices=slices, **options))
    except ConfigError as e:  # heads that a tensor axis does not divide, and the like
      logging.info("%s: %s", shape, e)
      continue
    logging.info("%s", line(results[-1]))
  return sorted(results, key=lambda r: (not r["fits"], r.get("estimate", {}).get("step_s", 0.0)))


def line(result: Mapping[str, Any]) -> str:
  """A report in one line."""
  shape = " x ".join(f"{axis} {n}" for axis, n in result["mesh"].items()) or "1"
  text = f"{result['topology']} as {shape}: "
  if "peak" not in result["bytes"]:
    return text + f"does not fit: {result['why']}"
  text += f"{result['bytes']['peak'] / 2**30:.2f} GiB a device at the peak"
  if result["bytes"]["chip"]:
    text += f" of {result['bytes']['chip'] / 2**30:.0f}"
  text += ", fits" if result["fits"] else ", does not fit"
  if estimate := result.get("estimate"):
    text += (f"; estimated {estimate['step_s'] * 1e3:.3g} ms a step,"
             f" {estimate['utilisation']:.0%} of the peak, bound by {estimate['bound_by']}")
  if ops := result.get("ops"):
    text += (f"; by the compiler's cost model {ops['cycles']:.3g} cycles,"
             f" {ops['seconds'] * 1e3:.3g} ms")
  if found := result.get("kernels"):
    text += "; kernels: " + ", ".join(f"{k['count']} {name}" for name, k in found.items())
  return text
