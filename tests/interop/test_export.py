"""Models that are saved as Hugging Face has them, with tokenizers and labels, or refused."""

import dataclasses
import json
import os

import jax
import pytest
import safetensors.numpy
import tokenizers as hf

from jtx.config import build, section
from jtx.data.tokenizers import kinds
from jtx.data.tokenizers.kinds import wordpiece
from jtx.data.tokenizers.subword_nmt import SubwordNmt
from jtx.data.tokenizers.utf8 import Bytes
from jtx.interop import configs, export, huggingface
from jtx.interop.families import FAMILIES
from jtx.interop.originals import Originals
from jtx.interop.presets import ENCDECS
from jtx.models import MODELS
from jtx.models.encoder import Encoder, HeadConfig
from jtx.nn.relative import Alibi
from jtx.nn.rope import Linear, Rope
from jtx.saved.folder import open_saved
from jtx.saved.pretrained import load_pretrained, load_tokenizer, save_pretrained
from tests.helpers import decoder, encoder
from tests.interop.samples import (
  BERT,
  CLASSES,
  MODERNBERT,
  POOLER,
  ROBERTA,
  TOKENIZER,
  change_block,
  message,
  random_params,
)


@pytest.mark.parametrize("model, expected", [
    (change_block(BERT, gated=True), "bert has stack.block.ffn.gated=False in"
     " BertForSequenceClassification, not True"),
    (change_block(BERT, norm="rmsnorm"), "bert has stack.block.norm.kind='layernorm'"),
    (change_block(BERT, num_kv_heads=1), "bert has stack.block.attention.num_kv_heads=3"),
    (change_block(BERT, activation="gelu_sigmoid", head_dim=5),
     "bert has stack.block.attention.head_dim=4"),
    (encoder(BERT, position=Alibi()), "electra have learned positions, not Alibi"),
    (BERT.clone(head=dataclasses.replace(CLASSES, transform="none")), "bert has"
     " head.transform='tanh' in BertForSequenceClassification, not 'none'"),
    (BERT.clone(head=HeadConfig(task="embedding", pool="mean", transform="tanh")),
     "bert has head.pool='first'"),
    (BERT.clone(mlm=True), "have no architecture with the head of pretraining and"
     " head.task='classes'"),
    (encoder(BERT, pattern=("local",), window=2), "bert has stack.pattern=('global', 'global')"),
    (encoder(BERT, share_layers=True), "albert has embedding.width below stack.width"),
    (change_block(MODERNBERT, norm_eps=1e-5, use_bias=True).clone(
        mlm=True, head=HeadConfig(task="tags", outputs=3, pool="none")),
     "have no architecture with the head of pretraining and head.task='tags'"),
    (encoder(MODERNBERT, position=Rope(scaling=Linear(factor=2.0))),
     "modernbert has stack.position.scaling='Scaling'"),
    (encoder(MODERNBERT, pattern=("prefix",), window=0),
     "modernbert has no layers of kind 'prefix'"),
])
def test_a_model_that_no_family_has_is_refused_with_each_ones_reason(model, expected, tmp_path):
  text = message(export.save, str(tmp_path / "new"), model, {})
  assert text.startswith("the model can't be expressed as a Hugging Face model: bert")
  assert expected in text, text
  assert all(name in text for name, family in FAMILIES.items() if family.model == "encoder")
  assert not os.listdir(tmp_path)


def test_families_of_one_reason_are_in_one_clause():
  text = message(export.hf_config, change_block(BERT, activation="relu2"))
  known = "gelu, relu, gelu_tanh, silu, gelu_sigmoid, tanh"
  assert text.count("relu2") == text.count(known) == 1
  assert ("bert, roberta, xlm-roberta, xlm-roberta-xl, camembert, distilbert and electra have the"
          f" activations {known}, not 'relu2'; longformer has ") in text


