"""Terms of a distillation against float64, what has a gradient, and the stages of a run."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.errors import ConfigError
from jtx.models.text_head import HeadConfig
from jtx.nn.relative import T5Bias
from jtx.objectives.classify import Classify
from jtx.objectives.contract import OWN
from jtx.objectives.distill import Distill
from jtx.objectives.distilled import Distilled
from jtx.objectives.lm import Lm
from jtx.objectives.mae import Mae
from jtx.objectives.mlm import Mlm
from jtx.objectives.multi_label import MultiLabel
from jtx.objectives.multiple_choice import MultipleChoice
from jtx.objectives.scored import scored
from jtx.objectives.seq2seq import Seq2Seq
from jtx.objectives.span import Span
from jtx.objectives.terms import Attention, Embeddings, Hidden, Relations, Soft
from jtx.parallel.sharding import unbox
from tests.helpers import block, decoder, encdec, encoder, vit
from tests.models import test_decoder, test_vit
from tests.models.test_encoder import BLOCK, D, batch_of, drawn, small
from tests.objectives.test_distill import log_softmax

STUDENT = small(num_layers=2, block=block(BLOCK, dropout=0.0, attention_dropout=0.0), mlm=True)
TEACHER = encoder(STUDENT, num_layers=4, width=2 * D)
BATCH = {**batch_of((3, 5, 7, 2), (9, 4), length=5),
         "mlm_positions": np.array([[1, 3], [0, 0]], np.int32),
         "mlm_labels": np.array([[6, 2], [8, -1]], np.int32)}
LENGTHS = (4, 2)
TERMS = (Soft(temperature=2.0), Hidden(), Embeddings(), Attention(),
         Relations(relations=("qq", "vv", "qk"), heads=6),
         Hidden(layers=((-1, 3), (0, 1)), compare="cosine", shared=False))


def distilled(task, *terms, **fields):
  return Distilled(task, terms, "teacher", **fields)


def states(model, params):
  """Hidden states [layers + 1, B, T, D], float64, and the vectors of every head, by letter."""
  run = jax.jit(lambda p: model.apply({"params": p}, BATCH, method="hidden_states"))
  hidden = np.asarray(run(params), np.float64)
  attention = params["encoder"]["layers"]["attention"]
  project = lambda name: np.einsum("lbtd,ldnh->lbtnh", hidden[:-1], np.asarray(
      attention[name]["kernel"], np.float64)) + attention[name]["bias"][:, None, None]
  return hidden, {name[0]: project(name) for name in ("query", "key", "value")}


def pairs(a, b, heads=None):
  """Scaled products [heads, n, n] of the vectors [n, N, H] of a text."""
  n, width = len(a), a.shape[1] * a.shape[2]
  a, b = (x.reshape(n, heads or a.shape[1], -1) for x in (a, b))
  return np.einsum("trh,srh->rts", a, b) / np.sqrt(width / a.shape[1])


def kl(p, q):
  p, q = log_softmax(p), log_softmax(q)
  return np.sum(np.exp(p) * (p - q), -1)


def references(student, teacher, own):
  """The sum of every term of TERMS, but for the first, over tokens."""
  (hs, vs), (ht, vt) = states(STUDENT, student), states(TEACHER, teacher)
  mapped = lambda x, name: x @ np.asarray(own[name], np.float64)
  totals = np.zeros(5)
  for row, n in enumerate(LENGTHS):
    s, t = hs[:, row, :n], ht[:, row, :n]
    for i, j in ((1, 2), (2, 4)):
      totals[0] += np.square(mapped(s[i], "hidden_map") - t[j]).mean(-1).sum()
      a, b = (pairs(v["q"][i - 1, row, :n], v["k"][i - 1, row, :n])
              for v, i in ((vs, i), (vt, j)))
      totals[2] += np.square(a - b).mean(-1).mean(0).sum()
    totals[1] += np.square(mapped(s[0], "embeddings_map") - t[0]).mean(-1).sum()
    for x, y in ("qq", "vv", "qk"):
      a, b = (pairs(v[x][-1, row, :n], v[y][-1, row, :n], 6) for v in (vs, vt))
      totals[3] += kl(b, a).mean(0).sum()
    for i, j, name in ((2, 3, "hidden_2_map_2_3"), (0, 1, "hidden_2_map_0_1")):
      a, b = mapped(s[i], name), t[j]
      cosine = (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)
      totals[4] += (1 - cosine).sum()
  return totals


def test_terms_and_their_gradients():
  student, teacher = drawn(STUDENT, BATCH, 0), drawn(TEACHER, BATCH, 1)
  objective = distilled(Mlm(), *TERMS).taught_by(TEACHER)
  own = unbox(objective.own_params(STUDENT, jax.random.key(0)))
  assert {name: x.shape for name, x in own.items()} == dict.fromkeys(
      ("hidden_map", "embeddings_map", "hidden_2_map_2_3", "hidden_2_map_0_1"), (D, 2 * D))

  def loss(params, teacher):
    sums = objective(STUDENT, params, BATCH, train=False, teacher=teacher)
    return sum(sums[name][0] for name in objective.weights(BATCH)), sums

  grads, sums = jax.jit(jax.grad(loss, (0, 1), has_aux=True))({**student, OWN: own}, teacher)
  names = ("hidden", "embeddings", "attention", "relations", "hidden_2")
  for name, expected in zip(names, references(student, teacher, own)):
    np.testing.assert_allclose(sums[f"{name}_loss"], (expected, 6), rtol=2e-4, err_msg=name)
  one = Distill(temperature=2.0, cosine_weight=0.0).taught_by(TEACHER)
  plain = one(STUDENT, student, BATCH, train=False, teacher=teacher)
  for name in ("soft_loss", "loss", "accuracy"):
    np.testing.assert_allclose(sums[name], plain[name], rtol=1e-5, err_msg=name)
  assert not any(np.any(g) for g in jax.tree.leaves(grads[1]))
  assert all(np.any(g) for g in jax.tree.leaves(grads[0][OWN]))


@pytest.mark.slow
def test_a_student_that_is_its_teacher_has_nothing_to_learn():
  params = drawn(STUDENT, BATCH, 0)
  terms = (*TERMS[:-1], Attention(compare="weights"), Relations(layers=((1, 1),)))
  objective = distilled(Mlm(), *terms, task_weight=0.0).taught_by(STUDENT)
  assert objective.own_params(STUDENT, jax.random.key(0)) == {}  # nor has it maps

  def loss(taught):
    sums = objective(STUDENT, taught, BATCH, train=False, teacher=params)
    return sum(sums[name][0] for name in objective.weights(BATCH)), sums

  grads, sums = jax.jit(jax.grad(loss, has_aux=True))(params)
  assert set(objective.weights(BATCH)) == {name for name in sums if name.endswith("_loss")}
  for name in objective.weights(BATCH):
    np.testing.assert_allclose(sums[name][0], 0, atol=1e-5, err_msg=name)
  assert max(np.abs(g).max() for g in jax.tree.leaves(grads)) < 1e-4


GROUPED = decoder(**test_decoder.SIZE, position=T5Bias(num_buckets=4), pattern=("local", "global"),
                  window=2, block=block(**test_decoder.LAYER, num_kv_heads=1, soft_cap=5.0,
                                        dropout=0.0))


def weights_divergence(of_model, lengths, layers):
  """The sum over queries of the mean over heads of KL, by the models' own weights."""
  theirs, ours = ([np.asarray(w, np.float64)[i] for i in numbers]
                  for w, numbers in zip(of_model, zip(*layers)))
  total = 0.0
  for p, q in zip(theirs, ours):
    ratio = np.where(p > 0, p * (np.log(np.maximum(p, 1e-30)) - np.log(np.maximum(q, 1e-30))), 0)
    total += sum(ratio[row, :, :n].sum(-1).mean(0).sum() for row, n in enumerate(lengths))
  return total


