"""DETR against its classes in `transformers`: outputs, the loss of a set, and files."""

import json
import os

from flax.traverse_util import flatten_dict
import jax
import numpy as np
import pytest
import safetensors.numpy

from jtx.config import build, section
from jtx.errors import ConfigError
from jtx.interop import huggingface, preprocessor
from jtx.models import MODELS
from jtx.models.detr import IMAGENET
from jtx.objectives.detection import Detection
from jtx.saved.folder import open_saved
from jtx.saved.pretrained import load_pretrained, save_pretrained

torch = pytest.importorskip(
    "torch", reason="PyTorch is not installed: make test-parity installs it")
transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: see make test-parity")

from tests.parity.test_encoders import TOLERANCE, saved  # noqa: E402

RESNET = dict(embedding_size=4, hidden_sizes=[16, 32, 64], depths=[1, 2, 1],
              out_features=["stage3"])
DETR = dict(use_timm_backbone=False, d_model=24, encoder_layers=2, decoder_layers=3,
            encoder_ffn_dim=20, decoder_ffn_dim=28, encoder_attention_heads=2,
            decoder_attention_heads=3, num_queries=7)
CASES = {
    "bottleneck": (RESNET, {}),
    "basic": (dict(RESNET, layer_type="basic", hidden_sizes=[4, 8], depths=[1, 1],
                   out_features=["stage2"]),
              dict(position_embedding_type="learned", activation_function="gelu")),
}
CLASSES = 5
# Arrays that no stride divides, with pictures that fill them in part; the last one has no object.
SIZES = np.array([[70, 93], [41, 93], [70, 37]], np.int32)
BOXES = [[[0.5, 0.4, 0.3, 0.6], [0.2, 0.7, 0.1, 0.2], [0.8, 0.8, 0.35, 0.3]],
         [[0.6, 0.3, 0.5, 0.2]], []]
LABELS = [[3, 0, 3], [4], []]


def make_peer(name, head="ForObjectDetection"):
  """A model with every tensor redrawn, also the constants of batch norms."""
  resnet, more = CASES[name]
  config = transformers.DetrConfig(
      backbone_config=transformers.ResNetConfig(**resnet), num_labels=CLASSES, **DETR | more)
  peer = getattr(transformers, f"Detr{head}")(config).eval()
  generator = torch.Generator().manual_seed(0)
  with torch.no_grad():
    for key, x in (*peer.named_parameters(), *peer.named_buffers()):
      drawn = torch.randn(x.shape, generator=generator)
      # Places of the image, and so queries, differ enough for one matching to be the best.
      if key.endswith("running_var"):
        drawn = 0.5 + drawn.abs()
      elif x.ndim == 1:
        drawn = 0.2 * drawn + (key.endswith(("norm.weight", "normalization.weight")))
      elif "embedding" not in key:
        std = 0.02 if "input_projection" in key else 2  # of features, which are large
        drawn *= std * (x.shape[1] * x[0, 0].numel()) ** -0.5
      x.copy_(drawn)
  return peer


def make_batch():
  random = np.random.default_rng(0)
  image = random.normal(size=(3, 70, 93, 3)).astype(np.float32)
  boxes, classes = np.zeros((3, 4, 4), np.float32), np.full((3, 4), -1, np.int32)
  for i, (own, labels) in enumerate(zip(BOXES, LABELS)):
    image[i, SIZES[i, 0]:] = image[i, :, SIZES[i, 1]:] = 0
    boxes[i, :len(own)], classes[i, :len(own)] = np.reshape(own, (-1, 4)), labels
  return {"image": image, "size": SIZES, "boxes": boxes, "box_classes": classes}


def error(ours, theirs):
  """The largest difference, relative to the largest value."""
  assert ours.shape == theirs.shape
  return abs(ours - theirs).max() / abs(theirs).max()


def peer_outputs(peer, batch, **more):
  mask = [[[y < h and x < w for x in range(93)] for y in range(70)] for h, w in batch["size"]]
  pixels = torch.from_numpy(np.ascontiguousarray(batch["image"].transpose(0, 3, 1, 2)))
  with torch.no_grad():
    return peer(pixels, pixel_mask=torch.tensor(mask).long(), **more)


