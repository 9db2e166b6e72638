"""Sources, recipes and streams that several tests of batches share."""

import numpy as np

from jtx.data.ops.masking import Mask
from jtx.data.ops.sentences import EncodeSentences, SplitSentences
from jtx.data.ops.text import Clean, Tokenize
from jtx.data.packing import Pack, Pad
from jtx.data.pipeline import Stream
from jtx.data.prepared import prepare
from jtx.data.recipes import Recipe

PACK = Pack(lengths=(24, 20), max_segments=4, open_rows=6)
PAD = Pad(lengths=(24, 20))
STEPS = 13


class ListSource:
  """Pairs of `size` examples whose words say where they come from."""

  def __init__(self, name, size):
    self.name, self.size = name, size

  def __len__(self):
    return self.size

  def __getitem__(self, i):
    return {"src": f"{self.name} {i} " + "s " * (i % 11), "tgt": f"{i} " + "t " * (i * 7 % 13)}


class Rows(list):
  name = "rows"


class Words:
  """A tokenizer: a number is its own id plus 10, other words are 3 to 9."""
  eos_id = 2

  def encode_batch(self, texts):
    ids = [[int(w) + 10 if w.isdigit() else 3 + ord(w[0]) % 7 for w in t.split()] for t in texts]
    return [np.array(i, np.int32) for i in ids]


TOKENIZERS = {"src": Words(), "tgt": Words()}


def recipe_of(layout, ops=()):
  return Recipe(list(ops), None, layout, [])


def prepared_of(*sizes, layout=PACK, ops=(Clean(), Tokenize())):
  sources = [ListSource(f"s{i}", n) for i, n in enumerate(sizes)]
  return prepare(sources, recipe_of(layout, ops), TOKENIZERS)


def stream_of(prepared, layout=PACK, counts=None, **edits):
  options = {"seed": 5, "batch_size": 8, "window": 50, "counts": counts or prepared.sizes}
  return Stream(prepared, recipe_of(layout), **options | edits)


def assert_same(a, b):
  assert a.keys() == b.keys()
  for key in a:
    assert a[key].dtype == b[key].dtype
    np.testing.assert_array_equal(a[key], b[key], err_msg=key)


def assert_same_all(batches, expected):
  batches = list(batches)
  assert len(batches) == len(expected)
  for a, b in zip(batches, expected):
    assert_same(a, b)


def ids_of(batches):
  """Example numbers in the order of the rows, padding left out."""
  ids = np.concatenate([b["ids"].reshape(-1) for b in batches])
  return ids[ids >= 0].tolist()


LAYOUTS = {"pad": Pad(("text",), (24,)), "trim": Pad(("text",), (24,), trim=True),
           "pack": Pack(("text",), (40,), max_segments=4)}


def words_of(number):
  return [f"{a}{b}" for a in "bdfgkl" for b in "aeiou"][number % 30]


def documents_of(corpus, form=None, layout=LAYOUTS["pad"], alter=(Mask(),)):
  """Prepared documents and the bound recipe."""
  source, tokenizers = corpus
  recipe = Recipe([SplitSentences(), EncodeSentences()], form, layout, list(alter))
  return prepare([source], recipe, tokenizers), recipe.bind(tokenizers)


def document_stream(prepared, recipe, **edits):
  options = {"seed": 5, "batch_size": 8, "window": 7, "counts": prepared.sizes}
  return Stream(prepared, recipe, **options | edits)
