"""BART's noise: shares of words and spans over many rows, and what each kind leaves of a text."""

import itertools
import pickle

import numpy as np
import pytest

from jtx.data.op import TOKENIZER
from jtx.data.ops import denoise
from jtx.data.ops.denoise import BoundDenoise, Denoise
from jtx.data.ops.pretrain import Specials
from jtx.data.ops.sentences import SENTENCE, WORD
from jtx.data.packing import Pad
from jtx.data.pipeline import Stream
from jtx.data.recipes import Recipe
from jtx.data.tokenizers.kinds import TOKENIZERS
from jtx.errors import ConfigError, DataError
from tests.data.ops.documents import BODY, documents_of, drawn_documents
from tests.data.streams import assert_same
from tests.helpers import assert_share, chi_square

START, END, MASK = 1, 2, 4
PLAIN = np.arange(5, 50, dtype=np.int32)
SPECIALS = Specials((np.array([START]), np.array([END])), (), 1, ())
ONLY_MASKS = dict(random=0.0, permute=0.0)
ROWS = 10_000


def bound(**fields):
  return BoundDenoise(Denoise(**fields), SPECIALS, MASK, PLAIN)


def rng(seed=0):
  return np.random.default_rng(seed)


def text_of(words, sentences=1, per_word=1):
  """Tokens that are all different, and their marks."""
  size = words * per_word
  marks = np.zeros(size, np.uint8)
  marks[::per_word] = WORD
  marks[np.linspace(0, words, sentences, endpoint=False).astype(int) * per_word] |= SENTENCE
  return BODY + np.arange(size, dtype=np.int32), marks


@pytest.fixture
def drawn(monkeypatch):
  """Lengths of all spans that were drawn."""
  found, original = [], denoise.span_words

  def recorded(*args):
    found.append(original(*args))
    return found[-1]

  monkeypatch.setattr(denoise, "span_words", recorded)
  return found


@pytest.mark.parametrize("per_word", [1, 3])
def test_shares_of_words_and_of_empty_spans(drawn, per_word):
  """Over 10,000 rows 30 % of the words are hidden, and 3 % of the spans have none."""
  op, random = bound(permute=0.0), rng()
  total = hidden = masks = replaced = 0
  for words in random.integers(60, 140, ROWS).tolist():
    tokens, marks = text_of(words, 5, per_word)
    noised = op.noised(tokens, marks, random)
    kept = noised[noised >= BODY]
    assert (np.diff(kept) > 0).all() and len(noised) <= len(tokens)
    total, hidden = total + words, hidden + words - len(kept) // per_word
    masks, replaced = masks + len(noised) - len(kept), replaced + np.isin(noised, PLAIN).sum()
  spans = np.concatenate(drawn)
  assert abs(100 * hidden / total - 30) < 0.5
  assert hidden == spans.sum() and masks == len(spans)  # all that was drawn is in the rows
  assert abs(100 * np.mean(spans == 0) - 3.0) < 0.3
  assert abs(denoise.span_words(100_000, 3.5, random).mean() - 3.5) < 0.05
  assert_share(replaced, masks, 0.1)


def test_a_span_is_of_whole_words_and_one_mask():
  op = bound(**ONLY_MASKS)
  for seed in range(200):
    tokens, marks = text_of(20, 1, 3)
    noised = op.noised(tokens, marks, rng(seed)).tolist()
    kept = [t for t in noised if t != MASK]
    gaps = [kept[i:i + 3] for i in range(0, len(kept), 3)]
    assert all(word[0] % 3 == BODY % 3 and np.diff(word).tolist() == [1, 1] for word in gaps)
    hidden = 20 - len(gaps)
    assert hidden == 6 and 1 <= noised.count(MASK)
    # Between two words that were not neighbours there is a mask.
    for a, b in itertools.pairwise(noised):
      assert MASK in (a, b) or b == a + 1


def test_places_of_spans_are_equally_likely(monkeypatch):
  monkeypatch.setattr(denoise, "span_words", lambda _, __, rng: rng.permutation([2, 0]))
  op = bound(**ONLY_MASKS, rate=0.4)
  tokens, marks = text_of(5)
  texts = [tuple(op.noised(tokens, marks, rng(seed))) for seed in range(6000)]
  counts = np.unique(texts, axis=0, return_counts=True)[1]
  # The span, the empty one and the 3 words are in one of 20 orders; in 4 pairs of these the two
  # are neighbours and look the same.
  assert len(counts) == 16 and len(texts[0]) == 5
  counts = np.sort(counts)
  assert chi_square(counts[:12], 300) < 4 and chi_square(counts[12:], 600) < 4


def test_the_last_span_is_cut_and_no_text_gets_longer():
  for seed in range(300):
    spans = denoise.span_words(7, 3.5, rng(seed))
    assert spans.sum() == 7
  assert denoise.span_words(0, 3.5, rng()).tolist() == []
  op = bound(**ONLY_MASKS, span=0.3)  # three quarters have no words
  for words, seed in itertools.product(range(1, 9), range(50)):
    tokens, marks = text_of(words)
    noised = op.noised(tokens, marks, rng(seed))
    assert MASK in noised and len(noised) <= words