def layer_outputs(peer, batch):
  """The outputs, and the scores and boxes [L, B, Q, ...] after each of the decoder's layers.

  With `auxiliary_loss` the class of `transformers` norms what goes from layer to layer, too, which
  the paper's model does not; so these are made of the hidden states.
  """
  kept = []
  hooks = [layer.register_forward_hook(lambda module, inputs, output: kept.append(output))
           for layer in peer.model.decoder.layers]
  out = peer_outputs(peer, batch)
  for hook in hooks:
    hook.remove()
  with torch.no_grad():
    hidden = peer.model.decoder.layernorm(torch.stack(kept))
    return out, peer.class_labels_classifier(hidden), peer.bbox_predictor(hidden).sigmoid()


@pytest.mark.parametrize("name", CASES)
def test_outputs_loss_and_files(name, tmp_path):
  peer, batch = make_peer(name), make_batch()
  model, params = load_pretrained(saved(peer, tmp_path / "theirs"))
  found, hidden = jax.jit(lambda params, batch: (
      model.apply({"params": params}, batch, method="boxes"),
      model.apply({"params": params}, batch)))(params, batch)
  out, logits, boxes = layer_outputs(peer, batch)
  assert error(found["logits"], logits.numpy()) < TOLERANCE
  assert error(found["boxes"], boxes.numpy()) < TOLERANCE
  assert error(found["boxes"][-1], out.pred_boxes.numpy()) < TOLERANCE
  assert error(hidden, out.last_hidden_state.numpy()) < TOLERANCE

  labels = [{"boxes": torch.tensor(own).reshape(-1, 4), "class_labels": torch.tensor(of).long()}
            for own, of in zip(BOXES, LABELS)]
  peer.config.auxiliary_loss = True
  expected, loss_dict, _ = peer.loss_function(
      out.logits, labels, peer.device, out.pred_boxes, peer.config, logits, boxes)
  peer.config.auxiliary_loss = False
  assert "loss_giou_1" in loss_dict  # of a layer before the last
  objective = Detection().with_model(model)
  sums = jax.jit(lambda params, batch: objective(model, params, batch, train=False))(params, batch)
  total = {key: float(sums[key][0] / w) for key, w in objective.weights(batch).items()}
  parts = {"loss": (1, "loss_ce"), "l1_loss": (5, "loss_bbox"), "giou_loss": (2, "loss_giou")}
  for key, (weight, theirs) in parts.items():
    term = weight * sum(float(x) for k, x in loss_dict.items() if k.startswith(theirs))
    assert total[key] == pytest.approx(term, rel=TOLERANCE)
  assert sum(total.values()) == pytest.approx(float(expected), rel=TOLERANCE)

  back = tmp_path / "back"
  save_pretrained(str(back), model, params, labels=tuple("abcde"))
  ours, theirs = (safetensors.numpy.load_file(folder / "model.safetensors")
                  for folder in (back, tmp_path / "theirs"))
  assert ours.keys() == theirs.keys()
  assert all(ours[key].tobytes() == theirs[key].tobytes() for key in ours)
  content = json.loads((back / "preprocessor_config.json").read_text())
  assert content["size"] == {"shortest_edge": 800, "longest_edge": 1333}
  again = type(peer).from_pretrained(back).eval()
  assert again.config.id2label[4] == "e"
  np.testing.assert_array_equal(peer_outputs(again, batch).logits, out.logits)


def test_auxiliary_loss_changes_what_the_class_computes(tmp_path):
  """So such a folder is refused; where a later version does not, jtx can read it."""
  peer, batch = make_peer("basic"), make_batch()
  before = peer_outputs(peer, batch).logits.numpy()
  peer.config.auxiliary_loss = True
  assert error(peer_outputs(peer, batch).logits.numpy(), before) > 1e-2
  with pytest.raises(ConfigError, match="auxiliary_loss=True norms what goes from one layer"):
    load_pretrained(saved(peer, tmp_path / "theirs"))


