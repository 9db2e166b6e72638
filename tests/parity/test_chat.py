"""Chat templates against `transformers`: the text, the tokens, and which of them are answers."""

import json

import pytest

from jtx.data import chat
from jtx.data.ops.messages import EncodeMessages
from jtx.data.tokenizers.files import read_tokenizer
from jtx.data.tokenizers.kinds import bpe, byte_bpe
from tests.data.test_chat import CHATML, LLAMA, MARKED, MESSAGES

transformers = pytest.importorskip("transformers", reason="see make test-parity")

CORPUS = ["Be brief. Hi? Ho. <b> Ü system user assistant", "[INST] [/INST] A: role content"]


@pytest.fixture(scope="module", params=[bpe, byte_bpe])
def folder(request, tmp_path_factory):
  folder = tmp_path_factory.mktemp("tokenizer")
  content = request.param(iter(CORPUS), vocab_size=320).model()
  (folder / "tokenizer.json").write_text(json.dumps(content))
  (folder / "tokenizer_config.json").write_text(json.dumps({
      "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<bos>", "eos_token": "<eos>",
      "pad_token": "<pad>", "unk_token": "<unk>"}))
  return folder


@pytest.mark.parametrize("source", [CHATML, LLAMA, MARKED], ids=["chatml", "llama", "marked"])
def test_texts_and_tokens(folder, source):
  theirs = transformers.AutoTokenizer.from_pretrained(folder)
  ours = read_tokenizer(folder)
  template = chat.Template(source, ours.special_names())
  for messages in (MESSAGES, MESSAGES[1:3]):
    for prompt in (False, True):
      assert template(messages, prompt) == theirs.apply_chat_template(
          messages, chat_template=source, add_generation_prompt=prompt, tokenize=False)
    found, = EncodeMessages(source)([{"id": 0, "messages": messages}], {"text": ours})
    encoding = theirs.apply_chat_template(
        messages, chat_template=source, return_dict=True,
        return_assistant_tokens_mask=source is MARKED)
    assert found["text"].tolist() == encoding["input_ids"]
    if source is MARKED:
      assert found["text_answers"].tolist() == encoding["assistant_masks"]