def test_attention_is_that_of_masks_biases_and_groups():
  batch = test_decoder.batch_of(test_decoder.ROWS)
  models = GROUPED, decoder(GROUPED, num_layers=4)
  params = [drawn(model, batch, seed) for seed, model in enumerate(models)]
  objective = distilled(Lm(), Attention(compare="weights", layers=((1, 1), (2, -1)))).taught_by(
      models[1])
  sums = jax.jit(lambda p, t: objective(GROUPED, p, batch, train=False, teacher=t))(*params)
  weights = [model.apply({"params": p}, batch, method="attention_weights")["decoder"]
             for model, p in zip(models, params)]
  expected = weights_divergence((weights[1], weights[0]), (7, 1, 3), ((0, 0), (3, 1)))
  np.testing.assert_allclose(sums["attention_loss"], (expected, 11), rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("stack, lengths", [("encoder", (3, 2)), ("", (2, 4))])
def test_either_stack_of_an_encoder_decoder(stack, lengths):
  model = encdec(vocab_size=11, width=8, num_layers=1, num_decoder_layers=2, share_stacks=False,
                 block=block(num_heads=2, ffn_dim=8, dropout=0.0))
  pad = lambda *rows: np.array([[*row] + [0] * (4 - len(row)) for row in rows], np.int32)
  batch = {}
  for field, rows in (("src", ([3, 4, 5], [6, 7])), ("tgt", ([5, 2], [6, 3, 4, 2]))):
    batch |= {field: pad(*rows), f"{field}_segment_ids": (pad(*rows) > 0).astype(np.int32),
              f"{field}_positions": np.arange(4, dtype=np.int32) * np.ones((2, 1), np.int32)}
  task = Seq2Seq(bos_id=1, label_smoothing=0.0)
  params = [drawn(model, task.model_inputs(batch), seed) for seed in (0, 1)]
  terms = (Attention(compare="weights", stack=stack), Soft())
  objective = distilled(task, *terms).taught_by(model)
  sums = objective(model, params[0], batch, train=False, teacher=params[1])
  name = stack or "decoder"
  weights = [model.apply({"params": p}, task.model_inputs(batch), method="attention_weights")[name]
             for p in params]
  layers = [(i, i) for i in range(len(weights[0]))]
  expected = weights_divergence((weights[1], weights[0]), lengths, layers)
  np.testing.assert_allclose(sums["attention_loss"], (expected, sum(lengths)), rtol=1e-3)
  assert float(sums["soft_loss"][1]) == 6 and float(sums["soft_loss"][0]) > 0


@pytest.mark.slow
def test_images_are_compared_as_each_model_normalises_them():
  student = test_vit.SMALL
  teacher = vit(student, num_layers=2 * student.stack.num_layers)
  image = np.random.default_rng(0).integers(0, 256, (3, *student.example()["image"].shape[1:]))
  batch = {"image": image.astype(np.uint8), "real": np.array([[1], [1], [0]]),
           "label": np.array([[1], [0], [0]])}
  params = [test_vit.drawn(model, seed) for seed, model in enumerate((student, teacher))]
  objective = distilled(Classify(), Hidden(map="none"), Soft()).taught_by(teacher)
  sums = objective(student, params[0], batch, train=False, teacher=params[1])
  hidden, scores = ([np.asarray(model.apply({"params": p}, batch, method=method), np.float64)
                     for model, p in zip((student, teacher), params)]
                    for method in ("hidden_states", "predict"))
  expected = sum(np.square(hidden[0][i, :2] - hidden[1][2 * i, :2]).mean(-1).mean(-1).sum()
                 for i in range(1, student.stack.num_layers + 1))
  np.testing.assert_allclose(sums["hidden_loss"], (expected, 2), rtol=1e-4)
  np.testing.assert_allclose(sums["soft_loss"], (kl(scores[1][:2, 0], scores[0][:2, 0]).sum(), 2),
                             rtol=1e-4)


def test_stages_and_weights():
  terms = Hidden(weight=2.0, during=(0.0, 0.5)), Soft(weight=4.0, during=(0.5, 1.0)), Soft(weight=0)
  objective = distilled(Mlm(), *terms, task_weight=0.5, task_during=(0.25, 0.75))
  assert objective.staged and not distilled(Mlm(), Soft()).staged
  at = lambda done: {name: float(w) for name, w in objective.at(done).weights(BATCH).items()}
  off = float("inf")
  assert at(0.0) == {"loss": off, "hidden_loss": 6 / 2, "soft_loss": off}
  assert at(jnp.float32(0.5)) == {"loss": 3 / 0.5, "hidden_loss": off, "soft_loss": 3 / 4}
  assert at(0.75) == {"loss": off, "hidden_loss": off, "soft_loss": 3 / 4}
  assert {name: float(w) for name, w in objective.weights(BATCH).items()} == {
      "loss": 6, "hidden_loss": 3, "soft_loss": 3 / 4}


def test_scores_of_tasks():
  rng = np.random.default_rng(0)
  draw = lambda *shape: rng.normal(size=shape)
  text = {"text_segment_ids": np.array([[1, 1, 2, 0], [1, 1, 1, 0]]), "label": np.array(
      [[0, 1], [1, 0]])}

  def compared(task, batch, a, b, T=2.0):
    weights, divergence = scored(task, batch)
    return np.asarray(weights), np.asarray(divergence(jnp.asarray(a), jnp.asarray(b), T))

  a, b = draw(2, 2, 3), draw(2, 2, 3)
  weights, found = compared(Classify(), text, a, b)
  np.testing.assert_array_equal(weights, [[1, 1], [1, 0]])
  np.testing.assert_allclose(found, 4 * kl(a / 2, b / 2), rtol=1e-4)
  p, q = (1 / (1 + np.exp(-x / 2)) for x in (a, b))
  expected = 4 * (p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))).mean(-1)
  for task in (MultiLabel(), Classify(loss="sigmoid")):
    np.testing.assert_allclose(compared(task, text, a, b)[1], expected, rtol=1e-4)
  np.testing.assert_allclose(compared(Classify(loss="squared_error"), text, a[..., :1], b[..., :1])
                             [1], np.square(a - b)[..., 0], rtol=1e-5)

  choices = {"choice_0_segment_ids": text["text_segment_ids"], "label": text["label"]}
  a, b = draw(3, 2, 2), draw(3, 2, 2)  # three choices of two rows of two questions
  found = compared(MultipleChoice(), choices, *(x.reshape(6, 2, 1) for x in (a, b)))[1]
  np.testing.assert_allclose(found, 4 * kl(*(np.moveaxis(x, 0, -1) / 2 for x in (a, b))), rtol=1e-4)

  a, b = draw(2, 4, 2), draw(2, 4, 2)
  weights, found = compared(Span(), {**text, "start": text["label"]}, a, b)
  np.testing.assert_allclose(found[0, 0], 2 * kl(a[0, :2].T / 2, b[0, :2].T / 2).sum(), rtol=1e-4)
  np.testing.assert_allclose(found[1, 0], 2 * kl(a[1, :3].T / 2, b[1, :3].T / 2).sum(), rtol=1e-4)
  np.testing.assert_array_equal(weights, [[1, 1], [1, 0]])


