"""Where texts that the model of a folder goes on with begin and end, and how talks are written."""

import functools
import os
from typing import Any, Callable, Sequence

from jtx import storage
from jtx.config import ConfigDict, build, section
from jtx.data import recipes
from jtx.data.ops.registry import OPS
from jtx.errors import ConfigError
from jtx.inference.decode import METHODS, Ends
from jtx.inference.rules import Rules
from jtx.inference.translate import Writing, run_writing
from jtx.interop import generation, originals
from jtx.saved import languages
from jtx.saved.folder import HuggingFace, Saved, Workdir

MAX_LENGTH = 256  # tokens of a source or a target, where nothing tells


def begin_ids(saved: Saved) -> tuple[int, ...] | None:
  """The tokens that stand before a prompt; None is those of the tokenizer."""
  texts = _texts(saved)
  if texts is None or texts.begin is None:
    return None
  return (saved.tokenizer().bos_id,) if texts.begin else ()


def around_texts(saved: Saved) -> tuple[bool, str]:
  """Fields `begin` and `start` of the op `tokenize` that an encoder-decoder was trained with.

  Raises:
    ConfigError: its texts stand beside codes of their languages, which the op does not write.
  """
  if (texts := _texts(saved)) is not None:
    begin, start = texts.around[0], texts.start
  elif isinstance(saved, HuggingFace):
    if found := languages.codes(saved.tokenizer()):
      raise ConfigError(f"{saved.directory}: its texts stand beside codes of languages, such as"
                        f" {next(iter(found))}, and training does not write these: such a model is"
                        " for experiments.translate only")
    begin = saved.tokenizer().begin_ids() == (saved.tokenizer().bos_id,)
    start = generation.start_id(saved.directory)
  else:
    return False, "begin"
  tokenizer = saved.tokenizer()
  ended = start == tokenizer.eos_id != tokenizer.bos_id
  return begin, "end" if ended else "begin"


def end_ids(saved: Saved) -> tuple[int, ...]:
  """The tokens that end a generated text; () is the tokenizer's end token."""
  return generation.end_ids(saved.directory) if isinstance(saved, HuggingFace) else ()


def writing(saved: Saved, model: Any) -> tuple[ConfigDict, Writing | None]:
  """How an encoder-decoder decodes: a config's `decode` section, and how it reads and writes.

  The latter is None of a model without a run whose folder tells nothing.

  Raises:
    ConfigError: settings of generation that can't be used.
  """
  if (texts := _texts(saved)) is not None:
    decode = texts.decode.copy_and_resolve_references()
    target = saved.tokenizers().get("tgt")
    return decode, target and run_writing(target, texts.start, texts.around)
  longest = model.longest or MAX_LENGTH
  options = ConfigDict({"method": section(METHODS, "beam"), "batch_size": 64,
                        "max_source_length": min(MAX_LENGTH, longest),
                        "max_target_length": min(MAX_LENGTH, longest)})
  folder = saved.directory
  if not isinstance(saved, HuggingFace):
    folder = os.path.join(folder, originals.FOLDER)  # of a model that was converted from one
    if not storage.is_folder(folder):
      return options, None
  found, start = generation.read_generation(folder), generation.start_id(folder)
  if start is None:
    raise ConfigError(f"{folder} has neither decoder_start_token_id nor bos_token_id, in"
                      f" {generation.FILE} or config.json: a text begins behind it")
  if found.most is not None:
    options.max_target_length = min(found.most, longest)
  options.max_source_length = longest if model.longest else 2 * MAX_LENGTH
  options.method = method_of(found)
  rules = Rules(
      start=start, forced_first=found.forced_first, forced_last=found.forced_last,
      min_length=found.least, no_repeat=found.no_repeat,
      bad_words=found.bad_words, suppressed=found.suppressed)
  pad = saved.tokenizer().pad_id if found.pad is None else found.pad
  return options, Writing(start, Ends(found.end or (saved.tokenizer().eos_id,), pad, rules))


def method_of(found: generation.Generation) -> ConfigDict:
  """The section of the method of decoding that a folder's settings ask for."""
  if found.samples:
    return section(
        METHODS, "sample", temperature=found.temperature, top_k=found.top_k, top_p=found.top_p,
        min_p=found.min_p, repetition_penalty=found.repetition_penalty)
  return section(
      METHODS, "beam", beam=found.beams, alpha=found.length_penalty, penalty="power",
      early_stop=found.early_stop is True, hopeful=found.early_stop is not False, cut_off=True,
      repetition_penalty=found.repetition_penalty)


def chat_template(saved: Saved) -> str:
  """How a conversation is written, in Jinja; "" where nothing tells."""
  texts = _texts(saved)
  return texts and texts.template or getattr(saved.tokenizer(), "chat_template", "")


def cleaner(saved: Saved) -> Callable[[Sequence[str]], list[str]]:
  """What makes lines as the training's were before they became tokens."""
  if (texts := _texts(saved)) is None:
    return list
  ops = [build(OPS, op, what=f"texts.ops[{i}]") for i, op in enumerate(texts.ops)]
  return functools.partial(recipes.cleaned, ops, texts.fields)


def _texts(saved: Saved) -> ConfigDict | None:
  return saved.texts if isinstance(saved, Workdir) else None
