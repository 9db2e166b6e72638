"""Span corruption and its relatives: the authors' numbers, equal chances, all objectives."""

import collections
import dataclasses
import json
import os
import pickle

import numpy as np
import pytest

from jtx.data.op import TOKENIZER
from jtx.data.ops import spans
from jtx.data.ops.masking import Prefix
from jtx.data.ops.text import Tokenize
from jtx.data.ops.text_pairs import OBJECTIVES, BoundPairs, Ids, TextPairs
from jtx.data.packing import Pack, Pad
from jtx.data.pipeline import Stream, eval_batches, example_batch, iterate
from jtx.data.prepared import prepare
from jtx.data.recipes import Recipe
from jtx.data.tokenizers.kinds import TOKENIZERS
from jtx.errors import ConfigError, DataError
from tests.data.streams import STEPS, Rows, assert_same, assert_same_all
from tests.helpers import chi_square

FIRST, SIZE, END = 200, 400, 1  # ids of documents' tokens are from FIRST up; sentinels count down
SENTINELS = range(FIRST - 1, 100, -1)
IDS = Ids(SENTINELS, np.arange(FIRST, FIRST + SIZE), END)


@pytest.fixture(scope="module")
def golden():
  if "JTX_TEST_DATA" not in os.environ:
    pytest.skip("JTX_TEST_DATA names no folder with golden/t5_span_corruption")
  with open(os.path.join(os.environ["JTX_TEST_DATA"], "golden/t5_span_corruption",
                         "span_corruption.json")) as f:
    return json.load(f)


def rng(seed=0):
  return np.random.default_rng(seed)


# ------------------------------------------------------------------- the authors' numbers


def test_lengths_are_the_authors(golden):
  for row in golden["span_lengths"]:
    assert spans.span_lengths(row["inputs_length"], row["noise_density"],
                              row["mean_noise_span_length"]) == (
        row["tokens_length"], row["targets_length"]), row
  assert spans.span_lengths(512) == (568, 114)
  assert spans.span_lengths(1024, 0.15, 20.0) == (1193, 189)  # ByT5
  assert spans.span_lengths(3)[0] == 2
  with pytest.raises(ConfigError, match="inputs=2: no text is short enough"):
    spans.span_lengths(2)


def test_counts_are_the_authors(golden):
  for row in golden["span_counts"]:
    assert spans.counts(row["length"], row["noise_density"], row["mean_noise_span_length"]) == (
        row["noise_tokens"], row["noise_spans"]), row


def test_operators_are_the_authors(golden):
  ops = golden["mask_ops"]
  tokens, mask = np.array(ops["tokens"]), np.array(ops["noise_mask"], bool)
  last = ops["vocab_size"] - 1
  one, own = [last] * 9, range(last, 0, -1)
  kept, hidden = OBJECTIVES["drop"].pair(tokens, mask, IDS, rng())
  every, _ = OBJECTIVES["mass"].pair(tokens, mask, IDS._replace(sentinels=own), rng())
  results = {
      "noise_token_to_sentinel": every,
      "noise_span_to_sentinel": spans.hide_spans(tokens, mask, one),
      "nonnoise_span_to_sentinel": spans.hide_spans(tokens, ~mask, one),
      "noise_span_to_unique_sentinel": spans.hide_spans(tokens, mask, own),
      "drop_noise_tokens": kept, "drop_nonnoise_tokens": hidden}
  assert {name: value.tolist() for name, value in results.items()} == {
      name: ops[name] for name in results}


def test_the_authors_example(golden):
  example = golden["denoise"]
  tokens = np.array(example["tokens"])
  mask = np.zeros(len(tokens), bool)
  for start, stop in example["noise_spans"]:
    mask[start:stop] = True
  assert spans.counts(len(tokens), example["noise_density"],
                      example["mean_noise_span_length"]) == (mask.sum(), 2)
  ids = IDS._replace(sentinels=range(example["vocab_size"] - 1, 0, -1))
  inputs, targets = OBJECTIVES["spans"].pair(tokens, mask, ids, rng())
  assert (inputs.tolist(), targets.tolist()) == (example["inputs"], example["targets"])


