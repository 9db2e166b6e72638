"""Kinds of answers: images, heads of texts, and options that a model does not take."""

import base64
import io

from PIL import Image
import pytest

from jtx.api import Classifier
from jtx.errors import ConfigError
from jtx.inference import tasks
from jtx.models.image_head import ImageHeadConfig
from jtx.models.patches import ImageConfig
from jtx.saved import pretrained
from jtx.serve.fields import FIELDS
from jtx.serve.kinds import fields_of, open_kinds
from tests.helpers import vit
from tests.models.test_vit import BLOCK, drawn
from tests.serve.serving import running


def png(width, height):
  """The bytes of a grey image."""
  file = io.BytesIO()
  Image.new("L", (width, height), 99).save(file, "PNG")
  return file.getvalue()


@pytest.fixture(scope="module")
def vit_folder(tmp_path_factory):
  model = vit(image=ImageConfig(size=8), patch_size=4, width=16, num_layers=1, block=BLOCK,
              head=ImageHeadConfig(task="classes", outputs=7))
  place = str(tmp_path_factory.mktemp("serve") / "vit")
  pretrained.save_pretrained(place, model, drawn(model), format="jtx", labels=tuple("abcdefg"))
  return place


def test_images_are_classified_and_none_is_a_path(vit_folder, tmp_path):
  file = tmp_path / "a.png"
  file.write_bytes(png(9, 12))
  expected = Classifier(vit_folder)([str(file)])[0]
  with running(open_kinds(vit_folder, max_batch=2).values()) as this:
    def ask(data):
      return this.ask("/predict", {"image": base64.b64encode(data).decode()})
    status, found = ask(file.read_bytes())
    assert status == 200 and found["label"] == expected.label and len(found["scores"]) == 5
    assert {k: expected.scores[k] for k in found["scores"]} == pytest.approx(found["scores"])
    assert ask(b"no image")[0] == 422 and ask(b"P5 9000 9000 255\n0")[0] == 413
    assert this.ask("/predict", {"image": str(file)})[0] == 400


@pytest.mark.parametrize("option", [{"writing": {"beam": 2}}, {"max_length": 9}])
def test_options_of_other_models_are_refused(vit_folder, option):
  with pytest.raises(ConfigError, match="the model of .* does not take it.* answers at /predict"):
    open_kinds(vit_folder, **option)


def test_a_field_that_one_of_two_heads_needs_is_no_must():
  fields = fields_of("next_sentence", "mlm")
  assert {name: field.required for name, field in fields.items()} == {
      "text": True, "second": False}


@pytest.mark.parametrize("task", tasks.HEADS)
def test_every_head_has_fields(task):
  fields = fields_of(task)
  assert tasks.HEADS[task][0].keys() <= fields.keys()
  assert all(field.kind in FIELDS for field in fields.values())
