"""Rows of documents for language models: every token is predicted once, in any row and order."""

import pickle

import numpy as np
import pytest

from jtx.data.ops.documents import Documents, Windows
from jtx.data.ops.masking import Prefix
from jtx.data.ops.text import Tokenize
from jtx.data.order import mixture_sizes
from jtx.data.packing import Pack, Pad
from jtx.data.pipeline import Stream, eval_batches, example_batch, iterate
from jtx.data.prepared import prepare
from jtx.data.recipes import Recipe
from jtx.errors import DataError
from tests.data.streams import STEPS, Rows, assert_same, assert_same_all
from tests.helpers import chi_square

BOS, EOS, LENGTH = 1, 2, 16


class Numbers:
  """A tokenizer of numbers: each is its own id."""
  bos_id, eos_id = BOS, EOS

  def encode_batch(self, texts):
    return [np.array([*map(int, text.split())], np.int32) for text in texts]


def documents(*lengths, first=10):
  """Documents whose tokens are all different."""
  source = Rows()
  for n in lengths:
    source.append({"text": " ".join(map(str, range(first, first + n)))})
    first += n
  return source


SOURCE = documents(40, 0, 3, 1, 16, 17, 100, 2, 5, 33, 7, 8)
PACK, PAD = Pack(("text",), (LENGTH,), max_segments=6), Pad(("text",), (LENGTH,))


def prepared_of(*sources, form=Documents(), layout=PACK, alter=(), **ends):
  recipe = Recipe([Tokenize(fields=("text",), **ends)], form, layout, list(alter))
  tokenizers = {"text": Numbers()}
  return prepare(sources, recipe, tokenizers), recipe.bind(tokenizers)


def stream_of(prepared, recipe, **edits):
  options = {"seed": 5, "batch_size": 4, "window": 5, "counts": prepared.sizes}
  return Stream(prepared, recipe, **options | edits)


def texts_of(prepared):
  return [prepared.example(i)["text"].tolist() for i in range(len(prepared))]


def pairs_of(batches):
  """(token, the one that it predicts) of all places that predict, and of each row and segment."""
  pairs, inputs = [], []
  for batch in batches:
    for text, following, segments, positions in zip(*(batch[f"text{end}"] for end in (
        "", "_next", "_segment_ids", "_positions"))):
      assert not text[segments == 0].any() and not following[segments == 0].any()
      for s in range(1, segments.max(initial=0) + 1):
        own = segments == s
        np.testing.assert_array_equal(positions[own], np.arange(own.sum()))
        inside = text[own][1:], following[own][:-1]
        assert all(b in (-1, a) for a, b in zip(*inside))  # the row's own tokens are its labels
        inputs.append(text[own].tolist())
        pairs += [(a, b) for a, b in zip(text[own].tolist(), following[own].tolist()) if b >= 0]
  return pairs, inputs


def follow(tokens):
  return list(zip(tokens, tokens[1:]))


@pytest.mark.parametrize("layout", [PACK, PAD])
@pytest.mark.parametrize("ends", [{}, dict(end=False), dict(begin=True)])
def test_every_token_but_a_documents_first_is_predicted_once(layout, ends):
  prepared, recipe = prepared_of(SOURCE, layout=layout, **ends)
  pairs, inputs = pairs_of(eval_batches(prepared, recipe, 4))
  assert sorted(pairs) == sorted(p for text in texts_of(prepared) for p in follow(text))
  assert max(map(len, inputs)) == LENGTH
  if ends.get("begin"):
    assert all(text[0] == BOS and text[-1] == EOS for text in texts_of(prepared))
    assert {b for _, b in pairs} == {EOS, *range(10, 10 + 232)}


def test_running_text_crosses_borders_and_rows_are_full():
  prepared, recipe = prepared_of(SOURCE, form=Documents(running=True))
  batches = list(eval_batches(prepared, recipe, 4))
  pairs, inputs = pairs_of(batches)
  whole = [token for text in texts_of(prepared) for token in text]
  assert sorted(pairs) == sorted(follow(whole))
  assert sorted(map(len, inputs))[2:] == [LENGTH] * (len(inputs) - 2)  # all but the two ends
  assert all(inside in [whole[i:i + len(inside)] for i in range(len(whole))] for inside in inputs)


def test_an_epoch_has_every_token_once_and_other_cuts_than_the_next():
  for form in (Documents(), Documents(running=True)):
    prepared, recipe = prepared_of(documents(100, 90, 80), form=form)
    stream = stream_of(prepared, recipe, batch_size=1, window=0)
    epochs = [[], []]
    for step in range(60):
      if (epoch := stream.cursor(step)[0]) < 2:
        epochs[epoch].append(stream.batch(step))
    (first, a), (second, b) = map(pairs_of, epochs)
    # An end token is followed by another document's first.
    inside = sorted(p for text in texts_of(prepared) for p in follow(text))
    assert [sorted(p for p in pairs if p[0] != EOS) for pairs in (first, second)] == [inside] * 2
    assert {tuple(x) for x in a} & {tuple(x) for x in b} == set()


