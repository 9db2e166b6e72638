"""generation_config.json: keys that are read, refused, and without effect."""

import dataclasses
import json

import pytest

from jtx.config import ConfigDict, section
from jtx.data.tokenizers.kinds import characters
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
    ({"name": "sample"}, Generation())])
def test_settings_of_a_run_are_read_again(method, expected):
  tokenizer = characters(iter(["ab"]))
  decode = ConfigDict({"method": section(METHODS, method.pop("name", "beam"), **method),
                       "max_target_length": 20})
  told = {"start": 7, "end": (tokenizer.eos_id,), "pad": tokenizer.pad_id, "max_length": 21}
  assert parse(written(decode, 7, tokenizer), "file") == dataclasses.replace(expected, **told)


def test_several_tokens_may_end_a_text():
  assert parse({"eos_token_id": [2, 5]}, "file").end == (2, 5)


@pytest.mark.parametrize("content, sentence", [
    ({"contrastive_alpha": 0.6},
     "file: 'contrastive_alpha'=0.6 is not known to jtx and might change"
     " what is generated; remove it if it does not"),
    ({"repetition_penalty": 1.2},
     "file: repetition_penalty=1.2 is not what jtx does, which is 1.0"),
    ({"do_sample": True}, "file: do_sample=True is not what jtx does, which is False"),
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
