# %% [markdown]
# # The Transformer from its parts
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/jtx-research/jtx/blob/main/notebooks/transformer_parts.ipynb)
#
# Attention, masks, heads, positions, norms, activations and learning rates: each part of a
# Transformer as the pure function or thin module that jtx trains with, checked against its
# formula and drawn. The second notebook, `train_translator`, puts them together and looks into the
# heads of what was trained. This one takes a minute or two on a CPU.
#
# Letters in shapes: B batch, T queries, S keys, N heads, K key-value heads, H width of a head,
# D width of the model.

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
import functools
import math

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jtx.figures.attention import attention_map, heatmaps, position_heatmap, position_similarity
from jtx.figures.curves import bars, curve
from jtx.nn import activations, encodings, layers, masks, positions, rope
from jtx.nn.attend import attend
from jtx.nn.attention import Attention, AttentionConfig, LayerKind
from jtx.nn.block import Block, BlockConfig, Context
from jtx.nn.masks import Rows
from jtx.nn.positions import POSITIONS, Places, Project, Sizes
from jtx.nn.stack import Stack, StackConfig
from jtx.train import schedules

jax.config.update("jax_default_matmul_precision", "highest")  # accelerators round otherwise


def normal(seed, *shape):
  """Standard normal numbers."""
  return jax.random.normal(jax.random.key(seed), shape)


# %% [markdown]
# ## Scaled dot-product attention
#
# $$\operatorname{Attention}(Q, K, V) =
# \operatorname{softmax}\!\left(\frac{QK^\top}{\sqrt{H}}\right)V$$
#
# (Vaswani et al. 2017, section 3.2.1). Every query is compared with every key; the softmax makes
# the scores a distribution over the keys; the output is the values' mean under it. By hand it is
# two products and a softmax, for all heads at once:

# %%
q, k, v = (normal(i, 1, 6, 2, 16) for i in range(3))  # [B, T, N, H]

logits = jnp.einsum("btnh,bsnh->bnts", q, k) / math.sqrt(q.shape[-1])
weights = jnp.exp(logits - logits.max(-1, keepdims=True))
weights /= weights.sum(-1, keepdims=True)
by_hand = jnp.einsum("bnts,bsnh->btnh", weights, v)

output, returned = attend(q, k, v, return_weights=True)
np.testing.assert_allclose(output, by_hand, atol=1e-6)
np.testing.assert_allclose(returned, weights, atol=1e-6)

tokens = "a query looks at all keys".split()
attention_map(returned[0, 0], tokens, tokens, title="weights of head 1")

# %% [markdown]
# Why divide by $\sqrt{H}$? Dot products of vectors with unit variance have variance $H$ (footnote 4
# of the paper). Undivided, the softmax of wide heads is nearly one-hot, where its gradient
# vanishes. Here is the largest of 32 weights, on average, for random queries and keys:

# %%
widths = [4, 16, 64, 256, 1024]


def largest_weight(width, scale):
  q, k = (normal(i, 8, 32, 1, width) for i in (0, 1))
  _, weights = attend(q, k, k, scale=scale, return_weights=True)
  return float(weights.max(-1).mean())


largest = {
    "divided by sqrt(H)": [largest_weight(width, None) for width in widths],
    "undivided": [largest_weight(width, 1.0) for width in widths],
}
assert max(largest["divided by sqrt(H)"]) < 0.25 and largest["undivided"][-1] > 0.9
curve(np.log2(widths), largest, "log2 of the width of the head H", "largest weight of 32")

# %% [markdown]
# ## Masks
#
# A mask says which keys a query may look at. In jtx it is a small predicate on two row indices,
# joined to others by `&` and `|`; what differs from row to row (segments, and flags of tokens:
# those of a prefix, global ones) is in `Rows`. Kernels see the structure; `materialize` writes the
# matrix out.
#
# | mask | who may look where | source |
# | --- | --- | --- |
# | causal | at all before | Vaswani et al. 2017, section 3.2.3 |
# | window | at near places | Beltagy et al. 2020, section 3.1 |
# | prefix | causal, but the prefix sees itself whole | Raffel et al. 2020, figure 3 |
# | global tokens | a window; some see all, seen by all | Beltagy et al. 2020, section 3.1 |
# | packed | only at the own segment; 0 is padding | Raffel et al. 2020, section 3.1.2 |

