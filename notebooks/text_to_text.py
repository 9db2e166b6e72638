# %% [markdown]
# # Every task as text: span corruption, and a small T5 that does three tasks
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/jtx-research/jtx/blob/main/notebooks/text_to_text.ipynb)
#
# T5 (Raffel et al. 2020) turns a text into another, whatever the task is: it is pretrained by
# filling the gaps of texts, and a classification is a text to which the name of a class is
# written. First we look at what its pretraining sees, then an encoder-decoder of T5's form learns
# a classification, questions about a text and a translation at once, in two minutes on two CPU
# cores. Nothing is downloaded. `configs/t5.py` has the published sizes and pretrains them, and
# `configs/text2text.py` fine-tunes them, on the tasks of GLUE or yours.

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
import numpy as np

from configs import common, text2text
import jtx
from jtx.data.ops import spans
from jtx.data.ops.text_pairs import TextPairs
from jtx.data.sources.registry import open_source
from jtx.data.tokenizers.kinds import unigram
from jtx.figures.attention import attention_grid, heatmaps
from jtx.figures.curves import curve
from jtx.inference import attention
from jtx.train import loop

logging.set_verbosity(logging.INFO)  # of our progress, not of the libraries'
logging.get_absl_logger().addFilter(lambda record: "-packages" not in record.pathname)

# %% [markdown]
# ## Span corruption
#
# A tokenizer of pieces (Kudo 2018) is trained on Python's documentation. It has sentinels, tokens
# that stand in no text.

# %%
source = open_source("embedded:pydocs:val")
documents = [source[i]["text"] for i in range(len(source))]
tokenizer = unigram(iter(documents), vocab_size=2000, sentinels=100)
show = lambda ids: " ".join(tokenizer.tokens(ids))

sentence = ("The function returns a list of the names of all files in the folder, in no order, and"
            " raises an error if it does not exist.")
tokens = np.asarray(tokenizer.encode(sentence))
print(len(tokens), "tokens:", show(tokens))

# %% [markdown]
# 15 % of the tokens are hidden, in spans of 3 on average. How many tokens and spans there are
# follows from the length; where they are is drawn anew in every epoch. Twelve draws:

# %%
number, spans_hidden = spans.counts(len(tokens), rate=0.15, mean_length=3.0)
draws = [spans.random_spans(len(tokens), 0.15, 3.0, np.random.default_rng(seed))
         for seed in range(12)]
for mask in draws:
  assert mask.sum() == number and spans.begins(mask).sum() == spans_hidden
heatmaps({f"{number} of {len(tokens)} tokens hidden, in spans: {spans_hidden}": np.array(draws)},
         "", "draw", label="hidden",
         columns=[piece.strip("▁") for piece in tokenizer.tokens(tokens)])

# %% [markdown]
# In the inputs a sentinel stands for each span. The targets are the spans, each behind its
# sentinel, so that the decoder writes few tokens. The op `text_pairs` makes such pairs in
# training, and those that the paper compares them to (section 3.3): MASS and BERT hide single
# tokens and write the whole text, "drop" leaves tokens out and writes them, "deshuffle" puts all
# in order, and a prefix language model goes on with a text.

# %%
for objective in ("spans", "mass", "bert", "drop", "deshuffle", "prefix_lm"):
  form = TextPairs(objective=objective).bind({"text": tokenizer})
  inputs, targets = form.pair(tokens, np.random.default_rng(3))
  print(f"{objective}\n  inputs:  {show(inputs)}\n  targets: {show(targets)}")

# %% [markdown]
# All of the tokens are in the inputs or in the targets of a pair, which is why its length is
# known before it is drawn, and rows can be filled.

# %%
inputs, targets = TextPairs().bind({"text": tokenizer}).pair(tokens, np.random.default_rng(3))
assert len(inputs) + len(targets) == len(tokens) + 2 * spans_hidden + 2  # and two end tokens
sentinels = set(tokenizer.sentinel_ids)
written = [t for t in [*inputs[:-1], *targets[:-1]] if t not in sentinels]
assert sorted(written) == sorted(tokens)

# %% [markdown]
# ## Three tasks
#
# A task is a source and two templates, of the inputs and of the target. Two tasks here are of the
# same sentences: whether a town lies at the sea, and where somebody was. The third translates
# clock times. The inputs say which task is meant.

