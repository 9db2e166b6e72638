"""Replaced-token detection: what is replaced, the losses by formula, and where gradients go."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import electra as config
from jtx import config as config_lib
from jtx.errors import ConfigError
from jtx.interop import huggingface
from jtx.interop.trunks import param_shapes
from jtx.models import MODELS
from jtx.models.electra import Electra, GeneratorConfig, discriminator, encoder_of
from jtx.models.encoder import EmbeddingConfig, Encoder
from jtx.models.text_head import HeadConfig
from jtx.objectives.electra import ReplacedTokens, replace
from jtx.saved.folder import open_saved
from jtx.saved.pretrained import load_pretrained, save_pretrained
from jtx.train import loop
from tests.helpers import block, encoder
from tests.models.test_contract import drawn

V, B, T = 23, 2, 6
STACK = encoder(vocab_size=V, width=8, num_layers=2,
                block=block(num_heads=2, ffn_dim=12, dropout=0.0, activation="gelu")).stack
MODEL = Electra(
    vocab_size=V, stack=STACK, embedding=EmbeddingConfig(width=6),
    head=HeadConfig(task="replaced", pool="none", transform="gelu", dropout=0.0),
    generator=GeneratorConfig(num_layers=1, width=4, num_heads=1, ffn_dim=5))
REAL = np.array([[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]])
BATCH = {
    "text": jnp.array([[5, 2, 7, 2, 9, 0], [2, 11, 12, 13, 2, 15]]),  # 2 is the mask
    "text_segment_ids": jnp.array(REAL),
    "text_positions": jnp.broadcast_to(jnp.arange(T), (B, T)),
    "mlm_positions": jnp.array([[1, 3, 0], [0, 4, 5]]),
    "mlm_labels": jnp.array([[6, 8, -1], [10, 14, 15]]),
}


def test_samples_take_the_places_of_masks():
  text, replaced = replace(BATCH, jnp.array([[6, 3, 22], [4, 14, 1]]))
  assert text.tolist() == [[5, 6, 7, 3, 9, 0], [4, 11, 12, 13, 14, 1]]
  # A sample that is the token that was hidden is real; the empty slot changes nothing.
  assert replaced.astype(int).tolist() == [[0, 0, 0, 1, 0, 0], [1, 0, 0, 0, 0, 1]]


def test_losses_are_the_formulas():
  params, objective = drawn(MODEL), ReplacedTokens(weight=20.0)
  sums = objective(MODEL, params, BATCH, train=False)
  scores = MODEL.apply({"params": params}, BATCH, BATCH["mlm_positions"], method="generated")
  labels = np.asarray(BATCH["mlm_labels"])
  log_p = np.float64(jax.nn.log_softmax(scores))
  nll = -sum(log_p[b, k, labels[b, k]] for b, k in np.argwhere(labels >= 0))
  assert sums["loss"][0] == pytest.approx(nll, rel=1e-5) and sums["loss"][1] == 5

  samples = jax.random.categorical(jax.random.key(0), scores)
  text, replaced = replace(BATCH, samples)
  alone, own = discriminator(MODEL, params)
  assert type(alone) is Encoder and own.keys() == params.keys() - {
      "generator_projection", "generator_layers", "generator_head"}
  z = np.float64(alone.apply({"params": own}, {**BATCH, "text": text}, method="predict"))[..., 0]
  p = 1 / (1 + np.exp(-z))
  expected = -np.log(np.where(replaced, p, 1 - p))[REAL == 1]
  assert sums["replaced_loss"][0] == pytest.approx(expected.sum(), rel=1e-5)
  assert sums["replaced_loss"][1] == REAL.sum() == 11
  assert sums["replaced_accuracy"][0] == ((z > 0) == np.asarray(replaced))[REAL == 1].sum()
  assert sums["replaced_share"][0] == np.asarray(replaced)[REAL == 1].sum() > 0
  weights = objective.weights(BATCH)
  assert weights == {"loss": 5, "replaced_loss": pytest.approx(11 / 20)}


@pytest.mark.slow
def test_gradients_meet_in_the_embeddings_alone():
  params, objective = drawn(MODEL), ReplacedTokens()
  moved = {}
  for term in ("loss", "replaced_loss"):
    grads = jax.grad(lambda p: objective(MODEL, p, BATCH, train=True, rngs={
        "dropout": jax.random.key(1)})[term][0])(params)
    moved[term] = {name for name, tree in grads.items()
                   if any(np.abs(x).max() > 0 for x in jax.tree.leaves(tree))}
  assert moved["loss"] == {"embed", "type_embedding", "position_embedding", "embed_norm",
                           "generator_projection", "generator_layers", "generator_head"}
  assert moved["replaced_loss"] == {"embed", "type_embedding", "position_embedding", "embed_norm",
                                    "embed_projection", "encoder", "task_head"}


@pytest.mark.slow
def test_disentangled_tokens_are_anothers_without_its_gradient():
  """The encoder's are the sum, as the encoder alone has them; each loss moves its own part."""
  model = MODEL.clone(disentangled=True)
  params, objective = drawn(model), ReplacedTokens()
  fresh = model.init(jax.random.key(0), BATCH)["params"]["difference"]["embedding"].value
  assert not np.any(fresh)
  alone, own = discriminator(model, params)
  np.testing.assert_allclose(model.apply({"params": params}, BATCH),
                             alone.apply({"params": own}, BATCH), rtol=1e-5, atol=1e-6)
  for term, moves, stays in (("loss", "embed", "difference"),
                             ("replaced_loss", "difference", "embed")):
    grads = jax.grad(lambda p: objective(model, p, BATCH, train=False)[term][0])(params)
    assert np.abs(grads[moves]["embedding"]).max() > 0 == np.abs(grads[stays]["embedding"]).max()


