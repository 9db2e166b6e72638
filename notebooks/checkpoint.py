# %% [markdown]
# # Look into a checkpoint, layer by layer
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/jtx-research/jtx/blob/main/notebooks/checkpoint.ipynb)
#
# A published encoder is opened from its Hugging Face folder, and looked into: what its parameters
# are, what each layer would already say of a masked token, where its heads look, how a word's
# vector takes up its context, and which heads it could do without. Any encoder of `transformers`
# will do that jtx reads and that predicts masked tokens: BERT, RoBERTa, ModernBERT and others.

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
import collections
import tempfile

from absl import logging
from flax.traverse_util import flatten_dict, unflatten_dict
import jax
import numpy as np

from configs import common, modernbert
import jtx
from jtx import hub
from jtx.data.sources.registry import open_source
from jtx.errors import ConfigError
from jtx.figures.attention import attention_grid, heatmaps
from jtx.figures.curves import bars, curve
from jtx.train import loop

logging.set_verbosity(logging.INFO)  # of our progress, not of the libraries'
logging.get_absl_logger().addFilter(lambda record: "-packages" not in record.pathname)
folder = tempfile.mkdtemp(prefix="jtx_")

# %% [markdown]
# ## The checkpoint
#
# BERT Mini, four layers of 256, is downloaded (Turc et al. 2019). Where there is no network, a
# ModernBERT with four layers of 64 is trained instead, for a minute, on the documentation inside
# Python's library, and written as `transformers` writes one. It knows far less.

# %%
CHECKPOINT = "google/bert_uncased_L-4_H-256_A-4"  # @param {type:"string"}


def trained_here():
  """The Hugging Face folder of a small encoder."""
  config = modernbert.get_config("corpus=embedded:pydocs:train,val=embedded:pydocs:val")
  common.apply(config, {
      "model.stack": {"width": 64, "num_layers": 4, "window": 8,
                      "block": {"attention": {"num_heads": 4}, "ffn": {"dim": 96}}},
      "tokenizer.kind": common.tokenizer("wordpiece", vocab_size=2000, mask=True),
      "phases": ((1.0, 64, 32),), "steps": 300, "checkpoint.every": 300,
      "batch_size": 32, "log_every": 50,
      "optim": {"lr": 3e-3, "accumulate": 1, "schedule": {"warmup": 50.0, "decay": 0.2}}})
  del config.evals["val"]
  workdir, path = os.path.join(folder, "run"), os.path.join(folder, "encoder")
  loop.run(config.lock(), workdir)
  jtx.save_pretrained(path, *jtx.load_pretrained(workdir), jtx.load_tokenizer(workdir))
  return path


try:
  path = hub.folder(CHECKPOINT)
except ConfigError as e:
  print(e)
  path = trained_here()
model, params = jtx.load_pretrained(path)
tokenizer = jtx.load_tokenizer(path)

# %% [markdown]
# ## Its parameters
#
# Layers are stacked: the first axis of their arrays counts them.

# %%
for name, x in flatten_dict(params, sep="/").items():
  print(f"{name:45}{str(x.shape):22}{x.size:10,}")
print("in all", sum(x.size for x in jax.tree.leaves(params)))

# %% [markdown]
# ## Texts to look at
#
# Sentences of the documentation of Python's library, a row each. In each a word is masked, which we
# know.

# %%
LENGTH = 32


def rows(texts):
  """A batch of texts, a row each, and which of its places are tokens."""
  encoded = tokenizer.encode_texts(texts, max_length=LENGTH)
  text = np.zeros((len(texts), LENGTH), np.int32)
  for row, found in zip(text, encoded):
    row[:len(found.ids)] = found.ids
  tokens = np.array([len(found.ids) for found in encoded])[:, None] > np.arange(LENGTH)
  places = np.broadcast_to(np.arange(LENGTH, dtype=np.int32), text.shape)
  return {"text": text, "text_segment_ids": tokens.astype(np.int32), "text_positions": places}


