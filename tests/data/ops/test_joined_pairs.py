"""Pairs as one text each: the same pairs, of which the targets alone are predicted."""

import numpy as np
import pytest

from jtx.config import section
from jtx.data.op import TOKENIZER, Column
from jtx.data.ops import spans
from jtx.data.ops.registry import OPS
from jtx.data.ops.text import Tokenize
from jtx.data.ops.text_pairs import OBJECTIVES, TextPairs
from jtx.data.packing import Pack
from jtx.data.pipeline import eval_batches, example_batch
from jtx.data.prepared import prepare
from jtx.data.recipes import Recipe, build_ops
from jtx.errors import ConfigError
from jtx.objectives.lm import Lm, next_tokens
from jtx.objectives.seq2seq import Seq2Seq
from tests.data.ops.test_text_pairs import SOURCE, Numbers, pairs_of

LENGTHS, FIELDS = (24, 24), ("src", "tgt")
TOKENIZERS = {TOKENIZER: Numbers()}


def longest(objective):
  """Tokens of the longest text of a pair, and of a row that holds both in one."""
  op = TextPairs(objective, mean_length=2.0)
  length = op.bind(TOKENIZERS).longest(dict(zip(FIELDS, LENGTHS)))
  return length, sum(op.most(length))


def batches_of(joined, objective="spans"):
  layout = Pack(lengths=LENGTHS, max_segments=5)
  if joined:
    layout = Pack(fields=("text",), lengths=(longest(objective)[1],), max_segments=5)
  op = TextPairs(objective, mean_length=2.0, joined=joined)
  recipe = Recipe([Tokenize(fields=("text",), end=False)], op, layout, [])
  prepared, recipe = prepare([SOURCE], recipe, TOKENIZERS), recipe.bind(TOKENIZERS)
  return list(eval_batches(prepared, recipe, 3, range(3))), recipe


def split(batches):
  """Inputs and targets of every segment, by the flag of inputs."""
  for batch in batches:
    for segments, text, prefix in zip(*(batch[key] for key in (
        "text_segment_ids", "text", "text_prefix"))):
      for s in range(1, segments.max(initial=0) + 1):
        own, flags = text[segments == s], prefix[segments == s]
        assert (np.diff(flags.astype(int)) <= 0).all()  # inputs stand first
        yield own[flags == 1].tolist(), own[flags == 0].tolist()


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_pairs_are_those_of_an_encoder_and_a_decoder(objective):
  apart, (joined, _) = batches_of(False, objective)[0], batches_of(True, objective)
  pairs = pairs_of(apart)
  assert len(pairs) > 10 and sorted(split(joined)) == sorted(pairs)


def test_the_loss_is_of_the_same_tokens():
  apart, (joined, _) = batches_of(False)[0], batches_of(True)
  targets = np.concatenate([b["tgt"][b["tgt_segment_ids"] > 0] for b in apart])
  labels = np.concatenate([np.asarray(next_tokens(b)).reshape(-1) for b in joined])
  assert sorted(labels[labels >= 0]) == sorted(targets)
  assert sum(float(Lm().weights(b)["loss"]) for b in joined) == sum(
      float(Seq2Seq(1).weights(b)["loss"]) for b in apart) == len(targets)
  for batch in joined:  # each is predicted by the token before it
    row, place = np.nonzero(np.asarray(next_tokens(batch)) >= 0)
    assert (batch["text_prefix"][row, place + 1] == 0).all()
    np.testing.assert_array_equal(np.asarray(next_tokens(batch))[row, place],
                                  batch["text"][row, place + 1])


def test_columns_and_rows():
  batches, recipe = batches_of(True)
  assert recipe.row_columns() == {"text": Column("tokens"),
                                  "text_prefix": Column("aligned:text", "uint8")}
  example = example_batch(recipe, 3)
  assert {k: (v.shape, v.dtype) for k, v in example.items()} == {
      k: (v.shape, v.dtype) for k, v in batches[0].items() if k != "ids"}
  assert recipe.form.longest({"text": longest("spans")[1]}) == longest("spans")[0]
  with pytest.raises(ConfigError, match=r"rows of lengths=\(5,\) have no room for a pair"):
    recipe.form.longest({"text": 5})


@pytest.mark.parametrize("inputs", range(20, 60))
def test_rows_of_both_lengths_together_take_the_same_texts(inputs):
  """As `sweep_architectures` of configs/t5.py makes them."""
  lengths = spans.span_lengths(inputs)
  pair, joined = (TextPairs(joined=joined).bind(TOKENIZERS) for joined in (False, True))
  assert joined.longest({"text": inputs + lengths[1]}) == pair.longest(
      {"src": inputs, "tgt": lengths[1]}) == lengths[0]


@pytest.mark.parametrize("joined, fields", [(True, FIELDS), (False, ("text",))])
def test_a_layout_of_other_fields_is_refused(joined, fields):
  ops = [section(OPS, "tokenize", fields=("text",)), section(OPS, "text_pairs", joined=joined),
         section(OPS, "pack", fields=fields, lengths=(8,) * len(fields))]
  maker = "tokenize" if joined else "text_pairs"
  with pytest.raises(ConfigError, match=f"'pack' has fields=.*, but '{maker}' makes only"):
    build_ops(ops)
