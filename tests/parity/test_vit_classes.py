"""Vision transformers against their classes in `transformers`, through files in both directions."""

import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from jtx.interop import configs, huggingface, tables
from jtx.interop.families import FAMILIES
from jtx.interop.trunks import param_shapes
from jtx.objectives.mae import Mae, own_noise
from jtx.saved.folder import open_saved
from jtx.saved.pretrained import load_pretrained, save_pretrained

torch = pytest.importorskip(
    "torch", reason="PyTorch is not installed: make test-parity installs it")
transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: see make test-parity")

from tests.parity.test_encoders import TOLERANCE, error, flat_params, redraw, saved  # noqa: E402

CLASSES = 5
CONFIG = dict(hidden_size=24, num_hidden_layers=3, num_attention_heads=3, intermediate_size=40,
              image_size=15, patch_size=5)
MAE = CONFIG | dict(decoder_hidden_size=16, decoder_num_hidden_layers=2,
                    decoder_num_attention_heads=2, decoder_intermediate_size=28, mask_ratio=0.6)
NAMES = {
    "ViTModel": ("ViTConfig", CONFIG),
    "ViTForImageClassification": ("ViTConfig", CONFIG),
    "DeiTModel": ("DeiTConfig", CONFIG),
    "DeiTForImageClassification": ("DeiTConfig", CONFIG),
    "DeiTForImageClassificationWithTeacher": ("DeiTConfig", CONFIG),
    "ViTMAEModel": ("ViTMAEConfig", MAE),
    "ViTMAEForPreTraining": ("ViTMAEConfig", MAE),
}
# Of sizes that are no multiples of one another, in grey, with other activations and norms.
ODD = [dict(hidden_size=20, num_attention_heads=5, num_hidden_layers=1, image_size=21,
            patch_size=3, num_channels=1),
       dict(intermediate_size=7, hidden_act="gelu_new", layer_norm_eps=1e-3),
       dict(num_hidden_layers=4, patch_size=15, num_channels=2)]


def make_peer(name, **extra):
  """A model of `transformers`, every tensor of it redrawn, also those that are not trained."""
  config_name, config = NAMES[name]
  config = getattr(transformers, config_name)(**config | extra)
  config.num_labels = CLASSES
  return redraw(getattr(transformers, name)(config).eval())


