# %% [markdown]
# # An attention variant of one's own, and its fused kernel
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/jtx-research/jtx/blob/main/notebooks/attention_variant.ipynb)
#
# Who may look where, and how much a distance counts, are two functions in jtx: a mask and a bias.
# Kernels call them on blocks of places, so that a variant written in a notebook runs in the fused
# kernel of TPUs and GPUs without a line of kernel code. Here both are written, drawn, checked against
# plain attention forward and backward, and trained with. It takes a minute on a CPU, where the fused
# kernel is interpreted.

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
import dataclasses
import functools
import tempfile

from absl import logging
import jax
import jax.numpy as jnp
import numpy as np

from configs import classify, common
import jtx
from jtx.data.sources.registry import open_source
from jtx.figures.attention import heatmaps
from jtx.figures.curves import bars, curve
from jtx.nn.attend import attend
from jtx.nn.bias import OfPositions, PairBias
from jtx.nn.kernels import blocks, fused
from jtx.nn.masks import CAUSAL, FULL, KINDS, Kind, Mask, Rows, materialize, window
from jtx.nn.positions import POSITIONS, Position, Table
from jtx.train import loop

jax.config.update("jax_default_matmul_precision", "highest")  # accelerators round otherwise
logging.set_verbosity(logging.WARNING)

# %% [markdown]
# ## A mask
#
# A mask is a predicate on the row indices of a query and a key. This one allows keys whose distance is
# a multiple of a stride (Child et al. 2019, section 4.2). `&` and `|` join it with others: here with a
# window, and with the rule that nobody looks ahead.

# %%
@dataclasses.dataclass(frozen=True)
class Strided(Mask):
  """Keys whose distance is a multiple of the stride."""
  stride: int

  def __call__(self, q, k, rows):
    return (q - k) % self.stride == 0


strided = lambda causal, width: (CAUSAL if causal else FULL) & (
    window(width, width) | Strided(width))
T = 64
masks = {"window": window(8, 8) & CAUSAL, "stride": Strided(8) & CAUSAL, "either": strided(True, 8)}
drawn = {name: materialize(mask, T, T, Rows()).reshape(T, T).astype(jnp.float32)
         for name, mask in masks.items()}
heatmaps(drawn, "key", "query", label="allowed")

# %% [markdown]
# ## A bias
#
# A position encoding may add to the logits of attention. KERPLE (Chi et al. 2022, equation 3) adds
# $-r \log(1 + a\,|i-j|)$, with two learned numbers of each head. `stack_tables` declares the parameters,
# `head_params` gives each head its own, and `pair_bias` is the formula.

# %%
@dataclasses.dataclass(frozen=True)
class Kerple(Position):
  """-r log(1 + a |distance|), with r and a of each head."""
  slope: float = 1.0  # that r and a start from

  def stack_tables(self, sizes):
    start = lambda key, shape, dtype: jnp.full(shape, self.slope, dtype)
    return {"kerple": Table((2, sizes.num_heads), start, ("positions", "heads"))}

  def head_params(self, params, num_heads):
    r, a = jnp.maximum(params["kerple"], 0.01)
    return {"r": r, "a": a}

  def pair_bias(self, q, k, params, causal):
    return -params["r"] * jnp.log1p(params["a"] * jnp.abs(k - q))


distance = np.arange(T)
kerple = Kerple()
of_slope = lambda r, a: np.asarray(kerple.pair_bias(0, distance, {"r": r, "a": a}, True))
curve(distance, {f"r = {r}, a = {a}": of_slope(r, a) for r, a in ((0.5, 1.0), (1.0, 1.0), (1.0, 4.0))},
      "distance", "added to the logit")

# %% [markdown]
# ## Both in the fused kernel
#
# `attend` takes the mask, the bias as a function, dropout and more, and the first kernel that supports
# all of it runs. On a TPU or GPU that is the fused one, which never makes the array of all logits. On a
# CPU it can be interpreted. It gives what plain attention gives, and so do all its gradients.

# %%
B, N, H, T = 2, 2, 64, 256
rng = np.random.default_rng(0)
normal = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
arrays = {"q": normal(B, T, N, H), "k": normal(B, T, N, H), "v": normal(B, T, N, H),
          "kerple": jnp.asarray([[0.5, 1.0], [1.0, 4.0]])}
