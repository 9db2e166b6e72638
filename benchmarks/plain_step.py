"""The train step of a plain Flax model of a config's sizes, compiled for a chip that is not here.

  python -m benchmarks.plain_step --config=configs/bert_base.py --topology=v5e:1x1 [--ops=N]
      [--vocab_size=N] [--outputs=N] [--config.batch_size=16]

takes what `python -m experiments.compile` takes and reports the same of memory and cycles, for one
device. The network is the config's, of `benchmarks/plain_flax.py` and `plain_images.py`: layers one
after the other, attention as matrices, everything kept for the backward pass, logits of all
tokens. The optimiser is optax's Adam with weight decay. The last line is one JSON object.
"""

import json
import pathlib
from typing import Any, Callable, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from benchmarks import plain_flax, plain_images
from experiments import cli
from jtx.compile import aot, cycles, topologies
from jtx.errors import ConfigError
from jtx.train.keys import check_config

Batch = dict[str, Any]


class Plain(NamedTuple):
  """A plain model, abstract arguments of its step, and its loss."""
  model: nn.Module
  batch: Batch  # name -> jax.ShapeDtypeStruct
  inputs: Callable[[Batch, bool], tuple]  # the model's arguments, in training or not
  loss: Callable[[Any, Batch], jax.Array]  # of the model's outputs


def encoder_sizes(model: Any) -> dict[str, Any]:
  return {"vocab_size": model.vocab_size} | stack_sizes(model.stack)


def stack_sizes(stack: Any) -> dict[str, Any]:
  return dict(width=stack.width, num_layers=stack.num_layers,
              num_heads=stack.block.attention.num_heads, ffn_dim=stack.block.ffn.dim)


def token_loss(scores: jax.Array, labels: jax.Array) -> jax.Array:
  """The mean of tokens whose label is not negative."""
  chosen = labels >= 0
  nll = optax.softmax_cross_entropy_with_integer_labels(scores, jnp.where(chosen, labels, 0))
  return (nll * chosen).sum() / chosen.sum()


def of_tokens(batch: Batch) -> Batch:
  return {name: batch["text"] for name in ("ids", "mask", "labels")}


def bert(model: Any, batch: Batch, dtype: Any) -> Plain:
  """For masked tokens and, as the paper has it, sentence pairs, one a row."""
  pairs = model.head.task == "next_sentence"
  plain = plain_flax.Bert(**encoder_sizes(model), max_length=model.stack.position.max_length,
                          dtype=dtype, pairs=pairs)
  label = jax.ShapeDtypeStruct(batch["text"].shape[:1], jnp.int32)

  def loss(outputs, batch):
    scores, of_pairs = outputs if pairs else (outputs, None)
    result = token_loss(scores, batch["labels"])
    return result + token_loss(of_pairs, batch["label"]) if pairs else result

  return Plain(plain, of_tokens(batch) | ({"label": label} if pairs else {}),
               lambda b, train: (b["ids"], b["mask"], train), loss)


def modernbert(model: Any, batch: Batch, dtype: Any) -> Plain:
  return Plain(plain_flax.ModernBert(**encoder_sizes(model), dtype=dtype), of_tokens(batch),
               lambda b, _: (b["ids"], b["mask"]), lambda out, b: token_loss(out, b["labels"]))


def nmt(model: Any, batch: Batch, dtype: Any) -> Plain:
  """With labels that are smoothed by 0.1."""
  plain = plain_flax.EncDec(vocab_size=model.vocab_size, dtype=dtype, **stack_sizes(model.encoder))

  def loss(logits, batch):
    targets = optax.smooth_labels(jax.nn.one_hot(batch["tgt"], logits.shape[-1]), 0.1)
    tokens = batch["tgt"] > 0
    return (optax.softmax_cross_entropy(logits, targets) * tokens).sum() / tokens.sum()

  return Plain(plain, {name: batch[name] for name in ("src", "tgt")},
               lambda b, train: (b["src"], b["tgt"], train), loss)