def test_a_head_that_no_class_has_is_refused_with_the_one_that_it_has(tmp_path):
  mean = BERT.clone(head=HeadConfig(task="classes", outputs=3, pool="mean"))
  advice = ("fine-tuned with --config.model.head.pool=first --config.model.head.transform=tanh it"
            " would be a BertForSequenceClassification")
  assert advice in message(export.save, str(tmp_path / "new"), mean, {})
  assert export.head_advice(mean) == advice
  tanh = mean.clone(head=HeadConfig(task="classes", outputs=3, transform="tanh"))
  assert not export.head_advice(tanh)
  assert not export.head_advice(encoder(BERT, position=Alibi()))  # no class has the layers
  assert not export.head_advice(mean.clone(mlm=True))


def test_a_detector_that_no_family_has_is_refused(tmp_path):
  """Its layers alone can't be expressed either, and have its head by themselves."""
  model = build(MODELS, section(MODELS, "detr", backbone=dict(
      stages=(1, 1), width=8, kind="basic", groups=4)), what="model").clone()
  model = dataclasses.replace(model, head=dataclasses.replace(model.head, outputs=3))
  assert "detr " in message(export.save, str(tmp_path / "new"), model, {})


def test_stacks_that_share_layers_are_refused(tmp_path):
  fields = huggingface.fields_for(ENCDECS["t5_small"], {"seq2seq"}, "t5_small")
  model = build(MODELS, section(MODELS, "encdec", **fields, share_stacks=True))
  assert "t5 has share_stacks=False in T5ForConditionalGeneration, not True" in message(
      export.save, str(tmp_path / "new"), model, {})


def test_what_only_training_uses_is_saved_where_there_is_a_place(saved, told):
  model = change_block(BERT, ffn_dropout=0.3, dropout=0.2).clone(
      head=dataclasses.replace(CLASSES, dropout=0.4))
  directory, _ = saved(model)
  again, _ = load_pretrained(directory)
  assert again == change_block(model, ffn_dropout=0.0)
  assert "BertForSequenceClassification has no place for stack.block.ffn.dropout" in "\n".join(told)


def test_a_failed_save_leaves_nothing(tmp_path, monkeypatch):
  def fail(*_):
    raise OSError("disk full")
  monkeypatch.setattr(safetensors.numpy, "save_file", fail)
  with pytest.raises(OSError, match="disk full"):
    export.save(str(tmp_path / "new"), BERT, random_params(BERT))
  assert not os.listdir(tmp_path)


def test_a_directory_in_use_is_not_overwritten(tmp_path):
  (tmp_path / "used").mkdir()
  export.save(str(tmp_path / "used"), BERT, random_params(BERT))  # empty is fine
  assert message(export.save, str(tmp_path / "used"), BERT, random_params(BERT)) == (
      f"{tmp_path}/used is not empty; name a directory to make")
  assert "is a file" in message(export.save, str(tmp_path / "used" / "config.json"), BERT,
                                random_params(BERT))


def test_arguments_of_saving_are_checked(tmp_path):
  path, params = str(tmp_path / "new"), random_params(BERT)
  assert message(save_pretrained, path, BERT, params, dtype="float64") == (
      "dtype='float64': valid are float32, float16, bfloat16")
  assert "format='tf': valid are: hf, jtx, peft" in message(save_pretrained, path, BERT, params,
                                                      format="tf")
  assert message(save_pretrained, path, BERT, params, labels=("a",)) == (
      "labels has 1 names, and the model has head.outputs=4")
  bare = BERT.clone(head=POOLER)
  assert "a model with head.task='embedding' has none" in message(
      save_pretrained, path, bare, random_params(bare), labels=("a",))
  wrong = jax.tree.map(lambda x: x[:1], params)
  assert message(save_pretrained, path, BERT, wrong) == (
      "params are not of this model: embed/embedding is [1, 12] in params and [31, 12] in the"
      " model")
  assert "only Encoder or Xlnet or Decoder or EncDec or Vit or TwoTowers or Detr can" in message(
      save_pretrained, path, Encoder, params)
  assert not os.listdir(tmp_path)


