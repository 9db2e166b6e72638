"""Files of a Hugging Face folder that are given back as they were when its model is saved again."""

import os
from typing import Any, Mapping, NamedTuple

from jtx import storage
from jtx.config_files import read_json
from jtx.interop import files, generation, sentences

TOKENIZER = "tokenizer.json"
# Without tokenizer.json the others say too little.
TOKENIZER_FILES = (TOKENIZER, "tokenizer_config.json", "special_tokens_map.json",
                   "added_tokens.json", "chat_template.jinja")
MARIAN_FILES = ("source.spm", "target.spm", "vocab.json", "tokenizer_config.json")
SENTENCE_FILES = (sentences.LENGTH, sentences.SETTINGS)
FOLDER, TENSORS = "hugging_face", "tensors.json"  # in a workdir
IDS = ("pad_token_id", "bos_token_id", "eos_token_id")


class Originals(NamedTuple):
  """What is kept of a folder; the defaults are of none."""
  config: Mapping[str, Any] = {}  # the content of config.json
  texts: Mapping[str, bytes] = {}  # the contents of files by name
  dtype: str = "float32"  # of the tensors
  start: int | None = None  # token before the first of a target; None is told by `config`
  bare: bool = False  # no token stands before a text, whatever its tokenizer would put there
  speaking: Mapping[str, Any] | None = None  # of a model of jtx, as in `jtx.saved.texts`

  @property
  def tokenizer(self) -> dict[str, bytes]:
    """The files of the tokenizer; none where they are not all that says what it is."""
    for needed, names in ((TOKENIZER, TOKENIZER_FILES), (MARIAN_FILES[0], MARIAN_FILES)):
      if needed in self.texts:
        return {name: text for name, text in self.texts.items() if name in names}
    return {}

  @property
  def sentences(self) -> dict[str, bytes]:
    """The settings of sentence-transformers."""
    return {name: text for name, text in self.texts.items() if name == sentences.SETTINGS}

  @property
  def max_length(self) -> int | None:
    """The tokens that texts are cut to, where the folder tells."""
    return sentences.max_length(self.texts)

  def without_tokenizer(self) -> "Originals":
    return self._replace(texts=self.generation | self.sentences, speaking=None)

  @property
  def generation(self) -> dict[str, bytes]:
    return {name: text for name, text in self.texts.items() if name == generation.FILE}


def read(directory: str) -> Originals:
  """The originals of a Hugging Face folder."""
  return Originals(files.read_config(directory), _texts(directory), files.dtype_of(directory))


def kept_in(workdir: str) -> Originals:
  """Those that `keep_in` wrote; of none where it did not."""
  folder = os.path.join(workdir, FOLDER)
  if not storage.is_folder(folder):
    return Originals()
  told = read_json(os.path.join(folder, TENSORS), missing="")
  return Originals(files.read_config(folder), _texts(folder), told["dtype"])


def keep_in(workdir: str, originals: Originals) -> None:
  """Writes originals, where there are any, into a workdir."""
  if not originals.config:
    return
  folder = os.path.join(workdir, FOLDER)
  storage.make_folder(folder)
  for name, text in originals.texts.items():
    storage.write_bytes(os.path.join(folder, name), text)
  files.write_json(os.path.join(folder, files.CONFIG), originals.config)
  files.write_json(os.path.join(folder, TENSORS), {"dtype": originals.dtype})


def _texts(folder: str) -> dict[str, bytes]:
  marian = MARIAN_FILES if storage.exists(os.path.join(folder, MARIAN_FILES[0])) else ()
  paths = {name: os.path.join(folder, name)
           for name in (generation.FILE, *SENTENCE_FILES, *TOKENIZER_FILES, *marian)}
  return {name: storage.read_bytes(path) for name, path in paths.items() if storage.exists(path)}
