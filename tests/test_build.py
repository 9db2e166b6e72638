"""Needs of objectives and evaluators against what models and batches have."""

import dataclasses

import flax.linen as nn
import jax
import pytest

from configs import bert as bert_config
from configs import common, mae, tag, vit_digits
from jtx import build
from jtx.compile.declared import declared_data
from jtx.config import section
from jtx.data import pipeline
from jtx.errors import ConfigError
from jtx.evals import EVALS
from jtx.models import MODELS
from jtx.models.heads import TASKS
from jtx.objectives import OBJECTIVES
from jtx.train import loop
from tests.helpers import tiny_config


def bert():
  return bert_config.get_config("tiny")


def with_objective(config, name, **fields):
  config = config.copy_and_resolve_references().unlock()
  config.objective = section(OBJECTIVES, name, **fields)
  return config.lock()


def made(config):
  return build.make_model(config, declared_data(config, outputs=3)[1])


@pytest.mark.parametrize("config,message", [
    (lambda: with_objective(tiny_config(), "mlm"),
     "config.objective.name='mlm' needs a model with the head 'mlm', but"
     " config.model.name='encdec' has seq2seq: set config.model.name='encoder' and"
     " config.model.mlm=True"),
    (lambda: with_objective(bert(), "seq2seq", bos_id=1),
     "config.objective.name='seq2seq' needs a model with the head 'seq2seq', but"
     " config.model.name='encoder' has mlm, next_sentence: set config.model.name='encdec' and"
     " config.model.seq2seq=True"),
    (lambda: common.apply(bert(), {"model.mlm": False}),
     "config.objective.name='mlm' needs a model with the head 'mlm', but"
     " config.model.name='encoder' has next_sentence: set config.model.mlm=True"),
    (lambda: with_objective(bert(), "tag"),
     "config.objective.name='tag' needs a model with the head 'tags', but"
     " config.model.name='encoder' has mlm, next_sentence: set config.model.head.task='tags'"),
    (lambda: with_objective(tiny_config(), "tag"),
     "config.objective.name='tag' needs a model with the head 'tags', but"
     " config.model.name='encdec' has seq2seq: set config.model.name='encoder' and"
     " config.model.head.task='tags'"),
    (lambda: with_objective(vit_digits.get_config(), "mae"),
     "config.objective.name='mae' needs a model with the head 'mae', but"
     " config.model.name='vit' has classes: set config.model.decoder.num_layers=8"),
])
def test_an_objective_whose_head_the_model_lacks(config, message):
  with pytest.raises(ConfigError) as e:
    made(config())
  assert str(e.value) == message


@dataclasses.dataclass(frozen=True)
class OwnObjective:
  """Members that are fields, annotated or in the class are there."""
  keys: tuple[str, ...]
  unit = "rows"

  def __call__(self, model, params, batch, *, train, rngs=None):
    return {}


class OwnModel(nn.Module):
  heads: frozenset[str] = frozenset()

  def __call__(self, batch, train=False):
    return batch["text"]


def test_what_lacks_members_of_its_contract(monkeypatch):
  config = bert()
  for registry, what, constructor, message in (
      (OBJECTIVES, "objective", OwnObjective, "config.objective.name='own': OwnObjective lacks"
       " heads, model_inputs, weights; the class Objective in jtx/objectives/contract.py says"),
      (MODELS, "model", OwnModel, "config.model.name='own': OwnModel lacks stacks, longest,"
       " example, attention_weights; the class Model in jtx/models/contract.py says")):
    monkeypatch.setitem(registry, "own", constructor)
    edited = config.copy_and_resolve_references().unlock()
    edited[what] = section(registry, "own", **({"keys": ("text",)} if what == "objective" else {}))
    with pytest.raises(ConfigError, match=message):
      made(edited)


def test_an_objective_whose_keys_the_data_lacks():
  config = tag.get_config("tiny")
  model, objective = made(config)
  recipe, _ = declared_data(config, outputs=3)
  example = pipeline.example_batch(recipe, 4)
  build.abstract_params(model, objective, example)
  del example["tags"]
  with pytest.raises(ConfigError) as e:
    build.abstract_params(model, objective, example)
  assert str(e.value) == (
      "config.objective.name='tag' needs batches with tags, but config.data.ops make "
      + ", ".join(example))


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_what_objectives_need_is_written(name):
  kind = OBJECTIVES[name]
  assert isinstance(kind.heads, frozenset) and kind.heads and isinstance(kind.unit, str)
  assert isinstance(kind.keys, tuple) and kind.keys


@pytest.mark.parametrize("name", sorted(EVALS))
def test_what_evaluators_need_is_written(name):
  assert isinstance(EVALS[name].heads, frozenset) and isinstance(EVALS[name].keys, tuple)


@pytest.mark.parametrize("evaluator,message", [
    ("tagging", "config.evals.val.name='tagging' needs a model with the head 'tags', but"
     " config.model.name='encdec' has seq2seq: set config.model.name='encoder' and"
     " config.model.head.task='tags'"),
    ("throughput", "config.evals.val.name='throughput' needs batches with image, but"
     " config.data.ops make src, "),
])
def test_an_evaluator_that_does_not_fit_is_refused_before_training(tmp_path, evaluator, message):
  config = tiny_config()
  fields = {} if evaluator == "throughput" else {"source": ("embedded:number_words:val",)}
  with config.unlocked():
    config.evals = {"val": common.evaluator(evaluator, **fields)}
  with pytest.raises(ConfigError) as e:
    loop.run(config, str(tmp_path), jax.devices()[:1])
  assert str(e.value).startswith(message)
  assert not list(tmp_path.glob("checkpoints/*"))


def test_objectives_name_heads_that_models_have():
  heads = {"seq2seq", "lm", "mlm", "plm", "mae", "distilled", "generator", "image_text",
           "bilm", *TASKS}
  assert all(kind.heads <= heads for kind in [*OBJECTIVES.values(), *EVALS.values()])
  assert set(MODELS) >= {edit["name"] for edit in build.HEAD_EDITS.values()}


def test_every_head_has_an_objective():
  trained = frozenset().union(*(kind.heads for kind in OBJECTIVES.values()))
  assert trained >= {"seq2seq", "mlm", "mae", "classes", "tags", "span", "choice"}
  assert made(mae.get_config("tiny"))[0].heads >= {"mae"}


def test_an_embedding_may_have_rows_to_spare():
  """Published T5s have 32,128 rows for 32,100 tokens."""
  config = bert()
  config.model.vocab_size = 80
  assert build.make_model(config, {"vocab_size": 23})[0].vocab_size == 80
  with pytest.raises(ConfigError, match="config.model.vocab_size=80 does not fit the data"):
    build.make_model(config, {"vocab_size": 81})


def test_a_target_may_begin_with_the_token_0():
  """As ByT5's do, with <pad>."""
  config = tiny_config()
  info = declared_data(config, outputs=3)[1] | {"bos_id": 0}
  assert build.make_model(config, info)[1].bos_id == 0
