"""Attention weights of trained models over given texts, with the tokens that they are between."""

from typing import Any, Mapping, NamedTuple, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jtx.data.tokenizers.tokenizer import Tokenizer
from jtx.errors import ConfigError
from jtx.inference.texts import encode, run

SHOWN = 16  # maps of a figure, where it is not said which


class Weights(NamedTuple):
  """Probabilities of all heads, and the tokens of their axes."""
  values: np.ndarray  # [L, N, T, S]
  queries: list[str]  # T
  keys: list[str]  # S


def of_text(model: nn.Module, params: Any, tokenizer: Tokenizer, text: str,
            second: str | None = None, max_length: int = 256) -> Weights:
  """Self-attention of an encoder or a decoder over a text, or a pair of texts."""
  e, = encode(tokenizer, [text], None if second is None else [second], max_length,
              special=tokenizer.mask_id is not None)
  tokens = tokenizer.tokens(e["text"])
  batch = {**_row("text", e["text"]), "text_types": jnp.asarray(e["text_types"])[None]}
  found = [*_weights(model, params, batch).values()]
  if not found:
    raise ConfigError("the model has no attention: its layers are recurrent")
  return Weights(found[0], tokens, tokens)


def of_translation(model: nn.Module, params: Any, tokenizers: Mapping[str, Tokenizer], source: str,
                   target: str, kind: str = "cross") -> Weights:
  """Attention of an encoder-decoder, whose targets are given.

  Args:
    model: an encoder-decoder.
    params: its parameters.
    tokenizers: of `src` and `tgt`.
    source: a text.
    target: its translation.
    kind: "encoder", "decoder", or "cross", from the target to the source.
  """
  ids = {field: np.append(tokenizers[field].encode(text), tokenizers[field].eos_id)
         for field, text in (("src", source), ("tgt", target))}
  names = {field: tokenizers[field].tokens(x) for field, x in ids.items()}
  batch = {**_row("src", ids["src"]), **_row("tgt", ids["tgt"])}
  batch["tgt_in"] = jnp.asarray(np.append(tokenizers["tgt"].bos_id, ids["tgt"][:-1]))[None]
  queries, keys = {"encoder": ("src", "src"), "decoder": ("tgt", "tgt"), "cross": ("tgt", "src")
                   }[kind]
  found = _weights(model, params, batch)
  if kind not in found:
    raise ConfigError(f"kind={kind!r}: the model has no such attention; it has"
                      f" {', '.join(found) or 'none'}")
  return Weights(found[kind], names[queries], names[keys])


def _row(field: str, ids: np.ndarray) -> dict[str, jax.Array]:
  """A batch of one text."""
  return {field: jnp.asarray(ids, jnp.int32)[None],
          f"{field}_segment_ids": jnp.ones((1, len(ids)), jnp.int32),
          f"{field}_positions": jnp.arange(len(ids), dtype=jnp.int32)[None]}


def _weights(model: nn.Module, params: Any,
             batch: Mapping[str, jax.Array]) -> dict[str, np.ndarray]:
  return {name: np.asarray(x[:, 0], np.float32)
          for name, x in run(_of_all_layers, model, params, batch).items()}


def _of_all_layers(model: nn.Module, params: Any,
                   batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
  return model.apply({"params": params}, batch, method="attention_weights")


def panels(weights: Weights, layers: Sequence[int] | None = None,
           heads: Sequence[int] | None = None, mean: bool = False) -> dict[str, np.ndarray]:
  """Some of the maps [T, S] by their names.

  Args:
    weights: of all heads.
    layers: by number, from 1; -1 is the last. None is all, or the last where there are more than
      SHOWN heads in all.
    heads: by number, from 1; None is all.
    mean: over the heads, instead of each.

  Raises:
    ConfigError: there is no such layer or head.
  """
  L, N = weights.values.shape[:2]
  if layers is None:
    layers = range(1, L + 1) if L * (1 if mean else N) <= SHOWN else (-1,)
  layers = _places("layers", layers, L)
  heads = _places("heads", range(1, N + 1) if heads is None else heads, N)
  if mean:
    return {f"layer {l + 1}": weights.values[l, heads].mean(0) for l in layers}
  return {f"layer {l + 1}, head {n + 1}": weights.values[l, n] for l in layers for n in heads}


def _places(what: str, numbers: Sequence[int], size: int) -> list[int]:
  for number in numbers:
    if not 1 <= abs(number) <= size:
      raise ConfigError(f"{what}: there is no {number}; valid are 1 to {size}, and -1 to -{size}"
                        " from the end")
  return [number - 1 if number > 0 else size + number for number in numbers]