def model_of(**fields):
  return types.SimpleNamespace(stacks={"encoder": types.SimpleNamespace(**fields)})


@pytest.mark.parametrize("make, message", [
    (lambda: distilled(Mlm()), "teaches nothing"),
    (lambda: distilled(Mlm(), Soft(weight=0.0)), "teaches nothing"),
    (lambda: distilled(Distill(), Soft()), "a second one beside that of the objective"),
    (lambda: distilled(Classify(mixup=0.5), Soft()), "objective.mixup mixes images"),
    (lambda: distilled(Lm(logits_chunk=4), Soft()), "objective.logits_chunk holds"),
    (lambda: distilled(Mlm(), Soft()).taught_by(encoder(STUDENT, mlm=False)), "no head 'mlm'"),
    (lambda: Soft().weights(Mae(), {}), "'soft' compares scores of classes"),
    (lambda: Soft(during=(0.5, 0.5)), "two shares of the run"),
    (lambda: Hidden(map="learnt"), "map='learnt': did you mean 'learned'"),
    (lambda: Attention(compare="score"), "compare='score': did you mean 'scores'"),
    (lambda: Relations(relations=("qx",)), "'qx' is not two of q, k and v"),
    (lambda: Relations(relations=()), "compares nothing"),
    (lambda: Hidden().pairs(3, 4), "layers are unset, and the teacher's 4 layers"),
    (lambda: Hidden(layers=((3, 1),)).pairs(2, 4), "the student has no layer 3; they are 0 to 2"),
    (lambda: Attention(layers=((1, 0),)).pairs(2, 4), "the teacher has no layer 0; they are 1 to"),
    (lambda: Hidden(map="none").maps(model_of(width=8), model_of(width=9)), "map='none', and the"),
    (lambda: Hidden(stack="decoder").maps(model_of(width=8), model_of(width=9)), "and one has enc"),
])
def test_refusals(make, message):
  with pytest.raises(ConfigError, match=message):
    make()