def test_masks_have_the_authors_structure(golden):
  for example in golden["masks"].values():
    args = example["length"], example["noise_density"], example["mean_noise_span_length"]
    theirs = np.array(example["mask"], bool)
    for seed in range(50):
      ours = spans.random_spans(*args, rng(seed))
      for mask in (ours, theirs):
        assert not mask[0] and mask[-1] and len(mask) == args[0]
      assert (ours.sum(), spans.begins(ours).sum()) == (theirs.sum(), spans.begins(theirs).sum())


def test_a_prefix_and_what_follows_it_are_the_authors(golden):
  for example in golden["prefix_lm"]["decoder_only"]:
    tokens = np.array(example["targets"])
    weights = np.array(example["decoder_loss_weights"], bool)
    real = tokens != 0
    # Of an encoder and a decoder: the target is what has a weight there.
    mask = np.arange(real.sum()) >= example["split"]
    inputs, targets = OBJECTIVES["prefix_lm"].pair(tokens[real], mask, IDS, rng())
    assert targets.tolist() == tokens[weights].tolist()
    assert [*inputs, *targets] == tokens[real].tolist()

    class Drawn:
      """A generator that draws the example's split."""
      def integers(self, low, high):
        assert (low, high) == (1, real.sum())
        return example["split"]

    # Of one stack, on rows without a start token: as many predict as there.
    batch = {"text": tokens[None], "text_segment_ids": real[None].astype(np.int32)}
    prefix = Prefix().alter(batch, [Drawn()])["text_prefix"][0]
    assert prefix.sum() == example["split"] == sum(example["decoder_causal_attention"]) - 1
    np.testing.assert_array_equal(real & (prefix == 0), weights)


# ------------------------------------------------------------------------ equal chances


def test_maskings_are_equally_likely():
  drawn = collections.Counter(
      tuple(spans.random_spans(8, 0.375, 1.5, rng(seed)).tolist()) for seed in range(8000))
  assert len(drawn) == 8  # 4 ways to part 5 kept tokens in two, 2 for 3 hidden ones
  assert all(sum(mask) == 3 and spans.begins(np.array(mask)).sum() == 2 for mask in drawn)
  assert chi_square(np.array([*drawn.values()])) < 4


def test_sets_of_tokens_are_equally_likely():
  drawn = collections.Counter(
      tuple(np.flatnonzero(spans.random_tokens(5, 0.4, rng(seed)))) for seed in range(4000))
  assert len(drawn) == 10 and chi_square(np.array([*drawn.values()])) < 4


def test_splits_are_equally_likely():
  bound = BoundPairs(TextPairs("prefix_lm"), IDS)
  drawn = [len(bound.pair(np.arange(6), rng(seed))[0]) - 1 for seed in range(4000)]
  counts = np.bincount(drawn, minlength=7)
  assert counts[0] == counts[6] == 0 and chi_square(counts[1:6]) < 4


# ------------------------------------------------------------------------------- pairs


class Numbers:
  """A tokenizer of numbers: each is its own id."""
  eos_id, sentinel_ids = END, SENTINELS

  def encode_batch(self, texts):
    return [np.array([*map(int, text.split())], np.int32) for text in texts]

  def plain_ids(self):
    return IDS.plain


def documents(*lengths):
  source, first = Rows(), FIRST
  for n in lengths:
    source.append({"text": " ".join(map(str, range(first, first + n)))})
    first += n
  assert first <= FIRST + SIZE
  return source


SOURCE = documents(90, 0, 3, 1, 16, 17, 100, 2, 40, 33, 7, 8)
LENGTHS = 24, 24


def prepared_of(op, layout=None, source=SOURCE):
  layout = layout or Pack(lengths=LENGTHS, max_segments=5)
  recipe = Recipe([Tokenize(fields=("text",), end=False)], op, layout, [])
  tokenizers = {TOKENIZER: Numbers()}
  return prepare([source], recipe, tokenizers), recipe.bind(tokenizers)


def pairs_of(batches):
  """Source and target of every segment, as lists."""
  pairs = []
  for batch in batches:
    for row in range(len(batch["src"])):
      for s in range(1, batch["src_segment_ids"][row].max(initial=0) + 1):
        pairs.append(tuple(batch[f][row][batch[f"{f}_segment_ids"][row] == s].tolist()
                           for f in ("src", "tgt")))
  return pairs


def text_of(inputs, targets):
  """The text that a pair with sentinels is of."""
  parts, sentinel = {}, None
  for token in targets:
    if token in SENTINELS:
      sentinel, parts[token] = token, []
    else:
      parts[sentinel].append(token)
  return [t for token in inputs for t in (parts.pop(token) if token in SENTINELS else [token])]


