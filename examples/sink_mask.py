"""Checks sink_mask.diff: what the tokens of two texts in a row attend to."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.helpers import block, encoder

# A text of seven tokens, one of six, and padding.
WANT = """
x.............
xx............
xxx...........
xxxx..........
xxxxx.........
xxxxxx........
xxxx.xx.......
.......x......
.......xx.....
.......xxx....
.......xxxx...
.......xxxxx..
.......xxxxxx.
..............""".split()
model = encoder(vocab_size=9, width=8, num_layers=1, block=block(num_heads=2, ffn_dim=8),
                pattern=("sinks",), window=1, causal=True)
batch = {"text": jnp.arange(14)[None] % 9,
         "text_segment_ids": jnp.array([[1] * 7 + [2] * 6 + [0]]),
         "text_positions": jnp.array([[*range(7), *range(6), 0]])}
params = model.init(jax.random.key(0), batch)


def seen(model, batch) -> list[str]:
  weights = model.apply(params, batch, method="attention_weights")["encoder"][0, 0]  # [N, T, S]
  assert ((weights[0] > 0) == (weights[1] > 0)).all()
  return ["".join(".x"[int(x)] for x in row) for row in np.asarray(weights[0] > 0)]


assert seen(model, batch) == WANT

# A batch may bring sinks of its own: here the third token of the first text, and none of the other.
own = {**batch, "text_sink": jnp.zeros((1, 14), jnp.int32).at[0, 2].set(1)}
want = [["."] * 14 for _ in range(14)]
for q in range(13):
  first = 0 if q < 7 else 7
  for k in {q, max(q - 1, first)} | ({2} if 2 <= q < 7 else set()):
    want[q][k] = "x"
assert seen(model, own) == ["".join(row) for row in want]
