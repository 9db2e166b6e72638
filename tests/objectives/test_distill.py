"""The terms of distillation against float64, and what reaches the student."""

import dataclasses

import jax
import numpy as np
import pytest

from jtx.data.tokenizers.characters import Characters
from jtx.errors import ConfigError
from jtx.objectives.distill import Distill
from jtx.objectives.mlm import Mlm
from jtx.parallel import sharding
from jtx.saved import pretrained
from jtx.train.teacher import with_teacher
from tests.helpers import block, encoder, one_fast
from tests.models.test_encoder import BLOCK, D, batch_of, close, drawn, small

STUDENT = small(num_layers=1, block=block(BLOCK, dropout=0.0, attention_dropout=0.0), mlm=True)
TEACHER = encoder(STUDENT, num_layers=3)
BATCH = {**batch_of((3, 5, 7, 2), (9, 4)), "mlm_positions": np.array([[1, 3], [0, 0]], np.int32),
         "mlm_labels": np.array([[6, 2], [8, -1]], np.int32)}
HIDDEN = ((0, 1), (0, 3), (1, 0))
TOKENS = [(0, t) for t in range(4)] + [(1, t) for t in range(2)]


@pytest.fixture(scope="module")
def params():
  return drawn(STUDENT, BATCH, 0), drawn(TEACHER, BATCH, 1)


def outputs(model, params):
  """Hidden states and log-scores of every token, float64."""
  def run(m, batch):
    hidden = m(batch)
    return hidden, m.mlm_logits(hidden)
  hidden, scores = model.apply({"params": params}, BATCH, method=run)
  return np.asarray(hidden, np.float64), np.asarray(scores, np.float64)


def log_softmax(x):
  x = x - x.max(-1, keepdims=True)
  return x - np.log(np.exp(x).sum(-1, keepdims=True))


@pytest.mark.parametrize("temperature", one_fast(2.5, 1.0))
def test_terms(params, temperature):
  student, teacher = params
  objective = Distill(temperature=temperature).taught_by(TEACHER)
  sums = objective(STUDENT, student, BATCH, train=False, teacher=teacher)
  (hs, zs), (ht, zt) = outputs(STUDENT, student), outputs(TEACHER, teacher)
  kl = 0.0
  for place in HIDDEN:
    p, q = log_softmax(zt[place] / temperature), log_softmax(zs[place] / temperature)
    kl += temperature**2 * np.sum(np.exp(p) * (p - q))
  cosine = sum(1 - hs[t] @ ht[t] / np.sqrt(hs[t] @ hs[t] * (ht[t] @ ht[t])) for t in TOKENS)
  close(sums["soft_loss"], (kl, 3), 1e-3)
  close(sums["cosine_loss"], (cosine, 6), 1e-4)
  plain = Mlm()(STUDENT, student, BATCH, train=False)
  close(sums["loss"], plain["loss"], 0)
  assert float(plain["loss"][1]) == 3


def test_weights_of_the_terms():
  objective = Distill(soft_weight=5.0, mlm_weight=2.0, cosine_weight=0.5).taught_by(TEACHER)
  weights = {name: float(w) for name, w in objective.weights(BATCH).items()}
  assert weights == {"loss": 3 / 2, "soft_loss": pytest.approx(3 / 5), "cosine_loss": 6 / 0.5}
  alone = Distill(mlm_weight=0.0, cosine_weight=0.0).taught_by(TEACHER).weights(BATCH)
  assert set(alone) == {"soft_loss"}


def test_a_student_that_is_its_teacher_has_nothing_to_learn(params):
  student, _ = params
  objective = Distill().taught_by(STUDENT)
  sums = objective(STUDENT, student, BATCH, train=False, teacher=student)
  close((sums["soft_loss"][0], sums["cosine_loss"][0]), (0, 0), 1e-4)


def test_without_a_teacher_it_is_mlm(params):
  student, _ = params
  for objective in (Distill(), Distill().taught_by(TEACHER)):
    sums = objective(STUDENT, student, BATCH, train=False)
    expected = Mlm()(STUDENT, student, BATCH, train=False)
    assert sums.keys() == expected.keys()
    close(sums["loss"], expected["loss"], 0)


def test_widths_must_be_one_for_the_cosine(params):
  student, _ = params
  wide = encoder(TEACHER, width=2 * D)
  teacher = drawn(wide, BATCH, 1)
  with pytest.raises(ConfigError, match="cosine_weight=1.0: the teacher is 24 wide and the model"
                     " 12"):
    Distill().taught_by(wide)(STUDENT, student, BATCH, train=False, teacher=teacher)
  Distill(cosine_weight=0.0).taught_by(wide)(STUDENT, student, BATCH, train=False, teacher=teacher)


def test_a_loss_of_no_part_is_refused():
  with pytest.raises(ConfigError, match="must not all be 0"):
    Distill(soft_weight=0.0, mlm_weight=0.0, cosine_weight=0.0)


def test_a_teacher_of_another_tokenizer_is_refused(params, tmp_path):
  ours = Characters("abcd")
  teacher = TEACHER.clone(vocab_size=ours.vocab_size)
  mesh = sharding.make_mesh(dict(data=1, fsdp=1, tensor=1, context=1), jax.devices()[:1])
  batch = {**BATCH, "text": BATCH["text"] % ours.vocab_size}
  for name, theirs in (("same", ours), ("other", Characters("abce"))):
    pretrained.save_pretrained(str(tmp_path / name), teacher, drawn(teacher, batch), theirs,
                               format="jtx")
  with_teacher(Distill(teacher=str(tmp_path / "same")), mesh, tokenizer=ours)
  with pytest.raises(ConfigError, match=r"other has another tokenizer: token \d is 'e', and 'd'"):
    with_teacher(Distill(teacher=str(tmp_path / "other")), mesh, tokenizer=ours)


def test_a_teacher_is_loaded_from_a_folder(params, tmp_path):
  _, teacher = params
  pretrained.save_pretrained(str(tmp_path / "teacher"), TEACHER, teacher)
  mesh = sharding.make_mesh(dict(data=1, fsdp=1, tensor=1, context=1), jax.devices()[:1])
  objective, extra = with_teacher(Distill(teacher=str(tmp_path / "teacher")), mesh)
  jax.tree.map(np.testing.assert_array_equal, extra["teacher"], teacher)
  assert objective.model.stack.num_layers == 3
  assert with_teacher(Mlm(), mesh) == (Mlm(), {})
  with pytest.raises(ConfigError, match="objective.teacher is unset; it names the folder"):
    with_teacher(Distill(), mesh)
  bare = dataclasses.replace(TEACHER, mlm=False)
  pretrained.save_pretrained(str(tmp_path / "bare"), bare, drawn(bare, BATCH))
  with pytest.raises(ConfigError, match="has no head for masked tokens"):
    with_teacher(Distill(teacher=str(tmp_path / "bare")), mesh)
