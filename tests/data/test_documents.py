"""Batches of documents: examples formed and tokens masked anew in every epoch."""

import collections
import itertools
import pickle

from absl import logging
import numpy as np
import pytest

from jtx.data import order, pipeline
from jtx.data.ops.pretrain import DocSentences, FullSentences, SegmentPair, SentencePair
from jtx.data.ops.sentences import EncodeSentences, SplitSentences
from jtx.data.packing import Pack, Pad
from jtx.data.pipeline import eval_batches, example_batch, iterate
from jtx.data.prepared import prepare
from jtx.data.recipes import Recipe
from jtx.errors import ConfigError, DataError
from tests.data.streams import (
    LAYOUTS, STEPS, Rows, assert_same, assert_same_all, document_stream, documents_of, ids_of)

FORMS = {"full": FullSentences(), "doc": DocSentences(), "segments": SegmentPair(),
         "sentences": SentencePair(), "order": SegmentPair(order=True)}


@pytest.fixture(scope="module", params=[(f, l) for f in FORMS for l in ("pad", "pack")]
                + [("doc", "trim"), (None, "pack")], ids=str)
def formed(request, corpus):
  """Documents, recipe, and STEPS batches over several windows."""
  name, layout = request.param
  if name is None:  # every document is an example
    prepared, recipe = documents_of(corpus, None, Pack(("text",), (120,), max_segments=3))
  else:
    prepared, recipe = documents_of(corpus, FORMS[name], LAYOUTS[layout])
  stream = document_stream(prepared, recipe)
  batches = [stream.batch(step) for step in range(STEPS)]
  assert stream.cursor(STEPS)[0] > 1
  return prepared, recipe, batches


def test_documents_any_number_of_readers_reads_the_same(formed):
  prepared, recipe, batches = formed
  for readers in ([range(4), range(4, 8)], [[5, 0], [1, 7, 2], [3, 4, 6]]):
    streams = [document_stream(prepared, recipe, rows=rows) for rows in readers]
    for step in range(STEPS):
      joined = {k: np.full_like(v, 99) for k, v in batches[step].items()}
      for rows, stream in zip(readers, streams):
        for key, value in stream.batch(step).items():
          joined[key][np.asarray(rows)] = value
      assert_same(joined, batches[step])


def test_documents_resume_at_any_step_with_and_without_cursor(formed):
  prepared, recipe, batches = formed
  whole = document_stream(prepared, recipe)
  for step in range(STEPS):
    cursor = whole.cursor(step)
    for edit in ({}, {"cursor": cursor}):
      stream = pickle.loads(pickle.dumps(document_stream(prepared, recipe, **edit)))
      assert stream.cursor(step) == cursor
      assert_same(stream.batch(step), batches[step])
      assert_same(stream.batch(STEPS - 1), batches[STEPS - 1])


def test_documents_are_the_same_for_threads_and_as_the_example_says(formed):
  prepared, recipe, batches = formed
  stream = document_stream(prepared, recipe)
  assert_same_all(iterate(stream, 0, STEPS, threads=3, workers=0), batches)
  example = example_batch(recipe, 8)
  assert example.keys() == batches[0].keys() - {"ids"}
  trimmed = getattr(recipe.layout, "trim", False)
  for key, value in example.items():
    assert value.dtype == batches[0][key].dtype and not value[value != -1].any()
    assert value.shape == batches[0][key].shape or trimmed


def test_documents_another_seed_gives_other_batches(formed):
  prepared, recipe, batches = formed
  other = document_stream(prepared, recipe, seed=6).batch(0)
  assert other["text"].tolist() != batches[0]["text"].tolist()


def test_worker_processes_read_the_same_documents(corpus):
  prepared, recipe = documents_of(corpus, SegmentPair())
  stream = document_stream(prepared, recipe)
  expected = [stream.batch(step) for step in range(4)]
  assert_same_all(iterate(stream, 0, 4, threads=1, workers=1), expected)


