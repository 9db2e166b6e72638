"""The choice of global tokens, which see all and are seen by all (Longformer)."""

import dataclasses
from typing import Any, Literal, Mapping

import jax
import jax.numpy as jnp

from jtx.errors import ConfigError
from jtx.nn.kinds import known
from jtx.nn.stack import StackConfig
from jtx.parallel.sharding import Batch
from jtx.ranges import SizeOrNone

OF_TEXTS = ("first_text", "second_text")
# By the task of a head; other models have none.
OF_TASKS = {"classes": "first", "multi_label": "first", "span": "first_text",
            "choice": "second_text"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class GlobalConfig:
  """Which tokens are global where a batch has no `text_global` (Beltagy et al. 2020, section 5).

  Their first one, for classes; the first text of a pair, such as a question, for answers; the
  second text, for multiple choice; none, for masked tokens.
  """
  tokens: Literal["first", "first_text", "second_text", "none"] = "first"  # those, of each text
  separator: SizeOrNone | None = None  # id of the token behind a text; unset, the tokenizer's

  def check(self, stack: StackConfig) -> None:
    """Raises ConfigError where the stack has no global tokens, or the separator is not known."""
    if self.tokens != "first" and "global" not in stack.flags:
      raise ConfigError(f"globals.tokens={self.tokens!r} is for layers of kind 'global_tokens', and"
                        " model.stack.pattern has none")
    if self.tokens in OF_TEXTS and self.separator is None:
      raise ConfigError(f"globals.tokens={self.tokens!r} needs globals.separator, the id of the"
                        " token behind a text")

  def flagged(self, batch: Batch) -> Batch:
    """The batch with `text_global` [B, T] bool, which it may bring itself."""
    if "text_global" in batch or self.tokens == "first":  # the flag's own rule
      return batch
    if self.tokens == "none":
      return {**batch, "text_global": jnp.zeros_like(batch["text"], bool)}
    return {**batch, "text_global": of_text(
        batch["text"] == self.separator, batch["text_positions"],
        second=self.tokens == "second_text")}


def tokens_for(task: str) -> str:
  """What `GlobalConfig.tokens` is for a task of `jtx.models.heads.TASKS`."""
  return OF_TASKS[task] if task in OF_TASKS else "none"


def reads_texts(fields: Mapping[str, Any]) -> bool:
  """Whether fields of a `GlobalConfig`, if any, need to know where a text ends."""
  return "tokens" in fields and fields["tokens"] in OF_TEXTS


def global_fields(task: str, fields: Mapping[str, Any]) -> dict[str, Any]:
  """The fields of a model for a task that say which tokens are global; none without such layers.

  Args:
    task: of its head.
    fields: of the model, those that are set.
  """
  stack = fields["stack"] if "stack" in fields else {}
  kinds = known(stack["pattern"] if "pattern" in stack else ())
  has_global = any("global" in kind.flags for kind in kinds)
  return {"globals": {"tokens": tokens_for(task)}} if has_global else {}


def of_text(separators: jax.Array, positions: jax.Array, *, second: bool) -> jax.Array:
  """The tokens before a text's first separator, or all behind it and the one that may follow it.

  Args:
    separators: [B, T] bool.
    positions: [B, T] int, which restart in every text or pair of a row.
    second: those behind.

  Returns:
    [B, T] bool.
  """
  before = jnp.cumsum(separators, -1) - separators  # in the row
  start = jnp.maximum(jnp.arange(positions.shape[-1]) - positions, 0)
  before -= jnp.take_along_axis(before, start, -1)
  if not second:
    return (before == 0) & ~separators
  follows = jnp.pad(separators[:, :-1], ((0, 0), (1, 0)))
  return (before > 0) & ~(separators & follows & (before == 1))
