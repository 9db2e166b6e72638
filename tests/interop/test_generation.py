"""generation_config.json: keys that are read, refused, and without effect."""

import dataclasses
import json

import pytest

from jtx.config import ConfigDict, section
from jtx.data.tokenizers.kinds import characters
from jtx.data.tokenizers.utf8 import Bytes
from jtx.errors import ConfigError
from jtx.inference.decode import METHODS
from jtx.interop.generation import Generation, parse, read_generation, written

SUMMARIES = {  # as BART's for summaries have it
    "_from_model_config": True, "bos_token_id": 0, "decoder_start_token_id": 2,
    "early_stopping": False, "eos_token_id": 2, "forced_bos_token_id": 0, "forced_eos_token_id": 2,
    "length_penalty": 2.0, "max_length": 142, "min_length": 56, "no_repeat_ngram_size": 3,
    "num_beams": 4, "pad_token_id": 1, "transformers_version": "4.27.0"}


def test_settings_of_a_folder(tmp_path):
  (tmp_path / "generation_config.json").write_text(json.dumps(
      SUMMARIES | {"bad_words_ids": [[5], [7, 8]], "suppress_tokens": [9, 11], "do_sample": None}))
  assert read_generation(str(tmp_path)) == Generation(
      start=2, end=(2,), pad=1, forced_first=0, forced_last=2, max_length=142, min_length=56,
      beams=4, length_penalty=2.0, no_repeat=3, bad_words=((5,), (7, 8)), suppressed=(9, 11))


def test_a_folder_without_settings_has_the_defaults(tmp_path):
  assert read_generation(str(tmp_path)) == Generation()
  assert Generation() == parse({}, "file")


@pytest.mark.parametrize("method, expected", [
    ({"beam": 3, "alpha": 0.5}, Generation(beams=3, length_penalty=0.5, early_stop="never")),
    ({"early_stop": True}, Generation(beams=4, length_penalty=0.6, early_stop=True)),
    ({"hopeful": False}, Generation(beams=4, length_penalty=0.6)),
    ({"repetition_penalty": 1.3, "early_stop": True}, Generation(
        beams=4, length_penalty=0.6, early_stop=True, repetition_penalty=1.3)),
    ({"name": "sample", "temperature": 0.7, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.2},
     Generation(samples=True, temperature=0.7, top_k=0, top_p=0.9, min_p=0.1,
                repetition_penalty=1.2)),
    ({"name": "sample", "temperature": 0.0, "repetition_penalty": 1.2},
     Generation(repetition_penalty=1.2))])
def test_settings_of_a_run_are_read_again(method, expected):
  tokenizer = characters(iter(["ab"]))
  decode = ConfigDict({"method": section(METHODS, method.pop("name", "beam"), **method),
                       "max_target_length": 20})
  told = {"start": 7, "end": (tokenizer.eos_id,), "pad": tokenizer.pad_id, "max_length": 21}
  assert parse(written(decode, 7, tokenizer), "file") == dataclasses.replace(expected, **told)


@pytest.mark.parametrize("content, most, least", [
    ({}, None, 0), ({"max_length": 20, "min_length": 5}, 19, 4), ({"min_length": 0}, None, 0),
    ({"max_new_tokens": 20, "min_new_tokens": 5}, 20, 5),
    ({"max_new_tokens": 20, "max_length": 9, "min_new_tokens": 0, "min_length": 9}, 20, 0)])
def test_lengths_without_the_start_go_before_those_with_it(content, most, least):
  found = parse(content, "file")
  assert (found.most, found.least) == (most, least)


def test_draws(tmp_path):
  drawn = {"do_sample": True, "temperature": 0.6, "top_k": 0, "top_p": 0.9, "min_p": 0.05}
  assert parse(drawn, "file") == Generation(
      samples=True, temperature=0.6, top_k=0, top_p=0.9, min_p=0.05)
  assert parse({"do_sample": True}, "file").top_k == 50  # as `transformers` has it
  (tmp_path / "config.json").write_text(json.dumps({"max_new_tokens": 7, "top_k": 3}))
  assert read_generation(str(tmp_path)) == Generation(max_new=7, top_k=3)