# %%
T = 12
flags = {"prefix": jnp.arange(T)[None] < 4, "global": jnp.arange(T)[None] == 0}
flagged = Rows(q_flags=flags, k_flags=flags)
segments = jnp.array([[1, 1, 1, 1, 1, 2, 2, 2, 2, 0, 0, 0]])
packed = Rows(q_segments=segments, k_segments=segments)


def grid(mask, rows=Rows()):
  """[T, T], where a query (row) may attend to a key (column)."""
  allowed = masks.materialize(mask, T, T, rows)
  return np.ones((T, T), bool) if allowed is None else np.broadcast_to(allowed, (1, 1, T, T))[0, 0]


np.testing.assert_array_equal(grid(masks.CAUSAL), np.tri(T, dtype=bool))
np.testing.assert_array_equal(grid(masks.window(3, 3) & masks.CAUSAL), grid(masks.window(3, 0)))
heatmaps({
    "full": grid(masks.FULL),
    "causal": grid(masks.CAUSAL),
    "window(2, 2)": grid(masks.window(2, 2)),
    "window(3, 3) & causal": grid(masks.window(3, 3) & masks.CAUSAL),
    "causal | prefix of 4": grid(masks.CAUSAL | masks.Prefix(), flagged),
    "window(2, 2) | global": grid(masks.window(2, 2) | masks.Global(), flagged),
    "packed: 5, 4, padding": grid(masks.FULL, packed),
    "packed, causal": grid(masks.CAUSAL, packed),
}, "key", "query", label="may attend")

# %% [markdown]
# Packing puts several short sequences into one row, so that no place is spent on padding. With
# segments in the mask nothing leaks: each sequence gets exactly what it gets alone, and queries
# without any key, the padding's, get zeros.

# %%
q, k, v = (normal(i, 1, T, 2, 16) for i in range(3))
together = attend(q, k, v, mask=masks.CAUSAL, rows=packed)
for part in (slice(0, 5), slice(5, 9)):
  alone = attend(q[:, part], k[:, part], v[:, part], mask=masks.CAUSAL)
  np.testing.assert_allclose(together[:, part], alone, atol=1e-6)
assert not together[:, 9:].any()

# %% [markdown]
# ## Heads that share keys and values
#
# When a decoder writes token by token it keeps the keys and values of all tokens before: the
# cache. Multi-query attention (Shazeer 2019) has one key-value head for all queries, grouped-query
# attention (Ainslie et al. 2023, section 2.2) one for each group. It is multi-head attention whose
# key-value heads are repeated:

# %%
q, k, v = normal(0, 1, 6, 8, 16), normal(1, 1, 6, 2, 16), normal(2, 1, 6, 2, 16)  # N = 8, K = 2
repeated = attend(q, jnp.repeat(k, 4, axis=2), jnp.repeat(v, 4, axis=2))
np.testing.assert_allclose(attend(q, k, v), repeated, atol=1e-6)


def cache_size(num_kv_heads, length=4096, width=512):
  """MiB of a layer's keys and values of one sequence in bfloat16."""
  attention = Attention(AttentionConfig(num_heads=8, num_kv_heads=num_kv_heads))

  def call():
    x = jnp.zeros((1, length, width))
    (_, projections, _), _ = attention.init_with_output(
        jax.random.key(0), x, x, places=Places(jnp.arange(length)[None]),
        kinds=(LayerKind(masks.CAUSAL),))
    return projections

  return sum(2 * array.size for array in jax.eval_shape(call)) / 2**20


sizes = {f"{name}, {count} of 8": cache_size(count) for name, count in (
    ("multi-head", 8), ("grouped-query", 4), ("grouped-query", 2), ("multi-query", 1))}
assert list(sizes.values()) == [8, 4, 2, 1]
bars(sizes, "MiB of cache a layer, 4,096 tokens of width 512")

# %% [markdown]
# ## Positions
#
# Attention sees a set: without positions, permuted keys give the same output. What tells it the
# order enters at one of four hooks: `embed` adds to the token embeddings, `add` to the inputs of
# queries and keys in each layer, `rotate` turns queries and keys, `bias` adds to the logits.

# %%
shuffled = np.random.default_rng(0).permutation(6)
np.testing.assert_allclose(attend(q, k[:, shuffled], v[:, shuffled]), attend(q, k, v), atol=1e-6)