def test_token_masking_and_deletion():
  tokens, marks = text_of(40, 4)
  noised = bound(noise="mask", permute=0.0).noised(tokens, marks, rng())
  assert len(noised) == 40 and (noised != tokens).sum() == 12
  assert set(noised[noised != tokens]) <= {MASK, *PLAIN}
  noised = bound(noise="delete", permute=0.0).noised(tokens, marks, rng())
  assert len(noised) == 28 and set(noised) < set(tokens) and (np.diff(noised) > 0).all()
  places = np.concatenate([np.flatnonzero(bound(noise="mask", **ONLY_MASKS).noised(
      tokens, marks, rng(i)) == MASK) for i in range(1000)])
  assert chi_square(np.bincount(places, minlength=40)) < 4


def test_all_orders_of_sentences_are_equally_likely():
  tokens, marks = text_of(6, 3)
  orders = [tuple(bound(noise="none").noised(tokens, marks, rng(i)) - BODY) for i in range(3000)]
  found, counts = np.unique(orders, axis=0, return_counts=True)
  assert len(found) == 6 and chi_square(counts) < 4
  assert all({(0, 1), (2, 3), (4, 5)} == {tuple(o[i:i + 2]) for i in (0, 2, 4)} for o in orders)


def test_a_share_of_sentences_changes_places():
  starts = np.arange(0, 100, 2)
  for seed in range(50):
    order = denoise.permuted(starts, 100, 0.2, rng(seed))
    moved = (order[::2] != starts).sum()
    assert 5 <= moved <= 10 and sorted(order) == [*range(100)]
  np.testing.assert_array_equal(denoise.permuted(starts, 100, 0.0, rng()), np.arange(100))


def test_rotation():
  tokens, marks = text_of(7, 2)
  op = bound(noise="none", permute=0.0, rotate=1.0)
  texts = [op.noised(tokens, marks, rng(i)).tolist() for i in range(2100)]
  assert all(t == [*tokens[t[0] - BODY:], *tokens[:t[0] - BODY]] for t in texts)
  assert chi_square(np.unique([t[0] for t in texts], return_counts=True)[1]) < 4
  rarely = bound(noise="none", permute=0.0, rotate=0.25)
  turned = sum(rarely.noised(tokens, marks, rng(i))[0] != BODY for i in range(2000))
  assert_share(turned, 2000, 0.25 * 6 / 7)


# ------------------------------------------------------------------------------- rows


@pytest.mark.parametrize("fields", [{}, dict(noise="mask"), dict(noise="delete"),
                                    dict(noise="none", rotate=1.0)])
def test_targets_are_all_of_the_documents_in_whole_sentences(fields):
  documents = drawn_documents(1, 40)
  numbers = rng(2).permutation(40)
  formed = bound(**fields).form(documents, numbers, dict(src=40, tgt=50), rng(3))
  targets = []
  for i in range(len(formed)):
    example = formed.example(i)
    assert [len(example[f]) for f in ("src", "tgt")] == formed.lengths(
        np.array([i]), ("src", "tgt"))[0].tolist()
    assert all(e[0] == START and e[-1] == END and len(e) <= 40 for e in example.values())
    assert {*example["src"]} - {MASK, *PLAIN} <= {*example["tgt"]}
    targets += example["tgt"][1:-1].tolist()
    marks = documents.values["text_marks"][example["tgt"][1] - BODY]
    assert marks & SENTENCE  # none of these is longer than a row
  expected = [BODY + t for n in numbers for t in range(*documents.offsets["text"][n:n + 2])]
  assert targets == expected


def test_rows_are_functions_of_seed_and_step():
  documents = drawn_documents(4, 30)
  recipe = Recipe([], bound(), Pad(lengths=(32, 32)), [])
  stream = lambda **edits: Stream(documents, recipe, **dict(
      seed=5, batch_size=4, window=7, counts=documents.sizes) | edits)
  whole = stream()
  batches = [whole.batch(step) for step in range(12)]
  for step in range(0, 12, 5):
    resumed = pickle.loads(pickle.dumps(stream(cursor=whole.cursor(step))))
    assert_same(resumed.batch(step), batches[step])
  assert any((b["src"] == MASK).any() for b in batches)


def test_a_text_has_other_noise_in_every_epoch():
  documents = documents_of([10, 5])
  stream = Stream(documents, Recipe([], bound(), Pad(lengths=(32, 32)), []), seed=0, batch_size=1,
                  window=0, counts=[1])
  batches = [stream.batch(i) for i in range(4)]
  assert len({str(b["src"]) for b in batches}) == 4 and len({str(b["tgt"]) for b in batches}) == 1


def test_mistakes_are_told():
  with pytest.raises(ConfigError, match="op denoise: noise='infil': did you mean 'infill'"):
    Denoise("infil")
  tokenizer = TOKENIZERS["bpe"](iter(["a cat sat"] * 3), vocab_size=60)
  with pytest.raises(ConfigError, match="no mask token; one that is trained here gets it by"
                     " tokenizer.kind.mask=True"):
    Denoise().bind({TOKENIZER: tokenizer})
  assert Denoise("delete").bind({TOKENIZER: tokenizer}).specials.single[0].tolist() == [START]
  documents = documents_of([3])
  with pytest.raises(ConfigError, match="rows of 2 tokens have no room for text beside 2 special"):
    bound().form(documents, np.arange(1), dict(src=2, tgt=9), rng())
  with pytest.raises(DataError, match="op denoise: 0 documents have no token"):
    bound().form(documents, np.arange(0), dict(src=20, tgt=20), rng())