def make_image(config, number=3, size=None):
  shape = (number, size or config.image_size, size or config.image_size, config.num_channels)
  return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def noise_for(config):
  patches = (config.image_size // config.patch_size) ** 2
  return np.random.default_rng(1).permuted(
      np.tile(np.arange(patches), (3, 1)), axis=1).astype(np.float32)


def peer_outputs(peer, image):
  pixels = torch.from_numpy(np.ascontiguousarray(image.transpose(0, 3, 1, 2)))
  mae = {"noise": torch.from_numpy(noise_for(peer.config))} if "MAE" in type(peer).__name__ else {}
  with torch.no_grad():
    out = peer(pixels, output_hidden_states=True, **mae)
  result = {"hidden": np.stack([h.numpy() for h in out.hidden_states[1:]])}
  if "last_hidden_state" in out:
    result["hidden"][-1] = out.last_hidden_state.numpy()
  else:  # the norm at the end is of what heads read; `hidden_states` do not have it
    result["hidden"] = result["hidden"][:-1]
  for key in ("pooler_output", "logits"):
    if out.get(key) is not None:
      result["head"] = out[key].numpy()
  if out.get("distillation_logits") is not None:
    result["scores"] = np.stack([out.cls_logits.numpy(), out.distillation_logits.numpy()], 1)
  return {key: value for key, value in result.items() if value.size}


def jtx_outputs(model, normed, kept=0.4):  # kept: 1 - mask_ratio
  """A jitted function of parameters and images, with the same values; MAE sees `kept` of them."""
  @jax.jit
  def run(params, image, noise):
    def everything(m, batch):
      if m.decoder.num_layers or not getattr(m.stack.position, "trained", True):  # MAE's
        seen = np.argsort(noise_of_all, 1)[:, :int(noise_of_all.shape[1] * kept)]
        hidden, out = m.run(batch, kept=jax.numpy.asarray(seen), return_hidden=True)
        states = jax.numpy.concatenate([out.hidden[:-1], hidden[None]])
      else:
        states = m.hidden_states(batch)[1:]
      result = {"hidden": states if normed else states[:-1]}
      if m.decoder.num_layers:
        result["head"] = m.reconstruct(batch, noise)[0]
      elif m.head.task != "none":
        result["head"] = m.predict(batch)[:, 0]
      if m.head.distilled:
        result["scores"] = m.scores(batch)
      return {key: value for key, value in result.items() if value.size}
    return model.apply({"params": params}, {"image": image}, method=everything)

  noise_of_all = np.random.default_rng(1).permuted(
      np.tile(np.arange(model.grid.tokens - model.grid.prefix), (3, 1)), axis=1)
  noise = noise_of_all.astype(np.float32)
  return lambda params, image: {k: np.asarray(v) for k, v in run(params, image, noise).items()}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("extra", [{}, *ODD[:2]], ids=["", "grey", "other_norm"])
def test_outputs_and_files_are_those_of_transformers(name, extra, tmp_path):
  peer = make_peer(name, **extra)
  model, params = load_pretrained(saved(peer, tmp_path / "theirs"), dtype="float32")
  image = make_image(peer.config)
  theirs = peer_outputs(peer, image)
  run = jtx_outputs(model, name.endswith("Model"))
  assert error(run(params, image), theirs) < TOLERANCE

  save_pretrained(str(tmp_path / "ours"), model, params)
  a, b = (safetensors.numpy.load_file(tmp_path / d / "model.safetensors")
          for d in ("theirs", "ours"))
  # Old files have the former names, and it is the latter that both libraries read.
  a = {key.replace("decoder.decoder_encoder.layer.", "decoder.decoder_layers."): x
       for key, x in a.items()}
  assert a.keys() == b.keys()
  for key in a:
    assert a[key].dtype == b[key].dtype and a[key].shape == b[key].shape, key
    assert a[key].tobytes() == b[key].tobytes(), key
  again, info = type(peer).from_pretrained(tmp_path / "ours", output_loading_info=True)
  assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys"))
  assert error(peer_outputs(again.eval(), image), theirs) == 0


def test_an_encoder_of_mae_that_hides_nothing(tmp_path):
  peer = make_peer("ViTMAEModel", mask_ratio=0.0)
  model, params = load_pretrained(saved(peer, tmp_path / "theirs"), dtype="float32")
  image = make_image(peer.config)
  ours = jtx_outputs(model, True, kept=1.0)(params, image)
  assert error(ours, peer_outputs(peer, image)) < TOLERANCE


@pytest.mark.parametrize("normalize", [False, True])
def test_the_loss_of_mae(normalize, tmp_path):
  peer = make_peer("ViTMAEForPreTraining", norm_pix_loss=normalize)
  model, params = load_pretrained(saved(peer, tmp_path / "theirs"), dtype="float32")
  assert model.decoder.normalize is normalize
  image = make_image(peer.config)
  batch = {"image": image, "real": np.ones((3, 1), np.float32)}
  total, number = Mae()(model, params, batch, train=False)["loss"]
  noise = np.array(own_noise(jnp.asarray(image), 9))  # which the objective draws
  with torch.no_grad():
    theirs = peer(torch.from_numpy(np.ascontiguousarray(image.transpose(0, 3, 1, 2))),
                  noise=torch.from_numpy(noise)).loss.item()
  assert abs(float(total / number) - theirs) < TOLERANCE * theirs


@pytest.mark.parametrize("name", ["gelu_fast", "gelu_python", "gelu_accurate", "gelu_python_tanh",
                                  "quick_gelu"])
def test_activations_by_any_name(name, tmp_path):
  peer = make_peer("ViTForImageClassification", hidden_act=name)
  model, params = load_pretrained(saved(peer, tmp_path / "theirs"), dtype="float32")
  image = make_image(peer.config)
  ours = jtx_outputs(model, False)(params, image)
  assert error(ours, peer_outputs(peer, image)) < TOLERANCE


@pytest.mark.parametrize("name", ["ViTModel", "DeiTForImageClassificationWithTeacher",
                                  "ViTMAEForPreTraining"])
def test_a_changed_tensor_shows(name, tmp_path):
  peer = make_peer(name)
  directory = saved(peer, tmp_path / "theirs")
  model, params = load_pretrained(directory, dtype="float32")
  run, image = jtx_outputs(model, name.endswith("Model")), make_image(peer.config)
  theirs = peer_outputs(peer, image)
  fits = lambda params: error(run(params, image), theirs) < TOLERANCE
  assert fits(params)
  shapes = param_shapes(model)
  source = huggingface.open_source(directory)
  wanted = list(tables.entries(source.family.names.rows_for(model.heads), model.stacks, shapes))
  files = huggingface.Tensors(directory, source.family.names)
  tensors = {e.name: files.get(e.name) for e in wanted}
  no_effect = {n for n in tensors if n.endswith("key.bias")}  # the same for all keys of a query
  for zeroed in tensors.keys() - no_effect:
    changed = {**tensors, zeroed: np.zeros_like(tensors[zeroed])}
    assert not fits(flat_params(wanted, changed, shapes)), zeroed
  for a, b in itertools.combinations(tensors, 2):
    if tensors[a].shape == tensors[b].shape and not {a, b} <= no_effect:
      changed = {**tensors, a: tensors[b], b: tensors[a]}
      assert not fits(flat_params(wanted, changed, shapes)), (a, b)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", range(3))
def test_parameter_counts_are_those_of_transformers(name, case):
  config_name, config = NAMES[name]
  config = getattr(transformers, config_name)(**config | ODD[case])
  config.num_labels = CLASSES
  peer = getattr(transformers, name)(config)
  fields = huggingface.model_fields(json.loads(config.to_json_string()), name)
  model = configs.make_model(FAMILIES[config.model_type], fields)
  shapes = param_shapes(model)
  assert sum(int(np.prod(s)) for s in shapes.values()) == sum(p.numel() for p in peer.parameters())


@pytest.mark.parametrize("size", [25, 10])
def test_positions_are_interpolated_as_transformers_does(size, tmp_path):
  peer = make_peer("ViTModel")
  directory = saved(peer, tmp_path / "theirs")
  model, _ = load_pretrained(directory, dtype="float32")
  larger = model.clone(image=huggingface.MODELS["vit"].image.__class__(size=size))
  params, missing = open_saved(directory).params_for(larger)
  assert not missing
  with torch.no_grad():
    patches = torch.zeros(1, (size // 5) ** 2 + 1, 24)
    theirs = peer.embeddings.interpolate_pos_encoding(patches, size, size)[0].numpy()
  assert abs(params["position_embedding"] - theirs).max() < 1e-6 * abs(theirs).max()
  image = make_image(peer.config, size=size)
  ours = larger.apply({"params": params}, {"image": image})
  with torch.no_grad():
    pixels = torch.from_numpy(np.ascontiguousarray(image.transpose(0, 3, 1, 2)))
    out = peer(pixels, interpolate_pos_encoding=True).last_hidden_state.numpy()
  assert abs(np.asarray(ours) - out).max() < TOLERANCE * abs(out).max()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ViTForImageClassification", "ViTMAEForPreTraining"])
def test_the_published_widths(name, tmp_path):
  """Those of B/16."""
  config = getattr(transformers, NAMES[name][0])(num_labels=1000, num_hidden_layers=4)
  peer = redraw(getattr(transformers, name)(config).eval(), 0.05)
  model, params = load_pretrained(saved(peer, tmp_path / "theirs"), dtype="float32")
  image = make_image(config)
  ours = jtx_outputs(model, name.endswith("Model"), kept=0.25)(params, image)
  assert error(ours, peer_outputs(peer, image)) < TOLERANCE
