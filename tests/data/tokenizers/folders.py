"""Folders of tokenizers whose files declare special tokens."""

import json

import tokenizers as hf

from tests.data.tokenizers.vocabularies import PIECES

TEXT = "the [E1] cat <e2>sat on[E1]mat [e1]"
NAMED = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]"}
FLAGS = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
SPACED = {"content": "<e2>", **FLAGS, "rstrip": True, "special": True}
N = len(PIECES)
# Name -> files beside a vocabulary of BERT; in all of them the text names [E1] and <e2>.
FOLDERS = {
    "listed": {"tokenizer_config.json": {**NAMED, "added_tokens_decoder": {
        str(N + 1): {"content": "<e2>", **FLAGS, "special": True},
        str(N): {"content": "[E1]", **FLAGS, "special": True}}}},
    "flags": {"tokenizer_config.json": {**NAMED, "added_tokens_decoder": {
        str(N): {"content": "[E1]", **FLAGS, "lstrip": True, "special": False},
        str(N + 1): SPACED}}},
    "additional": {"tokenizer_config.json": {
        **NAMED, "additional_special_tokens": ["[E1]", {
            "content": "<e2>", **FLAGS, "__type": "AddedToken"}]}},
    "extra": {"tokenizer_config.json": {**NAMED, "extra_special_tokens": ["<e2>"],
                                        "entity_token": "[E1]"}},
    "map": {"tokenizer_config.json": {}, "special_tokens_map.json": {
        **NAMED, "extra_special_tokens": ["[E1]"]},
            "added_tokens.json": {"<e2>": N + 1, "[E1]": N}},
}


def write(folder, files, saved=False):
  """A folder with a vocabulary of BERT; saved is as tokenizer.json, which has <e2>."""
  folder.mkdir()
  (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
  for name, content in files.items():
    (folder / name).write_text(json.dumps(content), encoding="utf-8")
  if saved:
    backend = hf.Tokenizer(hf.models.WordPiece(dict(zip(PIECES, range(N))), unk_token="[UNK]"))
    backend.normalizer = hf.normalizers.BertNormalizer()
    backend.pre_tokenizer = hf.pre_tokenizers.BertPreTokenizer()
    backend.post_processor = hf.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    backend.add_special_tokens(list(PIECES[:5]) + ["[E1]", "<e2>"])
    backend.save(str(folder / "tokenizer.json"))
  return folder