def hooks(position):
  """Which of the four hooks of a position encoding do anything."""
  x, heads, places = jnp.ones((1, 8, 16)), jnp.ones((1, 8, 4, 4)), Places(jnp.arange(8)[None])
  sizes = Sizes(16, 4, 4)
  tables = (position.model_tables(16) | position.stack_tables(sizes)
            | position.layer_tables(sizes))
  params = {name: jnp.ones(table.shape) for name, table in tables.items()}
  project = Project(*2 * [lambda x: jnp.ones((*x.shape[:-1], 4, 4))])  # of a layer
  return [
      not np.array_equal(position.embed(x, places, params), x),
      not np.array_equal(position.add(x, places, params), x),
      not np.array_equal(position.rotate(heads, places, params), heads),
      position.bias(heads, heads, places, places, params=params, project=project,
                    scale=0.5) is not None,
  ]


used = {name: hooks(position()) for name, position in POSITIONS.items()}
assert {name for name, row in used.items() if not any(row)} == {"none"}
heatmaps({"position encodings": list(used.values())}, "hook", "", label="does something",
         rows=list(used), columns=["embed", "add", "rotate", "bias"])

# %% [markdown]
# ### Sinusoids
#
# $$PE_{(p, 2i)} = \sin\!\big(p / 10000^{2i/D}\big), \qquad
# PE_{(p, 2i+1)} = \cos\!\big(p / 10000^{2i/D}\big)$$
#
# (Vaswani et al. 2017, section 3.5). The paper interleaves sines and cosines; its code put all
# sines first. That is a permutation of dimensions, which a trained checkpoint does not forgive.

# %%
T, D = 96, 64
at = jnp.arange(T)
table = encodings.sinusoidal(at, D)
angle = np.arange(T)[:, None] / 10_000 ** (np.arange(0, D, 2) / D)
np.testing.assert_allclose(table[:, 0::2], np.sin(angle), atol=2e-5)
np.testing.assert_allclose(table[:, 1::2], np.cos(angle), atol=2e-5)
heatmaps({
    "interleaved": table, "concatenated": encodings.sinusoidal(at, D, layout="concatenated"),
}, "embedding dimension", "position")

# %% [markdown]
# The dot product of two positions is $\sum_i \cos\big((p - p')\,\omega_i\big)$: it depends on their
# distance alone, is largest at distance 0, and falls at first.

# %%
def by_distance_alone(products):
  """Whether a matrix [T, T] is constant along its diagonals."""
  diagonals = (np.diagonal(products, d) for d in range(1 - len(products), len(products)))
  return all(np.ptp(d) < 1e-3 for d in diagonals)


assert by_distance_alone(table @ table.T)
position_similarity(table)

# %% [markdown]
# ### Learned
#
# A parameter, a vector a position (Gehring et al. 2017; BERT, GPT, ViT). At initialisation no two
# positions have anything in common: that near ones are alike has to be learnt from data.

# %%
learned = positions.Learned(max_length=T)
shape, std, _ = learned.model_tables(D)["position_embedding"]
parameter = std * normal(0, *shape)
position_heatmap(parameter)

# %%
position_similarity(parameter)

# %% [markdown]
# ### Two dimensions
#
# For the patches of an image, half of the width encodes the row and half the column (He et al.
# 2021, MAE). Each panel shows how similar one patch, marked by its own 1, is to all others. Learned
# tables of ViT come to look alike (Dosovitskiy et al. 2020, figure 7).

# %%
side = 14
patches = encodings.sinusoidal_2d(encodings.grid(side, side), D)
position_heatmap(patches)

# %%
unit = patches / jnp.linalg.norm(patches, axis=-1, keepdims=True)
similar = (unit @ unit.T).reshape(side, side, side, side)
heatmaps({f"patch ({i}, {j})": similar[i, j] for i, j in ((0, 0), (7, 7), (3, 11))},
         "column", "row", label="cosine similarity")

# %% [markdown]
# A table is resized to a larger image by bicubic interpolation (Dosovitskiy et al. 2020, section
# 3.2); `resize` does the same for a sequence, linearly.

# %%
wave = patches[:, 2] + patches[:, 34]  # the same frequency of rows and of columns
larger = encodings.resize_grid(wave[:, None], (side, side), (20, 20))
heatmaps({"two dimensions of 14 x 14 patches": wave.reshape(side, side),
          "resized to 20 x 20": larger.reshape(20, 20)}, "column", "row")