@pytest.mark.slow
def test_samples_are_drawn_anew_in_training():
  params, objective = drawn(MODEL), ReplacedTokens()
  share = lambda seed: float(objective(MODEL, params, BATCH, train=True, rngs={
      "dropout": jax.random.key(seed)})["replaced_loss"][0])
  assert share(0) == share(0) != share(1)
  alike = [float(objective(MODEL, params, BATCH, train=False)["replaced_loss"][0]) for _ in "ab"]
  assert alike[0] == alike[1]


@pytest.mark.parametrize("size, generator", [
    ("small", 64 * (128 + 1) + 12 * 49_984), ("base", 256 * (768 + 1) + 12 * 789_760)])
def test_the_generator_shares_the_embeddings(size, generator):
  """Beside the encoder as published: a projection, layers, and the head of masked tokens."""
  c = config.get_config(size)
  fields = {key: value for key, value in c.model.items() if key != "name"}
  sizes = GeneratorConfig(**fields.pop("generator"))
  encoder_fields = huggingface.fields_for({"model_type": "electra"} | (
      dict(hidden_size=768, num_attention_heads=12, intermediate_size=3072, embedding_size=768)
      if size == "base" else {}), {"replaced"})
  plain = config_lib.build(MODELS, config_lib.section(MODELS, "encoder", **encoder_fields))
  model = Electra(vocab_size=30522, stack=plain.stack, embedding=plain.embedding, head=plain.head,
                  generator=sizes)
  number = lambda model: sum(int(np.prod(s)) for s in param_shapes(model).values())
  width, D = plain.embedding.width, sizes.width
  head = D * width + width + 2 * width + 30522
  assert number(plain) == {"small": 13_549_057, "base": 109_483_009}[size]
  assert number(model) - number(plain) == generator + head


@pytest.mark.parametrize("edits, message", [
    (dict(mlm=True), "mlm and features are of model.name='encoder'"),
    (dict(stack=dataclasses.replace(STACK, position_at="layers")), "a generator shares the"),
])
def test_what_does_not_fit_is_refused(edits, message):
  with pytest.raises(ConfigError, match=message):
    param_shapes(MODEL.clone(**edits))


@pytest.mark.parametrize("layout", ["jtx", "hf"])
def test_it_starts_from_an_encoder(tmp_path, layout):
  """Its encoder is a folder's, of masked tokens or of replaced ones, and its generator is fresh."""
  published = dict(model_type="electra", vocab_size=V, hidden_size=8, num_attention_heads=2,
                   intermediate_size=12, embedding_size=6, num_hidden_layers=2,
                   max_position_embeddings=16)
  theirs = config_lib.build(MODELS, config_lib.section(
      MODELS, "encoder", **huggingface.fields_for(published, {"replaced"})))
  model = Electra(vocab_size=V, stack=theirs.stack, embedding=theirs.embedding, head=theirs.head,
                  generator=MODEL.generator, disentangled=True)
  assert encoder_of(model) == theirs
  if layout == "jtx":
    theirs = theirs.clone(mlm=True, head=HeadConfig())
  params = drawn(theirs)
  save_pretrained(str(tmp_path / "from"), theirs, params, format=layout)
  found, missing = open_saved(str(tmp_path / "from")).params_for(model)
  assert {path.partition("/")[0] for path in missing} <= {"task_head"}
  given = {name: x for name, x in params.items() if not name.startswith("mlm")}
  jax.tree.map(np.testing.assert_array_equal, found, given)
  other = model.clone(stack=dataclasses.replace(model.stack, num_layers=3))
  with pytest.raises(ConfigError, match="model.stack.num_layers=3 does not fit the weights of"):
    open_saved(str(tmp_path / "from")).params_for(other)


@pytest.mark.slow
def test_a_run_leaves_the_encoder(tmp_path):
  """Its workdir and the folder that is exported have the same one, without the generator."""
  c = config.get_config("tiny")
  c.evals = {}
  loop.run(c.lock(), str(tmp_path / "run"), jax.devices()[:1])
  model, params = load_pretrained(str(tmp_path / "run"))
  assert type(model) is Encoder and model.heads == {"replaced"}
  save_pretrained(str(tmp_path / "new"), model, params, like=str(tmp_path / "run"))
  again, loaded = load_pretrained(str(tmp_path / "new"))
  assert again.stack == model.stack and again.heads == {"replaced"}
  jax.tree.map(np.testing.assert_array_equal, dict(loaded), dict(params))
