"""Late interaction: texts compared by the vectors of their tokens (Khattab and Zaharia 2020)."""

import jax
import jax.numpy as jnp


def late_interaction(queries: jax.Array, query_segments: jax.Array, texts: jax.Array,
                     text_segments: jax.Array, num_texts: int = 1) -> jax.Array:
  """For each query and text, the sum over query tokens of the best product with a text's token.

  Equation 3 of ColBERT. The products of all tokens exist at once: [B, T, C, U] float32.

  Args:
    queries: [B, T, D], rows with up to `num_texts` queries.
    query_segments: [B, T], the number of the query in its row, from 1; 0 is none.
    texts: [C, U, D], the same of the texts.
    text_segments: [C, U].
    num_texts: S, texts in a row.

  Returns:
    [B * S, C * S] float32, row after row; 0 for what a row does not have.
  """
  products = jnp.einsum("btd,cud->btcu", queries.astype(jnp.float32), texts.astype(jnp.float32),
                        precision=jax.lax.Precision.HIGHEST)
  numbers = jnp.arange(1, num_texts + 1)
  best = jnp.stack([jnp.where(text_segments == n, products, -jnp.inf).max(-1) for n in numbers], -1)
  there = (text_segments[:, None] == numbers[:, None]).any(-1)  # [C, S]
  own = query_segments[:, None] == numbers[:, None]  # [B, S, T]
  scores = jnp.einsum("bst,btcn->bscn", own.astype(jnp.float32), jnp.where(there, best, 0),
                      precision=jax.lax.Precision.HIGHEST)
  return scores.reshape(own.shape[0] * num_texts, -1)
