"""Adapters of a trained model are trained, saved, resumed and merged; nothing else of it is."""

import json
import os
import shutil

from flax.traverse_util import flatten_dict
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jtx
from configs import classify, common, vit, vit_digits
from jtx.errors import CheckpointError, ConfigError
from jtx.models.text_head import HeadConfig
from jtx.nn import lora
from jtx.saved.checkpoint import Checkpointer
from jtx.saved.folder import open_saved
from jtx.saved.workdir import load_run
from jtx.train import loop
from tests.helpers import block, encoder, losses
from tests.models.test_contract import drawn
from tests.train.test_finetune import write_files

LAYERS = dict(width=16, num_layers=2, block=block(
    num_heads=2, ffn_dim=24, attention_bias=True, activation="gelu", norm_eps=1e-12))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """Files of texts, and beside them a model of random numbers with a tokenizer of their words."""
  folder = tmp_path_factory.mktemp("lora")
  write_files(folder)
  words = sorted({w for line in (folder / "train.tsv").read_text().splitlines()
                  for w in line.lower().split("\t")[0].split()})
  (folder / "words").mkdir()
  vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
  (folder / "words" / "vocab.txt").write_text("\n".join(vocab) + "\n")
  model = encoder(vocab_size=len(vocab), **LAYERS, head=HeadConfig(task="embedding"))
  params = jax.tree.map(lambda x: 0.3 * x, drawn(model))
  jtx.save_pretrained(str(folder / "base"), model, params,
                      jtx.load_tokenizer(str(folder / "words")), format="jtx")
  return folder


def config(folder, **edits):
  c = classify.get_config(f"init={folder / 'base'},train=train.tsv,dev=val.tsv,lora=3,lr=0.01,"
                          "max_length=16,batch=16")
  edits = {"model.lora.names": ("attention/", "ffn/in"), "epochs": None, "steps": 6, "log_every": 1,
           "checkpoint.every": 3, "trackers": (), "data.path": str(folder)} | edits
  return common.apply(c, edits).lock()


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
  workdir = tmp_path_factory.mktemp("run")
  results = loop.run(config(folder), str(workdir), jax.devices()[:1])
  return workdir, results


@pytest.mark.slow
def test_only_adapters_and_the_head_are_in_checkpoints(run, folder):
  workdir, _ = run
  arrays = Checkpointer(workdir / "checkpoints").read_manifest().arrays
  paths = {path.removeprefix("params/") for path in arrays["params"]}
  assert {p for p in paths if not p.startswith("task_head/")} == {
      f"encoder/layers/{layer}/lora_{m}" for m in "ab" for layer in (
          "attention/query", "attention/key", "attention/value", "attention/out", "ffn/in")}
  assert any(p.startswith("task_head/") for p in paths)
  moments = [p for p in arrays["opt_state"] if "/mu/" in p or "/nu/" in p]
  assert len(moments) == 2 * len(paths)
  assert {p.split("u/", 1)[1] for p in moments} == paths
  assert arrays["params"]["params/encoder/layers/attention/out/lora_a"]["shape"] == [2, 2, 8, 3]


def test_the_base_stays_and_adapters_are_merged(run, folder):
  workdir, results = run
  base = flatten_dict(jtx.load_pretrained(str(folder / "base"))[1], sep="/")
  unmerged, whole = open_saved(str(workdir)).load_adapted()
  for path, x in flatten_dict(lora.split(unmerged, whole)[1], sep="/").items():
    np.testing.assert_array_equal(x, base[path])
  assert np.any(whole["encoder"]["layers"]["ffn"]["in"]["lora_b"])
  model, params = jtx.load_pretrained(str(workdir))
  assert not lora.adapted(model) and not list(lora.adapters(params))
  batch = {k: jnp.arange(1, 6)[None] for k in ("text", "text_positions")}
  batch["text_segment_ids"] = jnp.ones((1, 5), jnp.int32)
  outputs = [m.apply({"params": p}, batch, method="predict")
             for m, p in ((unmerged, whole), (model, params))]
  np.testing.assert_allclose(*outputs, rtol=1e-5, atol=1e-6)
  task, params, step = load_run(str(workdir))
  assert step == results["step"] == 6 and not lora.adapted(task.model)


