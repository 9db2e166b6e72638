"""Encoder-decoders of Hugging Face folders write by the settings of their files."""

import json
import shutil

import jax
import numpy as np
import pytest

import jtx
from jtx.data.tokenizers.kinds import byte_bpe
from jtx.errors import ConfigError
from jtx.inference.decode import Ends
from jtx.inference.rules import Rules
from jtx.interop import configs, huggingface
from jtx.parallel.sharding import unbox
from jtx.saved import speaking
from jtx.saved.folder import open_saved
from tests.helpers import moved, run_command

TEXTS = ["a dog runs over the field", "", "two men talk"]
SETTINGS = {"decoder_start_token_id": 0, "eos_token_id": 2, "pad_token_id": 0, "num_beams": 2,
            "max_length": 9, "forced_bos_token_id": 7, "no_repeat_ngram_size": 1,
            "forced_eos_token_id": 2, "suppress_tokens": [5]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  tokenizer = byte_bpe(iter([" ".join(TEXTS)]), vocab_size=280)
  config = {"model_type": "t5", "vocab_size": tokenizer.vocab_size, "d_model": 16, "d_kv": 8,
            "d_ff": 20, "num_layers": 2, "num_heads": 2,
            "architectures": ["T5ForConditionalGeneration"]}
  source = huggingface.identify(config, "config.json")
  model = configs.make_model(source.family, huggingface.model_fields(config))
  params = moved(unbox(model.init(jax.random.key(0), model.example())["params"]))
  made = tmp_path_factory.mktemp("folder") / "t5"
  jtx.save_pretrained(str(made), model, params, tokenizer)
  (made / "generation_config.json").write_text(json.dumps(SETTINGS))
  return made


def test_settings_become_a_search(folder):
  saved = open_saved(str(folder))
  model, _ = saved.load()
  decode, writing = speaking.writing(saved, model)
  assert decode.method.to_dict() == {
      "name": "beam", "beam": 2, "alpha": 1.0, "penalty": "power", "early_stop": False,
      "hopeful": False, "cut_off": True, "repetition_penalty": 1.0, "n_best": 1}
  assert decode.max_target_length == 8 and writing.start == 0
  assert writing.ends == Ends((2,), 0, Rules(
      start=0, forced_first=7, forced_last=2, no_repeat=1, suppressed=(5,)))


def test_settings_become_draws(folder, tmp_path):
  made = tmp_path / "made"
  shutil.copytree(folder, made)
  (made / "generation_config.json").write_text(json.dumps(
      SETTINGS | {"num_beams": 1, "do_sample": True, "temperature": 0.7, "top_p": 0.8,
                  "repetition_penalty": 1.5, "max_new_tokens": 6, "min_new_tokens": 3}))
  saved = open_saved(str(made))
  decode, writing = speaking.writing(saved, saved.load()[0])
  assert decode.method.to_dict() == {
      "name": "sample", "temperature": 0.7, "top_k": 50, "top_p": 0.8, "min_p": 0.0,
      "repetition_penalty": 1.5, "n_best": 1, "seed": 0}
  assert decode.max_target_length == 6 and writing.ends.rules.min_length == 3
  (tmp_path / "in.txt").write_text("\n".join(TEXTS) + "\n")
  run = lambda *more: run_command("translate", f"--workdir={made}", f"--input={tmp_path}/in.txt",
                                  f"--output={tmp_path}/out.txt", *more)
  run()
  expected = jtx.Translator(str(made))(TEXTS)
  assert (tmp_path / "out.txt").read_text("utf-8").split("\n")[:-1] == expected
  run("--beam=2")
  assert (tmp_path / "out.txt").read_text("utf-8").split("\n")[:-1] != expected


def test_texts_are_written_by_the_rules(folder, tmp_path):
  translate = jtx.Translator(str(folder), batch_size=2)
  found = [best[0] for best in translate.hypotheses(TEXTS)]
  assert found[1] == ("", 0.0, (), 0.0)
  for text in (found[0], found[2]):
    assert text.tokens[0] == 7 and len(text.tokens) <= 7 and 5 not in text.tokens
    assert len(set(text.tokens)) == len(text.tokens)
  (tmp_path / "in.txt").write_text("\n".join(TEXTS) + "\n")
  run_command("translate", f"--workdir={folder}", f"--input={tmp_path}/in.txt",
              f"--output={tmp_path}/out.txt")
  assert (tmp_path / "out.txt").read_text("utf-8").split("\n")[:-1] == [x.text for x in found]


def test_sources_have_the_tokens_of_the_template(folder):
  translate = jtx.Translator(str(folder))
  tokenizer = translate.saved.tokenizer()
  expected, = tokenizer.encode_texts([TEXTS[0]], max_length=100)
  (ids, _), = translate.translator.encoded("src", [TEXTS[0]], 100)
  np.testing.assert_array_equal(ids, expected.ids)
  assert len(translate.translator.encoded("src", [TEXTS[0]], 4)[0][0]) == 4


@pytest.mark.slow
def test_a_converted_folder_writes_as_the_one_that_it_was(folder, tmp_path):
  made = str(tmp_path / "made")
  run_command("convert", f"--from_hf={folder}", f"--workdir={made}")
  assert jtx.Translator(made).hypotheses(TEXTS) == jtx.Translator(str(folder)).hypotheses(TEXTS)


def test_config_json_tells_what_the_other_file_does_not(folder, tmp_path):
  for name in folder.iterdir():
    (tmp_path / name.name).write_bytes(name.read_bytes())
  config = json.loads((tmp_path / "config.json").read_text())
  model, _ = open_saved(str(folder)).load()
  told = lambda: speaking.writing(open_saved(str(tmp_path)), model)
  (tmp_path / "generation_config.json").write_text(json.dumps({"num_beams": 3}))
  (tmp_path / "config.json").write_text(json.dumps(
      config | {"decoder_start_token_id": 4, "length_penalty": 2.0}))
  decode, writing = told()
  assert writing.start == 4 and decode.method.beam == 3 and decode.method.alpha == 1.0
  (tmp_path / "generation_config.json").unlink()
  decode, writing = told()
  assert writing.start == 4 and decode.method.beam == 1 and decode.method.alpha == 2.0
  for more, start in ({"bos_token_id": 3}, 3), ({"bos_token_id": 3, "model_type": "mt5"}, 0):
    rewritten = {**config, "decoder_start_token_id": None, **more}
    (tmp_path / "config.json").write_text(json.dumps(rewritten))
    assert told()[1].start == start
  rewritten = {**config, "decoder_start_token_id": None, "bos_token_id": "<s>"}
  (tmp_path / "config.json").write_text(json.dumps(rewritten))
  with pytest.raises(ConfigError, match="config.json: bos_token_id='<s>' is not an id"):
    told()
  (tmp_path / "config.json").write_text(json.dumps(
      {**config, "decoder_start_token_id": None, "bos_token_id": None}))
  with pytest.raises(ConfigError, match="has neither decoder_start_token_id nor bos_token_id, in"
                     " generation_config.json or config.json"):
    told()
