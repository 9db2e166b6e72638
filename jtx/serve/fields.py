"""Fields of inputs: values of JSON, checked, and made into those that `jtx.api` takes."""

import base64
import binascii
import contextlib
import dataclasses
import io
from typing import Any, Callable, Mapping

from PIL import Image

from jtx.data import chat
from jtx.data.ops.decode import FORMATS
from jtx.ranges import SEEDS

MAX_TEXTS = 1000  # of a list
MAX_PIXELS = 2 ** 25  # of an image


class Refused(Exception):
  """A request that is not answered as asked.

  Args:
    status: of HTTP.
    sentence: that says why, and what would be valid.
  """

  def __init__(self, status: int, sentence: str):
    super().__init__(sentence)
    self.status, self.sentence = status, sentence


@dataclasses.dataclass(frozen=True, kw_only=True)
class Field:
  """A field of an input."""
  kind: str  # of FIELDS
  required: bool = True


def text(value: Any, max_chars: int) -> str:
  """A text that is not empty."""
  if not isinstance(value, str):
    raise Refused(400, f"is {shown(value)}, which is no text")
  if not value.strip():
    raise Refused(400, "is empty")
  if len(value) > max_chars:
    raise Refused(413, f"has {len(value)} characters, and may have {max_chars}")
  return value


def texts(value: Any, max_chars: int) -> list[str]:
  """A list of texts, which together are no longer than one may be."""
  if not isinstance(value, list) or not value:
    raise Refused(400, f"is {shown(value)}, which is no list of texts")
  if len(value) > MAX_TEXTS:
    raise Refused(413, f"has {len(value)} texts, and may have {MAX_TEXTS}")
  found = [text(x, max_chars) for x in value]
  if (chars := sum(map(len, found))) > max_chars:
    raise Refused(413, f"has {chars} characters, and may have {max_chars}")
  return found


def image(value: Any, max_chars: int) -> bytes:
  """The bytes of an image's file, of their base64; never a path."""
  del max_chars  # the limit of a request's bytes is that of images
  if not isinstance(value, str) or not value:
    raise Refused(400, f"is {shown(value)}, and should be the base64 of an image's file")
  try:
    data = base64.b64decode(value, validate=True)
  except (binascii.Error, ValueError):
    raise Refused(400, "is not the base64 of an image's file") from None
  # Decoding makes gigabytes of few bytes, where these say that the image is large.
  size = 0, 0
  with contextlib.suppress(Exception):  # the model's own ops say what is no image
    size = Image.open(io.BytesIO(data), formats=FORMATS).size
  if size[0] * size[1] > MAX_PIXELS:
    raise Refused(413, f"has {size[0]} x {size[1]} pixels, and may have {MAX_PIXELS} in all")
  return data


def messages(value: Any, max_chars: int) -> list[Mapping[str, str]]:
  """A conversation."""
  if reason := chat.check(value, answered=False):
    raise Refused(400, shorter(reason))
  texts([message["content"] for message in value], max_chars)
  return value


def seed(value: Any, max_chars: int) -> int:
  """A seed of draws."""
  del max_chars
  if type(value) is not int or value not in SEEDS:
    raise Refused(400, f"is {shown(value)}; valid are whole numbers from 0 to {SEEDS[-1]}")
  return value


# kind of a field -> what checks a value, given the most characters of a text
FIELDS: dict[str, Callable[[Any, int], Any]] = {
    "text": text, "texts": texts, "words": texts, "image": image, "messages": messages,
    "seed": seed}


def check(given: Any, fields: Mapping[str, Field], one_of: tuple[str, ...], name: str,
          max_chars: int) -> dict[str, Any]:
  """An input, checked.

  Args:
    given: a value of JSON.
    fields: that it may have.
    one_of: names of fields of which it needs exactly one.
    name: by which errors call it.
    max_chars: the most characters of a text.

  Raises:
    Refused: it is no such input.
  """
  valid = ", ".join(fields)
  if not isinstance(given, dict):
    raise Refused(400, f"{name} is {shown(given)}, and should be an object with {valid}")
  for key in given:
    if key not in fields:
      raise Refused(400, f"{name} has {shown(key)}, which is no field; valid are {valid}")
  if missing := [key for key, field in fields.items() if field.required and key not in given]:
    raise Refused(400, f"{name} lacks {missing[0]!r}; valid fields are {valid}")
  if one_of and sum(key in given for key in one_of) != 1:
    raise Refused(400, f"{name} needs one of {' and '.join(one_of)}")
  found = {}
  for key, value in given.items():
    try:
      found[key] = FIELDS[fields[key].kind](value, max_chars)
    except Refused as e:
      raise Refused(e.status, f"{name}: {key!r} {e.sentence}") from None
  return found


def shown(value: Any) -> str:
  return shorter(repr(value), 40)


def shorter(words: str, most: int = 200) -> str:
  return words if len(words) <= most else f"{words[:most]}..."
