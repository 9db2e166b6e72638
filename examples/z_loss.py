"""Checks z_loss.diff against float64 NumPy, and trains with it."""

import json
import pathlib
import tempfile

import jax
import jax.numpy as jnp
import numpy as np

from jtx.objectives import OBJECTIVES
from tests.helpers import block, encoder, logged, run_command

# Of the second row one slot is empty.
batch = {"text": jnp.arange(12).reshape(2, 6) % 9,
         "text_segment_ids": jnp.ones((2, 6), jnp.int32),
         "text_positions": jnp.arange(6)[None].repeat(2, 0),
         "mlm_positions": jnp.array([[1, 4], [3, 0]]), "mlm_labels": jnp.array([[5, 2], [7, -1]])}
model = encoder(vocab_size=9, width=8, num_layers=1, block=block(num_heads=2, ffn_dim=8), mlm=True)
params = model.init(jax.random.key(0), batch)["params"]

hidden = model.apply({"params": params}, batch)
scores = np.float64(model.apply({"params": params}, hidden, method="mlm_logits"))
log_z = np.log(np.exp(scores).sum(-1))  # [B, T]
slots = ((0, 1, 5), (0, 4, 2), (1, 3, 7))  # row, place, token
nll = sum(log_z[b, t] - scores[b, t, label] for b, t, label in slots)
z = sum(log_z[b, t] ** 2 for b, t, _ in slots)

sums = OBJECTIVES["mlm_z"](z_loss=0.5)(model, params, batch, train=False)
np.testing.assert_allclose(sums["loss"], (nll + 0.5 * z, 3), rtol=1e-5)
np.testing.assert_allclose(sums["z"], (z, 3), rtol=1e-5)

# A config names it as any other. At first all of 500 tokens are about equally likely.
folder = tempfile.TemporaryDirectory()
out = folder.name
pathlib.Path(out, "bert_z.py").write_text("""
from configs import bert, common


def get_config():
  c = bert.get_config("tiny")
  c.objective = common.objective("mlm_z", z_loss=0.5)
  c.steps, c.log_every, c.phases = 2, 1, ()
  return c
""")
workdir = f"{out}/run"
run_command("train", f"--config={out}/bert_z.py", f"--workdir={workdir}")
for line in logged(workdir):
  np.testing.assert_allclose(line["z"], np.log(500) ** 2, rtol=0.01)
  np.testing.assert_allclose(line["loss"], np.log(500) + 0.5 * line["z"], rtol=0.01)
assert [line["step"] for line in logged(workdir)] == [1, 2]
assert "val/z" in json.loads(pathlib.Path(workdir, "results.json").read_text())
