# %% [markdown]
# # DETR: find objects as a set, and see what each query does
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/jtx-research/jtx/blob/main/notebooks/detection.ipynb)
#
# DETR (Carion et al. 2020) has no anchors and no suppression of doubles: a fixed number of learned
# queries look at the image, and each says a class and a box, or "no object". This notebook trains it
# on photographs of blood cells ([BCCD](https://github.com/Shenggan/BCCD_Dataset), 364 images) where
# their folder or zip archive is at hand, which takes a GPU. Else it trains a small one on digits that
# are scattered over images, which takes minutes on a CPU and no download. Both are the same code.

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
import jax.numpy as jnp
import numpy as np

from configs import common, detr
import jtx
from jtx.data.dataset import Dataset
from jtx.evals import detection
from jtx.figures.boxes import Drawn, boxed
from jtx.figures.curves import curve
from jtx.inference.boxes import detect, with_sides
from jtx.saved.workdir import load_run
from jtx.train import loop

logging.set_verbosity(logging.INFO)  # of our progress, not of the libraries'
logging.get_absl_logger().addFilter(lambda record: "-packages" not in record.pathname)
workdir = os.path.join(tempfile.mkdtemp(prefix="jtx_"), "detr")

# %%
cells = "BCCD_Dataset"  # a folder or a zip archive
if "google.colab" in sys.modules and not os.path.exists(cells):
  print("fetching the photographs")
  # !git clone --quiet --depth 1 https://github.com/Shenggan/BCCD_Dataset
if os.path.exists(cells):
  config = detr.get_config(f"blood_cells,train=voc:{cells}:train,val=voc:{cells}:val")
else:  # small images, of which a map with more places and Muon make a detector in minutes
  config = detr.get_config("digits,epochs=30")
  common.apply(config, {"model.backbone.stages": (1, 1), "optim.lr": 2e-3, "optim.clip_norm": 1.0,
                        "optim.optimizer": common.optimizer("muon", b2=0.98)})
common.apply(config, {"evals.val.every": 400, "log_every": 400})
config.lock()
print(*config.data.train)

# %% [markdown]
# ## Images and boxes
#
# The first images of the evaluation's split, with what is true. A batch has boxes as centre, width
# and height relative to the picture, and the class -1 where an image has fewer boxes than another.

# %%
data = Dataset(config.data, config.tokenizer)
names = data.labels
batch = next(iter(data.eval_batches(tuple(config.evals.val.source), 6, range(6))))
print({key: batch[key].shape for key in ("image", "size", "boxes", "box_classes")})


def shown(i):
  """Image i without its padding, and its true boxes."""
  height, width = batch["size"][i]
  picture = np.asarray(data.recipe.layout.shown(batch["image"][i, :height, :width]))
  there = batch["box_classes"][i] >= 0
  corners = detection.corners(batch["boxes"][i][there], (height, width))
  classes = batch["box_classes"][i][there]
  return picture, [Drawn(names[c], with_sides(box)) for c, box in zip(classes, corners)]


images, truths = zip(*[shown(i) for i in range(6)])
boxed(images, truths, names)

# %% [markdown]
# ## The model
#
# A ResNet makes a map of features. Its places are the tokens of an encoder, and the queries are those
# of a decoder, which attends to that map. Sines of rows and columns are added at every attention.

# %%
print(f"backbone: {config.model.backbone.stages} blocks of the kind {config.model.backbone.kind}")
for part in ("encoder", "decoder"):
  stack = config.model[part]
  print(f"{part}: {stack.num_layers} layers, {stack.width} wide")
print(config.model.num_queries, "queries;", len(names), "classes:", ", ".join(names))

# %% [markdown]
# ## Training

# %%
results = loop.run(config, workdir)
print({key: round(results[f"val/{key}"], 3) for key in ("ap", "ap50", "ar10")})

# %%
with open(os.path.join(workdir, "metrics.jsonl"), encoding="utf-8") as f:
  lines = [json.loads(line) for line in f]
