"""Checks relative_position.diff against float64 NumPy, and that every layer has a table."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jtx.nn.attention import Attention, AttentionConfig
from jtx.nn.positions import POSITIONS, Places
from tests.helpers import block, encoder

T, D, N, H, FAR = 5, 8, 2, 4, 2
position = POSITIONS["relative"](max_distance=FAR)
positions = np.array([[0, 1, 2, 0, 1], [0, 1, 2, 3, 4]])  # two texts in the first row
rng = np.random.default_rng(0)
x = rng.normal(size=(2, T, D))

layer = Attention(AttentionConfig(num_heads=N))
inputs = jnp.float32(x), jnp.float32(x)
call = dict(places=Places(jnp.array(positions)), position=position)
params = nn.unbox(layer.init(jax.random.key(0), *inputs, **call)["params"])
table = rng.normal(size=(2 * FAR + 1, H))
assert params["position_keys"].shape == table.shape
params["position_keys"] = jnp.float32(table)
_, _, weights = layer.apply({"params": params}, *inputs, return_weights=True, **call)

wq, wk = (np.float64(params[name]["kernel"]) for name in ("query", "key"))
for b, n, t in np.ndindex(2, N, T):
  q, keys = x[b, t] @ wq[:, n], x[b] @ wk[:, n]
  distance = np.minimum(np.maximum(positions[b] - positions[b, t], -FAR), FAR)
  p = np.exp((keys + table[distance + FAR]) @ q / np.sqrt(H))
  np.testing.assert_allclose(weights[b, n, t], p / p.sum(), atol=1e-6)

# The layers of a model have a table each, beside their projections, and start from their own draws.
model = encoder(vocab_size=9, width=D, num_layers=3, block=block(num_heads=N, ffn_dim=8),
                position=position)
tables = nn.unbox(model.init(jax.random.key(0), model.example()))[
    "params"]["encoder"]["layers"]["attention"]["position_keys"]
assert tables.shape == (3, 2 * FAR + 1, H)
assert (tables[0] != tables[1]).all() and (tables[1] != tables[2]).all()
