"""Continuations of prompts: batches against each alone, stops, streams and refusals."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.data.tokenizers.utf8 import Bytes
from jtx.errors import ConfigError, DataError
from jtx.inference import continuations
from jtx.inference.continuations import Limits, TextGenerator
from jtx.inference.decode import Beam, Sample
from jtx.inference.generate import go_on
from jtx.nn.positions import Learned
from jtx.nn.rope import Rope
from jtx.parallel import sharding
from tests.helpers import block, decoder, one_fast
from tests.models.test_contract import drawn

TOKENIZER = Bytes()
MODEL = decoder(vocab_size=TOKENIZER.vocab_size, width=8, num_layers=2, position=Rope(),
                block=block(num_heads=2, ffn_dim=12, norm_position="pre", dropout=0.0))
PARAMS = drawn(MODEL)
GREEDY = Sample(temperature=0.0)
TEXTS = ["Once upon a time, there was", "a", "Näher am Ende", "b" * 40, "four", "five"]


def generator(method=GREEDY, model=MODEL, params=PARAMS, batch_size=4, mesh=None, **limits):
  limits = Limits(**{"max_new_tokens": 20, **limits})
  return TextGenerator(model, params, TOKENIZER, method=method, limits=limits,
                       batch_size=batch_size, mesh=mesh)


def texts_of(results):
  return [[found.text for found in best] for best in results]


def full_log_probs(prompt, tokens):
  """Of tokens behind a prompt, by one pass over both."""
  ids = np.array([[*prompt, *tokens]])
  batch = {"text": ids, "text_segment_ids": np.ones_like(ids),
           "text_positions": np.arange(ids.shape[1])[None]}
  logits = jax.jit(lambda p: MODEL.apply(
      {"params": p}, batch, method=lambda m, b: m.logits(m(b))))(PARAMS)
  found = np.asarray(jax.nn.log_softmax(logits))[0, len(prompt) - 1:-1]
  return found[np.arange(len(tokens)), tokens], found.argmax(-1)


def test_a_batch_of_prompts_is_each_alone_and_the_full_pass():
  run = generator()
  prompts = run.prompts(TEXTS)
  together = run(prompts)
  for prompt, (found,) in zip(prompts, together):
    (alone,), = generator(batch_size=1)([prompt])
    assert found.tokens == alone.tokens and len(found.tokens) == 20
    log_probs, best = full_log_probs(prompt, found.tokens)
    np.testing.assert_allclose(found.log_probs, log_probs, atol=2e-5)
    np.testing.assert_array_equal(best, found.tokens)
    np.testing.assert_allclose(found.score, log_probs.sum(), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("method", one_fast(Sample(temperature=0.7, n_best=2, seed=3),
                                            Beam(beam=2)))
def test_a_prompt_draws_the_same_in_any_batch(method):
  run = generator(method)
  prompts = run.prompts(TEXTS[:3])
  together = run(prompts)
  alone = generator(method, batch_size=1)(prompts)
  scores = lambda results: [[found.score for found in best] for best in results]
  np.testing.assert_allclose(scores(alone), scores(together), rtol=1e-5)
  if isinstance(method, Sample):
    assert texts_of(alone) == texts_of(together)
    assert len({found.text for best in together for found in best}) == 6
    seeds = [5, None, 5]
    seeded = texts_of(run([prompts[1], prompts[1], prompts[1]], seeds))
    together = texts_of(together)
    assert seeded[0] == seeded[2] != seeded[1] == together[1]


def test_the_end_token_ends_and_is_no_text():
  whole = generator()
  (prompt,) = whole.prompts(["Once"])
  (found,), = whole([prompt])
  end = found.tokens[5]
  first = found.tokens.index(end)
  (ended,), = generator(end_ids=(end, 1))([prompt])
  assert ended.tokens == found.tokens[:first]
  assert len(ended.log_probs) == first + 1  # the end's is part of the score
  np.testing.assert_allclose(ended.log_probs, found.log_probs[:first + 1], atol=1e-5)


@pytest.mark.parametrize("method", [GREEDY, Sample(seed=2)])
def test_stop_strings(method):
  """The text is what it is without them, up to the first of them, wherever tokens are checked."""
  prompts = generator(method).prompts(TEXTS[:3])
  whole = generator(method)(prompts)
  pairs = (best[0].text[i:i + 2] for best in whole for i in range(4, len(best[0].text) - 2))
  stop = next(pair for pair in pairs if pair.isascii())
  for every in (1, 8):
    run = generator(method, stop=(stop,))
    results = [list(run.run([p], run.keys(3, None) and run.keys(3, None)[i:i + 1], every))[-1]
               for i, p in enumerate(prompts)]
    for (best,), (found,) in zip(whole, [r[0] for r in results]):
      assert found.text == best.text.split(stop)[0]
      assert found.tokens == best.tokens[:len(found.tokens)]
      if stop in best.text:
        assert stop in TOKENIZER.decode(found.tokens)
        assert stop not in TOKENIZER.decode(found.tokens[:-1])
      np.testing.assert_allclose(found.score, sum(best.log_probs[:len(found.tokens)]), rtol=1e-4)
  assert texts_of(run(prompts)) == [[found.text] for result in results for (found,) in result]


def test_a_stream_is_the_same_text():
  run = generator(Sample(seed=1))
  prompts = run.prompts(TEXTS[:2])
  expected = texts_of(run(prompts, [7, 8]))
  for prompt, seed, (text,) in zip(prompts, (7, 8), expected):
    pieces = list(run.stream(prompt, seed))
    assert "".join(pieces) == text and len(pieces) > 3
  stop = expected[0][0][5:8]
  run = generator(Sample(seed=1), stop=(stop,))
  assert "".join(run.stream(prompts[0], 7)) == expected[0][0].split(stop)[0]


def test_a_piece_ends_with_a_whole_character(monkeypatch):
  run = generator(stop=("END",))
  said = iter(["a", "a\ufffd", "aä", "aäE", "aäEN", "aäENx", "aäENxE"])
  monkeypatch.setattr(run, "run", lambda *args: ([[continuations.Continuation(t, (), 0.0, ())]]
                                                 for t in said))
  assert list(run.stream(np.array([3]))) == ["a", "ä", "ENx", "E"]


def test_nothing_is_compiled_after_the_first_batch():
  run = generator()
  run(run.prompts(["x" * 17, "y" * 20, "z" * 22, "u" * 23]))
  compiled = []
  jax.monitoring.register_event_duration_secs_listener(
      lambda event, *args, **kwargs: compiled.append(event) if "backend_compile" in event else None)
  run(run.prompts(["a" * 23, "b" * 18, "c" * 19, "d" * 17] * 3))
  assert not compiled


def test_prompts_are_packed_into_few_rows():
  lengths = [3, 10, 5, 16, 4]
  prompts = [np.arange(n) + 100 * i for i, n in enumerate(lengths)]
  found = continuations.packed(prompts, 20, pad_id=-1)
  assert found["prompt"].shape == (2, 20)  # 38 tokens
  flat = found["prompt"].reshape(-1)
  for start, prompt in zip(found["prompt_starts"], prompts):
    np.testing.assert_array_equal(flat[start:start + len(prompt)], prompt)
  assert (flat == -1).sum() == 40 - 38
  assert continuations.packed([np.arange(20)] * 17, 20, -1)["prompt"].shape == (17, 20)
  assert continuations.packed([np.arange(20)] * 17 + [np.arange(3)] * 9, 20, -1)[
      "prompt"].shape == (20, 20)  # of 19


@pytest.mark.slow
def test_a_penalty_is_for_tokens_of_ones_own_prompt():
  run, alone = (generator(Sample(temperature=0.0, repetition_penalty=3.0), batch_size=n)
                for n in (4, 1))
  prompts = run.prompts(TEXTS)
  assert texts_of(run(prompts)) == texts_of(alone(prompts)) != texts_of(generator()(prompts))


def test_a_step_reads_weights_and_cache_as_they_lie():
  """Where all layers' lie in one array, a CPU copies those of each at every token."""
  model = decoder(vocab_size=TOKENIZER.vocab_size, width=24, num_layers=3, position=Rope(),
                  block=block(num_heads=2, ffn_dim=40, norm_position="pre", dropout=0.0))
  run = generator(model=model, params=drawn(model))
  carry = run.begin(run.prompts(TEXTS[:2]), None)
  text = go_on.lower(model, GREEDY, run.ends, run.apart, carry, jnp.array(9)).compile().as_text()
  assert re.search(r"f32\[24,40\]", text) and not re.search(r"f32\[3,(24,40|40,24)\]", text)
  # Kernels are turned once, before all tokens, and no copy of one is made for a product.
  assert not re.search(r"= f32\[(24,40|40,24|24,24)\]\S* (copy|transpose|fusion)\(", text)
  # What they are multiplied with stands on the right, and so does what the embedding is.
  assert {"f32[24,2]", "f32[40,2]", f"f32[{TOKENIZER.vocab_size},2]"} <= set(
      re.findall(r"f32\[\d+,2\]", text))
  S = carry.state.ancestors.shape[-1]
  assert f"f32[2,2,{S},12]" in text
  assert not re.search(rf"= f32\[2,2,{S},12\]\S* (copy|slice|dynamic-slice)\(", text)


