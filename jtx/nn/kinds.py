"""The kinds of a stack's layers, by their names in its pattern.

A name is a key of `KINDS`, or "KIND:WINDOW" for layers whose window is not the stack's: "local:64".
"""

from typing import Any, Sequence

from jtx.errors import ConfigError, nearest
from jtx.nn.masks import KINDS, Kind, Mask


def kind_of(name: str) -> tuple[Kind | None, int | None]:
  """A kind of layers and the window of its own, by its name in a stack's `pattern`.

  Args:
    name: a key of `KINDS`, or "KIND:WINDOW" for layers whose window is not the stack's.

  Returns:
    None for a kind that is not known, and None where the window is the stack's.

  Raises:
    ConfigError: what is behind the colon is no window, or the kind has none.
  """
  kind, colon, own = name.partition(":")
  found = KINDS[kind] if kind in KINDS else None
  if not colon or found is None:
    return found, None
  if not found.windowed or not own.isdecimal() or int(own) < 1:
    windowed = " or ".join(repr(f"{k}:64") for k, kind in KINDS.items() if kind.windowed)
    raise ConfigError(f"pattern: {name!r} is not a kind with a window of its own, such as"
                      f" {windowed}")
  return found, int(own)


def kind_mask(name: str, *, causal: bool, window: int) -> Mask:
  """The mask of a kind of layer.

  Args:
    name: a key of `KINDS`, or "KIND:WINDOW".
    causal: whether later places are hidden.
    window: places to each side, of windowed kinds without a window of their own.

  Raises:
    ConfigError: an unknown kind, or a windowed one without a window.
  """
  kind, own = kind_of(name)
  if kind is None:
    raise ConfigError(f"pattern: unknown kind of layer {name!r}; {nearest(name, KINDS)}")
  width = window if own is None else own
  if kind.windowed and width < 1:
    raise ConfigError(f"pattern has layers of kind {name!r}: set window to 1 or more")
  return kind.mask(causal, width)


def of_layer(stack: Any, name: str) -> tuple[Mask, bool]:
  """The mask of a layer of a `StackConfig`, by its kind's name, and whether it is local."""
  kind, _ = kind_of(name)
  return kind_mask(name, causal=stack.causal, window=stack.window), kind.windowed


def known(pattern: Sequence[str]) -> list[Kind]:
  """The kinds in a pattern; `check` tells those that are not known."""
  return [kind for kind, _ in map(kind_of, pattern) if kind]


def check(stack: Any) -> None:
  """Raises ConfigError where a `StackConfig` has a pattern that its other fields do not fit."""
  pattern = stack.pattern
  for name in pattern:
    kind_mask(name, causal=stack.causal, window=stack.window)
  found = [kind_of(name) for name in pattern]
  if stack.window and not any(kind.windowed and own is None for kind, own in found):
    names = " or ".join(name for name, kind in KINDS.items() if kind.windowed)
    raise ConfigError(f"window={stack.window} is for layers of kind {names}, and pattern has none;"
                      " leave it 0")
  has_global = all("global" in kind.flags for kind, _ in found)
  if stack.block.attention.global_projections and (stack.causal or not has_global):
    raise ConfigError("attention.global_projections=True goes with layers of kind 'global_tokens'"
                      f" alone and causal=False, not pattern={pattern} and causal={stack.causal}")
