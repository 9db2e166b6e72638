"""The texts of images, as tokens beside the pixels."""

import dataclasses
from typing import Any, Mapping

import numpy as np

from jtx.data.example import Example
from jtx.data.op import TOKENIZER, Column, ImageOp
from jtx.errors import DataError
from jtx.ranges import Size


@dataclasses.dataclass(frozen=True)
class Caption(ImageOp):
  """The "text" of an image to tokens, with the special ones that the tokenizer's template puts."""
  length: Size = 77  # tokens, special ones counted, that a longer text is cut to

  tokenizer_fields = fields = (TOKENIZER,)
  columns = {TOKENIZER: Column("tokens")}

  def bind(self, tokenizers: Mapping[str, Any]) -> "BoundCaption":
    return BoundCaption(length=self.length, tokenizer=tokenizers[TOKENIZER])

  def texts_of(self, example: Example, field: str) -> list[str]:
    del field  # there is one
    return [text_of(example)]

  def augment(self, example: Example, generator: np.random.Generator | None) -> Example:
    raise NotImplementedError("bind it to the tokenizers first")


@dataclasses.dataclass(frozen=True)
class BoundCaption(Caption):
  """`Caption` with its tokenizer."""
  tokenizer: Any = dataclasses.field(default=None, metadata={"config": False})

  def augment(self, example: Example, generator: np.random.Generator | None) -> Example:
    """The example with its text as [T] int32.

    Raises:
      DataError: it has no text.
    """
    del generator  # nothing is drawn
    return {**example, TOKENIZER: self.tokens_of(example)}

  def tokens_of(self, example: Example) -> np.ndarray:
    """[T] int32. Raises DataError where there is no text."""
    return self.encode(text_of(example))

  def encode(self, text: str) -> np.ndarray:
    """[T] int32."""
    return self.tokenizer.encode_texts([text], max_length=self.length)[0].ids.astype(np.int32)


def text_of(example: Example) -> str:
  """Raises DataError where an example has no text."""
  if not isinstance(example.get(TOKENIZER), str):
    keys = ", ".join(key for key in example if key not in ("id", "path"))
    raise DataError(f"op caption: {example.get('path', 'an example')} has no text {TOKENIZER!r}; it"
                    f" has {keys}")
  return example[TOKENIZER]
