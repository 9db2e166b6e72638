"""Names of the Hugging Face Hub, with a stand-in for its client: nothing here uses a network."""

import os
import pathlib
import types

import huggingface_hub
from huggingface_hub import constants, errors
import numpy as np
import pytest

from jtx import hub
from jtx.errors import ConfigError, DataError
from jtx.saved.folder import open_saved
from jtx.saved.pretrained import load_pretrained, load_tokenizer, push_to_hub, save_pretrained
from tests.interop.samples import BERT, TOKENIZER, random_params


@pytest.mark.parametrize("text, expected", [
    ("org/name", True), ("org/a-b_c.d", True), ("org/name@v1.0", True),
    ("org/name@refs/pr/3", True),
    ("name", False), ("org/name/more", False), ("/org/name", False), ("./name", False),
    ("gs://org/name", False), ("../name", False), ("org/", False), ("org/name@", False),
    ("here/name", False)])
def test_names(text, expected, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "here").mkdir()  # a folder of this machine
  assert hub.is_name(text) == expected
  assert (hub.place(text) == text) == (expected or text.startswith(("/", "gs:")))
  if not expected:
    assert hub.folder(text) == text  # and no client was asked


@pytest.fixture
def client(tmp_path, monkeypatch):
  """A Hub with org/model, which `asked` what it was asked."""
  monkeypatch.chdir(tmp_path)
  store = tmp_path / "cache"
  save_pretrained(str(store), BERT, random_params(BERT), TOKENIZER, labels=tuple("abcd"))
  asked = []

  def snapshot_download(model, revision, allow_patterns):
    asked.append((model, revision, allow_patterns))
    return str(store)

  monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
  return asked


def test_a_model_of_the_hub(client):
  model, params = load_pretrained("org/model@v2")
  assert model == BERT
  np.testing.assert_array_equal(params["embed"]["embedding"],
                                random_params(BERT)["embed"]["embedding"])
  assert client[0][:2] == ("org/model", "v2")
  wanted = client[0][2]
  assert "model.safetensors" in wanted and "tokenizer.json" in wanted
  assert not any(name.endswith((".bin", ".h5", ".msgpack")) for name in wanted)
  assert open_saved("org/model").labels() == tuple("abcd") and client[1][:2] == ("org/model", None)
  client.clear()
  assert load_tokenizer("org/model") == load_tokenizer("cache")
  assert client == [("org/model", None, list(hub.TOKENIZER_FILES))]


def test_fine_tuning_starts_from_a_name(client):
  from configs import classify
  config = classify.get_config("init=org/model,names=a+b")
  assert config.init_from == config.tokenizer.kind.path == "org/model"
  assert config.model.stack.width == BERT.stack.width


def answer(kind, status=404):
  response = types.SimpleNamespace(headers={}, request=None, status_code=status)
  return kind("no", response=response)


@pytest.mark.parametrize("error, said", [
    (lambda: answer(errors.RepositoryNotFoundError), "the Hub has no such model, or it is private"),
    (lambda: answer(errors.RevisionNotFoundError), "the Hub's model has no revision 'v2'"),
    (lambda: answer(errors.GatedRepoError, 403), "its owner wants its terms accepted first"),
    (lambda: errors.LocalEntryNotFoundError("gone"), "the Hub can't be reached; is there a"),
    (lambda: TimeoutError("too slow"), "Hub: too slow"),
])
def test_what_can_not_be_fetched_is_a_sentence(error, said, client, monkeypatch):
  def fail(*_, **__):
    raise error()
  monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
  monkeypatch.setattr(constants, "is_offline_mode", lambda: False)
  for load in (load_pretrained, load_tokenizer):
    with pytest.raises(ConfigError, match="org/model@v2: is no folder of this machine, .*" + said):
      load("org/model@v2")


def test_offline_mode_reads_the_cache_alone(tmp_path, monkeypatch):
  """The client itself, which asks no network then."""
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
  monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
  with pytest.raises(ConfigError, match="not in the cache of the Hub's client, and HF_HUB_OFFLINE"):
    hub.folder("org/model")
  snapshot = tmp_path / "cache" / "models--org--model" / "snapshots" / ("a" * 40)
  snapshot.mkdir(parents=True)
  refs = snapshot.parent.parent / "refs"
  refs.mkdir()
  (refs / "main").write_text("a" * 40)
  (snapshot / "config.json").write_text("{}")
  assert hub.folder("org/model") == str(snapshot)


class Api:
  """What of the client uploads."""
  calls: list = []

  def create_repo(self, name, **options):
    self.calls.append(("create", name, options))

  def create_branch(self, name, **options):
    self.calls.append(("branch", name, options))

  def upload_folder(self, *, repo_id, folder_path, revision, commit_message):
    self.calls.append(("upload", repo_id, revision, sorted(os.listdir(folder_path))))
    return types.SimpleNamespace(commit_url=f"the commit of {repo_id}")


def test_a_folder_is_uploaded(tmp_path, monkeypatch):
  monkeypatch.setattr(huggingface_hub, "HfApi", Api)
  monkeypatch.setattr(Api, "calls", [])
  folder, workdir = str(tmp_path / "hf"), str(tmp_path / "jtx")
  save_pretrained(folder, BERT, random_params(BERT), TOKENIZER)
  assert push_to_hub(folder, "me/mine", private=True) == "the commit of me/mine"
  files = sorted(os.listdir(folder))
  assert Api.calls == [("create", "me/mine", {"private": True, "exist_ok": True}),
                       ("upload", "me/mine", None, files)]
  Api.calls.clear()
  push_to_hub(folder, "me/mine@next")
  assert [call[:2] for call in Api.calls] == [("create", "me/mine"), ("branch", "me/mine"),
                                              ("upload", "me/mine")]
  assert Api.calls[2][2] == "next"
  with pytest.raises(ConfigError, match="'mine' is no name of the Hugging Face Hub"):
    push_to_hub(folder, "mine")
  save_pretrained(workdir, BERT, random_params(BERT), format="jtx")
  with pytest.raises(ConfigError, match="is a workdir of jtx, which the Hub's users can't open"):
    push_to_hub(workdir, "me/mine")


def test_what_is_not_taken_is_a_sentence(tmp_path, monkeypatch):
  class Refusing(Api):
    def create_repo(self, name, **options):
      raise answer(errors.HfHubHTTPError, 401)
  monkeypatch.setattr(huggingface_hub, "HfApi", Refusing)
  with pytest.raises(ConfigError, match="can't be uploaded as me/mine: no; it takes a network"):
    hub.push(str(tmp_path), "me/mine")


def test_a_folder_without_tokenizer_says_so(tmp_path):
  with pytest.raises(DataError, match="has neither a tokenizer.json nor a vocab.txt"):
    load_tokenizer(str(pathlib.Path(tmp_path)))