def unmasked(batch):
  """Rows of a batch, as they were before tokens were hidden."""
  text = batch["text"].copy()
  for r, (at, labels) in enumerate(zip(batch["mlm_positions"], batch["mlm_labels"])):
    text[r, at[labels >= 0]] = labels[labels >= 0]
  return text


def rows_by_content(batches):
  """Of every row that has text: what it was before tokens were hidden -> where they were."""
  return {text[segments > 0].tobytes(): (at.tobytes(), masked.tobytes())
          for batch in batches for text, segments, at, masked in zip(
              unmasked(batch), batch["text_segment_ids"], batch["mlm_positions"], batch["text"])}


def epochs_of(stream, number, windows=1):
  """The rows of whole epochs, in batches of one row."""
  assert stream.batch_size == 1
  epochs = [[] for _ in range(number)]
  for step in itertools.count():
    epoch = stream.cursor(step)[0] // windows
    if epoch == number:
      return epochs
    epochs[epoch].append(stream.batch(step))


def test_epochs_have_the_same_documents_with_other_masks(corpus):
  """doc_sentences makes the same rows in every epoch; what is hidden in them is drawn anew."""
  prepared, recipe = documents_of(corpus, DocSentences())
  epochs = epochs_of(document_stream(prepared, recipe, batch_size=1, window=0), 3)
  first, second, third = map(rows_by_content, epochs)
  assert first.keys() == second.keys() == third.keys() and len(first) == len(epochs[0]) > 50
  for a, b in ((first, second), (second, third)):
    assert sum(a[row] == b[row] for row in a) < 0.2 * len(a)  # short rows have few places
  orders = [[row.tobytes() for batch in epoch for row in unmasked(batch)] for epoch in epochs]
  assert orders[0] != orders[1] != orders[2]


@pytest.mark.parametrize("name", ["segments", "sentences", "order", "full"])
def test_epochs_form_other_examples(corpus, name):
  prepared, recipe = documents_of(corpus, FORMS[name])
  first, second = epochs_of(document_stream(prepared, recipe, batch_size=1, window=0), 2)
  a, b = (rows_by_content(epoch).keys() for epoch in (first, second))
  assert len(a & b) < 0.5 * min(len(a), len(b))


@pytest.mark.parametrize("form", [SegmentPair(order=True), SentencePair(order=True)])
def test_one_document_makes_other_pairs_in_every_epoch(corpus, form):
  """With one document the order of documents is no part of what changes."""
  source = Rows([max(corpus[0], key=lambda e: len(e["text"]))])
  prepared, recipe = documents_of((source, corpus[1]), form, alter=())
  epochs = epochs_of(document_stream(prepared, recipe, batch_size=1, window=0), 6)
  made = {tuple(sorted(b["text"].tobytes() + b["label"].tobytes() for b in epoch))
          for epoch in epochs}
  assert len(made) == 6


@pytest.mark.parametrize("name", ["full", "doc"])
@pytest.mark.parametrize("window", [0, 6])
def test_every_token_of_every_document_comes_once_an_epoch(corpus, name, window):
  prepared, recipe = documents_of(corpus, FORMS[name])
  stream = document_stream(prepared, recipe, batch_size=1, window=window)
  windows = 1 if not window else 5  # of 30 documents
  special = [corpus[1]["text"].bos_id, corpus[1]["text"].eos_id]
  for epoch in epochs_of(stream, 3, windows):
    tokens = np.concatenate([unmasked(batch)[batch["text_segment_ids"] > 0] for batch in epoch])
    counts = np.bincount(tokens[~np.isin(tokens, special)], minlength=200)
    np.testing.assert_array_equal(counts, np.bincount(prepared.values["text"], minlength=200))