def test_a_weight_that_the_dtype_cannot_hold_is_refused(tmp_path):
  params, path = random_params(BERT), str(tmp_path / "new")
  params["embed"]["embedding"][3, 1] = -70_000.0
  said = message(save_pretrained, path, BERT, params, dtype="float16")
  assert said == ("dtype='float16': bert.embeddings.word_embeddings.weight has 70000, and float16"
                  " ends at 65504; float32 or bfloat16 would hold it")
  params["embed"]["embedding"][3, 1] = -65_504.0
  save_pretrained(path, BERT, params, dtype="float16")
  tensors = safetensors.numpy.load_file(os.path.join(path, "model.safetensors"))
  assert tensors["bert.embeddings.word_embeddings.weight"][3, 1] == -65_504


def test_labels_are_kept(saved, tmp_path):
  path, params = str(tmp_path / "new"), random_params(BERT)
  save_pretrained(path, BERT, params, labels=("a", "b", "c", "d"))
  assert open_saved(path).labels() == ("a", "b", "c", "d")
  config = json.load(open(path + "/config.json"))
  assert config["label2id"] == {"a": 0, "b": 1, "c": 2, "d": 3}
  assert load_pretrained(path)[0].head.outputs == 4
  assert open_saved(saved(BERT.clone(head=POOLER))[0]).labels() is None


def test_labels_and_tokenizer_are_those_of_the_folder_like_which_it_is(tmp_path):
  """The Python of docs/encoders.md: a folder is loaded, and saved under another name."""
  first, second, third = (str(tmp_path / name) for name in ("first", "second", "third"))
  save_pretrained(first, BERT, random_params(BERT), TOKENIZER, labels=("a", "b", "c", "d"))
  model, params = load_pretrained(first)
  save_pretrained(second, model, params, load_tokenizer(first), like=first)
  assert sorted(os.listdir(first)) == sorted(os.listdir(second))
  for name in os.listdir(first):
    assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()
  save_pretrained(third, model, params, like=first, labels=("x", "b", "c", "d"))
  assert open_saved(third).labels() == ("x", "b", "c", "d")
  assert load_tokenizer(third) == load_tokenizer(first)


def test_a_loss_of_labels_is_said(tmp_path, caplog):
  save_pretrained(str(tmp_path / "new"), BERT, random_params(BERT))
  assert "no names of the model's 4 classes or tags are given (labels=, or like=" in caplog.text


@pytest.mark.parametrize("mask, mode", [(0o022, 0o644), (0o007, 0o660)])
def test_files_follow_the_umask(mask, mode, tmp_path):
  before = os.umask(mask)
  try:
    save_pretrained(str(tmp_path / "new"), BERT, random_params(BERT), TOKENIZER)
  finally:
    os.umask(before)
  files = list((tmp_path / "new").iterdir())
  assert {path.name: path.stat().st_mode & 0o777 for path in files} == {
      path.name: mode for path in files}


def test_one_output_is_a_regression(saved):
  model = BERT.clone(head=dataclasses.replace(CLASSES, outputs=1))
  directory, _ = saved(model)
  assert json.load(open(directory + "/config.json"))["problem_type"] == "regression"
  assert load_pretrained(directory)[0] == model


# ---------------------------------------------------------------------- tokenizers


def test_a_tokenizer_is_saved_beside_the_model(tmp_path):
  path = str(tmp_path / "new")
  save_pretrained(path, BERT, random_params(BERT), TOKENIZER)
  assert load_tokenizer(path).encode("the mat").tolist() == TOKENIZER.encode("the mat").tolist()
  config = json.load(open(path + "/tokenizer_config.json"))
  assert config["pad_token"] == "<pad>" and config["cls_token"] == "<bos>"
  assert config["model_max_length"] == 16
  assert config["model_input_names"] == ["input_ids", "token_type_ids", "attention_mask"]
  assert json.load(open(path + "/config.json"))["eos_token_id"] == TOKENIZER.eos_id
  os.remove(path + "/config.json")  # the tokenizer's files alone
  assert load_tokenizer(path).encode("the mat").tolist() == TOKENIZER.encode("the mat").tolist()


