"""Checks bag_of_words.diff against float64 NumPy; trains one, evaluates it and predicts with it."""

import json
import pathlib
import tempfile

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jtx.models import MODELS
from jtx.models.text_head import HeadConfig
from tests.helpers import logged, run_command

head = HeadConfig(task="classes", outputs=3, pool="mean", transform="relu", dropout=0.0)
model = MODELS["bag"](vocab_size=9, width=8, head=head)
params = nn.unbox(model.init(jax.random.key(0), model.example())["params"])
tokens = np.array([[3, 1, 4, 0], [5, 8, 0, 0]])
batch = {"text": jnp.array(tokens), "text_segment_ids": jnp.array([[1, 1, 1, 0], [1, 1, 0, 0]]),
         "text_positions": jnp.array([[0, 1, 2, 0], [0, 1, 0, 0]])}
found = model.apply({"params": params}, batch, method="predict")
assert found.shape == (2, 1, 3)

p = jax.tree.map(np.float64, params)
dense, output = p["task_head"]["transform"]["dense"], p["task_head"]["output"]
for i, length in enumerate((3, 2)):
  mean = p["embed"]["embedding"][tokens[i, :length]].mean(0)
  hidden = np.maximum(mean @ dense["kernel"] + dense["bias"], 0)
  np.testing.assert_allclose(found[i, 0], hidden @ output["kernel"] + output["bias"], atol=1e-7)

# It offers what `jtx/models/contract.py` asks for.
assert (model.stacks, model.heads, model.longest) == ({}, {"classes"}, None)
np.testing.assert_array_equal(model.apply({"params": params}, batch),
                              np.asarray(params["embed"]["embedding"])[tokens])
assert model.apply({"params": params}, batch, method="attention_weights") == {}

# The towns by the sea are few words, which a bag of words tells.
folder = tempfile.TemporaryDirectory()
out = folder.name
workdir = f"{out}/run"
run_command("train", "--config=configs/bag.py", f"--workdir={workdir}")
assert [line["step"] for line in logged(workdir)] == [20, 40, 60]
results = json.loads(pathlib.Path(workdir, "results.json").read_text())
assert (results["val/accuracy"], results["val/examples"]) == (1.0, 200)

pathlib.Path(out, "texts").write_text("Ann met Bob in Rome .\nKim saw Leo in Oslo .\n")
run_command("predict", f"--workdir={workdir}", f"--input={out}/texts", f"--output={out}/classes")
lines = pathlib.Path(out, "classes").read_text().splitlines()
assert [json.loads(line)["label"] for line in lines] == ["0", "1"]
