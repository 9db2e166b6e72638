"""Checks rating_head.diff: trains such a head, evaluates it and predicts with it."""

import json
import pathlib
import tempfile

import numpy as np

from jtx.inference import texts
from jtx.saved.folder import open_saved
from tests.helpers import logged, run_command

# The objective, the evaluator and the ops are those of classes.
folder = tempfile.TemporaryDirectory()
out = folder.name
pathlib.Path(out, "rate.py").write_text("""
from configs import classify


def get_config():
  c = classify.get_config("tiny")
  c.model.head.task = "rating"
  return c
""")
workdir = f"{out}/run"
run_command("train", f"--config={out}/rate.py", f"--workdir={workdir}")
assert [line["step"] for line in logged(workdir)] == [2, 4]
assert json.loads(pathlib.Path(workdir, "results.json").read_text())["dev/examples"] == 200

lines = ["Ann met Bob in Rome .", "Kim saw Leo in Oslo ."]
pathlib.Path(out, "texts").write_text("".join(line + "\n" for line in lines))
run_command("predict", f"--workdir={workdir}", f"--input={out}/texts", f"--output={out}/ratings")
found = [json.loads(line) for line in pathlib.Path(out, "ratings").read_text().splitlines()]

saved = open_saved(workdir)
model, params = saved.load()
assert model.heads == {"rating", "classes"} and model.head.outputs == 2
encoded = texts.encode(saved.tokenizer_for(model), lines, None, 256)
for line, outputs in zip(found, texts.Predictor(model, params)(encoded), strict=True):
  p = np.exp(np.float64(outputs))
  np.testing.assert_allclose(line["rating"], p[1] / p.sum(), rtol=1e-5)
