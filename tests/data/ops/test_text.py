"""Values of the text ops, and the sentences they fail with."""

import numpy as np
import pytest

from jtx.config import build, section
from jtx.data.ops.registry import OPS
from jtx.data.ops.text import Clean, Fields, FilterLength, Lowercase, Tokenize
from jtx.data.packing import Pack, Pad
from jtx.errors import ConfigError, DataError


class Characters:
  """A tokenizer: a character's id is its code point."""
  eos_id = 2

  def encode_batch(self, texts):
    return [np.array([ord(c) for c in t], np.int32) for t in texts]


def pairs(*texts):
  return [{"id": 10 + i, "src": src, "tgt": tgt} for i, (src, tgt) in enumerate(texts)]


def counts(*lengths):
  """Tokenised examples with those numbers of tokens."""
  return [{"id": i, "src": np.zeros(src, np.int32), "tgt": np.zeros(tgt, np.int32)}
          for i, (src, tgt) in enumerate(lengths)]


def left(examples):
  return [e["id"] for e in examples]


def test_fields_follow_dotted_paths_and_drop_the_rest():
  examples = [{"id": 4, "translation": {"en": "a", "de": "b"}, "n": 1, "other": 2}]
  op = Fields(keep=("src=translation.en", "tgt=translation.de", "n=n"))
  assert op(examples, None) == [{"id": 4, "src": "a", "tgt": "b", "n": 1}]


def test_fields_can_swap():
  assert Fields(keep=("src=tgt", "tgt=src"))(pairs(("a", "b")), None) == [
      {"id": 10, "src": "b", "tgt": "a"}]


@pytest.mark.parametrize("path, message", [
    ("translation.fr", "op fields: example 4 has no 'translation.fr'; it has en, de"),
    ("text", "op fields: example 4 has no 'text'; it has translation"),
    ("translation.en.x", "op fields: example 4 has no 'translation.en.x'; it has no keys"),
])
def test_fields_names_the_example_without_the_key(path, message):
  with pytest.raises(DataError) as e:
    Fields(keep=(f"src={path}",))([{"id": 4, "translation": {"en": "a", "de": "b"}}], None)
  assert str(e.value) == message


@pytest.mark.parametrize("entry", ["src", "a=b=c"])
def test_fields_entry_must_be_new_is_old(entry):
  with pytest.raises(ConfigError, match=f"keep entry '{entry}' is not of the form new=old"):
    Fields(keep=(entry,))


def test_clean_normalises_and_drops_empty_fields():
  examples = pairs(
      ("  a \t b\u00a0c\n", "cafe\u0301"),  # no-break space; e and a combining accent
      ("x", " \u2003 "),
      ("", "y"),
      ("x", "y"))
  assert Clean()(examples, None) == [
      {"id": 10, "src": "a b c", "tgt": "caf\u00e9"}, {"id": 13, "src": "x", "tgt": "y"}]


def test_clean_leaves_other_fields_alone():
  assert Clean(fields=("src",))(pairs((" a ", "  ")), None) == [{"id": 10, "src": "a", "tgt": "  "}]


def test_lowercase():
  assert Lowercase(fields=("tgt",))(pairs(("ABC", "ÄÖ Ünï")), None) == [
      {"id": 10, "src": "ABC", "tgt": "äö ünï"}]


def test_tokenize_uses_the_tokenizer_of_the_field_and_appends_its_end_token():
  class Shifted(Characters):
    eos_id = 7

    def encode_batch(self, texts):
      return [ids + 1000 for ids in super().encode_batch(texts)]

  examples = Tokenize()(pairs(("ab", "c"), ("", "de")), {"src": Characters(), "tgt": Shifted()})
  assert [e["src"].tolist() for e in examples] == [[97, 98, 2], [2]]
  assert [e["tgt"].tolist() for e in examples] == [[1099, 7], [1100, 1101, 7]]
  assert {e[f].dtype for e in examples for f in ("src", "tgt")} == {np.dtype(np.int32)}


@pytest.mark.parametrize("name, example, message", [
    ("clean", {"id": 3, "text": "x"},
     "op clean: example 3 has no text 'src'; its texts are: text"),
    ("lowercase", {"id": 3, "src": "x", "tgt": None},
     "op lowercase: example 3 has tgt=None, which is not a text; its texts are: src"),
    ("tokenize", {"id": 3, "src": 5},
     "op tokenize: example 3 has src=5, which is not a text; its texts are: none"),
])
def test_a_field_that_is_no_text_is_named(name, example, message):
  with pytest.raises(DataError) as e:
    OPS[name]()([example], {"src": Characters(), "tgt": Characters()})
  assert str(e.value) == message


def test_a_decoder_starts_with_the_token_of_that_role():
  assert [Tokenize(start=start).start_role for start in ("begin", "end")] == ["bos", "eos"]
  with pytest.raises(ConfigError, match="op tokenize: start='ende': did you mean 'end'"):
    Tokenize(start="ende")


def test_filter_length_limits_are_inclusive():
  examples = counts((2, 5), (1, 5), (2, 6), (6, 2), (5, 2))
  assert left(FilterLength(min_length=2, max_length=5)(examples, None)) == [0, 4]


def test_filter_length_ratio_counts_both_ways_and_zero_is_off():
  examples = counts((2, 6), (6, 2), (2, 7), (7, 2), (4, 4))
  assert left(FilterLength(max_ratio=3.0)(examples, None)) == [0, 1, 4]
  assert left(FilterLength(max_ratio=0.0)(examples, None)) == [0, 1, 2, 3, 4]


def test_filter_length_looks_at_its_fields_only():
  assert left(FilterLength(fields=("src",), max_length=3)(counts((3, 9), (4, 1)), None)) == [0]


def test_ops_are_deterministic_and_the_same_in_chunks():
  texts = [(f" {'Ab ' * (i % 5)}", f"{'é' * (i % 7)} x") for i in range(40)]
  ops = [Clean(), Lowercase(), Tokenize(), FilterLength(max_length=8, max_ratio=2.5)]
  tokenizers = {"src": Characters(), "tgt": Characters()}

  def run(size):
    done = []
    for start in range(0, len(texts), size):
      chunk = pairs(*texts)[start:start + size]
      for op in ops:
        chunk = op(chunk, tokenizers)
      done += [(e["id"], e["src"].tolist(), e["tgt"].tolist()) for e in chunk]
    return done

  assert 5 < len(run(40)) < 35
  assert run(1) == run(7) == run(40)


@pytest.mark.parametrize("name, edits, op", [
    ("fields", {"keep": ("a=b",)}, Fields(keep=("a=b",))),
    ("clean", {"fields": ("text",)}, Clean(fields=("text",))),
    ("lowercase", {}, Lowercase()),
    ("tokenize", {}, Tokenize()),
    ("filter_length", {"max_length": 9, "max_ratio": 1.5},
     FilterLength(max_length=9, max_ratio=1.5)),
    ("pack", {"lengths": (4, 6), "open_rows": 2}, Pack(lengths=(4, 6), open_rows=2)),
    ("pad", {"fields": ("text",), "lengths": (7,)}, Pad(fields=("text",), lengths=(7,))),
])
def test_config_sections_build_the_ops(name, edits, op):
  assert build(OPS, section(OPS, name, **edits)) == op
