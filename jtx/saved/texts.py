"""How a model reads and writes texts, as its run tells: section `texts` of a folder without one."""

from typing import Mapping

from jtx.config import ConfigDict, section_of
from jtx.data import recipes
from jtx.data.dataset import Dataset
from jtx.data.ops.registry import OPS
from jtx.data.tokenizers.tokenizer import Tokenizer
from jtx.interop import files, generation
from jtx.interop.originals import Originals


def of_run(config: ConfigDict, data: Dataset) -> ConfigDict:
  """What the config and the data of a run tell.

  Returns:
    A section. `ops` clean lines of `fields`, of which the first is a source. A text has a begin
    and an end token as `around` says, and a prompt a begin token as `begin` says; None is by its
    tokenizer. `pairs` is whether texts have targets, which follow the token `start`. Conversations
    are written by `template`, and `decode` is the config's. A question has no answer if that
    scores higher than the best span by more than `no_answer`; None is of runs whose questions
    all have one.
  """
  form = data.recipe.form
  begins = [op.begin for op in config.data.ops if op.name == "tokenize"]
  templates = [op.template for op in config.data.ops if "template" in op]
  unanswered = [e.threshold for e in config.evals.values() if e.get("no_answer")]
  return ConfigDict({
      "ops": tuple(section_of(OPS, op) for op in recipes.line_ops(data.ops)),
      "fields": tuple(data.fields),
      "around": data.around,
      "begin": begins[0] if begins else None,
      "pairs": "tgt" in data.fields or form is not None and "tgt" in form.columns,
      "start": data.info.get("bos_id"),
      "template": next(filter(None, templates), ""),
      "no_answer": unanswered[0] if unanswered else None,
      "decode": config.decode.copy_and_resolve_references() if "decode" in config else None,
  })


def originals(texts: ConfigDict, tokenizers: Mapping[str, Tokenizer]) -> Originals:
  """What is kept of it where a model is saved, in files of Hugging Face, too."""
  kept = Originals(start=texts.start, bare=texts.pairs and not texts.around[0], speaking=texts)
  if "tgt" not in texts.fields:
    return kept
  content = generation.written(texts.decode, texts.start, tokenizers["tgt"])
  return kept._replace(texts={generation.FILE: files.json_text(content).encode()})
