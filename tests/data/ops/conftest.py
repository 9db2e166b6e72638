"""Fixtures that several tests of ops share: tokenizers."""

import pytest

from jtx.data.tokenizers.files import read_tokenizer
from tests.data.ops import documents, encoders


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
  path = tmp_path_factory.mktemp("bert") / "vocab.txt"
  path.write_text("\n".join(documents.PIECES) + "\n", encoding="utf-8")
  return read_tokenizer(path)


@pytest.fixture(scope="module")
def roberta():
  return documents.with_template("<s> $A </s>", "<s> $A </s> </s> $B </s>")


@pytest.fixture(scope="module", params=["bert", "roberta"])
def tokenizer(request):
  return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
  path = tmp_path_factory.mktemp("bert") / "vocab.txt"
  path.write_text("\n".join(encoders.PIECES) + "\n", encoding="utf-8")
  return {"text": read_tokenizer(path)}