# %% [markdown]
# ### Attached to every attention
#
# DETR (Carion et al. 2020, appendix A.4) adds the sinusoids to the inputs of queries and keys in
# each layer, never to the values: positions say where to look and are no part of what is found.

# %%
attached = POSITIONS["attached"]()
x, places = normal(0, 1, T, D), Places(at[None])
np.testing.assert_array_equal(attached.embed(x, places, {}), x)
np.testing.assert_allclose(attached.add(x, places, {}) - x, table[None], atol=1e-5)

added = attached.add(jnp.zeros_like(x), places, {})[0]
cosine = lambda a: (a @ a.T) / jnp.outer(jnp.linalg.norm(a, axis=-1), jnp.linalg.norm(a, axis=-1))
heatmaps({"similarity of the tokens alone": cosine(x[0]),
          "with their positions": cosine(attached.add(x, places, {})[0]),
          "of the positions alone": cosine(added)},
         "position", "position", label="cosine similarity")

# %% [markdown]
# ### Rotary embeddings, RoPE
#
# Su et al. 2021, section 3.2: each pair of dimensions of a query or key, read as a complex number,
# is turned by an angle proportional to its position,
#
# $$f(q, m)_j = q_j\, e^{\mathrm{i} m \theta_j}, \qquad \theta_j = 10000^{-2j/H},$$
#
# so that the dot product of a query at $m$ and a key at $n$ is a function of $m - n$ only. Below a
# vector of ones is turned by positions 0 to 95. Published models pair dimensions in two ways.

# %%
H = D
ones = jnp.ones((1, T, 1, H))
turned = {pairing: rope.rope(ones, at, pairing=pairing)[0, :, 0]
          for pairing in ("interleaved", "half")}
heatmaps(turned, "dimension of the head", "position")

# %%
q, k = (jnp.broadcast_to(normal(seed, 1, 1, 1, H), (1, T, 1, H)) for seed in (0, 1))
products = jnp.einsum("btnh,bsnh->ts", rope.rope(q, at), rope.rope(k, at))
assert by_distance_alone(products)
same = turned["half"] @ turned["half"].T
heatmaps({"a vector of ones with itself": same, "some query and some key": products},
         "key position", "query position", label="dot product")

# %% [markdown]
# **Long-term decay** (Su et al. 2021, section 3.4.3). With
# $h_j = q_{[2j:2j+1]}\, k^*_{[2j:2j+1]}$ and
# $S_j = \sum_{i<j} e^{\mathrm{i}(m-n)\theta_i}$, summation by parts bounds the score at distance
# $m - n$:
#
# $$\Big|\sum_j h_j\, e^{\mathrm{i}(m-n)\theta_j}\Big| \le
# \Big(\max_j |h_{j+1} - h_j|\Big) \sum_{j} |S_{j+1}|$$
#
# The sum on the right falls with distance: this is the paper's figure 2. It only bounds the score.
# The mean score of a query and a key of the same content is
# $\frac{2}{H}\sum_j \cos\big((m - n)\theta_j\big)$ of its value at distance 0; we measure it on
# random vectors. It falls too, quickly at first; neither curve is monotonic.

# %%
H, distance = 128, np.arange(257)
theta = 10_000.0 ** (-np.arange(0, H, 2) / H)
turns = np.exp(1j * np.outer(distance, theta))  # [distance, H / 2]
sums = np.abs(np.cumsum(turns, axis=-1)).sum(-1)

q, k = (normal(seed, 1, 512, 1, H) for seed in (0, 1))  # [1, vectors, 1, H]


def rotated_products(q, k):
  """Dot products [distance, vectors] of keys with queries so many places after them."""
  turn = lambda d: rope.rope(q, jnp.full(q.shape[1], d), pairing="interleaved")
  return np.asarray(jax.lax.map(lambda d: (turn(d) * k).sum((0, 2, 3)), jnp.asarray(distance)))


pairs = lambda x: np.asarray(x[0, :, 0, 0::2] + 1j * x[0, :, 0, 1::2], np.complex128)
h = np.pad(pairs(q) * pairs(k).conj(), ((0, 0), (0, 1)))  # the paper sets the last h to 0
steepest = np.abs(np.diff(h)).max(-1)  # [vectors]
assert (np.abs(rotated_products(q, k)) <= sums[:, None] * steepest + 1e-3).all()

