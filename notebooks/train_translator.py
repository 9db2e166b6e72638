# %% [markdown]
# # Train a translator and look into its heads
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/jtx-research/jtx/blob/main/notebooks/train_translator.ipynb)
#
# An encoder-decoder Transformer (Vaswani et al. 2017) learns to translate English number words,
# dates and times to German:
#
#     seven hundred and twelve thousand, three hundred and four
#     -> siebenhundertzwölftausenddreihundertvier
#
# You train it, translate what you like, and see where each of its heads looks. Everything goes
# through jtx's public entry points: a config, `loop.run`, `load_run` and `Translator`. The
# training takes one to two minutes on two CPU cores. The parts of the model are explained in
# the notebook `transformer_parts`.

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

from configs import common, nmt_numbers
from jtx.data.sources.registry import open_source
from jtx.figures.attention import attention_grid, attention_map, heatmaps
from jtx.figures.curves import curve
from jtx.inference.translate import Translator
from jtx.saved.workdir import load_run
from jtx.train import loop

logging.set_verbosity(logging.INFO)  # of our progress, not of the libraries'
logging.get_absl_logger().addFilter(lambda record: "-packages" not in record.pathname)

# %% [markdown]
# ## The data
#
# It is generated, so nothing is downloaded, and split by value: what is in `val` and `test` occurs
# in no training pair. German says the unit before the ten, *four-and-forty* for 44, so the
# translator has to reorder.

# %%
for subset in nmt_numbers.SHARES:
  source = open_source(f"embedded:number_words/{subset}:train")
  pair = source[len(source) // 2]
  print(f"{subset:9} {len(source):7,} pairs   {pair['src']} -> {pair['tgt']}")

# %% [markdown]
# ## The config
#
# An experiment is a config: a file that edits the defaults, and whoever runs it may edit it
# further. Here the run is made shorter. A key that does not exist is an error.

# %%
config = nmt_numbers.get_config()
common.apply(config, {"steps": 200, "checkpoint.every": 200, "evals.val.every": 50,
                      "evals.val.samples": 4})
del config.evals["test"]
print(config.model)

# %% [markdown]
# ## Training
#
# One call; on the command line it is `python -m experiments.train --config=configs/nmt_numbers.py
# --workdir=W`. The folder gets checkpoints, the tokenizer, metrics and TensorBoard events. Every
# 50 steps the held-out values are translated.

# %%
workdir = tempfile.mkdtemp(prefix="jtx_")
results = loop.run(config.lock(), workdir)

assert results["val/exact_match"] > 0.5
print(f"exact match {results['val/exact_match']:.1%}, BLEU {results['val/bleu']:.1f}")

# %% [markdown]
# The loss is the cross-entropy of the next target token, in nats.

# %%
with open(os.path.join(workdir, "metrics.jsonl"), encoding="utf-8") as f:
  lines = [json.loads(line) for line in f]
series = lambda name: [(line["step"], line[name]) for line in lines if name in line]

steps, losses = zip(*series("loss"))
assert losses[-1] < losses[0] / 4
curve(steps, {"training loss": losses}, "step", "nats per token")

# %%
steps, matches = zip(*series("val/exact_match"))
curve(steps, {"held-out values translated without a fault": matches}, "step", "exact match")

# %% [markdown]
# ## Translating
#
# `load_run` gives the model, its parameters and its data back, from the folder alone.

# %%
task, params, step = load_run(workdir)
translator = Translator(task.model, params, task.data.tokenizers, task.config.decode)


def translate(translator, texts):
  return translator(task.data.clean(texts))


texts = [
    "forty-four",
    "nine hundred and ninety-nine thousand, one hundred and one",
    "three forty-five p.m.",
    "Saturday, July the fourth, nineteen eighty-seven",
]
for text, (best,) in zip(texts, translate(translator, texts)):
  print(f"{text} -> {best.text}")

# %% [markdown]
# Now yours: a number below a million, an ordinal, a date or a time, in English words.

# %%
your_text = "two hundred and fifty-six thousand, five hundred and twelve"  # @param {type:"string"}

((yours,),) = translate(translator, [your_text])
print(yours.text)

# %% [markdown]
# ### Beam search
#
# Above, each token was the likeliest one: greedy search. Beam search keeps the 4 best beginnings
# and scores what it finished by
#
# $$\log P(Y \mid X) \,/\, \big((5 + |Y|) / 6\big)^{\alpha}$$
#
# (Wu et al. 2016, equation 14; $\alpha = 0.6$). A score near 0 is a translation the model is sure
# of; the others show what it takes for possible.

# %%
options = task.config.decode.copy_and_resolve_references()
options.method = common.method("beam", beam=4, n_best=4)
searcher = Translator(task.model, params, task.data.tokenizers, options)

(hypotheses,) = translate(searcher, [your_text])
for hypothesis in hypotheses:
  print(f"{hypothesis.score:8.3f}  {hypothesis.text}")
scores = [hypothesis.score for hypothesis in hypotheses]
assert scores == sorted(scores, reverse=True)

# %% [markdown]
# ## Where the heads look
#
# The model has three kinds of attention (Vaswani et al. 2017, section 3.2.3): the encoder's tokens
# look at one another, the decoder's at those written before, and at the source (cross-attention).
# `EncDec.attention_weights` gives all of them, `[layers, B, N, query, key]`, for given pairs.

# %%
def pad(tokenizer, texts):
  """Tokens and segment ids, [B, length] each; segment 0 is padding."""
  rows = [np.append(tokenizer.encode(text), tokenizer.eos_id) for text in texts]
  tokens = np.full((len(rows), max(map(len, rows))), tokenizer.pad_id, np.int32)
  for i, row in enumerate(rows):
    tokens[i, :len(row)] = row
  lengths = np.array([len(row) for row in rows])
  return tokens, (np.arange(tokens.shape[1]) < lengths[:, None]).astype(np.int32)


def attention(pairs):
  """The model's inputs for pairs of texts, and the weights of all heads."""
  batch = {}
  for field, texts in zip(("src", "tgt"), zip(*pairs)):
    tokens, segments = pad(task.data.tokenizers[field], texts)
    places = np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape)
    batch |= {field: tokens, f"{field}_segment_ids": segments, f"{field}_positions": places}
  batch = task.objective.model_inputs(batch)
  look = jax.jit(lambda params, batch: task.model.apply({"params": params}, batch,
                                                        method="attention_weights"))
  return batch, {name: np.asarray(w, np.float32) for name, w in look(params, batch).items()}