def test_empty_documents_are_dropped_and_counted(corpus, monkeypatch):
  lines = []
  monkeypatch.setattr(logging, "info", lambda line, *args: lines.append(line % args))
  prepared, _ = documents_of(corpus, DocSentences())
  assert lines == ["rows: 30 of 31 examples (dropped: split_sentences: 1)"]
  assert prepared.ids.tolist() == [*range(7), *range(8, 31)]
  # Documents are longer than a row, and kept.
  lengths = prepared.lengths(np.arange(30), ("text",))
  assert lengths.max() > 24 and len(prepared.values["text_marks"]) == lengths.sum()


def test_sources_without_text_are_named(corpus):
  recipe = Recipe([SplitSentences(), EncodeSentences()], DocSentences(), LAYOUTS["pad"], [])
  with pytest.raises(DataError) as e:
    prepare([Rows([{"text": ""}, {"text": "\n"}])], recipe, corpus[1])
  assert str(e.value) == "rows: data.ops dropped all of its 2 examples (split_sentences: 2)"
  with pytest.raises(DataError, match=r"op encode_sentences: example 0 has no sentences, which"):
    prepare([Rows([{"text": "a"}])], recipe._replace(prepare=[EncodeSentences()]), corpus[1])


def test_a_window_of_one_document_has_no_pairs(corpus):
  prepared, recipe = documents_of(corpus, SegmentPair())
  with pytest.raises(DataError, match="needs two documents or more .* put more into data.window"):
    document_stream(prepared, recipe, window=1).batch(0)
  with pytest.raises(ConfigError, match="data.ops: rows of 3 tokens have no room for two texts"):
    document_stream(prepared, recipe._replace(layout=Pad(("text",), (3,)))).batch(0)


@pytest.mark.parametrize("batch_size", [8, 5])
def test_evaluation_of_documents_is_the_same_every_time(formed, batch_size):
  prepared, recipe, _ = formed
  first, again = (list(eval_batches(prepared, recipe, batch_size)) for _ in range(2))
  assert_same_all(again, first)
  ids = ids_of(first)
  assert len(set(ids)) == len(ids)
  examples = pipeline.planned(recipe, prepared, np.arange(len(prepared)),
                              order.rng(0, "form", 0)).examples
  assert sorted(ids) == sorted(examples.ids.tolist())
  assert all(len(batch["ids"]) == batch_size for batch in first)
  assert sum(int((batch["mlm_labels"] >= 0).any(1).sum()) for batch in first) == sum(
      int((batch["ids"][:, 0] >= 0).sum()) for batch in first)
  for rows in ([0, 3], range(4, 5)):
    expected = [{k: v[np.asarray(rows)] for k, v in batch.items()} for batch in first]
    assert_same_all(eval_batches(prepared, recipe, batch_size, rows), expected)


def test_rows_of_pairs_have_labels_of_their_texts(corpus):
  """Packed, each text of a row has its own label and types, which do not go over into the next."""
  prepared, recipe = documents_of(corpus, SegmentPair(), LAYOUTS["pack"], alter=())
  stream = document_stream(prepared, recipe)
  seen = collections.Counter()
  for step in range(6):
    batch = stream.batch(step)
    assert batch["label"].shape == (8, 4) == batch["ids"].shape
    assert batch["text_marks"].dtype == np.uint8
    for r in range(8):
      for segment in range(1, 1 + int((batch["ids"][r] >= 0).sum())):
        here = batch["text_segment_ids"][r] == segment
        text, types = batch["text"][r, here], batch["text_types"][r, here]
        ends = np.flatnonzero(text == 2)
        assert text[0] == 1 and len(ends) == 2 and ends[1] == len(text) - 1
        assert types.tolist() == [0] * (ends[0] + 1) + [1] * (len(text) - ends[0] - 1)
        seen[int(batch["label"][r, segment - 1])] += 1
      assert not batch["label"][r, int((batch["ids"][r] >= 0).sum()):].any()
  assert min(seen[0], seen[1]) > 20 and set(seen) == {0, 1}
