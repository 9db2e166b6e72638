"""Special tokens that a folder declares: single ids in texts, and their roles."""

import json
import pickle

import pytest

from jtx.data.tokenizers.extended import extend
from jtx.data.tokenizers.files import from_json, read_tokenizer
from jtx.data.tokenizers.huggingface import HuggingFace
from jtx.errors import DataError
from jtx.interop import export
from tests.data.tokenizers.folders import FOLDERS, NAMED, TEXT, N, write
from tests.data.tokenizers.vocabularies import PIECES, byte_level
from tests.interop.samples import BERT

ID = dict(zip([*PIECES, "[E1]", "<e2>"], range(N + 2)))
WORDS = "the [E1] cat <e2> sat on [E1] mat [ [UNK] ]".split()


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("name", FOLDERS)
def test_an_added_special_token_is_one_id_in_a_text(name, saved, tmp_path):
  t = read_tokenizer(write(tmp_path / "m", FOLDERS[name], saved))
  expected = [ID[word] for word in WORDS]
  assert t.encode(TEXT).tolist() == expected and t.vocab_size == N + 2
  [one] = t.encode_texts([TEXT], max_length=20)
  assert one.ids.tolist() == [ID["[CLS]"], *expected, ID["[SEP]"]]
  assert one.text[1:-1].tolist() == [0] * len(WORDS)
  assert TEXT[slice(*one.offsets[2])].strip() == "[E1]"
  [[window]] = t.encode_windows(["the"], [TEXT], max_length=20, stride=2)
  assert window.ids[3:-1].tolist() == expected
  # Names of tokens with a role are text, as they were.
  assert t.tokens(t.encode("[SEP] [MASK]")) == ["[", "sep", "]", "[", "mask", "]"]
  assert {t.pad_id, t.unk_id, t.bos_id, t.eos_id} == {0, 1, 2, 3} and t.mask_id == 4
  if name not in ("flags", "map"):  # where one is not special
    assert t.plain_ids().max() < N
  for again in (from_json(t.to_json()), pickle.loads(pickle.dumps(t))):
    assert again == t and again.encode(TEXT).tolist() == expected and again.roles == t.roles


def test_a_tokenizer_that_declares_them_is_exported_whole(tmp_path):
  t = read_tokenizer(write(tmp_path / "m", FOLDERS["additional"]))
  for name, content in export.tokenizer_files(BERT, t).items():
    (tmp_path / name).write_text(json.dumps(content))
  config = json.loads((tmp_path / "tokenizer_config.json").read_text())
  assert config["additional_special_tokens"] == ["[E1]", "<e2>"]
  again = read_tokenizer(tmp_path)
  assert again == t and again.encode(TEXT).tolist() == t.encode(TEXT).tolist()


