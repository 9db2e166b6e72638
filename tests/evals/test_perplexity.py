"""Perplexity of a split against sums that NumPy takes of one window at a time."""

import math

import jax
import numpy as np
import pytest

from configs import common, shakespeare
from jtx import build
from jtx.data.dataset import Dataset
from jtx.errors import ConfigError
from jtx.evals.perplexity import Perplexity
from jtx.evals.run import evaluate, make_evaluators
from jtx.evals.task import Task
from jtx.parallel import sharding
from tests.helpers import one_fast
from tests.models.test_contract import drawn

TEXTS = ["To be, or not to be: that is the question.", "Yes.", "", "Ö", "Whether 'tis nobler\nin"]


def config_of(folder, running, begin, **edits):
  for number, text in enumerate(TEXTS):
    (folder / f"{number}.txt").write_text(text, encoding="utf-8")
  c = shakespeare.get_config("tiny")
  c.data.path, c.data.train = str(folder), ("documents:.",)
  c.data.ops = (common.op("tokenize", fields=("text",), begin=begin, end=begin),
                common.op("documents", running=running),
                common.op("pack", fields=("text",), lengths=(12,), max_segments=3))
  c.evals.val = common.evaluator("perplexity", source=("documents:.",), context=8, stride=3)
  return common.apply(c, {"batch_size": 3, "model.stack.block.dropout": 0.5, **edits}).lock()


def task_of(config, devices=1):
  data = Dataset(config.data, config.tokenizer)
  model, objective = build.make_model(config, data.info)
  mesh = sharding.make_mesh(config.mesh, jax.devices()[:devices])
  return Task(config, model, objective, data=data, mesh=mesh), drawn(model)


def direct(task, params, documents, context, stride):
  """Nats and hits of each token but a document's first, each from a window of its own."""
  score = jax.jit(lambda batch: task.model.apply(
      {"params": params}, batch, method=lambda m, b: m.logits(m(b))))
  nats, hits = [], []
  for tokens in documents:
    done = 0
    while done < len(tokens) - 1:
      stop = min(done + stride if done else context, len(tokens) - 1)
      start = max(stop - context, 0)
      row = np.zeros((3, 1, context), np.int32)
      row[0, 0, :stop - start] = tokens[start:stop]
      row[1, 0, :stop - start] = 1
      row[2, 0] = np.arange(context)
      logits = np.asarray(score(dict(zip(("text", "text_segment_ids", "text_positions"), row))),
                          np.float64)[0]
      for place in range(done, stop):
        scores = logits[place - start]
        nats.append(np.log(np.exp(scores).sum()) - scores[tokens[place + 1]])
        hits.append(scores.argmax() == tokens[place + 1])
      done = stop
  return np.array(nats), np.array(hits)


@pytest.mark.parametrize("case", one_fast(
    (False, True, 2, 8, 3), (True, False, 1, 8, 3), (True, True, 2, 20, 20),
    (False, False, 1, 5, 1), (False, True, 1, 100, 50)), ids=str)
def test_it_is_the_sum_over_windows(tmp_path, case):
  running, begin, devices, context, stride = case
  config = config_of(tmp_path, running, begin, **{"evals.val": common.evaluator(
      "perplexity", source=("documents:.",), context=context, stride=stride)})
  task, params = task_of(config, devices)
  evaluators = make_evaluators(config, task.model, task.data.example_batch(3))
  results = evaluate(task, params, evaluators, 0, str(tmp_path))

  tokenizer = task.data.tokenizers["text"]
  ends = ([tokenizer.bos_id], [tokenizer.eos_id]) if begin else ([], [])
  documents = [[*ends[0], *tokenizer.encode(text), *ends[1]] for text in TEXTS]
  if running:
    documents = [[token for tokens in documents for token in tokens]]
  nats, hits = direct(task, params, documents, context, stride)
  total, whole = nats.sum(), "".join(TEXTS)
  expected = {
      "nll": nats.mean(), "perplexity": math.exp(nats.mean()), "accuracy": hits.mean(),
      "bits_per_byte": total / math.log(2) / len(whole.encode()),
      "nats_per_character": total / len(whole),
      "nats_per_word": total / sum(len(text.split()) for text in TEXTS),
      "tokens": sum(max(len(tokens) - 1, 0) for tokens in documents)}
  assert results.keys() == {f"val/{name}" for name in expected}
  for name, value in expected.items():
    assert results[f"val/{name}"] == pytest.approx(value, rel=2e-5), name


def test_dropped_documents_count_nowhere(tmp_path):
  config = config_of(tmp_path, running=False, begin=True)
  with config.unlocked():
    config.data.ops = (*config.data.ops[:1], common.op("filter_length", fields=("text",),
                                                       max_length=30), *config.data.ops[1:])
  task, params = task_of(config)
  results = dict(Perplexity(("documents:.",), 8, 3)(task, params))
  left = [text for text in TEXTS if len(text) <= 28]
  assert results["tokens"] == sum(len(text) + 1 for text in left)
  assert results["nats_per_character"] == pytest.approx(
      results["nll"] * results["tokens"] / sum(map(len, left)))


def test_what_it_refuses(tmp_path):
  config = config_of(tmp_path, running=False, begin=True)
  with pytest.raises(ConfigError, match="has stride=9, and windows of context=8"):
    Perplexity(("documents:.",), context=8, stride=9)
  with config.unlocked():
    config.model.stack.position = common.position("learned", max_length=7)
  task, _ = task_of(config)
  with pytest.raises(ConfigError, match="has context=8, and the model takes 7 tokens at most"):
    make_evaluators(config, task.model, task.data.example_batch(3))
  with config.unlocked():
    config.data.ops = (config.data.ops[0], config.data.ops[2])
  with pytest.raises(ConfigError, match="needs batches with text_next, but config.data.ops make"):
    make_evaluators(config, None, Dataset(config.data, config.tokenizer).example_batch(3))