@pytest.mark.parametrize("terms, teacher, message", [
    ((Attention(),), dict(block=block(STUDENT.stack.block, num_heads=4)), "and the teacher 4"),
    ((Relations(heads=5),), {}, "relations.heads=5 relation heads need vectors"),
])
def test_models_that_do_not_fit(terms, teacher, message):
  model = encoder(STUDENT, **teacher)
  objective = distilled(Mlm(), *terms).taught_by(model)
  shapes = [jax.eval_shape(lambda m=m: drawn(m, BATCH)) for m in (STUDENT, model)]
  with pytest.raises(ConfigError, match=message):
    jax.eval_shape(lambda p, t: objective(STUDENT, p, BATCH, train=False, teacher=t), *shapes)


def test_as_many_outputs_are_needed():
  head = lambda n: encoder(STUDENT, mlm=False, head=HeadConfig(task="classes", outputs=n))
  batch = {**batch_of((3, 5)), "label": np.array([[1]])}
  objective = distilled(Classify(), Soft()).taught_by(head(3))
  shapes = [jax.eval_shape(lambda m=m: drawn(m, batch)) for m in (head(2), head(3))]
  with pytest.raises(ConfigError, match="has 3 outputs, and the model 2"):
    jax.eval_shape(lambda p, t: objective(head(2), p, batch, train=False, teacher=t), *shapes)
