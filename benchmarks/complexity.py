"""Forward time of a layer of each kind against length and width: table 1 of Vaswani et al. 2017.

What mixes places is timed, on one sequence: attention of given queries, keys and values, in heads
of 64, to all places and to a window; an LSTM; and a convolution. Projections, which cost n d^2
whatever mixes the places, are left out as they are in the table. Beside it a training step's
gradient of a whole encoder layer over long texts, with Longformer's attention and with that to all.
"""

from typing import Any, Callable, NamedTuple

import jax
import jax.numpy as jnp

from benchmarks import harness
from jtx.figures.scaling import exponent
from jtx.models.encoder import Encoder
from jtx.nn.attend import attend
from jtx.nn.attention import AttentionConfig
from jtx.nn.block import BlockConfig
from jtx.nn.complexity import costs
from jtx.nn.convolution import Convolution, ConvolutionConfig
from jtx.nn.layers import FfnConfig
from jtx.nn.masks import FULL, window
from jtx.nn.recurrent import CellConfig, Recurrent
from jtx.nn.stack import StackConfig
from jtx.parallel.sharding import unbox

CALLS = 30  # of which the fastest counts
LONG_CALLS = 3  # of an encoder
LAST = 3  # sizes, from the largest, that an exponent is fitted to


class Size(NamedTuple):
  """What is measured."""
  lengths: tuple[int, ...]  # n, at the width of `width`
  widths: tuple[int, ...]  # d, at the length of `length`
  length: int
  width: int
  kernel: int = 5  # k, places of the convolution
  restricted: int = 64  # r, places that restricted attention sees
  texts: tuple[int, ...] = (1024, 2048, 4096, 8192, 16384)  # n of encoders
  window: int = 128  # places to each side that a token of Longformer sees


SIZES = {"base": Size((128, 256, 512, 1024, 2048), (64, 128, 256, 512, 1024), 256, 128),
         "tiny": Size((32, 64), (16, 32), 32, 16, restricted=16, texts=(32, 64), window=8)}


def attention(mask) -> Callable[[Any, jax.Array], jax.Array]:
  def run(params, x):
    B, n, d = x.shape
    q, k, v = (jnp.roll(x, i, 1).reshape(B, n, max(d // 64, 1), -1) for i in range(3))
    # One kernel at all lengths, and one that leaves out what a window does not see.
    return attend(q, k, v, mask=mask, kernel="blocked").reshape(x.shape)

  return run


def layers(size: Size, width: int) -> dict[str, tuple[Callable[[Any, jax.Array], jax.Array], Any]]:
  """By kind, a function of parameters and x [1, n, d], and the parameters."""
  one = jnp.zeros((1, 8, width))
  ones = lambda x: jnp.ones(x.shape[:2], jnp.int32)
  lstm = Recurrent(CellConfig(), width, width)
  convolution = Convolution(ConvolutionConfig(size=size.kernel))
  key = jax.random.key(0)
  half = size.restricted // 2
  return {
      "self-attention": (attention(FULL), None),
      "recurrent": (lambda p, x: lstm.apply(p, x, ones(x))[0].hidden,
                    lstm.init(key, one, ones(one))),
      "convolutional": (convolution.apply, convolution.init(key, one)),
      "restricted self-attention": (attention(window(half, half)), None),
  }


def encoders(size: Size) -> dict[str, Encoder]:
  """One layer each, by what a token sees: a window and the first token, or all."""
  make = lambda kind, window=0: Encoder(vocab_size=128, stack=StackConfig(
      width=size.width, num_layers=1, pattern=(kind,), window=window,
      block=BlockConfig(dropout=0.0, ffn=FfnConfig(dim=4 * size.width, dropout=0.0),
                        attention=AttentionConfig(
                            num_heads=max(size.width // 64, 1), kernel="blocked",
                            global_projections=window > 0))))
  return {"Longformer": make("global_tokens", size.window), "attention to all": make("global")}


def long_texts(size: Size) -> dict[str, Any]:
  """Seconds of an encoder's gradient for one text of each length, and the exponents of the length.

  Returns:
    `points` and `exponents` by the kind of encoder, as those of `run`.
  """
  points, exponents = [], {}
  for kind, encoder in encoders(size).items():
    params = unbox(encoder.init(jax.random.key(0), encoder.example()))
    gradient = jax.jit(jax.grad(lambda params, batch, encoder=encoder: jnp.square(
        encoder.apply(params, batch)).sum()))
    seconds = []
    for n in size.texts:
      row = jnp.arange(n)[None]
      batch = {"text": row % 128, "text_segment_ids": jnp.ones_like(row), "text_positions": row}
      seconds.append(harness.fastest(lambda batch=batch: jax.block_until_ready(
          gradient(params, batch)), LONG_CALLS))
      print(f"{kind}, {n} tokens: {seconds[-1]:.3g} s", flush=True)
      points.append({"layer": kind, "n": n, "d": size.width, "seconds": seconds[-1]})
    exponents[kind] = exponent(size.texts[-LAST:], seconds[-LAST:])
  return {"points": points, "exponents": exponents, "window": size.window}


def run(size: Size) -> dict[str, Any]:
  """Times, and the exponents of length and width that fit those of the largest sizes.

  Returns:
    `points`, each with the kind of layer, n, d, the seconds of the fastest of thirty calls and the
    operations of `jtx.nn.complexity.costs`; `exponents` by kind of "length" and "width"; those of
    `long_texts`; and what was measured.
  """
  points, exponents = [], {}
  places = {"length": [(n, size.width) for n in size.lengths],
            "width": [(size.length, d) for d in size.widths]}
  for over, several in places.items():
    seconds: dict[str, list[float]] = {}
    for n, d in several:
      table = costs(n, d, size.kernel, size.restricted)
      x = jax.random.normal(jax.random.key(1), (1, n, d))
      for kind, (function, params) in layers(size, d).items():
        call = jax.jit(function)
        took = harness.fastest(lambda call=call, params=params, x=x: jax.block_until_ready(
            call(params, x)), CALLS)
        print(f"{kind}, {n} tokens, {d} wide: {1e3 * took:.3g} ms", flush=True)
        seconds.setdefault(kind, []).append(took)
        points.append({"over": over, "layer": kind, "n": n, "d": d, "seconds": took,
                       "operations": table[kind].operations})
    xs = [place[over == "width"] for place in several]
    for kind, ys in seconds.items():
      exponents.setdefault(kind, {})[over] = exponent(xs[-LAST:], ys[-LAST:])
  return {"points": points, "exponents": exponents, "long_texts": long_texts(size),
          "kernel": size.kernel,
          "restricted": size.restricted, "device": jax.devices()[0].device_kind,
          "machine": harness.machine()}
