"""Models in the words of published config.json files, of any sizes."""

from typing import Any

from jtx.interop import huggingface
from jtx.interop.presets import ENCDECS

from . import common


def encoder_decoder(name: str, **sizes: Any) -> common.ConfigDict:
  """The model of ENCDECS of this name, whose vocabulary is the tokenizer's.

  Args:
    name: a key of it.
    **sizes: attributes in place of its own, by the names that its config.json has for them.

  What T5 has scaled by its width follows the width that a config or a flag sets.
  """
  model = common.model("encdec", **huggingface.fields_for(
      ENCDECS[name] | sizes, {"seq2seq"}, name))
  model.vocab_size = None  # the tokenizer's
  if model.encoder.position.name == "t5":
    # A reference each, so that a flag for one of them leaves the others.
    scale = lambda: model.encoder.get_oneway_ref("width").to_float() ** -0.5
    model.encoder.position.init_std = scale()
    model.decoder.position.init_std = scale()
    if model.embedding.output_scale != 1.0:
      model.embedding.output_scale = scale()
  return model
