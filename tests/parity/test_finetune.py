"""Fine-tuning beside `transformers`: without dropout, both end with the same parameters."""

import json

import jax
import numpy as np
import pytest
import safetensors.numpy

torch = pytest.importorskip(
    "torch", reason="PyTorch is not installed: make test-parity installs it")
transformers = pytest.importorskip("transformers", reason="see make test-parity")

from benchmarks import finetune
from experiments import cli
import jtx
from jtx.data.tokenizers import kinds
from jtx.saved.workdir import load_run
from jtx.train import loop
from tests.train.test_finetune import sentences, write_files

# Arguments of the config, the peer's class, its constructor's edits, and an evaluator's score.
TASKS = {
    "classify": ("classify.py:text=0,label=1,dev=val.tsv", "SequenceClassification",
                 {"num_labels": 2}, "accuracy"),
    "number": ("classify.py:names=,scores=pearson,dev=val.tsv", "SequenceClassification",
               {"num_labels": 1}, "pearson"),
    "tag": ("tag.py:entities,dev=val.conll", "TokenClassification", {"num_labels": 2}, "accuracy"),
    "span": ("squad.py:stride=1,train=train.equal.json,dev=val.json", "QuestionAnswering", {},
             "exact_match"),
    "choice": ("choose.py:prompt=0,first=1,choices=2,label=3,train=train.choices,dev=val.choices",
               "MultipleChoice", {}, "accuracy"),
}
# A softmax does not see what is added to all scores.
WITHOUT_GRADIENT = {"span": ("qa_outputs.bias", "layer.1.output.LayerNorm.bias"),
                    "choice": ("classifier.bias",)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp("texts")
  write_files(folder)
  # In a batch of the peer's, scores at padding count as places of the answer, which ours leave
  # out: here there is no padding, since every context ends after its first sentence.
  corpus = json.loads((folder / "train.json").read_text())
  for paragraph in corpus["data"][0]["paragraphs"]:
    paragraph["context"] = paragraph["context"].partition(".")[0] + "."
  (folder / "train.equal.json").write_text(json.dumps(corpus))
  return folder


@pytest.mark.parametrize("task", TASKS)
def test_both_systems_end_with_the_same_parameters(task, folder, tmp_path):
  arguments, peer, edits, score = TASKS[task]
  tokenizer = kinds.wordpiece((" ".join(w) for w in sentences(200, 0)), vocab_size=100,
                                        min_frequency=1)
  torch.manual_seed(0)
  start = getattr(transformers, f"BertFor{peer}")(transformers.BertConfig(
      vocab_size=tokenizer.vocab_size, hidden_size=24, num_hidden_layers=2, num_attention_heads=3,
      intermediate_size=40, max_position_embeddings=128, hidden_dropout_prob=0.0,
      attention_probs_dropout_prob=0.0, **edits))
  start.save_pretrained(str(tmp_path / "without_tokenizer"))
  path = str(tmp_path / "start")
  jtx.save_pretrained(path, *jtx.load_pretrained(str(tmp_path / "without_tokenizer")), tokenizer)
  config = cli.config_of([
      f"--config=configs/{arguments},init={path},max_length=80,batch=16,epochs=2,lr=1e-3,group",
      f"--config.data.path={folder}", "--config.checkpoint.every=1000",
      # Far above rounding: with the usual 1e-8, where a gradient is almost 0 its rounding alone
      # decides which way Adam steps.
      "--config.optim.optimizer.eps=1e-5"])

  workdir = str(tmp_path / "workdir")
  results = loop.run(config, workdir, jax.devices()[:1])
  loaded, params, _ = load_run(workdir)
  jtx.save_pretrained(str(tmp_path / "ours"), loaded.model, params)
  model = finetune.train_peer(config, loaded.data, peer)
  model.save_pretrained(str(tmp_path / "theirs"))
  before, ours, theirs = (safetensors.numpy.load_file(tmp_path / name / "model.safetensors")
                          for name in ("start", "ours", "theirs"))
  assert ours.keys() == theirs.keys()
  for name in ours:
    moved = np.abs(theirs[name] - before[name]).max()
    if not name.endswith(("key.bias", *WITHOUT_GRADIENT.get(task, ()))):
      assert moved > 1e-4, name
      assert np.abs(ours[name] - theirs[name]).max() < 0.005 * moved, name

  other = finetune.evaluate_peer(model, config, loaded.data)
  assert other[f"dev/{score}"] == pytest.approx(results[f"dev/{score}"], abs=5e-3)
