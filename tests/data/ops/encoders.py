"""Examples and tokenizers of small encoders."""

import pytest

PIECES = "[PAD] [UNK] [CLS] [SEP] a b c d e f ##s ##t x y z , .".split()


def pieces(ids):
  return "".join(PIECES[i] for i in ids)


def fails(error, op, *examples, tokenizers=None):
  with pytest.raises(error) as e:
    op(list(examples), tokenizers)
  return str(e.value)


def check_columns(op, examples):
  """Every column is there, of its dtype, as long as the field that it is aligned with."""
  for e in examples:
    for name, column in op.columns.items():
      assert e[name].dtype == column.dtype
      field = {"tokens": name, "example": None}.get(column.kind,
                                                    column.kind.removeprefix("aligned:"))
      assert e[name].shape == (() if field is None else e[field].shape)


def answer_of(e):
  """The context's text from the start token to the end token."""
  span = e["text_offsets"][e["start"]:e["end"] + 1]
  return e["context"][span[0, 0]:span[-1, 1]]


def examples(source, number):
  return [{**source[i], "id": i} for i in range(0, len(source), max(len(source) // number, 1))]
