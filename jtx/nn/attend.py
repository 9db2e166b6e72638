"""Scaled dot-product and additive attention of every head count and mask, by the fastest kernel.

Letters: B batch, T query, S key, N heads, K kv-heads, G = N / K heads that share a
kv-head, H head width, D model width. K = N is multi-head attention (Vaswani et al. 2017),
K = 1 multi-query (Shazeer 2019), between them grouped-query (Ainslie et al. 2023).
"""

import jax

from jtx.errors import ConfigError
from jtx.nn import masks
from jtx.nn.bias import PairBias
from jtx.nn.kernels import counted
from jtx.nn.kernels.choose import Request, bind, choose
from jtx.nn.kernels.reference import SCORES
from jtx.nn.masks import Mask, Rows


def attend(q: jax.Array, k: jax.Array, v: jax.Array, *,
           mask: Mask | tuple[Mask, ...] = masks.FULL, kind: jax.Array | None = None,
           shares: tuple[float, ...] = (1.0,), rows: Rows = Rows(),
           bias: jax.Array | PairBias | None = None, q_index: jax.Array | None = None,
           k_index: jax.Array | None = None, scale: float | None = None,
           soft_cap: float | None = None, score: str = "dot",
           score_vector: jax.Array | None = None, dropout_rate: float = 0.0,
           dropout_key: jax.Array | None = None, kernel: str = "auto",
           return_weights: bool = False):
  """softmax(score(Q, K) + bias) V over the pairs that the mask and the segments allow, or zeros.

  Args:
    q: [B, T, N, H].
    k: [B, S, K, H], K dividing N.
    v: [B, S, K, Hv].
    mask: which row indices may attend to which; or several, of which `kind` says one.
    kind: scalar index into several masks; not needed where there is one.
    shares: of each of several masks, the part of all calls that has it; FLOPs are counted so.
    rows: segment ids, flags of tokens, and explicit pairs.
    bias: added to the logits, [B or 1, N, T, S], or a function of places.
    q_index: [T] or [B, T], row indices of the queries; None is 0 to T - 1.
    k_index: [S] or [B, S], row indices of the keys; None is 0 to S - 1.
    scale: of dot-product logits; None is H^-0.5.
    soft_cap: c makes logits c tanh(logits / c), before the bias (Gemma 2).
    score: a key of `SCORES`.
    score_vector: [N, H], for scores with a parameter.
    dropout_rate: of the weights, applied where `dropout_key` is given.
    dropout_key: a random key.
    kernel: a name in `KERNELS`, or "auto": the first that supports what is asked.
    return_weights: also return the weights (after dropout).

  Returns:
    [B, T, N, Hv], and [B, N, T, S] float32 where weights are asked for.

  Raises:
    ConfigError: the kernel of that name can't do this, or heads and score do not fit together.
  """
  check(q, k, score, score_vector)
  several = mask if isinstance(mask, tuple) else (mask,)
  indexed = q_index is not None or k_index is not None
  if counted.active() and score == "dot" and not (return_weights or indexed):
    return counted.attend(q, k, v, several, shares)
  request = lambda mask: Request(
      mask=mask, segments=rows.k_segments is not None, score=score, weights=return_weights,
      indexed=indexed, shared_bias=isinstance(bias, jax.Array) and bias.shape[0] == 1,
      queries=q.shape[1], keys=k.shape[1])
  kernels = [choose(kernel, request(mask)) for mask in several]
  if isinstance(bias, PairBias) and not all(chosen.calls_bias(bias) for chosen in kernels):
    bias = bias.materialize()
  options = dict(
      rows=rows, bias=bias, q_index=q_index, k_index=k_index, scale=scale, soft_cap=soft_cap,
      score_vector=score_vector, dropout_key=dropout_key, score=score,
      dropout_rate=dropout_rate if dropout_key is not None else 0.0, return_weights=return_weights)
  runs = [bind(chosen, mask=mask, **options) for chosen, mask in zip(kernels, several)]
  run = runs[0] if len(runs) == 1 else lambda q, k, v: jax.lax.switch(kind, runs, q, k, v)
  if all(chosen.names_kept for chosen in kernels):
    # A switch would keep what each of its branches makes of q, k and v.
    run = jax.checkpoint(run, policy=jax.checkpoint_policies.save_only_these_names("attention"),
                         prevent_cse=False)
  return run(q, k, v)


def check(q: jax.Array, k: jax.Array, score: str, score_vector: jax.Array | None) -> None:
  if q.shape[2] % k.shape[2]:
    raise ConfigError(f"num_kv_heads={k.shape[2]} does not divide num_heads={q.shape[2]}")
  if score not in SCORES:
    raise ConfigError(f"score={score!r}: valid are {' and '.join(map(repr, SCORES))}")
  if SCORES[score].vector != (score_vector is not None):
    raise ConfigError(
        f"score={score!r}: a score_vector goes with 'additive' scores, and only with them")
