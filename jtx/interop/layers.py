"""The kinds of a stack's layers in config.json: `layer_types`, and the window of local ones."""

from typing import Any, Mapping, Sequence

from jtx.interop.attributes import need
from jtx.nn.stack import StackConfig

FULL, SLIDING = "full_attention", "sliding_attention"
KINDS = {FULL: "global", SLIDING: "local"}


def check_types(types: Sequence[str], number: int) -> list[str]:
  """`layer_types` as it is given.

  Raises:
    ConfigError: it has unknown kinds, or is not of `number` layers.
  """
  for kind in types:
    need(kind in KINDS, f"layer_types has {kind!r}; valid are: {', '.join(KINDS)}")
  need(len(types) == number,
       f"layer_types has {len(types)} entries, and num_hidden_layers={number}")
  return list(types)


def cycle(items: Sequence[str]) -> tuple[str, ...]:
  """The shortest start of `items` that, repeated, gives them all."""
  period = next(p for p in range(1, len(items) + 1)
                if all(item == items[i % p] for i, item in enumerate(items)))
  return tuple(items[:period])


def types_of(stack: StackConfig) -> list[str]:
  """`layer_types` of a stack.

  Raises:
    ConfigError: it has layers of other kinds.
  """
  theirs = {ours: theirs for theirs, ours in KINDS.items()}
  kinds = [stack.pattern[i % len(stack.pattern)] for i in range(stack.num_layers)]
  for kind in kinds:
    need(kind in theirs, f"has no layers of kind {kind!r}")
  return [theirs[kind] for kind in kinds]


def causal_fields(types: Sequence[str], window: Any) -> dict[str, Any]:
  """The fields `pattern` and `window` of a causal stack.

  Args:
    types: of its layers.
    window: `sliding_window`, which counts the query itself.

  Raises:
    ConfigError: local layers without a window that holds more than the query.
  """
  if SLIDING not in types:
    return {"pattern": ("global",), "window": 0}
  need(window is not None and window >= 2,
       f"sliding_window={window!r} is no window of {SLIDING} layers: it counts the query itself")
  return {"pattern": cycle([KINDS[kind] for kind in types]), "window": window - 1}


def causal_window(stack: StackConfig) -> int | None:
  """The inverse: `sliding_window` of a stack, None where no layer has one."""
  return stack.window + 1 if stack.windowed else None


def given_types(values: Mapping[str, Any]) -> list[str]:
  """The types of layers, in whichever way a model type says them."""
  number, has = values["num_hidden_layers"], values.__contains__
  window = values["sliding_window"] if has("sliding_window") else None
  if has("layer_types") and values["layer_types"] is not None:
    return check_types(values["layer_types"], number)
  if has("sliding_window_pattern"):  # every so many layers, the last is global
    every = values["sliding_window_pattern"]
    return [SLIDING if (i + 1) % every else FULL for i in range(number)]
  first = values["max_window_layers"] if has("max_window_layers") else 0
  slides = window is not None and (values["use_sliding_window"] if has("use_sliding_window")
                                   else True)
  return [SLIDING if slides and i >= first else FULL for i in range(number)]
