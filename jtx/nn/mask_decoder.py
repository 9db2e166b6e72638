"""The enhanced mask decoder of DeBERTa (He et al. 2020, section 3.2): the last layer, run again.

Absolute positions, which the layers do not have, are added to what predicts masked tokens. Queries
are these and the hidden states before the last layer, keys and values the latter alone. The last
layer's parameters serve the decoder, too, in each of its steps.
"""

import jax

from jtx.errors import ConfigError
from jtx.nn.attention import LayerKind
from jtx.nn.block import Block, Context
from jtx.nn.kinds import of_layer
from jtx.nn.stack import Stack, StackConfig
from jtx.parallel.sharding import gather_rows, unbox

STEPS = 2


def check(config: StackConfig) -> None:
  """Raises ConfigError where the layers of a stack can't be run so."""
  if config.block.norm.position != "post" or config.position_at != "stem" or config.causal:
    raise ConfigError("masked.positions are those of a decoder that goes with"
                      " stack.block.norm.position='post', stack.position_at='stem' and"
                      " stack.causal=False")


def decode(stack: Stack, queries: jax.Array, source: jax.Array, ctx: Context) -> jax.Array:
  """What predicts masked tokens.

  Args:
    stack: a bound one, of which a call has made the parameters.
    queries: [B, T, D], positions and what they are added to.
    source: [B, T, D], the hidden states before the last layer.
    ctx: as the stack was given.

  Returns:
    [B, T, D].
  """
  config = stack.config
  segments = stack.segments or config.segments
  segment = segments[-1]
  params = unbox(stack.variables["params"])
  layer = params["layers" if len(segments) == 1 else f"layers_{len(segments) - 1}"]
  if not config.share:
    layer = jax.tree.map(lambda x: x[-1], layer)
  name = segment.pattern[(segment.num_layers - 1) % len(segment.pattern)]
  # Of no parent: its parameters are not its own.
  block = Block(segment.block, (LayerKind(*of_layer(config, name)),), config.position,
                dtype=stack.dtype, parent=None)
  tables = config.position.stack_tables(segment.block.attention.sizes(queries.shape[-1]))
  ctx = ctx.replace(source=gather_rows(source), params={name: params[name] for name in tables},
                    return_weights=False, return_hidden=False)
  for _ in range(STEPS):
    rngs = {"dropout": stack.make_rng("dropout")} if ctx.train else {}
    queries = block.apply({"params": layer}, queries, ctx, rngs=rngs)[0]
  return gather_rows(queries)