def check_pair(name, inputs, targets):
  """Returns the text of a pair, given without end tokens, after checking what was hidden."""
  if name in ("spans", "replace_spans"):
    text = text_of(inputs, targets)
    hidden, number = spans.counts(len(text), 0.15, 3.0)
    sentinels = [t for t in inputs if t in SENTINELS]
    assert sentinels == [t for t in targets if t in SENTINELS] == [*SENTINELS[:len(sentinels)]]
    assert len(targets) - len(sentinels) == hidden
    assert name != "spans" or len(sentinels) == number
    return text
  if name in ("mass", "bert"):
    changed = [(a, b) for a, b in zip(inputs, targets, strict=True) if a != b]
    hidden = spans.counts(len(targets), 0.15, 3.0)[0]
    # A random token may be the one that was there.
    assert len(changed) == hidden if name == "mass" else hidden - 1 <= len(changed) <= hidden
    assert name == "bert" or {a for a, _ in changed} == {SENTINELS[0]}
    return targets
  if name == "deshuffle":
    assert sorted(inputs) == sorted(targets)
    return targets
  if name == "drop":
    assert len(targets) == spans.counts(len(inputs) + len(targets), 0.15, 3.0)[0]
    return sorted(inputs + targets)
  if name == "prefix_lm":
    assert inputs and targets
    return inputs + targets
  assert name == "lm" and not inputs
  return targets


@pytest.mark.parametrize("layout", [Pack, Pad])
@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_pairs_have_all_of_the_documents(name, running, layout):
  prepared, recipe = prepared_of(TextPairs(name, running=running), layout(lengths=LENGTHS))
  batches = [*eval_batches(prepared, recipe, 4)]
  texts = []
  for inputs, targets in pairs_of(batches):
    assert inputs.pop() == targets.pop() == END
    texts.append(check_pair(name, inputs, targets))
    assert texts[-1] == [*range(texts[-1][0], texts[-1][0] + len(texts[-1]))]  # in order
  every = sorted(t for text in texts for t in text)
  expected = [t for i in range(len(prepared)) for t in prepared.example(i)["text"].tolist()]
  assert len(every) == len({*every}) and {*every} <= {*expected}
  # A token that cuts leave alone is in no pair: at the ends of a long text, or the only one of it.
  assert len(expected) - len(every) <= (2 if running else 9)
  longest = max(map(len, texts))
  bound = recipe.form
  assert longest == bound.longest(dict(src=24, tgt=24))
  assert any(a > b for a, b in zip(bound.op.most(longest + 1), LENGTHS))


def test_a_full_row_of_t5():
  """Rows of 512 and 114 tokens hold 568 of text."""
  bound = BoundPairs(TextPairs(), IDS._replace(sentinels=range(100)))
  assert bound.longest(dict(src=512, tgt=114)) == 568
  inputs, targets = bound.pair(np.arange(568) + FIRST, rng())
  assert (len(inputs), len(targets)) == (512, 114)


def test_random_tokens_of_bert_are_a_tenth():
  bound = BoundPairs(TextPairs("bert"), IDS)
  text = np.full(400, FIRST)
  inputs = np.concatenate([bound.pair(text, rng(seed))[0][:-1] for seed in range(200)])
  changed = inputs[inputs != FIRST]
  assert abs(np.mean(changed != SENTINELS[0]) - 0.1 * (1 - 1 / SIZE)) < 0.01
  assert set(changed) - {SENTINELS[0]} <= set(IDS.plain)


def test_orders_of_deshuffling_are_equally_likely():
  bound = BoundPairs(TextPairs("deshuffle"), IDS)
  drawn = collections.Counter(tuple(bound.pair(np.arange(3), rng(i))[0]) for i in range(3000))
  assert len(drawn) == 6 and chi_square(np.array([*drawn.values()])) < 4


def test_byt5_has_its_own_ids():
  tokenizer = TOKENIZERS["bytes"](iter(()), byt5=True)
  assert (tokenizer.vocab_size, tokenizer.pad_id, tokenizer.eos_id, tokenizer.unk_id) == (
      384, 0, 1, 2)
  assert tokenizer.encode("Ab é").tolist() == [68, 101, 35, 198, 172]  # bytes and 3
  assert [*tokenizer.sentinel_ids] == [*range(258, 247, -1)]
  bound = TextPairs(mean_length=20.0).bind({TOKENIZER: tokenizer})
  text = tokenizer.encode("a" * 300)
  inputs, targets = bound.pair(text, rng())
  assert [i for i in inputs if i != text[0]] == [258, 257, 1]
  assert [i for i in targets if i != text[0]] == [258, 257, 1]
  assert (len(inputs), len(targets)) == (300 - 45 + 3, 45 + 3)


