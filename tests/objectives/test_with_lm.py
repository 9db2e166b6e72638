"""Next tokens' loss beside a task's, on decoders, against float64 NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import common
from jtx import build
from jtx.errors import ConfigError
from jtx.models.text_head import HeadConfig
from jtx.objectives.classify import Classify
from jtx.objectives.distill_classes import DistillClasses
from jtx.objectives.multi_label import MultiLabel
from jtx.objectives.multiple_choice import MultipleChoice
from jtx.objectives.span import Span
from jtx.objectives.tag import Tag
from tests.helpers import block, decoder, one_fast
from tests.models.test_contract import drawn

V = 11
MODEL = decoder(vocab_size=V, width=8, num_layers=2, dtype="float32", tie=False,
                block=block(num_heads=2, ffn_dim=12, norm_position="pre"))
# Two texts in the first row; a text of one token, of which none is predicted, alone in the third.
SEGMENTS = np.array([[1, 1, 1, 1, 2, 2, 0], [1, 1, 1, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0]])
POSITIONS = np.array([[0, 1, 2, 3, 0, 1, 0], [0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 4, 5, 6]])
TEXTS = [(0, [0, 1, 2, 3]), (0, [4, 5]), (1, [0, 1, 2])]
TOKENS = np.random.default_rng(1).integers(1, V, SEGMENTS.shape)


def fields(*names):
  """A batch of some fields, of other tokens each."""
  return {f"{name}{suffix}": jnp.asarray(value) for i, name in enumerate(names)
          for suffix, value in {"": (TOKENS + i) % V, "_segment_ids": SEGMENTS,
                                "_positions": POSITIONS}.items()}


def with_head(task, **more):
  model = MODEL.clone(head=HeadConfig(task=task, **{"pool": "last", **more}))
  return model, drawn(model)


def lm_loss(model, params, batch):
  """Mean over the texts of the mean over their tokens, and the number of texts, in float64."""
  logits = np.asarray(model.apply({"params": params}, model.apply({"params": params}, batch),
                                  method="logits"), np.float64)
  log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  tokens = np.asarray(batch["text"])
  means = [np.mean([-log_p[row, t, tokens[row, t + 1]] for t in places[:-1]])
           for row, places in texts_of(len(tokens))]
  return np.sum(means), len(means)


def texts_of(rows):
  return [(row + 3 * part, places) for part in range(rows // 3) for row, places in TEXTS]


CASES = {
    "classes": (Classify, dict(outputs=3), ("text",),
                {"label": jnp.array([[2, 0], [1, 9], [0, 9]])}),
    "multi_label": (MultiLabel, dict(outputs=3), ("text",),
                    {"label": jnp.asarray(np.arange(18).reshape(3, 2, 3) % 2)}),
    "choice": (MultipleChoice, {}, ("choice_0", "choice_1"),
               {"label": jnp.array([[1, 0], [1, 0], [0, 0]])}),
    "tags": (Tag, dict(outputs=3, pool="none"), ("text",), {"tags": jnp.asarray(TOKENS % 3)}),
    "span": (Span, dict(pool="none"), ("text",), {"start": jnp.zeros((3, 2), int),
                                                 "end": jnp.ones((3, 2), int)}),
}


@pytest.mark.parametrize("task", one_fast(*CASES))
def test_it_is_the_mean_over_texts_of_the_mean_over_tokens(task):
  make, head, names, labels = CASES[task]
  model, params = with_head(task, **head)
  batch = fields(*names) | labels
  plain, both = make(), make(lm_weight=0.5)
  alone = plain(model, params, batch, train=False)
  sums = both(model, params, batch, train=False)
  total, number = lm_loss(model, params, plain.model_inputs(batch))
  np.testing.assert_allclose(np.asarray(sums["lm_loss"]), [total, number], rtol=1e-6)
  for name, pair in alone.items():  # the task's own are what they were
    np.testing.assert_allclose(np.asarray(sums[name]), np.asarray(pair), rtol=1e-6)
  weights = both.weights(batch)
  assert weights["lm_loss"] == 2 * number and weights["loss"] == plain.weights(batch)["loss"]
  assert set(plain.weights(batch)) == {"loss"} and "lm_loss" not in alone


def gradient(objective, model, params, batch):
  def loss(params):
    sums = objective(model, params, batch, train=False)
    return sum(sums[name][0] / w for name, w in objective.weights(batch).items())
  return jax.grad(loss)(params)


@pytest.mark.slow
def test_the_output_of_next_tokens_has_a_gradient_with_the_loss_alone():
  model, params = with_head("classes", outputs=3)
  batch = fields("text") | {"label": jnp.array([[2, 0], [1, 9], [0, 9]])}
  largest = lambda objective, path: float(jnp.abs(
      gradient(objective, model, params, batch)[path]["kernel"]).max())
  assert largest(Classify(), "output") == 0
  assert largest(Classify(lm_weight=0.5), "output") > 1e-3
  np.testing.assert_allclose(largest(Classify(lm_weight=1.0), "output"),
                             2 * largest(Classify(lm_weight=0.5), "output"), rtol=1e-5)


def test_a_model_without_scores_of_next_tokens():
  config = common.get_config()
  config.model = common.model("encoder", vocab_size=V, head=dict(task="classes", outputs=2))
  config.objective = common.objective("classify", lm_weight=0.5)
  with pytest.raises(ConfigError, match="config.objective.lm_weight=0.5 needs a model with the head"
                     " 'lm', but config.model.name='encoder' has classes"):
    build.make_model(config, {})
  with pytest.raises(ConfigError, match="lm_weight is of texts, and distill_classes of images"):
    DistillClasses(lm_weight=0.5)


# ------------------------------------------------------------------------ both orders


def test_pairs_are_the_same_in_either_order():
  model, params = with_head("classes", outputs=3, both_orders=True)
  batch = fields("text", "swapped") | {"label": jnp.array([[2, 0], [1, 9], [0, 9]])}
  swap = {"text": "swapped", "swapped": "text"}
  turned = {key: batch["_".join([swap.get(key.split("_")[0], key.split("_")[0]),
                                 *key.split("_")[1:]])] for key in batch}
  objective = Classify()
  outputs = lambda batch: model.apply({"params": params}, objective.model_inputs(batch), 2,
                                      method="predict")
  np.testing.assert_array_equal(outputs(batch), outputs(turned))
  # They are the output of the sum of both vectors.
  one = model.clone(head=HeadConfig(task="embedding", pool="last"))
  vectors = [np.asarray(one.apply({"params": params}, {
      f"text{suffix}": batch[f"{field}{suffix}"] for suffix in ("", "_segment_ids", "_positions")},
      2, method="predict"), np.float64) for field in ("text", "swapped")]
  output = jax.tree.map(lambda x: np.asarray(x, np.float64), params["task_head"]["output"])
  np.testing.assert_allclose(outputs(batch), sum(vectors) @ output["kernel"] + output["bias"],
                             rtol=1e-5, atol=1e-6)
  sums = Classify(lm_weight=0.5)(model, params, batch, train=False)
  assert float(sums["lm_loss"][1]) == 6 and float(sums["loss"][1]) == 4


def test_padding_and_other_texts_change_nothing():
  model, params = with_head("classes", outputs=3)
  outputs = model.apply({"params": params}, fields("text"), 2, method="predict")
  for (row, places), text in zip(TEXTS, (0, 1, 0)):
    alone = {"text": jnp.asarray(TOKENS[row, places])[None],
             "text_segment_ids": jnp.ones((1, len(places)), int),
             "text_positions": jnp.arange(len(places))[None]}
    np.testing.assert_allclose(model.apply({"params": params}, alone, method="predict")[0, 0],
                               outputs[row, text], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("task, pool", [("choice", "last"), ("tags", "none"), ("none", "first")])
def test_both_orders_are_of_classes(task, pool):
  with pytest.raises(ConfigError, match=f"head.both_orders is for classes.*task='{task}'"):
    HeadConfig(task=task, pool=pool, both_orders=True)