def test_a_folder_of_timm_names_is_the_same_model(tmp_path):
  """A file as DETR's authors have it: ResNet-18's names by timm, described by its name alone."""
  peer = make_peer("bottleneck")
  config = peer.config
  config.backbone_config = transformers.ResNetConfig(
      depths=[2, 2, 2, 2], layer_type="basic", hidden_sizes=[64, 128, 256, 512],
      out_features=["stage4"])
  folder = saved(transformers.DetrForObjectDetection(config), tmp_path / "timm")
  expected = load_pretrained(folder)
  path = os.path.join(folder, "model.safetensors")
  tensors = safetensors.numpy.load_file(path)
  names = [("embedder.embedder.convolution", "conv1"), ("embedder.embedder.normalization", "bn1"),
           ("shortcut.convolution", "downsample.0"), ("shortcut.normalization", "downsample.1"),
           *((f"layer.{i}.{a}", f"{b}{i + 1}") for i in range(2)
             for a, b in (("convolution", "conv"), ("normalization", "bn"))),
           *((f"encoder.stages.{s}.layers", f"layer{s + 1}") for s in range(4))]

  def timm(name):
    for theirs, own in names:
      name = name.replace(f"conv_encoder.model.{theirs}", f"conv_encoder.model.{own}").replace(
          f".{theirs}.", f".{own}.") if "conv_encoder" in name else name
    return name

  tensors = {timm(name): x for name, x in tensors.items()}
  assert "model.backbone.conv_encoder.model.layer2.0.downsample.1.running_var" in tensors
  tensors["model.backbone.conv_encoder.model.bn1.num_batches_tracked"] = np.zeros(1, np.int64)
  safetensors.numpy.save_file(tensors, path)
  content = json.loads(open(os.path.join(folder, "config.json")).read())
  content |= {"backbone": "resnet18", "use_timm_backbone": True, "backbone_config": None}
  with open(os.path.join(folder, "config.json"), "w") as file:
    json.dump(content, file)
  model, params = load_pretrained(folder)
  assert model == expected[0]
  ours, theirs = (flatten_dict(tree, sep="/") for tree in (params, expected[1]))
  assert ours.keys() == theirs.keys()
  assert all(np.array_equal(ours[key], theirs[key]) for key in ours)


@pytest.mark.parametrize("size, shape", [
    ({"shortest_edge": 40, "longest_edge": 60}, (37, 50)), (None, (30, 64)),
    ({"height": 24, "width": 36}, (50, 20))])
def test_images_are_resized_as_by_its_processor(size, shape, tmp_path):
  processor = transformers.DetrImageProcessor(
      do_resize=size is not None, **({"size": size} if size else {"pad_size": {
          "height": 64, "width": 64}}))
  processor.save_pretrained(tmp_path)
  picture = np.random.default_rng(0).integers(256, size=(*shape, 3), dtype=np.uint8)
  ops = preprocessor.read_ops(str(tmp_path), IMAGENET, kind="Detr")
  example = {"image": picture, "path": "a picture"}
  for op in ops:
    example = op.augment(example, None)
  theirs = processor(picture, return_tensors="np")
  height, width = example["size"]
  mask = theirs["pixel_mask"][0]
  assert (mask.sum(0).max(), mask.sum(1).max()) == (height, width)
  ours = np.asarray(IMAGENET.normalize(example["image"]))[:height, :width]
  np.testing.assert_allclose(ours, theirs["pixel_values"][0].transpose(1, 2, 0)[:height, :width],
                             atol=1e-5)
  again = preprocessor.content(preprocessor.evaluated(ops, IMAGENET), {
      "image_mean": list(IMAGENET.mean), "image_std": list(IMAGENET.std), "num_channels": 3})
  theirs = json.loads((tmp_path / "preprocessor_config.json").read_text())
  assert {key: theirs[key] for key in again if key in theirs} == {
      key: x for key, x in again.items() if key in theirs}


def test_a_detector_of_other_classes_starts_from_all_but_their_scores(tmp_path):
  peer = make_peer("basic")
  folder = saved(peer, tmp_path / "theirs")
  kind, fields = open_saved(folder).fields()
  assert kind == "detr" and "head" not in fields
  model = build(MODELS, section(MODELS, "detr", **fields, head=dict(outputs=2)), what="model")
  params, missing = huggingface.load_params(folder, model)
  assert sorted(missing) == ["task_head/output/bias", "task_head/output/kernel"]
  np.testing.assert_array_equal(
      params["task_head"]["box_1"]["kernel"].T, peer.bbox_predictor.layers[1].weight.detach())
  with pytest.raises(ConfigError, match="model.num_queries=9 does not fit the weights of"):
    huggingface.load_params(folder, model.clone(num_queries=9))