(text,) = task.data.clean(["six hundred and forty-two thousand, one hundred and seven"])
((best,),) = translator([text])
batch, weights = attention([(text, best.text)])
pieces = {field: task.data.tokenizers[field[:3]].tokens(np.asarray(batch[field][0]))
          for field in ("src", "tgt", "tgt_in")}
for kind, w in weights.items():
  assert w.shape[:3] == (2, 1, 4)
  np.testing.assert_allclose(w.sum(-1), 1, atol=1e-2)  # probabilities; bfloat16 on accelerators
best.text

# %% [markdown]
# **The encoder's self-attention.** A row is a token that looks, a column one that is looked at.

# %%
attention_grid(weights["encoder"][:, 0], pieces["src"], pieces["src"])

# %% [markdown]
# **The decoder's self-attention** sees what is written already: above the diagonal all is 0.

# %%
assert not np.triu(weights["decoder"], 1).any()
attention_grid(weights["decoder"][:, 0], pieces["tgt_in"], pieces["tgt_in"])

# %% [markdown]
# **Cross-attention.** A row is labelled with the token that is to be written there. A head that
# aligns has its weight on the words that this token translates: a line from the top left to the
# bottom right, with a kink where German puts the unit before the ten.

# %%
attention_grid(weights["cross"][:, 0], pieces["tgt"], pieces["src"])

# %% [markdown]
# ### Broad and narrow heads
#
# The entropy of a head's weights, $-\sum_s p_s \log_2 p_s$ bits, is 0 where it looks at one key and
# $\log_2 S$ where it looks at all $S$ alike. Here is the mean over the tokens of 200 held-out
# pairs.

# %%
examples = task.data.examples(["embedded:number_words:val"], limit=200)
many, all_weights = attention([(example["src"], example["tgt"]) for example in examples])
real = {"encoder": many["src_segment_ids"], "decoder": many["tgt_segment_ids"],
        "cross": many["tgt_segment_ids"]}


def entropy(weights):
  """Bits [...] of distributions [..., S]."""
  return -(weights * np.log2(np.where(weights > 0, weights, 1))).sum(-1)


def over_tokens(values, tokens):
  """The mean [layers, N] of values [layers, B, N, T] over the tokens that are no padding."""
  return (values * tokens[:, None, :]).sum((1, 3)) / tokens.sum()


bits = {kind: over_tokens(entropy(all_weights[kind]), tokens) for kind, tokens in real.items()}
layer_names, head_names = ["layer 1", "layer 2"], [f"head {n + 1}" for n in range(4)]
heatmaps(bits, "", "", label="bits", rows=layer_names, columns=head_names, numbers=True)

# %% [markdown]
# ### Which heads align source and target?
#
# A head that aligns moves through the source as the target is written. We take the place it looks
# at on average, $\sum_s s\, p_s$, for each target token, and its correlation with the place of that
# token: near 1 for a head that goes from left to right, near 0 for one that looks elsewhere.

# %%
def alignment(weights, lengths):
  """Correlation [layers, N] of target places with the source places looked at, mean over pairs."""
  places = weights @ np.arange(weights.shape[-1])  # [layers, B, N, T]
  correlation = lambda row: np.corrcoef(row, np.arange(len(row)))[0, 1]
  return np.mean([np.apply_along_axis(correlation, -1, places[:, i, :, :length])
                  for i, length in enumerate(lengths) if length > 4], axis=0)


aligned = alignment(all_weights["cross"], many["tgt_segment_ids"].sum(-1))
layer, head = np.unravel_index(aligned.argmax(), aligned.shape)
assert aligned[layer, head] > 0.6
heatmaps({"cross-attention": aligned}, "", "", label="correlation", rows=layer_names,
         columns=head_names, numbers=True)

# %% [markdown]
# The head that follows the source best, alone: look for the place where it steps back, to write the
# unit before the ten. Nobody told the model which words translate each other. Heads of a low
# correlation do other work, and broad ones gather something of the whole sentence; another seed
# shares the work out in another way.

# %%
attention_map(weights["cross"][layer, 0, head], pieces["tgt"], pieces["src"],
              title=f"cross-attention, layer {layer + 1}, head {head + 1}")