@pytest.mark.parametrize("kind", ["bpe", "byte_bpe", "wordpiece", "unigram"])
def test_sentinels_of_a_trained_tokenizer_count_down_from_its_last_id(kind):
  texts = ["the cat sat on the mat", "a dog and a cat met"] * 3
  tokenizer = TOKENIZERS[kind](iter(texts), vocab_size=300, sentinels=5)
  last = tokenizer.vocab_size - 1
  assert last < 300
  again = pickle.loads(pickle.dumps(tokenizer))
  for t in (tokenizer, again):
    assert [*t.sentinel_ids] == [*range(last, last - 5, -1)]
    assert t.tokens(t.sentinel_ids) == [f"<extra_id_{i}>" for i in range(5)]
    assert not {*t.sentinel_ids} & {*t.plain_ids().tolist()}
  assert not {*tokenizer.sentinel_ids} & {*tokenizer.encode("the <extra_id_0> cat").tolist()}
  assert not TOKENIZERS[kind](iter(texts), vocab_size=300).sentinel_ids


# ---------------------------------------------------------------------------- the stream


@pytest.mark.parametrize("name", OBJECTIVES)
def test_batches_are_functions_of_seed_and_step(name):
  prepared, recipe = prepared_of(TextPairs(name))
  stream = lambda **edits: Stream(prepared, recipe, **dict(
      seed=5, batch_size=4, window=5, counts=prepared.sizes) | edits)
  whole = stream()
  batches = [whole.batch(step) for step in range(STEPS)]
  assert whole.cursor(STEPS)[0] > 2
  for step in range(0, STEPS, 3):
    resumed = pickle.loads(pickle.dumps(stream(cursor=whole.cursor(step))))
    assert_same(resumed.batch(step), batches[step])
  parts = [stream(rows=rows) for rows in ([2, 0], [1, 3])]
  for step, batch in enumerate(batches):
    a, b = (part.batch(step) for part in parts)
    for key, value in batch.items():
      np.testing.assert_array_equal(value, np.stack([a[key][1], b[key][0], a[key][0], b[key][1]]))
  assert_same_all(iterate(whole, 0, STEPS, threads=3, workers=0), batches)
  assert stream(seed=6).batch(0)["src"].tolist() != batches[0]["src"].tolist()
  example = example_batch(recipe, 4)
  assert {k: (v.shape, v.dtype) for k, v in example.items()} == {
      k: (v.shape, v.dtype) for k, v in batches[0].items() if k != "ids"}


def test_a_text_has_other_spans_in_every_epoch():
  prepared, recipe = prepared_of(TextPairs(mean_length=1.0), source=documents(20))
  stream = Stream(prepared, recipe, seed=1, batch_size=1, window=0, counts=[1])
  pairs = {str(pairs_of([stream.batch(step)])) for step in range(6)}
  assert len(pairs) == 6


# ----------------------------------------------------------------------------- mistakes


def test_mistakes_are_told():
  with pytest.raises(ConfigError, match="op text_pairs: objective='span': did you mean 'spans'"):
    TextPairs("span")
  bound = BoundPairs(TextPairs(), IDS._replace(sentinels=()))
  with pytest.raises(ConfigError, match="texts of 568 tokens need 28 sentinels, and the tokenizer"
                     r" has 0; one that is trained here gets them by tokenizer.kind.sentinels=28"):
    bound.longest(dict(src=512, tgt=114))
  with pytest.raises(ConfigError, match=r"rows of lengths=\(9, 2\) have no room for a pair"):
    bound.longest(dict(src=9, tgt=2))
  prepared, recipe = prepared_of(TextPairs(), source=documents(1, 0, 1))
  with pytest.raises(DataError, match="3 documents have no two tokens to make a pair of"):
    [*eval_batches(prepared, recipe, 4)]
  many = dataclasses.replace(bound, op=TextPairs("replace_spans"))
  with pytest.raises(ConfigError, match="need 77 sentinels"):
    many.longest(dict(src=512, tgt=512))
