# %% [markdown]
# # Train a language model on characters, sample from it, look inside
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/jtx-research/jtx/blob/main/notebooks/language_model.ipynb)
#
# A decoder, as in GPT (Radford et al. 2018), reads a text from the left and says what comes next:
# after every character, a probability for each character that there is. Here one is trained from
# nothing in a minute or two on two CPU cores. The text is the documentation inside Python's standard
# library, so nothing is downloaded. Then it writes, and we look at what its heads attend to and at
# what each layer would already say.
#
# `configs/shakespeare.py` is the same model, larger, for a text of yours; `configs/gpt.py` and
# `configs/llama.py` have the published sizes.

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

from configs import common, shakespeare
import jtx
from jtx.data.sources.registry import open_source
from jtx.figures.attention import attention_grid, heatmaps
from jtx.figures.curves import curve
from jtx.train import loop

logging.set_verbosity(logging.INFO)  # of our progress, not of the libraries'
logging.get_absl_logger().addFilter(lambda record: "-packages" not in record.pathname)

# %% [markdown]
# ## The text
#
# A document is a module's docstrings or a topic of `help()`; one in ten is held out.

# %%
texts = {}
for split in ("train", "val"):
  source = open_source(f"embedded:pydocs:{split}")
  texts[split] = [source[i]["text"] for i in range(len(source))]
  print(f"{split:6}{len(texts[split]):4} documents {sum(map(len, texts[split])):10,} characters")
print(texts["train"][0][:300])

# %% [markdown]
# ## The config
#
# Three layers of 128, rows of 128 characters. Positions are rotary (Su et al. 2021), and Muon (Jordan
# et al. 2024) updates the matrices.

# %%
config = shakespeare.get_config()
common.apply(config, {
    "model.stack": {"width": 128, "num_layers": 3,
                    "block": {"attention": {"num_heads": 4}, "ffn": {"dim": 512}, "dropout": 0.0}},
    "data.ops[2].lengths": (128,), "steps": 320, "log_every": 10, "checkpoint.every": 320,
    "optim.schedule.warmup": 60.0,
    "evals.val.context": 128, "evals.val.stride": 128})
print(config.model.stack.block)

# %% [markdown]
# ## Training
#
# On the command line it is `python -m experiments.train --config=configs/shakespeare.py --workdir=W`.
# In the end all of the held-out text is scored, every character once.

# %%
workdir = tempfile.mkdtemp(prefix="jtx_")
results = loop.run(config.lock(), workdir)
print(f"held-out text: {results['val/nats_per_character']:.2f} nats a character,"
      f" {results['val/accuracy']:.1%} of the characters right")

# %% [markdown]
# How good is that? Counting tells how likely each character is, and how likely it is after the one
# before it. In nats, the mean of $-\log p$ of the held-out characters:

# %%
def codes(documents):
  """The characters of all documents as numbers; what is not ASCII is one of them."""
  return np.minimum(np.frombuffer("".join(documents).encode("utf-32-le"), np.uint32), 128)


train, val = codes(texts["train"]), codes(texts["val"])
counts = np.ones((129, 129)) * 0.1
np.add.at(counts, (train[:-1], train[1:]), 1)
unigram = -np.log(counts.sum(0) / counts.sum())[val].mean()
bigram = -np.log(counts / counts.sum(-1, keepdims=True))[val[:-1], val[1:]].mean()
print(f"unigrams {unigram:.2f}, bigrams {bigram:.2f}, model {results['val/nats_per_character']:.2f}")
assert results["val/nats_per_character"] < bigram - 0.5

# %%
with open(os.path.join(workdir, "metrics.jsonl"), encoding="utf-8") as f:
  lines = [json.loads(line) for line in f]
steps, losses = zip(*[(line["step"], line["loss"]) for line in lines if "loss" in line])
flat = lambda value: [value] * len(steps)
curve(steps, {"training loss": losses, "unigrams, held out": flat(unigram),
              "bigrams, held out": flat(bigram)}, "step", "nats a character")

# %% [markdown]
# ## Writing
#
# The likeliest character each time soon goes round in a circle. Drawn by their probabilities, texts
# are livelier; a temperature below 1 makes likely characters likelier.

# %%
prompt = "Return the "
for temperature in (0.0, 0.8):
  generate = jtx.Generator(workdir, max_new_tokens=120, temperature=temperature)
  print(f"--- temperature {temperature}\n{prompt}{generate([prompt])[0]}\n")

# %% [markdown]
# Now yours, a character at a time as they come.