mean = rotated_products(q, q).mean(-1) / np.square(q).sum(-1).mean()
np.testing.assert_allclose(mean, turns.real.mean(-1), atol=0.03)
curve(distance, {"upper bound, section 3.4.3": sums / sums[0], "mean score, k = q": mean},
      "distance", "relative to distance 0")

# %% [markdown]
# To read rows longer than those of training, positions are squeezed (`rope.Linear`; Chen et al.
# 2023, section 2.3), or the base is raised, which keeps the fast rotations that tell neighbours
# apart and stretches the slow ones (`rope.Ntk`):

# %%
far = np.arange(0, 1025, 4)


def mean_score(**options):
  turned = rope.rope(jnp.ones((1, len(far), 1, H)), jnp.asarray(far), **options)[0, :, 0]
  return np.asarray(turned @ turned[0]) / H


curve(far, {"as trained": mean_score(), "linear, 4": mean_score(scaling=rope.Linear(factor=4.0)),
            "ntk, 4": mean_score(scaling=rope.Ntk(factor=4.0))}, "distance", "mean score, k = q")

# %% [markdown]
# ### ALiBi
#
# No embedding at all: head $n$ of $N$ subtracts $2^{-8n/N}$ times the distance from its logits
# (Press et al. 2021, section 3). The second picture is what the heads attend to where all contents
# are alike: steep heads see a few neighbours, flat ones nearly everything.

# %%
N, T = 8, 32
heads = jnp.zeros((1, T, N, 8))
places = Places(jnp.arange(T)[None])
alibi = POSITIONS["alibi"]().bias(heads, heads, places, places, params={}, project=None,
                                  scale=8**-0.5).materialize()  # [1, N, T, T]
np.testing.assert_allclose(encodings.alibi_slopes(N), 2.0 ** -np.arange(1, N + 1))
np.testing.assert_allclose(alibi[0, 1], -np.abs(np.subtract.outer(range(T), range(T))) / 4)
heatmaps({f"head {n + 1}": np.where(np.tri(T), alibi[0, n], np.nan) for n in (0, 2, 4, 7)},
         "key", "query", label="added to the logits")

# %%
_, weights = attend(heads, heads, heads, mask=masks.CAUSAL, bias=alibi, return_weights=True)
heatmaps({f"head {n + 1}": weights[0, n] for n in (0, 2, 4, 7)}, "key", "query",
         label="attention weight")

# %% [markdown]
# ### T5's relative bias
#
# A learned number a head and bucket of distances (Raffel et al. 2020, section 2.1), shared by all
# layers. Near distances have buckets of their own, far ones share them, logarithmically; a causal
# decoder spends none on keys after the query.

# %%
T = 160
offsets = jnp.arange(T)[None, :] - jnp.arange(T)[:, None]  # key minus query
buckets = {
    name: encodings.relative_buckets(offsets, num_buckets=32, max_distance=128,
                                     bidirectional=bidirectional)
    for name, bidirectional in (("encoder", True), ("causal decoder", False))
}
assert int(buckets["encoder"].max()) == 31 and int(buckets["causal decoder"][0].max()) == 0
heatmaps(buckets, "key", "query", label="bucket")

# %%
t5 = POSITIONS["t5"]()
shape, std, _ = t5.stack_tables(Sizes(32, 4, 8))["position_bias"]  # [buckets, N]
places, heads = Places(jnp.arange(T)[None]), jnp.zeros((1, T, 4, 8))
bias = t5.bias(heads, heads, places, places, params={"position_bias": std * normal(0, *shape)},
               project=None, scale=8**-0.5).materialize()
assert by_distance_alone(bias[0, 0])
heatmaps({f"head {n + 1}, at initialisation": bias[0, n] for n in range(3)}, "key", "query",
         label="added to the logits")

# %% [markdown]
# ## Norms
#
# LayerNorm (Ba et al. 2016) moves each token's features to mean 0 and scales them to variance 1;
# RMSNorm (Zhang and Sennrich 2019) only scales, to mean square 1:
#
# $$\mathrm{LN}(x) = \gamma\, \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta, \qquad
# \mathrm{RMS}(x) = \gamma\, \frac{x}{\sqrt{\frac{1}{D}\sum_d x_d^2 + \epsilon}}$$