source = open_source("embedded:pydocs:val")
lines = [line.strip() for i in range(len(source)) for line in source[i]["text"].split("\n\n")]
texts = [" ".join(line.split()) for line in lines if 8 < len(line.split()) < 16][:64]
whole = rows(texts)
lengths = whole["text_segment_ids"].sum(1)
places = np.random.default_rng(0).integers(2, lengths - 2)  # one in each row
hidden = dict(whole, text=whole["text"].copy())
labels = whole["text"][np.arange(len(texts)), places]
hidden["text"][np.arange(len(texts)), places] = tokenizer.mask_id
print(len(texts), "texts, such as:", " ".join(tokenizer.tokens(hidden["text"][0][:lengths[0]])))

# %% [markdown]
# ## What each layer would say
#
# Layers add to one vector for each place, which the head turns into scores. Applied to the output
# of an earlier layer, it shows what is known by then (the logit lens; nostalgebraist 2020).
# `hidden_states` has the embeddings and the output of every layer, the last one with all its norms.

# %%
def all_states(params, batch):
  """[layers + 1, B, T, D], with the norm behind the layers where the model has one."""
  states = model.apply({"params": params}, batch, method="hidden_states")
  if "final_norm" in params["encoder"]:
    norm = model.stack.block.norm.make(None)
    before = norm.apply({"params": params["encoder"]["final_norm"]}, states[:-1])
    states = jax.numpy.concatenate([before, states[-1:]])
  return states


@jax.jit
def lens(params, batch):
  """Log-probabilities of the masked token after each layer, [layers + 1, B, V]."""
  states = all_states(params, batch)[:, np.arange(len(texts)), places]
  return jax.nn.log_softmax(model.apply({"params": params}, states, method="mlm_logits"))


said = np.asarray(lens(params, hidden), np.float32)
right = said[:, np.arange(len(texts)), labels]
names = ["embeddings", *(f"layer {i + 1}" for i in range(model.stack.num_layers))]
for name, nats, hits in zip(names, -right.mean(1), (said.argmax(-1) == labels).mean(1)):
  print(f"{name:12}{nats:6.2f} nats, {hits:.0%} right")
assert -right[-1].mean() < -right[0].mean()
curve(range(len(names)), {"masked tokens": -right.mean(1)}, "layer", "nats a token")

# %% [markdown]
# And the likeliest token after each, for the rows of which the model is surest:

# %%
for row in np.argsort(-said[-1].max(-1))[:4]:
  pieces = tokenizer.tokens(hidden["text"][row][:lengths[row]])
  print(" ".join(pieces), "->", tokenizer.tokens(labels[row:row + 1])[0])
  print("   ", "  ".join(f"{name}: {tokenizer.tokens([scores.argmax()])[0]}"
                         for name, scores in zip(names, said[:, row])))

# %% [markdown]
# ## Where its heads look
#
# All heads of all layers, for one sentence. A row is a token that looks, a column one that is
# looked at.

# %%
look = jax.jit(lambda params, batch: model.apply({"params": params}, batch,
                                                 method="attention_weights")["encoder"])
weights = np.asarray(look(params, whole), np.float32)  # [layers, B, N, T, T]
pieces = tokenizer.tokens(whole["text"][0][:lengths[0]])
attention_grid(weights[:, 0, :, :len(pieces), :len(pieces)], pieces, pieces)

# %% [markdown]
# What they have in common over all texts: the share of a head's attention that goes to the token
# before, to the one after, to the token itself, and to the first and the last place, which heads
# look at that have nothing to do (Clark et al. 2019).

