"""Preferences: published losses, identities of the gradient, packing, and what is refused."""

import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.data.ops.preferences import EncodePreferences
from jtx.data.tokenizers.utf8 import Bytes
from jtx.errors import ConfigError, ExampleError
from jtx.nn.rope import Rope
from jtx.objectives.dpo import Dpo, preference_loss
from tests.helpers import block, decoder
from tests.models.test_contract import drawn

V = 13
LAYER = block(num_heads=2, ffn_dim=12, norm_position="pre", dropout=0.0)
MODEL = decoder(vocab_size=V, width=8, num_layers=2, position=Rope(), block=LAYER)
PARAMS = drawn(MODEL)
OTHER = jax.tree.map(lambda x: x * 0.7, PARAMS)
# Prompt, chosen and rejected answer.
PAIRS = [([1, 5, 6], [7, 2], [8, 9, 2]), ([1, 4], [3, 3, 3, 2], [2]), ([1, 9, 9, 9], [2], [5, 2])]


def batch_of(rows, length=16):
  """Each row the numbers of some pairs."""
  batch = {"preferred": jnp.zeros((len(rows), max(map(len, rows))), jnp.int32)}
  for side, name in ((1, "chosen"), (2, "rejected")):
    arrays = {key: np.zeros((len(rows), length), np.int32)
              for key in ("", "_segment_ids", "_positions", "_answers")}
    for r, row in enumerate(rows):
      at = 0
      for segment, number in enumerate(row, 1):
        prompt, answer = PAIRS[number][0], PAIRS[number][side]
        n = len(prompt) + len(answer)
        arrays[""][r, at:at + n] = prompt + answer
        arrays["_segment_ids"][r, at:at + n] = segment
        arrays["_positions"][r, at:at + n] = np.arange(n)
        arrays["_answers"][r, at + len(prompt):at + n] = 1
        at += n
    batch |= {f"{name}{key}": jnp.asarray(x) for key, x in arrays.items()}
  return batch


def log_prob(params, prompt, answer):
  """Of an answer behind its prompt, by itself."""
  ids = jnp.array([[*prompt, *answer]])
  batch = {"text": ids, "text_segment_ids": jnp.ones_like(ids),
           "text_positions": jnp.arange(ids.shape[1])[None]}
  logits = MODEL.apply({"params": params}, batch, method=lambda m, b: m.logits(m(b)))
  found = jax.nn.log_softmax(logits[0, len(prompt) - 1:-1])
  return found[jnp.arange(len(answer)), jnp.array(answer)].sum()


def run(objective, params, batch, reference=OTHER):
  objective = objective.taught_by(MODEL)
  sums = jax.jit(lambda p, q, b: objective(MODEL, p, b, train=True, teacher=q))(
      params, reference, batch)
  return {name: float(total / weight) for name, (total, weight) in sums.items()}


@pytest.mark.skipif("JTX_TEST_DATA" not in os.environ,
                    reason="JTX_TEST_DATA names no folder with golden/dpo")
def test_published_losses():
  with open(os.path.join(os.environ["JTX_TEST_DATA"], "golden/dpo/dpo_golden.json"),
            encoding="utf-8") as f:
    golden = json.load(f)
  get = lambda name: np.float64(golden[name])
  margin = (get("policy_chosen") - get("reference_chosen")) - (
      get("policy_rejected") - get("reference_rejected"))
  for case in golden["cases"]:
    loss = preference_loss(jnp.asarray(margin, jnp.float32), "sigmoid", case["beta"],
                           case["label_smoothing"])
    np.testing.assert_allclose(loss, case["losses"], rtol=1e-6, atol=1e-6)
    rewards = np.subtract(case["chosen_rewards"], case["rejected_rewards"])
    np.testing.assert_allclose(case["beta"] * margin, rewards, rtol=1e-6)


@pytest.mark.parametrize("rows", [[[0], [1], [2]], [[0, 1], [2]]], ids=str)
def test_pairs_by_themselves_and_packed(rows):
  beta, found = 0.3, run(Dpo(beta=0.3), PARAMS, batch_of(rows))
  parts = [{name: [float(log_prob(p, prompt, answer)) for p in (PARAMS, OTHER)]
            for name, answer in (("chosen", chosen), ("rejected", rejected))}
           for prompt, chosen, rejected in PAIRS]
  difference = {name: np.array([p[name][0] - p[name][1] for p in parts])
                for name in ("chosen", "rejected")}
  margin = difference["chosen"] - difference["rejected"]
  expected = {
      "loss": np.log1p(np.exp(-beta * margin)), "accuracy": margin > 0, "margin": beta * margin,
      "chosen_reward": beta * difference["chosen"],
      "rejected_reward": beta * difference["rejected"],
      "chosen_log_prob": [p["chosen"][0] for p in parts],
      "rejected_log_prob": [p["rejected"][0] for p in parts]}
  for name, values in expected.items():
    np.testing.assert_allclose(found[name], np.mean(values), rtol=1e-4, atol=1e-5)
  assert found["kl"] > 0.01