def test_the_first_cut_is_at_every_place_as_often():
  prepared, recipe = prepared_of(documents(50), form=Documents(running=True))
  lengths = [recipe.form.form(prepared, np.arange(1), {"text": LENGTH}, np.random.default_rng(i))
             .lengths(np.arange(1), ("text",))[0, 0] for i in range(1600)]
  counts = np.bincount(lengths, minlength=LENGTH + 1)
  assert counts[0] == 0 and len(counts) == LENGTH + 1
  assert chi_square(counts[1:]) < 4


@pytest.mark.parametrize("running", [False, True])
def test_batches_are_functions_of_seed_and_step(running):
  prepared, recipe = prepared_of(SOURCE, form=Documents(running), alter=[Prefix()])
  whole = stream_of(prepared, recipe)
  batches = [whole.batch(step) for step in range(STEPS)]
  assert whole.cursor(STEPS)[0] > 2
  for step in range(0, STEPS, 3):
    resumed = pickle.loads(pickle.dumps(stream_of(prepared, recipe, cursor=whole.cursor(step))))
    assert_same(resumed.batch(step), batches[step])
  parts = [stream_of(prepared, recipe, rows=rows) for rows in ([2, 0], [1, 3])]
  for step, batch in enumerate(batches):
    a, b = (stream.batch(step) for stream in parts)
    for key, value in batch.items():
      np.testing.assert_array_equal(value, np.stack([a[key][1], b[key][0], a[key][0], b[key][1]]))
  assert_same_all(iterate(whole, 0, STEPS, threads=3, workers=0), batches)
  other = stream_of(prepared, recipe, seed=6).batch(0)
  assert other["text"].tolist() != batches[0]["text"].tolist()
  example = example_batch(recipe, 4)
  assert {k: (v.shape, v.dtype) for k, v in example.items()} == {
      k: (v.shape, v.dtype) for k, v in batches[0].items() if k != "ids"}


def test_sources_are_mixed_by_weight():
  small, large = documents(*[9] * 10), documents(*[9] * 30, first=5000)
  prepared, recipe = prepared_of(small, large)
  counts = mixture_sizes(prepared.sizes, (3, 1), None)
  stream = stream_of(prepared, recipe, counts=counts, window=0, batch_size=1)
  pairs = []
  for step in range(100):
    if stream.cursor(step)[0] == 0:
      pairs += pairs_of([stream.batch(step)])[0]
  assert counts == [30, 10]
  assert sum(a < 5000 for a, _ in pairs if a != EOS) == 3 * sum(a >= 5000 for a, _ in pairs)


def test_documents_of_one_token_predict_nothing():
  prepared, recipe = prepared_of(documents(1, 0, 1), end=False)
  with pytest.raises(DataError, match="3 documents have no token that another one follows"):
    list(eval_batches(prepared, recipe, 4))


# --------------------------------------------------------------------------- windows


@pytest.mark.parametrize("context, stride", [(16, 16), (16, 4), (16, 1), (7, 3), (300, 300)])
@pytest.mark.parametrize("running", [False, True])
def test_windows_predict_each_token_once_from_as_much_as_they_hold(context, stride, running):
  source = Rows(e for e in SOURCE if " " in e["text"])
  prepared, recipe = prepared_of(source, form=Windows(Documents(running), context, stride),
                                 layout=Pack(("text",), (context,)), begin=True)
  texts = texts_of(prepared)
  whole = [[token for text in texts for token in text]] if running else texts
  seen = {}
  for batch in eval_batches(prepared, recipe, 3):
    for text, following, segments in zip(*(batch[f"text{e}"] for e in (
        "", "_next", "_segment_ids"))):
      for s in range(1, segments.max(initial=0) + 1):
        own = text[segments == s].tolist(), following[segments == s].tolist()
        start, document = next((i, d) for d in whole for i in range(len(d))
                               if d[i:i + len(own[0])] == own[0])
        for place, target in enumerate(own[1], start):
          if target >= 0:
            key = id(document), place
            assert key not in seen and target == document[place + 1]
            seen[key] = place - start + 1  # tokens that it is predicted from
  assert len(seen) == sum(len(d) - 1 for d in whole)
  for (_, place), number in seen.items():
    assert number == place + 1 or context - stride < number <= context


# ---------------------------------------------------------------------------- prefix


def test_a_prefix_is_of_every_length_as_often():
  segments = np.array([[1] * 5 + [2] * 2 + [3] + [0] * 2])
  batch = {"text_segment_ids": segments}
  drawn = [Prefix().alter(batch, [np.random.default_rng(i)])["text_prefix"][0] for i in range(2000)]
  lengths = np.stack([[d[:5].sum(), d[5:7].sum(), d[7], d[8:].sum()] for d in drawn])
  assert all((np.diff(d[:5].astype(int)) <= 0).all() and d[5] == 1 for d in drawn)
  counts = np.bincount(lengths[:, 0], minlength=6)
  assert counts[0] == counts[5] == 0 and chi_square(counts[1:5]) < 4
  np.testing.assert_array_equal(np.unique(lengths[:, 1:], axis=0), [[1, 1, 0]])
