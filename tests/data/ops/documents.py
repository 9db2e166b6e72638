"""Documents, and what is formed of them."""

import itertools
import json

import numpy as np
import pytest
import tokenizers as hf

from jtx.data.ops.sentences import SENTENCE, SPECIAL, WORD, EncodeSentences
from jtx.data.prepared import Prepared
from jtx.data.tokenizers.huggingface import HuggingFace

PIECES = "[PAD] [UNK] [CLS] [SEP] [MASK] a b c d e ##s ##t ' .".split()
BODY = 1000  # ids of generated text are from here up, each id once


def message(error, call, *args):
  with pytest.raises(error) as e:
    call(*args)
  return str(e.value)


def documents_of(*lengths):
  """Documents whose sentences have these lengths; no id is in them twice."""
  sizes = [sum(n) for n in lengths]
  marks = np.full(sum(sizes), WORD, np.uint8)
  offsets = np.cumsum([0, *sizes])
  for start, n in zip(offsets, lengths):
    marks[start + np.cumsum([0, *n[:-1]])] |= SENTENCE
  text = BODY + np.arange(len(marks), dtype=np.int32)
  columns = EncodeSentences.columns
  return Prepared(columns, {"text": text, "text_marks": marks}, {"text": offsets},
                  np.arange(len(lengths)) * 3 + 5, [len(lengths)], [""])


def drawn_documents(seed, number, longest_sentence=30, sentences=(1, 4, 25)):
  """Documents of one sentence and of many."""
  rng = np.random.default_rng(seed)
  counts = rng.geometric(1 / rng.choice(sentences, number))
  return documents_of(*(rng.integers(1, longest_sentence + 1, n).tolist() for n in counts))


def form(op, tokenizer, documents, length, numbers=None, seed=0):
  numbers = np.arange(len(documents)) if numbers is None else np.array(numbers)
  formed = op.bind({"text": tokenizer}).form(documents, numbers, {"text": length},
                                             np.random.default_rng(seed))
  return formed, [formed.example(i) for i in range(len(formed))]


def runs(ids):
  """Texts, and the special tokens before, between and behind them, as lists."""
  parts = [list(part) for _, part in itertools.groupby(ids.tolist(), lambda i: i < BODY)]
  return parts[1::2], parts[::2]


def edges(documents, longest):
  """Ids that may begin a text: sentences do, and the pieces of those that are too long."""
  marks, offsets = documents.values["text_marks"], documents.offsets["text"]
  starts = np.flatnonzero(marks & SENTENCE)
  assert set(offsets[:-1].tolist()) <= set(starts.tolist())
  return {BODY + start + cut for start, stop in zip(starts, [*starts[1:], len(marks)])
          for cut in range(0, stop - start, longest)} | {BODY + len(marks)}


def places(documents, ids):
  """The document that an id is of."""
  return np.searchsorted(documents.offsets["text"], np.asarray(ids) - BODY, "right") - 1


def check_example(formed, i, example, documents, length):
  """What holds for examples of every form."""
  ids = example["text"]
  assert len(ids) == formed.lengths(np.array([i]), ("text",))[0, 0] <= length
  body = ids >= BODY
  np.testing.assert_array_equal(example["text_marks"] == SPECIAL, ~body)
  np.testing.assert_array_equal(example["text_marks"][body],
                                documents.values["text_marks"][ids[body] - BODY])
  assert [example[k].dtype for k in ("text", "text_marks", "text_types")] == [
      np.int32, np.uint8, np.int32]
  assert formed.columns.keys() == example.keys()
  first = ids[body][0]
  document = places(documents, first)
  assert formed.ids[i] >> 32 == documents.ids[document]
  assert formed.ids[i] & 0xFFFFFFFF == first - BODY - documents.offsets["text"][document]


def with_template(single, pair, names=("<s>", "<pad>", "</s>", "<unk>", "<mask>")):
  """A byte-level tokenizer with the template given."""
  pieces = {p: i for i, p in enumerate([*names, *sorted(hf.pre_tokenizers.ByteLevel.alphabet())])}
  backend = hf.Tokenizer(hf.models.BPE(vocab=pieces, merges=[]))
  backend.pre_tokenizer = hf.pre_tokenizers.ByteLevel(add_prefix_space=False)
  backend.post_processor = hf.processors.TemplateProcessing(
      single=single, pair=pair, special_tokens=[(n, i) for i, n in enumerate(names)])
  backend.add_special_tokens(list(names))
  return HuggingFace(json.loads(backend.to_str()), [1, 0, 2, 3])
