"""The loss of targets' own tokens against float64, and what frequencies predict, by counting."""

import jax
import numpy as np
import pytest

from configs import common, t5_books
from jtx import build
from jtx.data.dataset import Dataset
from jtx.errors import ConfigError
from jtx.evals.run import make_evaluators
from jtx.evals.targets import Targets
from jtx.evals.task import Task
from jtx.parallel import sharding
from tests.models.test_contract import drawn


@pytest.fixture(scope="module")
def task(tmp_path_factory):
  folder = tmp_path_factory.mktemp("texts")
  for number in range(6):
    numbers = range(number, number + 60)
    (folder / f"{number}.txt").write_text(" ".join(f"word {n * n}" for n in numbers), "utf-8")
  c = t5_books.get_config("tiny")
  c.data.path, c.data.train = str(folder), ("documents:.",)
  c.evals.targets.source = ("documents:.",)
  common.apply(c, {"batch_size": 3, "tokenizer.kind.vocab_size": 150,
                   "data.ops[2].lengths": (48, 24)})
  data = Dataset(c.data, c.tokenizer)
  model, objective = build.make_model(c, data.info)
  mesh = sharding.make_mesh(c.mesh, jax.devices()[:1])
  return Task(c.lock(), model, objective, data=data, mesh=mesh)


def test_special_tokens_do_not_count(task):
  params = drawn(task.model)
  found = dict(make_evaluators(task.config)["targets"](task, params))
  tokenizer = task.data.tokenizers["text"]
  special = {*tokenizer.sentinel_ids, tokenizer.eos_id, tokenizer.pad_id}
  nats, hits, targets = [], 0, []
  logits_of = jax.jit(lambda batch: task.model.apply(
      {"params": params}, batch, method=lambda m, b: m.logits(m(b))))
  for batch in task.data.eval_batches(task.config.evals.targets.source, 3, range(3)):
    batch.pop("ids")
    logits = np.asarray(logits_of(task.objective.model_inputs(batch)), np.float64)
    for place in zip(*np.nonzero(batch["tgt_segment_ids"])):
      token, scores = int(batch["tgt"][place]), logits[place]
      if token not in special:
        nats.append(np.log(np.exp(scores).sum()) - scores[token])
        hits += scores.argmax() == token
        targets.append(token)
  assert found["tokens"] == len(nats) > 100
  assert found["nll"] == pytest.approx(np.mean(nats), rel=1e-5)
  assert found["accuracy"] == pytest.approx(hits / len(nats))

  documents = task.data.prepared_train
  text = np.concatenate([documents.example(i)["text"] for i in range(len(documents))])
  share = lambda token: ((text == token).sum() + 1) / (len(text) + tokenizer.vocab_size)
  expected = np.mean([-np.log(share(token)) for token in targets])
  assert found["unigram_nll"] == pytest.approx(expected)


def test_pairs_of_translations_have_no_one_tokenizer(task):
  from configs import nmt_base
  c = nmt_base.get_config("tiny")
  data = Dataset(c.data, c.tokenizer)
  translation = Task(c, task.model, task.objective, data=data, mesh=task.mesh)
  with pytest.raises(ConfigError, match="targets is of pairs that are made of documents"):
    next(Targets(source=("embedded:number_words:val",))(translation, {}))
