# %% [markdown]
# # Sharding over eight devices, drawn
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/jtx-research/jtx/blob/main/notebooks/sharding.ipynb)
#
# In jtx a model does not know how many devices it runs on. Its parameters and activations carry names
# of axes, one table places each name on the mesh, and the mesh is config. Here eight devices are
# simulated on a CPU: the shards of parameters are drawn, bytes of each device are counted, and the
# losses of every mesh are those of one device. It takes a minute.

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
# Before JAX starts, since it counts its devices then.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (os.environ.get("XLA_FLAGS", "")
                           + " --xla_force_host_platform_device_count=8")

import math

from absl import logging
import jax
import numpy as np

from configs import bert_base, common
from jtx import build
from jtx.data.dataset import Dataset
from jtx.figures.curves import bars
from jtx.parallel import sharding
from jtx.train.loop import without_ids
from jtx.train.program import Program

logging.set_verbosity(logging.WARNING)
print(jax.devices())

# %% [markdown]
# ## A model and its names
#
# A small BERT on the text that comes with jtx. Initialisation gives every parameter names of its axes.

# %%
config = bert_base.get_config("tiny")
common.apply(config, {"model.stack": {"width": 64, "block": {"attention": {"num_heads": 4},
                                                             "ffn": {"dim": 256}}},
                      "batch_size": 16, "model.dtype": "float32"})
data = Dataset(config.data, config.tokenizer)
model, objective = build.make_model(config, data.info)
stream = data.train_stream(0, config.batch_size, range(config.batch_size))
batches = [without_ids(stream.batch(step)) for step in range(3)]
example = jax.eval_shape(lambda: batches[0])

boxed = build.abstract_params(model, objective, example)
names = sharding.logical_axes(boxed)
shapes = jax.tree.map(lambda x: x.shape, sharding.unbox(boxed))
for path, shape in jax.tree_util.tree_leaves_with_path(shapes, is_leaf=lambda x: type(x) is tuple)[:9]:
  own = names
  for key in path:
    own = own[key.key]
  print(f"{jax.tree_util.keystr(path, simple=True, separator='/'):42} {str(shape):16} {own}")

# %% [markdown]
# The table of `jtx/parallel/sharding.py` says which axis of the mesh a name may take. These are the
# rows that split something:

# %%
for name, choices in sharding.TABLE.items():
  if choices:
    print(f"{name:10} -> {' or '.join(map(str, choices))}")

# %% [markdown]
# ## Meshes
#
# `data` copies the parameters and splits the batch. `fsdp` splits the batch and the parameters.
# `tensor` splits heads and feed-forward layers. Each mesh below is a line of config.

# %%
MESHES = {"one device": {}, "data 8": {"data": 8}, "fsdp 8": {"fsdp": 8},
          "fsdp 2 x tensor 4": {"fsdp": 2, "tensor": 4},
          "data 2 x fsdp 2 x tensor 2": {"data": 2, "fsdp": 2, "tensor": 2}}


def program_on(sizes):
  devices = jax.devices()[:math.prod(sizes.values())]
  return Program(config, model, objective, example=example,
                 mesh=sharding.make_mesh(sizes, devices))


programs = {name: program_on(sizes) for name, sizes in MESHES.items()}

# %% [markdown]
# The first kernel of the feed-forward layers, of all layers, on the devices of three of them. A number
# is a device: where several stand in one field, each has a copy of it.

# %%
def draw(name, *path):
  kernel, place = programs[name].abstract_state.params, programs[name].shardings.params
  for key in path:
    kernel, place = kernel[key], place[key]
  print(f"{name}: {'/'.join(path)} {kernel.shape}, {place.spec}")
  shape = kernel.shape[-2:]  # without the dimension of layers
  jax.debug.visualize_sharding(shape, jax.NamedSharding(place.mesh, jax.P(*place.spec[-2:])))


layers = next(key for key in shapes["encoder"] if key.startswith("layers"))
for name in ("data 8", "fsdp 8", "fsdp 2 x tensor 4"):
  draw(name, "encoder", layers, "ffn", "in", "kernel")

# %% [markdown]
# Bytes of parameters and of the optimiser on each device. `data` holds all of them eight times; with
# `fsdp` and `tensor` each device holds an eighth, but for what no axis divides.

# %%
def bytes_of_a_device(program):
  local = lambda x, place: math.prod(place.shard_shape(x.shape)) * x.dtype.itemsize
  parts = (program.abstract_state.params, program.abstract_state.opt_state)
  places = (program.shardings.params, program.shardings.opt_state)
  return sum(jax.tree.leaves(jax.tree.map(local, parts, places)))


held = {name: bytes_of_a_device(program) / 2**20 for name, program in programs.items()}
for name, program in programs.items():
  print(f"{name:28} {held[name]:5.2f} MiB", *program.replicated_dimensions)
assert held["fsdp 8"] < held["data 8"] / 6
bars(held, "MiB of parameters and optimiser on each device")

# %% [markdown]
# ## The same losses
#
# The seed, and not the mesh, decides what parameters begin as, which tokens are masked and what
# dropout drops. Three updates on eight devices, beside those on one:

# %%
def losses(name):
  program, found = programs[name], []
  state = program.init()
  for batch in batches:
    state = program.step(state, sharding.to_device(
        batch, config.batch_size, sharding.batch_sharding(program.mesh)))
    total, weight = np.asarray(state.sums["loss"])
    found.append(total / weight)
  return np.diff([0, *np.array(found) * range(1, 4)])  # the sums go on from step to step


of_one, of_eight = losses("one device"), losses("fsdp 2 x tensor 4")
print("one device        ", of_one)
print("fsdp 2 x tensor 4 ", of_eight)
np.testing.assert_allclose(of_eight, of_one, rtol=1e-5)

# %% [markdown]
# On a pod nothing changes but `--config.mesh`. Whether a model fits there, and how long a step may
# take, `python -m experiments.compile --config=configs/bert_base.py --topology=v5e:4x4
# --config.mesh.fsdp=16` answers without one.