def test_older_files_have_other_names(tmp_path):
  files = {**FOLDERS["map"], "special_tokens_map.json": {"additional_special_tokens": ["[E1]"]}}
  t = read_tokenizer(write(tmp_path / "m", files))
  assert t.named_ids == {N} and t.encode(TEXT).tolist() == [ID[word] for word in WORDS]
  (tmp_path / "m" / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": {}}))
  assert read_tokenizer(tmp_path / "m").vocab_size == N  # which are not read beside this


def test_a_tokenizer_that_was_saved_before_reads_texts_as_it_did(tmp_path):
  t = read_tokenizer(write(tmp_path / "m", FOLDERS["additional"]))
  state = json.loads(t.to_json())
  assert state.pop("roles") == {"pad": 0, "bos": 2, "eos": 3, "unk": 1, "cls": 2, "sep": 3,
                                "mask": 4}
  older = from_json(json.dumps(state))
  assert older.tokens(older.encode("[E1]")) == ["[", "[UNK]", "]"]
  plain = read_tokenizer(write(tmp_path / "plain", {}))
  assert "roles" not in plain.state() and plain.roles == t.roles


@pytest.mark.parametrize("saved", [False, True])
def test_declared_roles_come_before_names(saved, tmp_path):
  """The vocabulary has <pad>, <s> and <mask> of its own, which are words."""
  pieces = [*PIECES, "<pad>", "<s>", "<unk>", "<mask>", "</s>"]
  folder = write(tmp_path / "m", {"tokenizer_config.json": NAMED | {"mask_token": "sat"}}, saved)
  (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
  if saved:
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["vocab"] = dict(zip(pieces, range(len(pieces))))
    content["added_tokens"] = content["added_tokens"][:4]
    (folder / "tokenizer.json").write_text(json.dumps(content))
  t = read_tokenizer(folder)
  assert (t.pad_id, t.bos_id, t.eos_id, t.unk_id, t.mask_id) == (0, 2, 3, 1, ID["sat"])
  assert from_json(t.to_json()).mask_id == ID["sat"]
  [e] = t.encode_texts(["the sat"], max_length=8, special=True)
  assert t.tokens(e.ids) == ["[CLS]", "the", "sat", "[SEP]"]
  if saved:  # a role that no file declares is known by its name
    (folder / "tokenizer_config.json").write_text(json.dumps({"sep_token": "[SEP]"}))
    t = read_tokenizer(folder)
    assert (t.pad_id, t.bos_id, t.eos_id, t.unk_id) == (N, N + 1, 3, N + 2)


def test_roles_that_differ_are_kept(tmp_path, roberta):
  """As XLNet has them: <s> begins a text that is generated, <cls> one that is read."""
  model = roberta.model()
  model["model"]["vocab"] |= {"<cls>": 400, "<sep>": 401}
  (tmp_path / "tokenizer.json").write_text(json.dumps(model))
  declared = {"bos_token": "<s>", "eos_token": "</s>", "cls_token": "<cls>", "sep_token": "<sep>",
              "pad_token": "<pad>", "unk_token": {"content": "<unk>"}}
  (tmp_path / "tokenizer_config.json").write_text(json.dumps(declared))
  t = read_tokenizer(tmp_path)
  assert (t.bos_id, t.eos_id, t.roles["cls"], t.roles["sep"]) == (0, 2, 400, 401)
  assert not t.named_ids and 400 not in t.encode("<cls>")
  files = export.tokenizer_files(BERT.clone(vocab_size=500), t)
  assert files["tokenizer_config.json"]["cls_token"] == "<cls>"
  assert HuggingFace(**t.state()) == t


def test_texts_are_cut_at_the_declared_side(tmp_path):
  config = {**NAMED, "truncation_side": "left"}
  t = read_tokenizer(write(tmp_path / "m", {"tokenizer_config.json": config}))
  pieces = lambda t, *texts: t.tokens(t.encode_texts(*([x] for x in texts), max_length=6)[0].ids)
  for one in (t, from_json(t.to_json()), extend(t, ["cats"] * 3, 1).tokenizer):
    assert pieces(one, "a b c d e f") == ["[CLS]", "c", "d", "e", "f", "[SEP]"]
    assert pieces(one, "a b c", "d") == ["[CLS]", "b", "c", "[SEP]", "d", "[SEP]"]
  files = export.tokenizer_files(BERT.clone(vocab_size=500), t)
  assert files["tokenizer_config.json"]["truncation_side"] == "left"
  other = read_tokenizer(write(tmp_path / "other", {"tokenizer_config.json": NAMED}))
  assert pieces(other, "a b c d e f") == ["[CLS]", "a", "b", "c", "d", "[SEP]"] and other != t


@pytest.mark.parametrize("kind, options, expected", [
    ("BertTokenizer", {"do_lower_case": False}, ["[UNK]", "[UNK]"]),
    ("ElectraTokenizerFast", {"strip_accents": False}, ["the", "[UNK]"]),
    ("PreTrainedTokenizerFast", {"do_lower_case": False}, ["the", "cat"])])
def test_options_of_a_class_go_before_those_of_tokenizer_json(kind, options, expected, tmp_path):
  config = {**NAMED, "tokenizer_class": kind, **options}
  t = read_tokenizer(write(tmp_path / "m", {"tokenizer_config.json": config}, saved=True))
  assert t.tokens(t.encode("The c\u00e1t")) == expected
  config["do_lower_case"] = "yes"
  folder = write(tmp_path / "wrong", {"tokenizer_config.json": config}, saved=True)
  if kind == "PreTrainedTokenizerFast":
    assert read_tokenizer(folder) == t
    return
  with pytest.raises(DataError, match="config.json: do_lower_case is 'yes'; valid are true and"):
    read_tokenizer(folder)


@pytest.mark.parametrize("kind, space", [("GPT2Tokenizer", False), ("BartTokenizer", True)])
def test_a_space_before_texts_is_that_of_the_class(kind, space, tmp_path):
  byte_level(not space).save(str(tmp_path / "tokenizer.json"))
  config = {"tokenizer_class": kind, "add_prefix_space": space} if space else {
      "tokenizer_class": kind}
  (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
  t = read_tokenizer(tmp_path)
  assert t.tokens(t.encode("a")) == (["\u0120a"] if space else ["a"])


@pytest.mark.parametrize("files, said", [
    ({"tokenizer_config.json": {"pad_token": 3}}, "tokenizer_config.json: 3 is no token, which is"),
    ({"tokenizer_config.json": {"added_tokens_decoder": ["a"]}}, "is not an object of tokens by"),
    ({"tokenizer_config.json": {"added_tokens_decoder": {"x": {"content": "a"}}}},
     "an added token has the id 'x', which is no number"),
    ({"tokenizer_config.json": {"additional_special_tokens": "[E1]"}}, "is no list of special"),
    ({"added_tokens.json": {"a": None}}, "an added token has the id None"),
    ({"tokenizer_config.json": {"truncation_side": "top"}},
     "tokenizer_config.json: truncation_side is 'top'; valid are 'left' and 'right'"),
    ({"special_tokens_map.json": []}, "special_tokens_map.json is not a config"),
])
def test_declarations_that_can_not_be_used(files, said, tmp_path):
  with pytest.raises(DataError, match=said):
    read_tokenizer(write(tmp_path / "m", files))