# %%
layers, _, heads = weights.shape[:3]
shares = collections.defaultdict(lambda: np.zeros((layers, heads)))
for row, n in enumerate(lengths):
  own = weights[:, row, :, :n, :n]
  for name, offset in (("before", -1), ("itself", 0), ("after", 1)):
    shares[name] += np.trace(own, offset, -2, -1) / lengths.sum()
  for name, place in (("first", 0), ("last", n - 1)):
    shares[name] += own[..., place].sum(-1) / lengths.sum()
of_heads = [f"layer {i + 1}, head {j + 1}" for i in range(layers) for j in range(heads)]
heatmaps({"share of the attention": np.stack([x.ravel() for x in shares.values()], 1)}, "", "",
         label="share", rows=of_heads, columns=list(shares))

# %% [markdown]
# ## A word takes up its context
#
# The cosine of the vectors of one token in two texts that have nothing else in common. Before the
# layers they differ by position at most; with each layer more of the rest is in them (Ethayarajh
# 2019). Two tokens at random are the measure.

# %%
states = np.asarray(jax.jit(all_states)(params, whole), np.float32)
unit = states / np.linalg.norm(states, axis=-1, keepdims=True)
where = collections.defaultdict(list)
for row, n in enumerate(lengths):
  for place in range(1, n - 1):
    where[int(whole["text"][row, place])].append((row, place))
same = [(a, b) for found in where.values() for a, b in zip(found, found[1:]) if a[0] != b[0]]
order = np.random.default_rng(0).permutation(len(same))
cosines = lambda pairs: [float(np.mean([unit[i][a] @ unit[i][b] for a, b in pairs]))
                         for i in range(len(names))]
curve(range(len(names)), {
    "one token in two texts": cosines(same),
    "two tokens": cosines([(same[i][0], same[j][1]) for i, j in enumerate(order)])},
      "layer", "cosine")

# %% [markdown]
# ## How much a layer adds
#
# The length of what a layer changes, over that of what it gets.

# %%
inside = whole["text_segment_ids"] > 0
raw = np.asarray(jax.jit(lambda params, batch: model.apply(
    {"params": params}, batch, method="hidden_states"))(params, whole), np.float32)
norm_of = lambda x: np.linalg.norm(x, axis=-1)[inside].mean()
bars({name: norm_of(after - before) / norm_of(before)
      for name, before, after in zip(names[1:], raw, raw[1:])}, "size of the change")

# %% [markdown]
# ## What it could do without
#
# A head is switched off by zeros in its part of the output projection. How many nats the masked
# tokens then cost more: some heads matter, and most do little alone (Michel et al. 2019).

# %%
flat = {name: np.asarray(x) for name, x in flatten_dict(params, sep="/").items()}
outs = [(name, i) for name in sorted(flat) if name.endswith("attention/out/kernel")
        for i in range(len(flat[name]))]  # of each layer: its array and its place there


def without(layer, head):
  """The parameters without a head; arrays are [layers, heads, width, D]."""
  name, place = outs[layer]
  kernel = flat[name].copy()
  kernel[place, head] = 0
  return unflatten_dict(flat | {name: kernel}, sep="/")


loss = lambda params: -float(lens(params, hidden)[-1, np.arange(len(texts)), labels].mean())
as_it_is = loss(params)
dearer = np.array([[loss(without(i, j)) - as_it_is for j in range(heads)]
                   for i in range(layers)])
heatmaps({"nats a masked token": dearer}, "head", "layer", label="more than with all heads",
         rows=[str(i + 1) for i in range(layers)], columns=[str(j + 1) for j in range(heads)],
         numbers=True)

# %% [markdown]
# ## Yours
#
# Any text with `[MASK]`, or the model's own name of it. `configs/classify.py:init=FOLDER`
# fine-tunes the same folder, and `jtx.attention(FOLDER, TEXT)` draws its heads for a text.

# %%
your_text = "Return the [MASK] of the file."  # @param {type:"string"}

for found in jtx.FillMask(path)([your_text])[0]:
  print("  ".join(f"{token} {p:.0%}" for token, p in found.items()))