@pytest.mark.slow
def test_a_run_goes_on_as_if_it_had_not_stopped(run, folder, tmp_path):
  workdir, results = run
  shutil.copytree(workdir, tmp_path / "copy")
  copy = tmp_path / "copy"
  shutil.rmtree(copy / "checkpoints" / "6")
  os.remove(copy / "results.json")
  assert loop.run(config(folder), str(copy), jax.devices()[:1]) == results
  assert losses(copy) == losses(workdir) and len(losses(copy)) == 6
  for a, b in zip(*(jax.tree.leaves(load_run(str(w))[1]) for w in (workdir, copy))):
    np.testing.assert_array_equal(a, b)


def test_a_base_that_is_another_or_gone_is_told(run, folder, tmp_path):
  copy, base = tmp_path / "copy", tmp_path / "base"
  shutil.copytree(run[0], copy)
  values = json.loads((copy / "config.json").read_text())
  values["init_from"] = str(base)
  (copy / "config.json").write_text(json.dumps(values))
  with pytest.raises(ConfigError, match=f"holds adapters of the model of {base}: .*put it back"):
    load_run(str(copy))
  model, params = jtx.load_pretrained(str(folder / "base"))
  norm = params["encoder"]["layers"]["ffn_norm"]
  norm["bias"] = norm["bias"].at[1, 0].add(1e-3)
  jtx.save_pretrained(str(base), model, params, like=str(folder / "base"), format="jtx")
  other = "its encoder/layers/ffn_norm/bias is another"
  with pytest.raises(CheckpointError, match=other):
    load_run(str(copy))
  with pytest.raises(CheckpointError, match=other):
    loop.run(config(folder, init_from=str(base), steps=6), str(copy), jax.devices()[:1])


@pytest.mark.parametrize("edits, match", [
    ({"init_from": ""}, "config.model.lora.rank=3 adapts a trained model, and config.init_from"),
    ({"model.lora.names": ("atention",)}, "'atention' matches no linear layer"),
    ({"model.embedding.types": 2, "model.mlm": True}, "freezes mlm_head/.* which .*base does not"),
])
def test_what_can_not_be_adapted_writes_nothing(edits, match, folder, tmp_path):
  with pytest.raises(ConfigError, match=match):
    loop.run(config(folder, **edits), str(tmp_path / "run"), jax.devices()[:1])
  assert not (tmp_path / "run" / "config.json").exists()


@pytest.mark.parametrize("args, match", [
    ("freeze=1", "freeze, decay and features have no place beside lora"),
    ("decay=0.9", "freeze, decay and features have no place beside lora"),
    ("features=last", "freeze, decay and features have no place beside lora"),
])
def test_arguments_that_have_no_place_beside_lora(args, match, folder):
  with pytest.raises(ConfigError, match=match):
    classify.get_config(f"lora=3,init={folder / 'base'},{args}")
  with pytest.raises(ConfigError, match="lora=3 adapts a trained model"):
    classify.get_config("lora=3")


def test_adapters_of_images(tmp_path):
  """The encoder of a run stays as it is, its positions too; adapters and the head are trained."""
  base, run = str(tmp_path / "base"), str(tmp_path / "run")
  loop.run(vit_digits.get_config("tiny").lock(), base, jax.devices()[:1])
  with pytest.raises(ConfigError, match="freeze and decay have no place beside lora"):
    vit.get_config(f"init={base},res=8,channels=1,lora=2,freeze=1")
  with pytest.raises(ConfigError, match="lora=2 adapts a trained model"):
    vit.get_config("lora=2")
  c = vit.get_config(f"init={base},res=8,channels=1,crop=none,batch=8,lr=0.01,lora=2")
  c = common.apply(c, {"epochs": None, "steps": 2, "checkpoint.every": 2, "trackers": ()})
  loop.run(c.lock(), run, jax.devices()[:1])
  model, params = open_saved(run).load_adapted()
  before = flatten_dict(open_saved(base).load()[1], sep="/")
  after = flatten_dict(params, sep="/")
  assert model.lora.rank == 2 and any("query/lora_b" in path and x.any()
                                      for path, x in after.items())
  frozen = [path for path in before if not path.startswith("task_head/")]
  assert len(frozen) > 10
  for path in frozen:
    np.testing.assert_array_equal(after[path], before[path], err_msg=path)