# %%
x = 3 + 2 * normal(0, 32)
norms = {"LayerNorm": layers.LayerNorm(), "RMSNorm": layers.RMSNorm()}
apply = lambda norm, x: np.asarray(norm.init_with_output(jax.random.key(0), x)[0])
outputs = {name: apply(norm, x) for name, norm in norms.items()}

np.testing.assert_allclose(
    [outputs["LayerNorm"].mean(), outputs["LayerNorm"].var()], [0, 1], atol=1e-5)
np.testing.assert_allclose(np.square(outputs["RMSNorm"]).mean(), 1, atol=1e-5)
for name, norm in norms.items():  # the scale of the input is gone; of its mean, only LayerNorm's
  np.testing.assert_allclose(apply(norm, 5 * x), outputs[name], atol=1e-5)
np.testing.assert_allclose(apply(norms["LayerNorm"], x + 7), outputs["LayerNorm"], atol=1e-4)
assert np.abs(apply(norms["RMSNorm"], x + 7) - outputs["RMSNorm"]).max() > 0.1
curve(range(32), {"input": np.asarray(x), **outputs}, "feature", "value")

# %% [markdown]
# ### Where the norm stands
#
# Post-norm, $\mathrm{norm}(x + f(x))$, is Vaswani et al. 2017; pre-norm, $x + f(\mathrm{norm}(x))$,
# leaves the residual stream alone (Xiong et al. 2020, section 3); sandwich norms the output too,
# $x + \mathrm{norm}(f(\mathrm{norm}(x)))$ (Ding et al. 2021). We walk down a stack at
# initialisation, layer by layer, and measure the variance of the stream. A `Stack` is one scan over
# parameters `[layers, ...]`, so slice $i$ of them is layer $i$.

# %%
depth, D = 12, 128
x = normal(0, 4, 32, D)
ctx = Context(Places(jnp.broadcast_to(jnp.arange(32), (4, 32))))


@functools.cache
def make_stack(norm_position):
  """A block's config, a stack of such blocks, and parameters of it."""
  config = BlockConfig(
      attention=AttentionConfig(num_heads=4), ffn=layers.FfnConfig(dim=4 * D),
      norm=layers.NormConfig(position=norm_position), dropout=0.0)
  stack = Stack(StackConfig(width=D, num_layers=depth, block=config))
  return config, stack, nn.meta.unbox(jax.jit(stack.init)(jax.random.key(1), x, ctx))["params"]


def walk(norm_position):
  """The residual stream before each layer and after the last."""
  config, stack, params = make_stack(norm_position)
  layer = jax.jit(Block(config, kinds=(LayerKind(masks.FULL),)).apply)
  stream = [x]
  for i in range(depth):
    y, *_ = layer({"params": jax.tree.map(lambda p: p[i], params["layers"])}, stream[-1], ctx)
    stream.append(y)
  last = stream[-1]
  if "final_norm" in params:
    last = layers.LayerNorm().apply({"params": params["final_norm"]}, last)
  whole, *_ = jax.jit(stack.apply)({"params": params}, x, ctx)
  np.testing.assert_allclose(last, whole, atol=1e-4)
  return stream


variance = {name: [float(jnp.var(y)) for y in walk(name)] for name in layers.NORM_POSITIONS}
np.testing.assert_allclose(variance["post"][1:], 1, atol=1e-3)
assert variance["sandwich"][-1] > variance["pre"][-1] > 2
curve(range(depth + 1), variance, "layers", "variance of the residual stream")

# %% [markdown]
# A layer is a smaller and smaller part of a stream that grows, and its gradient is smaller, too. In
# post-norm the last layer's gradient is as large as the first's, and does not depend on the number
# of layers $L$; in pre-norm it falls with $1/\sqrt{L}$ (Xiong et al. 2020, theorem 1). This is why
# post-norm models need the learning rate's warm-up.

# %%
def gradient_norms(norm_position):
  """Of each layer's second feed-forward matrix, for a random linear loss."""
  _, stack, params = make_stack(norm_position)
  loss = lambda params: (stack.apply({"params": params}, x, ctx)[0] * normal(2, *x.shape)).mean()
  kernels = jax.jit(jax.grad(loss))(params)["layers"]["ffn"]["out"]["kernel"]  # [layers, F, D]
  return np.asarray(jnp.linalg.norm(kernels.reshape(depth, -1), axis=-1))


