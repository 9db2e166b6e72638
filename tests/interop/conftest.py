"""Fixtures of the tests of this folder."""

import json
import os

from absl import logging
import pytest
import safetensors.numpy

from jtx.interop import export
from tests.interop.samples import BERT, DROP, random_params


@pytest.fixture
def saved(tmp_path):
  """Saves a model of random parameters, and lets a test edit the files."""
  def save(model=BERT, config=None, tensors=None, name="model"):
    directory = str(tmp_path / name)
    params = random_params(model)
    export.save(directory, model, params)
    path = os.path.join(directory, "config.json")
    if config is not None:
      content = json.load(open(path)) | config
      json.dump({k: v for k, v in content.items() if v is not DROP}, open(path, "w"))
    if tensors is not None:
      path = os.path.join(directory, "model.safetensors")
      safetensors.numpy.save_file(tensors(safetensors.numpy.load_file(path)), path)
    return directory, params
  return save


@pytest.fixture
def told(monkeypatch):
  """The lines that are logged."""
  lines = []
  monkeypatch.setattr(logging, "info", lambda text, *args: lines.append(text % args))
  return lines