def test_a_run_starts_at_ln_2_and_no_divergence():
  found = run(Dpo(), PARAMS, batch_of([[0, 1], [2]]), reference=PARAMS)
  np.testing.assert_allclose(found["loss"], np.log(2), rtol=1e-6)
  np.testing.assert_allclose([found[k] for k in ("margin", "kl", "chosen_reward")], 0, atol=1e-5)
  np.testing.assert_allclose(run(Dpo(loss="ipo", beta=0.5), PARAMS, batch_of([[0, 1], [2]]),
                                 reference=PARAMS)["loss"], 1.0, rtol=1e-5)


@pytest.mark.slow
def test_the_gradient_is_that_of_the_paper():
  """-beta sigmoid(-beta margin) (grad log p(chosen) - grad log p(rejected)), section 4."""
  prompt, chosen, rejected = PAIRS[0]
  objective = Dpo(beta=0.3).taught_by(MODEL)
  loss = lambda p: objective(MODEL, p, batch_of([[0]]), train=True, teacher=OTHER)["loss"][0]
  difference = lambda p: log_prob(p, prompt, chosen) - log_prob(p, prompt, rejected)
  margin = difference(PARAMS) - difference(OTHER)
  weight = -0.3 * jax.nn.sigmoid(-0.3 * margin)
  ours, theirs = jax.jit(jax.grad(loss))(PARAMS), jax.jit(jax.grad(difference))(PARAMS)
  for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
    np.testing.assert_allclose(a, weight * b, rtol=1e-3, atol=1e-5)


def test_pairs_the_other_way_round():
  margin = jnp.linspace(-30, 30, 13)
  loss = lambda m, **k: preference_loss(m, "sigmoid", 0.2, **k)
  np.testing.assert_allclose(loss(-margin) - loss(margin), 0.2 * margin, rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(loss(margin, label_smoothing=0.5),
                             loss(-margin, label_smoothing=0.5), rtol=1e-6)
  np.testing.assert_allclose(loss(margin, label_smoothing=0.1),
                             0.9 * loss(margin) + 0.1 * loss(-margin), rtol=1e-6)


def test_refusals():
  with pytest.raises(ConfigError, match="objective.loss='sigmoi': did you mean 'sigmoid'"):
    Dpo(loss="sigmoi")
  with pytest.raises(ConfigError, match="goes with objective.loss='sigmoid'"):
    Dpo(loss="ipo", label_smoothing=0.1)
  larger = decoder(vocab_size=V + 1, width=8, num_layers=2, position=Rope(), block=LAYER)
  with pytest.raises(ConfigError, match="has a vocabulary of 14 tokens, and the model of 13"):
    Dpo(reference="f").taught_by(larger)(MODEL, PARAMS, batch_of([[0]]), train=True,
                                         teacher=PARAMS)


# ---------------------------------------------------------------------------------- data


def encoded(**fields):
  example = {"id": 0, "prompt": "ab", "chosen": "c", "rejected": "de", **fields}
  return EncodePreferences()([example], {"text": Bytes()})[0]


def test_answers_behind_their_prompts():
  tokenizer, e = Bytes(), encoded()
  assert e["chosen"].tolist() == [tokenizer.bos_id, *tokenizer.encode("abc"), tokenizer.eos_id]
  assert e["rejected"].tolist() == [tokenizer.bos_id, *tokenizer.encode("abde"), tokenizer.eos_id]
  assert e["chosen_answers"].tolist() == [0, 0, 0, 1, 1]
  assert e["rejected_answers"].tolist() == [0, 0, 0, 1, 1, 1]
  assert e["preferred"] == 1


def test_conversations_whose_last_answer_is_preferred():
  turn = lambda role, content: {"role": role, "content": content}
  template = "{% for m in messages %}{{ m.role[0] }}{{ m.content }};{% endfor %}" \
      "{% if add_generation_prompt %}a{% endif %}"
  example = {"id": 0, "prompt": [turn("user", "x"), turn("assistant", "y"), turn("user", "z")],
             "chosen": [turn("assistant", "yes")], "rejected": [turn("assistant", "no")]}
  (e,) = EncodePreferences(template=template)([example], {"text": Bytes()})
  tokenizer = Bytes()
  assert tokenizer.decode(e["chosen"]) == "ux;ay;uz;ayes;"
  assert tokenizer.decode(e["chosen"][e["chosen_answers"] == 1]) == "yes;"
  assert tokenizer.decode(e["rejected"][e["rejected_answers"] == 1]) == "no;"


@pytest.mark.parametrize("fields, message", [
    (dict(rejected="c"), "has one answer as 'chosen' and as 'rejected'"),
    (dict(prompt=""), "has an empty 'prompt'"),
    (dict(chosen=[{"role": "assistant", "content": "c"}]), "has a 'chosen' that is list"),
])
def test_pairs_that_are_refused(fields, message):
  with pytest.raises(ExampleError, match=message):
    encoded(**fields)