steps, *scores = zip(*[(line["step"], line["val/ap50"], line["val/ap"])
                       for line in lines if "val/ap50" in line])
curve(steps, dict(zip(("IoU 0.5", "mean over IoUs of 0.5 to 0.95"), scores)), "step",
      "average precision")

# %% [markdown]
# ## Who is responsible for which object
#
# The loss needs to know which query should have found which object. Giving an object to a query
# costs less the likelier its class and the nearer its box, and objects are given so that all costs
# together are least (the Hungarian algorithm). That is computed anew in every step, for every layer of
# the decoder. Here is the matching of one image, by the trained model.

# %%
task, params, _ = load_run(workdir)
objective = task.objective
row = int(np.argmax((batch["box_classes"] >= 0).sum(-1)))  # the image with most objects
one = {key: jnp.asarray(batch[key][row:row + 1])
       for key in ("image", "size", "boxes", "box_classes")}
there = one["box_classes"] >= 0
find = jax.jit(lambda params, inputs: task.model.apply({"params": params}, inputs, method="boxes"))
said = find(params, objective.model_inputs(one))
matching = np.asarray(objective.matched(said, one, there))  # [layers, 1, boxes]
probabilities = np.asarray(jax.nn.softmax(said["logits"]))[-1, 0]
for box in np.flatnonzero(np.asarray(there)[0]):
  query, c = matching[-1, 0, box], int(one["box_classes"][0, box])
  print(f"{names[c]}: query {query}, which says so with {probabilities[query, c]:.0%};"
        f" after each layer it is query {matching[:, 0, box].tolist()}")

# %% [markdown]
# What all queries but these should say is "no object". They are many, so each weighs a tenth.
#
# ## What it finds
#
# Boxes with lines are what it finds, with their scores. Those with dots are true.

# %%
evaluator = detection.Detection(source=tuple(config.evals.val.source), report=True, pictures=6)
found = dict(evaluator(task, params))
found["boxes"]

# %% [markdown]
# COCO's scores rank all detections of a class by their scores. Precision over recall:

# %%
print("\n".join(found["report"].lines()))
found["precision_recall"]

# %% [markdown]
# ## What a query looks at
#
# The weights of the last cross-attention, a mean over heads, of the six queries that are surest.

# %%
alone = {key: batch[key][row:row + 1] for key in ("image", "size")}
attended = detection.attended(task.model, params, alone, names, threshold=0.0)
detection.drawn_queries(images[row], attended, names)

# %% [markdown]
# ## What a query is for
#
# Queries learn places and sizes of their own (figure 7 of the paper). Each panel has all boxes that
# one query said with a score of 0.3 or more, over the images of the split.

# %%
boxes = [[] for _ in range(config.model.num_queries)]
for part in task.data.eval_batches(tuple(config.evals.val.source), 16, range(16)):
  queries = jax.device_get(detect(
      task.model, params, {key: jnp.asarray(part[key]) for key in ("image", "size")}))
  for i in np.flatnonzero(part["real"][:, 0]):
    corners = detection.corners(queries.boxes[i], (100, 100))  # of a square
    for q in np.flatnonzero(queries.scores[i] >= 0.3):
      boxes[q].append(Drawn(names[int(queries.classes[i, q])], with_sides(corners[q]), true=True))
busiest = sorted(range(len(boxes)), key=lambda q: -len(boxes[q]))[:6]
boxed([np.ones((100, 100))] * len(busiest), [boxes[q][:60] for q in busiest], names,
      [f"query {q}: {len(boxes[q])} boxes" for q in busiest])

# %% [markdown]
# ## Use it
#
# A trained workdir finds objects in files, bytes or arrays. `experiments.predict --pictures` draws
# them, and `experiments.serve` has a page to drop images on.

# %%
detector = jtx.Detector(workdir)
picture = images[row] if images[row].dtype == np.uint8 else np.uint8(255 * images[row])
for x in next(iter(detector([picture], threshold=0.3))):
  print(x.label, f"{x.score:.0%}", [round(side, 1) for side in x.box])