# %%
sentences, times = "embedded:sentences", "embedded:number_words/time"
tasks = {
    "sea": {"train": f"{sentences}:train", "dev": f"{sentences}:val",
            "input": "sea sentence: {text}", "target": "{label:0=inland|1=sea}",
            "scores": ["accuracy"], "labels": ["inland", "sea"]},
    "town": {"train": f"{sentences}:train", "dev": f"{sentences}:val",
             "input": "question: {question} context: {context}", "target": "{answers.0.text}"},
    "clock": {"train": f"{times}:train", "dev": f"{times}:test",
              "input": "translate English to German: {src}", "target": "{tgt}"}}
for name, task in tasks.items():
  source = open_source(task["train"])
  print(f"{name:6}{len(source):5,} examples: {source[0]['src' if name == 'clock' else 'text']}")

# %% [markdown]
# A file of them is an argument of the config. Several tasks are mixed by their size, or, with the
# argument `temperature`, more evenly. The model has T5's form: norms without a mean before each
# sub-layer, no biases, and positions only as a bias of attention.

# %%
workdir = tempfile.mkdtemp(prefix="jtx_")
file = os.path.join(tempfile.mkdtemp(), "tasks.json")
with open(file, "w", encoding="utf-8") as f:
  json.dump(tasks, f)
config = text2text.get_config(f"{file},length=48,target=24")
config.tokenizer.kind = common.tokenizer("bpe", vocab_size=300)  # whole words of so few
small = {"width": 128, "num_layers": 2, "block": {
    "dropout": 0.0, "attention": {"dropout": 0.0, "head_dim": 32},
    "ffn": {"dim": 256, "dropout": 0.0}}}
common.apply(config, {
    "model.encoder": small, "model.decoder": small, "optim.lr": 1e-2,
    "optim.schedule": common.schedule("cosine", warmup=30.0), "epochs": None, "steps": 500,
    "checkpoint.every": 500, "log_every": 10})
results = loop.run(config.lock(), workdir)
scores = {name: results[f"{name}/{score}"] for name, score in (
    ("sea", "accuracy"), ("town", "exact_match"), ("clock", "exact_match"))}
print(", ".join(f"{name} {score:.1%}" for name, score in scores.items()))
assert scores["sea"] > 0.9 and scores["town"] > 0.9 and scores["clock"] > 0.5

# %%
with open(os.path.join(workdir, "metrics.jsonl"), encoding="utf-8") as f:
  lines = [json.loads(line) for line in f]
steps, losses = zip(*[(line["step"], line["loss"]) for line in lines if "loss" in line])
curve(steps, {"all three tasks": losses}, "step", "nats a token")

# %% [markdown]
# ## One model, asked in words
#
# The same sentence, asked for two things, and a time. What is asked decides what is written.

# %%
translate = jtx.Translator(workdir, beam=1)
asked = ["sea sentence: Ann met Bob in Lisbon .",
         "question: Where was it ? context: Ann met Bob in Lisbon .",
         "sea sentence: Ann met Bob in Madrid .",
         "question: Where was it ? context: Ann met Bob in Madrid .",
         "translate English to German: three forty-five p.m."]
for text, answer in zip(asked, translate(asked)):
  print(f"{text}\n  -> {answer}")

# %% [markdown]
# Now yours.

# %%
your_text = "translate English to German: seven twenty a.m."  # @param {type:"string"}

print(translate([your_text])[0])

# %% [markdown]
# ## Where it looks for an answer
#
# The cross-attention of all heads: a row is a token that is written, a column one of the inputs. A
# head need not look at the town itself, since the encoder has mixed the tokens before: what is
# needed stands wherever training has put it, often at the tokens that all inputs of a task share.

# %%
model, params = jtx.load_pretrained(workdir)
tokenizers = dict.fromkeys(("src", "tgt"), jtx.load_tokenizer(workdir))
question = asked[1]
answer = translate([question])[0]
weights = attention.of_translation(model, params, tokenizers, question, answer)
np.testing.assert_allclose(weights.values.sum(-1), 1, atol=1e-2)
assert answer == "Lisbon"
attention_grid(weights.values, weights.queries, weights.keys)
