"""The code of a model card is such as transformers runs."""

import pytest

from jtx.interop.families import FAMILIES
from jtx.saved import card

transformers = pytest.importorskip("transformers", reason="see make test-parity")
pipelines = pytest.importorskip("transformers.pipelines")

ARCHITECTURES = sorted({
    (name, "num_channels" in family.attributes.read) for family in FAMILIES.values()
    for name in family.architectures if hasattr(transformers, name)})


@pytest.mark.parametrize("name, of_images", ARCHITECTURES)
def test_a_pipeline_of_a_card_takes_the_class_of_the_model(name, of_images):
  tag, usage = card.tag_and_usage(name, of_images)
  if usage == card.LOAD:
    return
  (auto,) = pipelines.SUPPORTED_TASKS[tag]["pt"]
  mapping = auto._model_mapping
  config = getattr(transformers, name).config_class
  taken = mapping[config]
  classes = {c.__name__ for c in (taken if isinstance(taken, tuple) else (taken,))}
  # Masked tokens are read of a model of pretraining, which predicts more.
  assert (name.replace("ForPreTraining", "ForMaskedLM") if tag == "fill-mask" else name) in classes


def test_most_have_a_pipeline():
  """Else the test above would show little; transformers has none for answers and choices."""
  loaded = {name for name, of_images in ARCHITECTURES
            if card.tag_and_usage(name, of_images)[1] == card.LOAD}
  assert len(loaded) < len(ARCHITECTURES) / 3
  assert {"BertForQuestionAnswering", "T5ForConditionalGeneration", "T5EncoderModel"} <= loaded
