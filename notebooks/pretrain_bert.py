# %% [markdown]
# # Pretrain a small BERT, fine-tune it, look inside
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/jtx-research/jtx/blob/main/notebooks/pretrain_bert.ipynb)
#
# BERT (Devlin et al. 2019) hides one token in seven of its text and learns to tell what it was from
# what stands on both sides. What it learns on text without labels helps it on a task for which
# there are few. Here all of this happens on two CPU cores in a few minutes: the text is the
# documentation inside Python's standard library, so nothing is downloaded, and the task is to tell
# sentences of the language reference from those of docstrings.
#
# The recipes for BERT Base and Large, for documents of your own, are `configs/bert.py` and its
# relatives; this is the same code, smaller.

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

from configs import bert_books, classify, common
import jtx
from jtx.data.ops.sentences import SplitSentences
from jtx.data.sources.registry import open_source
from jtx.figures.attention import attention_grid, heatmaps
from jtx.figures.curves import curve
from jtx.inference import tasks
from jtx.train import loop

logging.set_verbosity(logging.INFO)  # of our progress, not of the libraries'
logging.get_absl_logger().addFilter(lambda record: "-packages" not in record.pathname)
folder = tempfile.mkdtemp(prefix="jtx_")

# %% [markdown]
# ## The text
#
# A document is a module's docstrings or a topic of `help()`; one in ten is held out.

# %%
documents = {}
for split in ("train", "val"):
  source = open_source(f"embedded:pydocs:{split}")
  documents[split] = found = [source[i] for i in range(len(source))]
  words = sum(len(document["text"].split()) for document in found)
  print(f"{split:6}{len(found):4} documents {words:8,} words")
print(documents["train"][0]["text"][:300])

# %% [markdown]
# ## The config
#
# `bert_books` pretrains BERT Mini on a folder of books, an evening long, with rotary position
# embeddings (Su et al. 2021), with which it soon finds out that neighbours matter. We make it
# narrower, shallower and short: a vocabulary of 2,000 pieces, two layers of 128.

# %%
config = bert_books.get_config()
common.apply(config, {
    "model.stack": {"width": 128, "num_layers": 2,
                    "block": {"attention": {"num_heads": 4}, "ffn": {"dim": 512}}},
    "tokenizer.kind.vocab_size": 2000, "phases": ((1.0, 64, 32),), "steps": 600,
    "optim.lr": 3e-3, "checkpoint.every": 600, "evals.val.every": 150})
for op in config.data.ops:
  print(dict(op))

# %% [markdown]
# The ops are what happens to a document: it is split into sentences, its tokens are put into rows
# that stay within one document, and of each row 15 % of the tokens are chosen, 80 % of which are
# replaced by `[MASK]`, 10 % by a random token and 10 % by themselves (section 3.1 of the paper).
# That happens anew in every epoch. Scores are computed for chosen tokens only.

# %%
workdir = os.path.join(folder, "pretrained")
results = loop.run(config.lock(), workdir)

print(f"masked tokens: {results['val/accuracy']:.1%} right, {results['val/loss']:.2f} nats")
assert results["val/loss"] < results["counts/bigram_loss"]

# %% [markdown]
# ## What it learnt
#
# Within minutes it does better than counting words (unigrams) does, and than what the word before,
# with a count of pairs, would tell (bigrams).

# %%
with open(os.path.join(workdir, "metrics.jsonl"), encoding="utf-8") as f:
  lines = [json.loads(line) for line in f]
steps, losses = zip(*[(line["step"], line["val/loss"]) for line in lines if "val/loss" in line])
flat = lambda name: [results[f"counts/{name}_loss"]] * len(steps)
curve(steps, {"held-out documents": losses, "unigrams": flat("unigram"),
              "bigrams": flat("bigram")}, "step", "nats a masked token")

# %% [markdown]
# It fills in what is hidden. The five likeliest pieces for each mask, with their probabilities:

# %%
model, params = jtx.load_pretrained(workdir)
tokenizer = jtx.load_tokenizer(workdir)
trained = tasks.Trained(model, params, tokenizer, labels=())


def fill_in(texts):
  for text, output in zip(texts, tasks.predict(trained, [{"text": t} for t in texts])):
    print(text)
    for mask in output["masks"]:
      print("   ", "  ".join(f"{token} {p:.0%}" for token, p in mask.items()))


fill_in(["Return the [MASK] of the file.", "Raise a [MASK] if the key is not found.",
         "This function [MASK] a list of strings.", "If the [MASK] is None, return True."])

# %% [markdown]
# Now yours.

# %%
your_text = "Return True if the [MASK] is a directory."  # @param {type:"string"}

fill_in([your_text])

# %% [markdown]
# Pieces that stand among the same neighbours get similar embeddings. The nearest to some, by
# cosine:

# %%
table = np.asarray(params["embed"]["embedding"], np.float32)[:tokenizer.vocab_size]
unit = table / np.linalg.norm(table, axis=-1, keepdims=True)
for word in ("return", "file", "true", "raise", "first"):
  (token,) = tokenizer.encode(word)
  nearest = np.argsort(-unit @ unit[token])[1:6]
  print(f"{word:8}", ", ".join(tokenizer.tokens(nearest)))

# %% [markdown]
# ## Fine-tuning
#
# The topics of `help()` are pages of the language reference, all other documents are docstrings.
# Can a sentence tell which of the two it is from? We label 400 sentences of the training documents, and
# take 600 of held-out ones to see. `configs/classify.py` starts from the folder of a run, or of a
# Hugging Face model.

# %%
def labelled(split, number, seed=0):
  """Lines of a sentence, a tab and 0 or 1: from docstrings or from the reference."""
  rng, lines = np.random.default_rng(seed), []
  for label in (0, 1):
    chosen = [dict(text=d["text"]) for d in documents[split]
              if d["file"].startswith("topics/") == bool(label)]
    sentences = [s for d in SplitSentences()(chosen, {}) for s in d["sentences"]
                 if len(s.split()) > 4 and "\t" not in s]
    lines += [f"{s}\t{label}\n" for s in rng.permutation(sorted(set(sentences)))[:number // 2]]
  return lines


for split, number, file in (("train", 400, "train.tsv"), ("val", 600, "dev.tsv")):
  with open(os.path.join(folder, file), "w", encoding="utf-8") as f:
    f.writelines(labelled(split, number))


def finetune(name, start_from_it):
  config = classify.get_config(f"init={workdir},max_length=48,batch=16,lr=3e-4,epochs=6")
  common.apply(config, {"data.path": folder, "checkpoint.every": 1000, "evals.dev.every": 25})
  config.data.ops[-1].trim = False  # rows of one length: one program to compile
  if not start_from_it:
    config.init_from = ""
  loop.run(config.lock(), os.path.join(folder, name))
  with open(os.path.join(folder, name, "metrics.jsonl"), encoding="utf-8") as f:
    lines = [json.loads(line) for line in f]
  return {line["step"]: line["dev/accuracy"] for line in lines if "dev/accuracy" in line}


accuracies = {"pretrained": finetune("finetuned", True), "random weights": finetune("fresh", False)}

# %%
steps = list(accuracies["pretrained"])
curve(steps, {name: list(values.values()) for name, values in accuracies.items()}, "step",
      "accuracy")

# %%
last = {name: values[steps[-1]] for name, values in accuracies.items()}
print(last)
assert last["pretrained"] > last["random weights"]

# %% [markdown]
# The classifier is a folder too, and is used from Python like this:

# %%
classifier = jtx.Classifier(os.path.join(folder, "finetuned"))
for text in ("Return the length of the buffer.",
             "The value of the expression is bound to the target list."):
  print(text, "->", classifier([text])[0])

# %% [markdown]
# ## Where it looks
#
# The attention of the pretrained encoder, all heads of both layers, for one sentence. A row is a
# token that looks, a column one that is looked at.

# %%
def inputs(text, length=None):
  """A row of a text, with padding up to `length`, and its number of tokens."""
  ids = np.concatenate([[tokenizer.bos_id], tokenizer.encode(text), [tokenizer.eos_id]])[:length]
  behind = (length or len(ids)) - len(ids)
  padded = lambda values: np.pad(values, (0, behind))[None].astype(np.int32)
  return {"text": padded(ids), "text_segment_ids": padded(np.ones(len(ids))),
          "text_positions": padded(np.arange(len(ids)))}, len(ids)


batch, _ = inputs("Return a list of the names of all files in the directory.")
look = jax.jit(lambda params, batch: model.apply({"params": params}, batch,
                                                 method="attention_weights")["encoder"])
weights = np.asarray(look(params, batch), np.float32)  # [layers, 1, N, T, T]
np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-2)
pieces = tokenizer.tokens(batch["text"][0])
attention_grid(weights[:, 0], pieces, pieces)

# %% [markdown]
# Some heads look at the token before or after, as Clark et al. 2019 found in BERT. The share of
# each head's attention by distance, over sentences of held-out documents:

# %%
held_out = [line.split("\t")[0] for line in labelled("val", 40)]
places = range(-4, 5)
totals, rows = np.zeros((2, 4, len(places))), 0
for text in held_out:
  batch, length = inputs(text, 64)
  weights = np.asarray(look(params, batch), np.float32)[:, 0, :, :length, :length]
  for i, offset in enumerate(places):
    totals[..., i] += np.trace(weights, offset, -2, -1)
  rows += weights.shape[-1]
names = [f"layer {layer + 1}, head {head + 1}" for layer in range(2) for head in range(4)]
heatmaps({"mean attention by distance": totals.reshape(8, -1) / rows}, "key minus query", "",
         label="share", rows=names, columns=[f"{offset:+}" for offset in places])
