"""Checks strided_mask.diff: the mask on a small grid, and that a model's layers have it."""

import jax
import jax.numpy as jnp
import numpy as np

from jtx.nn.kinds import kind_mask
from jtx.nn.masks import materialize
from tests.helpers import block, encoder

CAUSAL = """
x.......
xx......
xxx.....
xxxx....
.xxxx...
..xxxx..
x..xxxx.
.x..xxxx""".split()
FULL = """
xxxx..x.
xxxxx..x
xxxxxx..
xxxxxxx.
.xxxxxxx
..xxxxxx
x..xxxxx
.x..xxxx""".split()


def drawn(allowed) -> list[str]:
  return ["".join(".x"[int(x)] for x in row) for row in np.asarray(allowed)]


for causal, want in ((True, CAUSAL), (False, FULL)):
  assert drawn(materialize(kind_mask("strided", causal=causal, window=3), 8, 8)) == want

# Its first layer is strided, its second is not.
model = encoder(vocab_size=9, width=8, num_layers=2, block=block(num_heads=2, ffn_dim=8),
                pattern=("strided", "global"), window=3)
batch = {"text": jnp.arange(8)[None], "text_segment_ids": jnp.ones((1, 8), jnp.int32),
         "text_positions": jnp.arange(8)[None]}
params = model.init(jax.random.key(0), batch)
weights = model.apply(params, batch, method="attention_weights")["encoder"]  # [layers, B, N, T, S]
for head in range(2):
  assert drawn(weights[0, 0, head] > 0) == FULL
  assert (weights[1, 0, head] > 0).all()