def test_a_tokenizer_that_does_not_fit_is_refused(tmp_path):
  path = str(tmp_path / "new")
  small = BERT.clone(vocab_size=9)
  assert message(save_pretrained, path, small, random_params(small), TOKENIZER) == (
      f"the tokenizer has {TOKENIZER.vocab_size} ids, and the model vocab_size=9")
  assert "subword_nmt" in message(save_pretrained, path, BERT, random_params(BERT),
                                  SubwordNmt([], ["a"]))
  assert message(save_pretrained, path, ROBERTA, random_params(ROBERTA), TOKENIZER) == (
      "pad_token_id=0 of the tokenizer does not fit the model, whose positions were counted for"
      " pad_token_id=1 (position.first_position)")
  assert not os.listdir(tmp_path)


@pytest.mark.parametrize("original, start", [
    (Originals(), TOKENIZER.bos_id), (Originals(start=5), 5),
    (Originals({"model_type": "bart", "decoder_start_token_id": 4}), 4)])
def test_a_config_says_what_targets_begin_behind(original, start):
  fields = huggingface.fields_for(ENCDECS["bart_base"], {"seq2seq"}, "bart_base")
  model = configs.make_model(FAMILIES["bart"], fields)
  config = export.hf_config(model, TOKENIZER, original=original)
  assert config["decoder_start_token_id"] == start


def test_a_config_of_t5_has_no_begin_token():
  """Padding stands in its tokenizer's place for it: `T5Config` has pad, eos and the start alone."""
  fields = huggingface.fields_for(ENCDECS["byt5_small"], {"seq2seq"}, "byt5_small")
  model = configs.make_model(FAMILIES["t5"], fields)
  ids = lambda *args: {key: value for key, value in export.hf_config(model, *args).items()
                       if key.endswith("token_id")}
  expected = {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1,
              "decoder_start_token_id": 0}
  assert ids(Bytes(byt5=True)) == expected
  assert ids(Bytes()) == {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
                          "decoder_start_token_id": 1}


def test_a_folder_has_one_tokenizer(tmp_path):
  both = str(tmp_path / "both")
  other = wordpiece(iter(["a dog"]), vocab_size=30, min_frequency=1)
  save_pretrained(both, BERT, random_params(BERT), {"src": TOKENIZER, "tgt": other}, format="jtx")
  assert message(save_pretrained, str(tmp_path / "new"), BERT, random_params(BERT), like=both) == (
      "format='hf' has one tokenizer, and these of src, tgt differ; train with"
      " tokenizer.shared=True, or write format='jtx'")


# ------------------------------------------------------------------- of language models

TEMPLATED = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


@pytest.mark.parametrize("kind", [kinds.wordpiece, kinds.byte_bpe])
@pytest.mark.parametrize("begin, begins", [(None, True), (True, True), (False, False)])
def test_prompts_begin_as_those_of_the_run(kind, begin, begins, tmp_path):
  """In any reader of the files: a template says it, be it that nothing stands before a text."""
  trained = kind(iter(["a cat sat", "the mat"]), vocab_size=320, min_frequency=1)
  model = decoder(vocab_size=trained.vocab_size)
  expected = (trained.bos_id,) if begins else ()
  original = Originals(speaking={"begin": begin, "template": TEMPLATED})
  for name, content in export.tokenizer_files(model, trained, original).items():
    (tmp_path / name).write_text(json.dumps(content))
  backend = hf.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
  ids = trained.encode("the cat").tolist()
  assert backend.encode("the cat").ids == [*expected, *ids]
  again = load_tokenizer(str(tmp_path))
  assert again.begin_ids() == expected and again.chat_template == TEMPLATED
  assert again.encode("the cat").tolist() == ids
  # And once more, of a folder that has a template already.
  files = export.tokenizer_files(model, again)
  assert files["tokenizer.json"]["post_processor"] == json.loads(backend.to_str())["post_processor"]