# %%
your_text = "Raise an exception if "  # @param {type:"string"}

generate = jtx.Generator(workdir, max_new_tokens=120, temperature=0.7, top_p=0.95)
print(your_text, end="")
for piece in generate.stream(your_text):
  print(piece, end="", flush=True)

# %% [markdown]
# ## What surprises it
#
# A sentence of its kind, the nats of each character below it: the first letters of words are hard
# to tell, their ends are easy.

# %%
model, params = jtx.load_pretrained(workdir)
tokenizer = jtx.load_tokenizer(workdir)


def inputs(text):
  ids = np.asarray(tokenizer.encode(text), np.int32)
  return {"text": ids[None], "text_segment_ids": np.ones((1, len(ids)), np.int32),
          "text_positions": np.arange(len(ids), dtype=np.int32)[None]}


def log_softmax(logits):
  logits = np.asarray(logits, np.float64)
  return logits - np.logaddexp.reduce(logits, -1, keepdims=True)


text = "Return True if the file exists."
batch = inputs(text)
hidden = model.apply({"params": params}, batch)
log_p = log_softmax(model.apply({"params": params}, hidden, method="logits"))[0]  # [T, V]
nats = -np.take_along_axis(log_p[:-1], batch["text"][0, 1:, None], -1)[:, 0]
heatmaps({f"{nats.mean():.2f} nats a character": nats[None]}, "", "", label="nats", rows=[""],
         columns=list(text[1:]))

# %% [markdown]
# ## Where it looks
#
# The attention of all heads, a row of maps a layer. A row of a map is a character that looks, a
# column one that is looked at; above the diagonal all is 0, since what comes is not seen.

# %%
look = jax.jit(lambda params, batch: model.apply({"params": params}, batch,
                                                 method="attention_weights")["decoder"])
short = "Return True if the"
weights = np.asarray(look(params, inputs(short)), np.float32)[:, 0]  # [layers, N, T, T]
np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-2)
assert not np.triu(weights, 1).any()
attention_grid(weights, list(short), list(short))

# %% [markdown]
# Some heads look at the character before, others back over words. The share of each head's attention
# by distance, over held-out text:

# %%
places = range(12)
shares = np.zeros((3, 4, len(places)))
for document in texts["val"][:40]:
  weights = np.asarray(look(params, inputs(document[:100].ljust(100))), np.float32)[:, 0]
  for i, back in enumerate(places):
    shares[..., i] += np.diagonal(weights, -back, -2, -1).mean(-1) / 40
names = [f"layer {layer + 1}, head {head + 1}" for layer in range(3) for head in range(4)]
heatmaps({"mean attention by distance": shares.reshape(12, -1)}, "characters back", "",
         label="share", rows=names, columns=[str(back) for back in places])

# %% [markdown]
# ## What each layer would say
#
# All layers add to one vector for each place, which the final norm and the output turn into scores.
# Taken after an earlier layer, they show what is known by then (the logit lens; nostalgebraist 2020).
# `hidden_states` has the embeddings and the output of every layer, the last one normed already.

# %%
states = model.apply({"params": params}, batch, method="hidden_states")  # [layers + 1, 1, T, D]
norm = model.stack.block.norm.make(None)
normed = norm.apply({"params": params["decoder"]["final_norm"]}, states[:-1])
states = np.concatenate([normed, states[-1:]])[:, 0]
lens = log_softmax(model.apply({"params": params}, states, method="logits"))  # [layers + 1, T, V]
np.testing.assert_allclose(lens[-1], log_p, atol=1e-3)
right = np.take_along_axis(lens[:, :-1], batch["text"][0, 1:][None, :, None], -1)[..., 0]
layers = ["embeddings", *(f"layer {i}" for i in range(1, 4))]
heatmaps({"probability of the character that follows": np.exp(right)}, "what follows", "after",
         label="probability", rows=layers, columns=list(text[1:]))

# %% [markdown]
# And the likeliest character after each, by layer; `·` is a space. The first row knows only which
# character it stands at, and since the output is the embedding, it says that one.

# %%
show = lambda ids: "".join(tokenizer.tokens(ids)).replace(" ", "·").replace("\n", "↵")
print(f"{'text':12}{show(batch['text'][0, 1:])}")
for name, row in zip(layers, lens):
  print(f"{name:12}{show(row[:-1].argmax(-1))}")
mean = -right.mean(-1)
print("nats a character:", ", ".join(f"{name} {x:.2f}" for name, x in zip(layers, mean)))
assert mean[-1] == mean.min()
