# %% [markdown]
# # A vision transformer: train it, see what it looks at, let it fill in what is hidden
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/jtx-research/jtx/blob/main/notebooks/vision_transformer.ipynb)
#
# ViT (Dosovitskiy et al. 2020) cuts an image into patches and reads them as BERT reads words. MAE
# (He et al. 2021) hides three of four patches and learns to paint them. Here both happen on
# handwritten digits of 8 x 8 pixels that come with scikit-learn, in minutes on two CPU cores and with
# no download. The recipes for ImageNet (`configs/vit_b16.py`, `deit3.py`, `mae.py`) are the same code,
# larger.

# %%
import os
import sys

if "google.colab" in sys.modules and not os.path.isdir("configs"):
  # !git clone --quiet --depth 1 https://github.com/jtx-research/jtx
  os.chdir("jtx")
  # !pip install --quiet -e .
elif not os.path.isdir("configs"):  # opened in its own folder
  os.chdir("..")

# %%
import json
import tempfile

from absl import logging
import jax
import numpy as np

from configs import common, vit_digits
import jtx
from jtx.evals import pictures
from jtx.evals.images import Probes
from jtx.figures.attention import attention_grid
from jtx.figures.curves import curve
from jtx.figures.images import grid_similarity
from jtx.parallel.sharding import unbox
from jtx.saved.workdir import load_run
from jtx.train import loop

logging.set_verbosity(logging.INFO)  # of our progress, not of the libraries'
logging.get_absl_logger().addFilter(lambda record: "-packages" not in record.pathname)
folder = tempfile.mkdtemp(prefix="jtx_")

# %% [markdown]
# ## The config
#
# Patches are 2 x 2 pixels, so an image is 16 tokens behind [CLS]. Four layers, 64 wide; images are
# shifted by up to a pixel.

# %%
config = vit_digits.get_config()
common.apply(config, {"epochs": 40.0, "evals.val.every": 100})
for op in config.data.ops:
  print(dict(op))
stack = config.model.stack
print(stack.width, stack.num_layers, stack.position.name)

# %%
workdir = os.path.join(folder, "digits")
results = loop.run(config.lock(), workdir)
print(f"{results['val/accuracy']:.1%} of {results['val/examples']} held-out digits are right")
assert results["val/accuracy"] > 0.95

# %% [markdown]
# Accuracy on the fifth that was held out, as training went on:

# %%
with open(os.path.join(workdir, "metrics.jsonl"), encoding="utf-8") as f:
  lines = [json.loads(line) for line in f]
steps, accuracy = zip(*[(line["step"], line["val/accuracy"])
                        for line in lines if "val/accuracy" in line])
curve(steps, {"held-out digits": accuracy}, "step", "accuracy")

# %% [markdown]
# ## What it looks at
#
# Attention rolled out (Abnar and Zuidema 2020): how much of each patch the last layer's tokens are
# made of, the residual counted as half.

# %%
task, params, _ = load_run(workdir)
batch = next(iter(task.data.eval_batches(("embedded:digits:test",), 64, range(64))))
images, labels = batch["image"], batch["label"][:, 0]
pictures.attention(task.model, params, images[:6])

# %% [markdown]
# All heads of all layers, for one image. Tokens are numbered; 0 is [CLS].

# %%
look = jax.jit(lambda params, batch: task.model.apply({"params": params}, batch,
                                                      method="attention_weights")["encoder"])
weights = look(params, {"image": images[:1]})
names = [str(i) for i in range(weights.shape[-1])]
attention_grid(np.asarray(weights[:, 0]), names, names)

# %% [markdown]
# ## Where it thinks patches are
#
# Each panel is a patch, and shows how alike its learnt position is to all others (figure 7 of the
# paper). They started as sines and cosines of row and column, and training has moved them.

# %%
table = np.asarray(params["position_embedding"])[1:]
grid_similarity(table, (4, 4))

# %% [markdown]
# ## Fill in what is hidden
#
# The same encoder with a narrow decoder, and no labels: half of the patches are hidden, and their
# pixels are what is learnt. (MAE hides three of four; digits of 16 patches are small.)

# %%
pretraining = vit_digits.get_config()
common.apply(pretraining, {
    "model.head": {"task": "none", "zero": False, "pool": "first"},
    "model.decoder": {"num_layers": 2, "width": 32, "num_heads": 4, "ffn_dim": 64, "masked": 0.5,
                      "normalize": False},
    "objective": common.objective("mae"), "epochs": 12.0,
    "evals.val": common.evaluator("loss", source=("embedded:digits:test",), every=200)})
mae_workdir = os.path.join(folder, "mae")
results = loop.run(pretraining.lock(), mae_workdir)
print(f"mean squared error of hidden pixels, of variance 1 before: {results['val/loss']:.2f}")

# %%
mae, mae_params, _ = load_run(mae_workdir)
pictures.reconstruction(mae.model, mae_params, images[:6])

# %% [markdown]
# ## Few labels
#
# What was learnt without labels is worth something with few: from frozen features of the encoder, a
# linear map is fitted to ten images of each class, and compared with one from the untrained encoder.

# %%
probes = Probes(train=("embedded:digits:train",), source=("embedded:digits:test",), shots=(10,))
fresh = unbox(jax.jit(mae.model.init)(jax.random.key(1), mae.model.example())["params"])
for name, value in (("untrained", fresh), ("pretrained", mae_params)):
  print(name, {key: round(score, 3) for key, score in probes(mae, value)})

# %% [markdown]
# ## Use it
#
# A trained workdir tells classes of files, bytes or arrays.

# %%
classify = jtx.Classifier(workdir)
for found, label in zip(classify(list(images[:5])), labels):
  print(f"{label}: {found.label} ({found.scores[found.label]:.0%})")
