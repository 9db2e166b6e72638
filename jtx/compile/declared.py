"""A config's data as far as the config alone declares it, for compiles that read no data."""

from jtx import hub, storage
from jtx.build import labelled
from jtx.config import ConfigDict
from jtx.data import recipes
from jtx.data.dataset import make_tokenizer
from jtx.data.tokenizers.kinds import wordpiece
from jtx.errors import ConfigError


def declared_data(config: ConfigDict, vocab_size: int | None = None,
                  outputs: int | None = None) -> tuple[recipes.Recipe, dict[str, int]]:
  """The recipe and the `info` of a config's data as far as the config tells; no source is read.

  A tokenizer that is a file is read where it is there.

  Args:
    config: of a run.
    vocab_size: of tokenizers, where it follows from the data or a file.
    outputs: classes or tags, where they follow from the data.

  Raises:
    ConfigError: one of them is needed and None, or the config has another vocab_size.
    DataError: the tokenizer's file is none.
  """
  # Of a tokenizer the ops need no more than that it has the special tokens.
  stand_in = wordpiece(iter(["a few words"]), vocab_size=40, min_frequency=1, mask=True)
  recipe = recipes.build_ops(config.data.ops).bind({"text": stand_in})
  info = {}
  if recipe.maker is not None:
    kind = config.tokenizer.kind
    size = vocab_size
    if "vocab_size" in kind:
      size = kind.vocab_size + len(config.tokenizer.delimiters)
      if vocab_size not in (None, size):
        raise ConfigError(f"vocab_size={vocab_size}: it is {size} by config.tokenizer.kind."
                          f"vocab_size={kind.vocab_size} and its delimiters; set that in its place")
    of_file = size is None and kind.name == "file" and (
        storage.exists(kind.path) or hub.is_name(kind.path))
    if of_file or kind.name == "bytes":  # whose vocabulary is always the same
      size = make_tokenizer(config.tokenizer, iter(())).vocab_size
    if size is None:
      raise ConfigError(f"vocab_size is needed: that of config.tokenizer.kind={kind.name} follows"
                        " from the data or a file")
    info = {"vocab_size": size, "src_vocab_size": size, "bos_id": 1}
  namer = recipe.namer
  if namer is not None and (namer.names_key in config.model or (
      "head" in config.model and labelled(config.model.head))):
    number = namer.number_of_names or outputs
    if not number:
      raise ConfigError("outputs is needed: the names of classes or tags follow from the data")
    if not namer.names:
      recipe = recipe.with_names(tuple(map(str, range(number))))
    info[namer.names_key] = number
  return recipe, info | recipes.model_keys(recipe.prepare, recipe.layout)