@pytest.mark.slow
def test_devices_share_a_batch():
  mesh = sharding.make_mesh(dict(data=4, fsdp=1, tensor=1, context=1), jax.devices()[:4])
  run, split = generator(), generator(mesh=mesh)
  prompts = run.prompts(TEXTS)
  assert texts_of(split(prompts)) == texts_of(run(prompts))


def test_refusals():
  with pytest.raises(DataError, match="prompt 2 is empty"):
    generator().prompts(["a", ""])
  short = decoder(vocab_size=TOKENIZER.vocab_size, width=8, num_layers=1,
                  position=Learned(max_length=32), block=block(num_heads=2, ffn_dim=8))
  with pytest.raises(ConfigError, match="max_new_tokens=33 is more than the model has positions"):
    generator(model=short, max_new_tokens=33)
  run = generator(model=short)
  with pytest.raises(DataError, match="f.txt, line 3 has 14 tokens: the model has 32 positions, and"
                                      " max_new_tokens=20 leaves 13"):
    run.prompts(["a" * 13], ["f.txt, line 3"])
  assert len(run.prompts(["a" * 12])[0]) == run.room == 13
  with pytest.raises(ConfigError, match="stop='': the model's tokenizer can't make it"):
    generator(stop=("",))
  with pytest.raises(ConfigError, match="not with beam search"):
    generator(Beam(beam=2), stop=("a",))
  with pytest.raises(ConfigError, match="a stream has one continuation"):
    next(generator(Beam(beam=2)).stream(np.array([3])))