norms = {name: gradient_norms(name) for name in layers.NORM_POSITIONS}
assert norms["pre"][-1] < norms["pre"][0] / 2 and norms["post"][-1] > 2 * norms["pre"][-1]
curve(range(1, depth + 1), norms, "layer", "norm of the gradient")

# %% [markdown]
# ## Activations and gates
#
# ReLU (Vaswani et al. 2017, section 3.3), GELU $x\,\Phi(x)$ (Hendrycks and Gimpel 2016) with its
# approximations by tanh and by a sigmoid, and SiLU $x\,\sigma(x)$ (Swish).

# %%
grid_1d = jnp.linspace(-4, 4, 161)
curves = {name: np.asarray(activations.activate(name, grid_1d)) for name in activations.ACTIVATIONS}
assert np.abs(curves["gelu"] - curves["gelu_tanh"]).max() < 1e-3
assert np.abs(curves["gelu"] - curves["gelu_sigmoid"]).max() < 0.03
curve(grid_1d, curves, "x", "activation")

# %% [markdown]
# A gated layer multiplies a second projection by the activation of the first (Shazeer 2020; with
# SiLU it is SwiGLU):
#
# $$\mathrm{FFN}(x) = \big(\mathrm{act}(x W_g) \odot x W_1\big)\, W_2$$
#
# The factor may be of either sign, so a hidden unit is no longer bounded below. It is drawn for
# some values of $x W_1$.

# %%
x = normal(0, 1, 3, 16)
ffn = layers.FeedForward(layers.FfnConfig(dim=32, activation="silu", gated=True, bias=False))
result, variables = ffn.init_with_output(jax.random.key(0), x)
kernels = {name: dense["kernel"] for name, dense in nn.meta.unbox(variables)["params"].items()}
by_hand = (jax.nn.silu(x @ kernels["gate"]) * (x @ kernels["in"])) @ kernels["out"]
np.testing.assert_allclose(result, by_hand, atol=1e-6)
curve(grid_1d, {f"x W1 = {u}": np.asarray(jax.nn.silu(grid_1d) * u) for u in (-1, 0.5, 1, 2)},
      "x Wg", "hidden unit")

# %% [markdown]
# ## Learning rates
#
# Every schedule is a function from the number of updates made to the learning rate. All but one warm
# up linearly and differ in what follows: a constant, a line, half a cosine (Loshchilov and Hutter
# 2017), a plateau with a short decay (WSD; Hu et al. 2024), or $1/\sqrt{n}$. T5's is at its maximum
# from the start, and then $1/\sqrt{n}$ (Raffel et al. 2020).

# %%
total, warmup = 2000, 200
steps = np.arange(total)
rates = {}
for name, schedule in schedules.SCHEDULES.items():
  # What brings the maximum to 1.
  peak = {"noam": math.sqrt(512 * warmup), "rsqrt": math.sqrt(warmup)}.get(name, 1.0)
  given = {"hold" if name == "rsqrt" else "warmup": warmup}
  rates[name] = np.asarray(schedule(peak, total, 512, **given)(steps))
  np.testing.assert_allclose([rates[name].max(), rates[name][warmup - 1]], 1, rtol=1e-3)
curve(steps, rates, "updates made", "learning rate, of its maximum")

# %% [markdown]
# Vaswani et al. 2017, equation 3, has no free learning rate. It follows from the width and the
# warm-up, and peaks at $n = n_{\mathrm{warmup}}$ with $(D\, n_{\mathrm{warmup}})^{-1/2}$:
#
# $$\mathrm{lr}(n) = D^{-0.5} \min\big(n^{-0.5},\ n \cdot n_{\mathrm{warmup}}^{-1.5}\big)$$

# %%
steps = np.arange(20_000)
rates = {}
for width, warmup in ((512, 4000), (512, 8000), (256, 4000), (1024, 4000)):
  rate = np.asarray(schedules.noam(1.0, len(steps), width, warmup=warmup)(steps))
  assert rate.argmax() == warmup - 1  # update n = 1 has made none before
  np.testing.assert_allclose(rate.max(), (width * warmup) ** -0.5, rtol=1e-5)
  rates[f"width {width}, warm-up {warmup}"] = rate
curve(steps, rates, "updates made", "learning rate")
