"""Generated sentences with everything that the tasks of text encoders ask for.

"Ann met Bob in Rome ." comes with a class (whether the town is by the sea), tags (names and
towns), a question with its answer, and a choice of endings. So a config for any of these
runs without data.
"""

from typing import Any
import zlib

import numpy as np

from jtx.config import lookup
from jtx.errors import ConfigError

NAMES = ("Ann", "Bob", "Eve", "Kim", "Leo", "Max", "Pia", "Tom")
VERBS = ("met", "saw", "called")
BY_THE_SEA = ("Athens", "Lima", "Lisbon", "Oslo")
INLAND = ("Bonn", "Madrid", "Rome", "Vienna")
TAGS = ("O", "B-NAME", "B-TOWN")
SIZES = {"train": 2000, "val": 200}


class Sentences:
  """Sentence i of a split is a function of the split and i."""

  def __init__(self, split: str):
    self.name = f"embedded:sentences:{split}"
    self.size = lookup(SIZES, split, self.name)
    self.seed = zlib.crc32(split.encode())

  def __len__(self) -> int:
    return self.size

  def __getitem__(self, i: int) -> dict[str, Any]:
    i = range(len(self))[i]
    rng = np.random.default_rng([self.seed, i])
    who, whom = rng.choice(NAMES, 2, replace=False).tolist()
    town = str(rng.choice(BY_THE_SEA + INLAND))
    words = [who, str(rng.choice(VERBS)), whom, "in", town, "."]
    tags = ["B-NAME", "O", "B-NAME", "O", "B-TOWN", "O"]
    text = " ".join(words)
    endings = [town, who]
    answer = int(rng.integers(2))
    return {
        "text": text, "label": str(int(town in BY_THE_SEA)), "words": words, "tags": tags,
        "question": "Where was it ?", "context": text,
        "answers": [{"text": town, "answer_start": text.index(town)}],
        "prompt": " ".join(words[:4]), "ending_0": endings[answer], "ending_1": endings[1 - answer],
        "answer": answer,
    }


def sentences(subset: str, split: str) -> Sentences:
  """Opens `embedded:sentences:SPLIT`; there are no subsets."""
  if subset:
    raise ConfigError(f"embedded:sentences/{subset}: it has no subsets, so leave /{subset} away")
  return Sentences(split)