rows = Rows(*[jnp.asarray(np.repeat([[1, 2, 0]], B, 0).repeat([100, 140, 16], 1))] * 2)  # two texts
mask = strided(True, 32)


def loss(arrays, how):
  """A number of which all gradients are taken, and the output of attention."""
  places = jnp.arange(T)[None].repeat(B, 0)
  bias = PairBias(OfPositions(kerple, True), kerple.head_params(arrays, N), places, places)
  out = how(arrays["q"], arrays["k"], arrays["v"], mask=mask, rows=rows, bias=bias,
            dropout_rate=0.1, dropout_key=jax.random.key(1))
  return (out * jnp.sin(jnp.arange(H))).sum(), out


interpreted = functools.partial(fused.attend, scale=None, soft_cap=None, interpret=True)
plain = functools.partial(attend, kernel="xla")
(_, out), gradients = jax.jit(jax.value_and_grad(
    functools.partial(loss, how=interpreted), has_aux=True))(arrays)
(_, expected), wanted = jax.jit(jax.value_and_grad(
    functools.partial(loss, how=plain), has_aux=True))(arrays)
np.testing.assert_allclose(out, expected, atol=1e-5)
for name, gradient in gradients.items():
  error = float(jnp.abs(gradient - wanted[name]).max() / jnp.abs(wanted[name]).max())
  print(f"gradient of {name:7} {str(gradient.shape):18} differs by {error:.1e} at most")
  assert error < 1e-4

# %% [markdown]
# The same weights are dropped in both, since their bits follow from the key, the row, the head and the
# places alone.
#
# Blocks without an allowed pair are passed by. Of rows of 4,096 in blocks of 128 x 128, the share of
# pairs that each mask allows, and the share of blocks that are computed:

# %%
names = {"full": FULL, "causal": CAUSAL, "causal window": window(256, 0), "strided": strided(True, 256)}
places = np.arange(4096)[:, None], np.arange(4096)[None]
pairs = {name: float(np.mean(mask(*places, Rows()))) for name, mask in names.items()}
computed = {name: np.mean(blocks.blocks(mask, 4096, 4096, 128, 128) != blocks.EMPTY).round(3)
            for name, mask in names.items()}
for name in names:
  print(f"{name:14} {pairs[name]:6.1%} of pairs, {computed[name]:6.1%} of blocks")
assert computed["strided"] > 3 * pairs["strided"]
bars(computed, "share of blocks that are computed")

# %% [markdown]
# A stride allows few pairs, but they lie in many blocks, whereas a window is as fast as it is narrow.
# That is worth knowing of a variant before a chip is asked.
#
# ## In a model
#
# A row in a table gives each of them a name, and config chooses by names: half of the layers are
# strided, all have the bias. `configs/classify.py` at its smallest tells the texts of two kinds that
# come with jtx apart.

# %%
KINDS["strided"] = Kind(strided, windowed=True)
POSITIONS["kerple"] = Kerple


config = classify.get_config("tiny")
common.apply(config, {"steps": 100, "optim.lr": 3e-3, "checkpoint.every": 100})
config.model.stack.position = common.position("kerple")
config.model.stack.pattern, config.model.stack.window = ("strided", "global"), 4
workdir = tempfile.mkdtemp(prefix="jtx_")
results = loop.run(config.lock(), workdir)
print(f"{results['dev/accuracy']:.1%} of held-out texts right")
assert results["dev/accuracy"] > 0.9

# %% [markdown]
# Where the trained model looks: its first layer sees the pattern alone, its second all.

# %%
model, params = jtx.load_pretrained(workdir)
tokenizer = jtx.load_tokenizer(workdir)
text = open_source("embedded:sentences:val")[0]["text"]
print(text)
ids = tokenizer.encode(text)[:20]
batch = {"text": jnp.asarray([ids]), "text_segment_ids": jnp.ones((1, len(ids)), jnp.int32),
         "text_positions": jnp.arange(len(ids))[None]}
weights = model.apply({"params": params}, batch, method="attention_weights")["encoder"]
pieces = tokenizer.tokens(ids)
heatmaps({f"layer {i + 1}, head 1": weights[i, 0, 0] for i in range(2)}, "key", "query",
         label="weight", rows=pieces, columns=pieces)