def vit(model: Any, batch: Batch, dtype: Any) -> Plain:
  plain = plain_images.Vit(patch=model.patch_size, classes=model.head.outputs, dtype=dtype,
                           **stack_sizes(model.stack))
  return Plain(plain, {name: batch[name] for name in ("image", "label")},
               lambda b, train: (b["image"], train),
               lambda out, b: token_loss(out, b["label"][:, 0]))


def mae(model: Any, batch: Batch, dtype: Any) -> Plain:
  decoder = model.decoder
  plain = plain_images.Mae(
      patch=model.patch_size, dtype=dtype, **stack_sizes(model.stack), masked=decoder.masked,
      decoder_width=decoder.width, decoder_layers=decoder.num_layers,
      decoder_heads=decoder.num_heads, decoder_ffn_dim=decoder.ffn_dim)
  noise = jax.ShapeDtypeStruct((len(batch["image"]), model.grid.tokens - 1), jnp.float32)
  return Plain(plain, {"image": batch["image"], "noise": noise},
               lambda b, train: (b["image"], b["noise"], train), lambda out, b: out)


PLAIN: dict[str, Callable[[Any, Batch, Any], Plain]] = {
    "bert": bert, "bert_base": bert, "bert_large": bert, "vit_b16": vit, "nmt_base": nmt,
    "mae": mae, "modernbert": modernbert}


def step_of(plain: Plain) -> tuple[Callable, tuple[Any, Any, Batch, Any]]:
  """The jitted train step, and its abstract arguments."""
  apply = lambda params, batch, key: plain.model.apply(
      {"params": params}, *plain.inputs(batch, True), rngs={"dropout": key})
  optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-4, weight_decay=0.01))

  def step(params, state, batch, key):
    loss, gradients = jax.value_and_grad(
        lambda params: plain.loss(apply(params, batch, key), batch))(params)
    updates, state = optimizer.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, loss

  key = jax.eval_shape(lambda: jax.random.key(0))
  params = jax.eval_shape(
      lambda batch: plain.model.init(jax.random.key(0), *plain.inputs(batch, False))["params"],
      plain.batch)
  return jax.jit(step, donate_argnums=(0, 1)), (
      params, jax.eval_shape(optimizer.init, params), plain.batch, key)


def plain_of(config: Any, name: str, topology: str, vocab_size: int | None = None,
             outputs: int | None = None) -> Plain:
  """The plain model of a config's sizes.

  Args:
    config: of a run.
    name: of its file, a key of PLAIN.
    topology: as for `topologies.devices`.
    vocab_size: as for `aot.report`.
    outputs: as for `aot.report`.
  """
  if name not in PLAIN:
    raise ConfigError(f"--config: there is no plain model of {name!r}, only of {', '.join(PLAIN)}")
  program, (_, batch, *_), _ = aot.train_step(config, topology, 1, vocab_size, outputs)
  like = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype)
  dtype = jnp.float32 if topology.startswith("cpu") else jnp.bfloat16
  return PLAIN[name](program.model, {k: like(x) for k, x in batch.items()}, dtype)


def main() -> None:
  config, topology = ours.CONFIG.value, ours.TOPOLOGY.value
  check_config(config)
  topologies.set_up(topology)
  name = pathlib.Path(cli.config_path(ours.CONFIG)).stem
  plain = plain_of(config, name, topology, vocab_size=ours.VOCAB_SIZE.value,
                   outputs=ours.OUTPUTS.value)
  step, arguments = step_of(plain)
  device = jax.sharding.SingleDeviceSharding(topologies.devices(topology)[0])
  place = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device)
  costs, _ = aot.compiled_costs(step.lower(*jax.tree.map(place, arguments)), topology,
                                ours.OPS.value)
  result = {"parameters": sum(x.size for x in jax.tree.leaves(arguments[0]))} | costs
  if ours.OPS.value and "ops" in costs:
    print(cycles.tables(costs["ops"]))
  print(json.dumps(result))


if __name__ == "__main__":
  # Its flags are defined where it is imported, which is not for who takes a function from here.
  from experiments import compile as ours
  cli.run(main, required=("config", "topology"))
