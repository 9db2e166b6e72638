"""Ensembles, consensus, and the scores of given targets."""

import jax
import numpy as np
import pytest

from jtx.config import ConfigDict, section
from jtx.data.tokenizers.kinds import characters
from jtx.errors import ConfigError, DataError
from jtx.inference.consensus import most_alike
from jtx.inference.decode import METHODS
from jtx.inference.ensemble import Ensemble
from jtx.inference.translate import Translator
from jtx.models.encdec import EncDec
from jtx.nn.shapes import shapes_of
from jtx.nn.stack import StackConfig
from jtx.parallel.sharding import unbox
from jtx.saved import converted, ensemble

TEXTS = ["ab", "", "cabba", "b"]
TOKENIZER = characters(iter(["abc"]))


def member(seed, layers):
  """A model with random weights, and its parameters."""
  stack = StackConfig(width=8, num_layers=layers)
  model = EncDec(vocab_size=TOKENIZER.vocab_size, encoder=stack,
                 decoder=StackConfig(width=8, num_layers=layers, causal=True))
  shapes = unbox(shapes_of(model.init, jax.random.key(0), model.example())["params"])
  random = np.random.default_rng(seed)
  drawn = lambda x: np.float32(0.7 * random.normal(size=x.shape))
  return model, jax.device_put(jax.tree.map(drawn, shapes))


def translator(model, params, **method):
  options = ConfigDict({"method": section(METHODS, "beam", **method), "batch_size": 3,
                        "max_source_length": 8, "max_target_length": 6})
  return Translator(model, params, {"src": TOKENIZER, "tgt": TOKENIZER}, options)


@pytest.fixture(scope="module")
def members():
  """Of seeds whose targets come to an end."""
  return [member(37, 1), member(38, 2)]


def probabilities(member, text, target):
  """[T] of each token of a target and its end, one pass a token."""
  model, params = member
  source = [*TOKENIZER.encode(text), TOKENIZER.eos_id]
  ids = [TOKENIZER.bos_id, *TOKENIZER.encode(target)]
  row = lambda x: np.array([x], np.int32)
  found = []
  for n, token in enumerate([*ids[1:], TOKENIZER.eos_id], 1):
    batch = {"src": row(source), "src_segment_ids": row([1] * len(source)),
             "src_positions": row(range(len(source))), "tgt_in": row(ids[:n]),
             "tgt_segment_ids": row([1] * n), "tgt_positions": row(range(n))}
    hidden = model.apply({"params": params}, batch)
    logits = np.asarray(model.apply({"params": params}, hidden, method="logits"))[0, -1]
    odds = np.exp(logits.astype(np.float64) - logits.max())
    found.append(odds[token] / odds.sum())
  return np.array(found)


@pytest.mark.slow
def test_targets_have_the_mean_of_probabilities(members):
  targets = ["ca", "b", "", "abcab"]
  models, params = zip(*members)
  found = translator(Ensemble(models), params).scores(TEXTS, targets)
  one = translator(*members[0]).scores(TEXTS, targets)
  for i, (text, target) in enumerate(zip(TEXTS, targets)):
    each = [probabilities(m, text, target) for m in members]
    np.testing.assert_allclose(found[i], np.log(np.mean(each, 0)).sum(), rtol=1e-5)
    np.testing.assert_allclose(one[i], np.log(each[0]).sum(), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("method", [dict(beam=3, n_best=2, alpha=0.6), dict(beam=1, alpha=0.0)])
def test_an_ensemble_scores_what_it_writes(members, method):
  models, params = zip(*members)
  write = translator(Ensemble(models), params, **method)
  found = write(TEXTS)
  assert [h.text for h in found[1]] == [""] * len(found[1])
  checked = 0
  for text, best in zip(TEXTS, found):
    for h in best if text else ():
      if len(h.tokens) < 6:  # it has its end
        np.testing.assert_allclose(write.scores([text], [h.text])[0], h.log_probability,
                                   rtol=1e-4)
        checked += 1
  assert checked >= 3
  # Two of a kind are as one, and the order does not matter.
  alone = translator(*members[0], **method)(TEXTS)
  twice = translator(Ensemble(models[:1] * 2), params[:1] * 2, **method)(TEXTS)
  other = translator(Ensemble(models[::-1]), params[::-1], **method)(TEXTS)
  texts = lambda results: [[h.text for h in best] for best in results]
  assert texts(alone) == texts(twice) and texts(found) == texts(other)
  assert texts(alone) != texts(found)


def test_a_target_beyond_the_positions(members):
  model, params = members[0]
  write = translator(model.clone(decoder=model.decoder), params)
  write.model = type("Short", (), {"longest": 3})()
  with pytest.raises(DataError, match="target 2 has 4 tokens, and the model 3 positions"):
    write.scores(["a", "b"], ["ab", "abc"])


def test_folders_of_other_tokenizers_write_no_text_together(members, tmp_path):
  for name, tokenizer in (("a", TOKENIZER), ("b", characters(iter(["abd"])))):
    converted.save(str(tmp_path / name), *members[0], {"src": tokenizer, "tgt": tokenizer}, None,
                   None)
  seen = []
  paths = [str(tmp_path / name) for name in "aab"]
  saved, model, params = ensemble.load(paths[:2], None, None, lambda *args: seen.append(args))
  assert isinstance(model, Ensemble) and len(params) == 2 and saved.directory == paths[0]
  assert [where for _, where in seen] == [f"--workdir={path}" for path in paths[:2]]
  assert isinstance(ensemble.load(paths[:1], None, None, lambda *_: None)[1], EncDec)
  with pytest.raises(ConfigError, match="the tokenizers of .*/b are not those of .*/a, so that"):
    ensemble.load(paths, None, None, lambda *_: None)


def test_the_text_that_others_are_most_like():
  assert most_alike(["the cat sat", "a dog ran off", "the cat sat down", "the cat sits"]) in (0, 2)
  assert most_alike(["one", "two", "two", "three"]) == 1
  assert most_alike(["alone"]) == 0
