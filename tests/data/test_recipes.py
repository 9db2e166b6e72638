"""The ops of a config by their stages, and what is wrong with a list of ops."""

import dataclasses

import pytest

from jtx.config import section
from jtx.data.ops.registry import OPS
from jtx.data.ops.text import Clean, FilterLength, Tokenize
from jtx.data.packing import Pack
from jtx.data.recipes import build_ops
from jtx.errors import ConfigError


def configs(*names, **edits):
  return [section(OPS, name, **edits.get(name, {})) for name in names]


def test_build_ops():
  recipe = build_ops(configs("clean", "tokenize", "filter_length", "pack",
                             pack={"lengths": (9, 8)}))
  assert recipe == ([Clean(), Tokenize(), FilterLength()], None, Pack(lengths=(9, 8)), [], ())


TEXT = {"fields": ("text",), "lengths": (24,)}
MAKERS = ("'tokenize', 'label', 'multi_label', 'number', 'encode', 'encode_each', 'encode_words',"
          " 'encode_windows', 'word_targets', 'encode_choices', 'encode_messages',"
          " 'encode_preferences', 'encode_sentences'")


@pytest.mark.parametrize("ops, message", [
    (configs("clean", "tokenize"),
     "data.ops (clean, tokenize): needs one layout, 'pack' or 'pad', or 'images' for"
     " images"),
    (configs("tokenize", "pack", "clean"),
     "data.ops (tokenize, pack, clean): 'clean' does not work on batches, so it stands before the"
     " layout"),
    (configs("tokenize", "pad", "pack"),
     "data.ops (tokenize, pad, pack): needs one layout, 'pack' or 'pad', or 'images' for"
     " images"),
    (configs("clean", "pack"),
     "data.ops (clean, pack): needs one op that makes tokens, such as " + MAKERS
     + ", before the layout"),
    (configs("tokenize", "tokenize", "pack"),
     "data.ops (tokenize, tokenize, pack): needs one op that makes tokens, such as " + MAKERS
     + ", before the layout"),
    (configs("filter_length", "tokenize", "pack"),
     "data.ops: 'filter_length' counts tokens, so it stands after 'tokenize'"),
    (configs("tokenize", "pad", tokenize={"fields": ("text",)}),
     "data.ops: 'pad' has fields=('src', 'tgt'), but 'tokenize' makes only ('text',)"),
    (configs("tokenize", "filter_length", "pad", filter_length={"fields": ("source",)}),
     "data.ops: 'filter_length' has fields=('source',), but 'tokenize' makes only ('src', 'tgt')"),
    # Ops of pretraining out of their places.
    (configs("segment_pair", "encode_sentences", "pad"),
     "data.ops (segment_pair, encode_sentences, pad): 'segment_pair' forms examples of documents;"
     " there is one such op at most, right before the layout"),
    (configs("encode_sentences", "doc_sentences", "full_sentences", "pad"),
     "data.ops (encode_sentences, doc_sentences, full_sentences, pad): 'doc_sentences' forms"
     " examples of documents; there is one such op at most, right before the layout"),
    (configs("encode_sentences", "pad", "full_sentences"),
     "data.ops (encode_sentences, pad, full_sentences): 'full_sentences' forms examples of"
     " documents; there is one such op at most, right before the layout"),
    (configs("pad", "encode_sentences"),
     "data.ops (pad, encode_sentences): 'encode_sentences' does not work on batches, so it stands"
     " before the layout"),
    (configs("encode_sentences", "mask", "pad", pad=TEXT),
     "data.ops (encode_sentences, mask, pad): 'mask' works on batches, so it stands after the"
     " layout"),
    (configs("full_sentences", "pad"),
     "data.ops (full_sentences, pad): needs one op that makes tokens, such as " + MAKERS
     + ", before the layout"),
    (configs("encode_sentences", "full_sentences", "pad"),
     "data.ops: 'pad' has fields=('src', 'tgt'), but 'encode_sentences' makes only ('text',)"),
    (configs("encode_sentences", "full_sentences", "pad", pad={**TEXT, "group": True}),
     "data.ops (encode_sentences, full_sentences, pad): group=True is for examples, and"
     " 'full_sentences' fills its rows"),
    (configs("encode", "sentence_pair", "pad", pad=TEXT),
     "data.ops (encode, sentence_pair, pad): 'sentence_pair' needs what 'encode_sentences' makes"),
    (configs("encode", "pad", "mask", pad=TEXT),
     "data.ops (encode, pad, mask): 'mask' needs what 'encode_sentences' makes"),
    (configs("tokenize", "pad", "mask"),
     "data.ops (tokenize, pad, mask): 'mask' needs what 'encode_sentences' makes"),
    (configs("encode_sentences", "pad", "mask", "mask", pad=TEXT),
     "data.ops (encode_sentences, pad, mask, mask): there is one op at most that works on batches"),
])
def test_build_ops_says_what_is_wrong(ops, message):
  with pytest.raises(ConfigError) as e:
    build_ops(ops)
  assert str(e.value) == message


def test_an_op_must_say_when_it_runs(monkeypatch):
  @dataclasses.dataclass(frozen=True)
  class Foreign:
    def __call__(self, examples, tokenizers):
      return examples

  monkeypatch.setitem(OPS, "foreign", Foreign)
  with pytest.raises(ConfigError) as e:
    build_ops(configs("foreign", "tokenize", "pack"))
  assert str(e.value) == ("data.ops (foreign, tokenize, pack): 'foreign' does not say when it runs;"
                          " derive it from a class of jtx.data.op")


def test_build_ops_names_the_place_of_an_unknown_op():
  config = section(OPS, "clean")
  config.name = "claen"
  with pytest.raises(ConfigError, match=r"data.ops\[1\].name: unknown name 'claen'; did you mean"):
    build_ops([*configs("tokenize"), config, *configs("pack")])