@pytest.mark.parametrize("key, value", [("begin_suppress_tokens", [5, 6]),
                                        ("exponential_decay_length_penalty", [3, 1.5]),
                                        ("typical_p", 0.5)])
def test_both_files_refuse_the_same_settings(key, value, tmp_path):
  for name, others in (("config.json", {"model_type": "bart"}), ("generation_config.json", {})):
    path = tmp_path / name
    path.write_text(json.dumps(others | {"output_scores": False, key: None}))
    assert read_generation(str(tmp_path)) == Generation()
    path.write_text(json.dumps(others | {key: value}))
    with pytest.raises(ConfigError, match=f"{name}: '?{key}'?="):
      read_generation(str(tmp_path))


@pytest.mark.parametrize("byt5, begin", [(True, {}), (False, {"bos_token_id": 1})])
def test_padding_is_not_written_as_a_begin_token(byt5, begin):
  tokenizer = Bytes(byt5)
  decode = ConfigDict({"method": section(METHODS, "beam", beam=1), "max_target_length": 8})
  found = written(decode, tokenizer.bos_id, tokenizer)
  assert {k: v for k, v in found.items() if k.endswith("token_id")} == begin | {
      "decoder_start_token_id": tokenizer.bos_id, "eos_token_id": tokenizer.eos_id,
      "pad_token_id": 0}


def test_several_tokens_may_end_a_text():
  assert parse({"eos_token_id": [2, 5]}, "file").end == (2, 5)


@pytest.mark.parametrize("content, sentence", [
    ({"contrastive_alpha": 0.6},
     "file: 'contrastive_alpha'=0.6 is not known to jtx and might change"
     " what is generated; remove it if it does not"),
    ({"encoder_repetition_penalty": 1.2},
     "file: encoder_repetition_penalty=1.2 is not what jtx does, which is 1.0"),
    ({"repetition_penalty": 0}, "file: repetition_penalty=0 is not a number above 0"),
    ({"do_sample": 1}, "file: do_sample=1 is not true or false"),
    ({"top_p": 1.5}, "file: top_p=1.5 is not a number above 0, and 1 at most"),
    ({"temperature": "hot"}, "file: temperature='hot' is not a number of 0 or more"),
    ({"max_new_tokens": 0}, "file: max_new_tokens=0 is not a whole number of 1 or more"),
    ({"do_sample": True, "num_beams": 3}, "file: do_sample=True with num_beams=3 draws beams, and"
     " jtx searches by beams or draws: remove one of them"),
    ({"do_sample": True, "temperature": 0.0}, "file: do_sample=True with temperature=0.0 draws"
     " nothing: do_sample=False takes the likeliest token"),
    ({"num_return_sequences": True},
     "file: num_return_sequences=True is not what jtx does, which is 1"),
    ({"decoder_start_token_id": [1, 2]}, "file: decoder_start_token_id=[1, 2] is not an id"),
    ({"decoder_start_token_id": -1}, "file: decoder_start_token_id=-1 is not an id"),
    ({"eos_token_id": "</s>"}, "file: eos_token_id='</s>' is not an id, or a list of ids"),
    ({"num_beams": 0}, "file: num_beams=0 is not a whole number of 1 or more"),
    ({"no_repeat_ngram_size": 2.5},
     "file: no_repeat_ngram_size=2.5 is not a whole number of 0 or more"),
    ({"length_penalty": "2"}, "file: length_penalty='2' is not a number"),
    ({"bad_words_ids": [5]}, "file: bad_words_ids=[5] is not a list of lists of ids"),
    ({"bad_words_ids": [[]]}, "file: bad_words_ids=[[]] is not a list of lists of ids"),
    ({"bad_words_ids": 5}, "file: bad_words_ids=5 is not a list of lists of ids"),
])
def test_what_can_not_be_read_is_named(content, sentence):
  with pytest.raises(ConfigError) as e:
    parse(content, "file")
  assert str(e.value) == sentence
