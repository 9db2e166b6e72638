"""Gives a trained model more tokens, of a domain, or longer texts; compares vocabularies.

  python -m experiments.extend --init=DIR --text=SOURCE --tokens=N --to_hf=NEW
  python -m experiments.extend --init=DIR --text=SOURCE --tokens=N --workdir=NEW
  python -m experiments.extend --init=DIR --max_length=4096 [--window=512] --to_hf=NEW
  python -m experiments.extend --init=DIR --compare=OTHER

DIR is a Hugging Face directory, a name of its Hub or a workdir. NEW, which must not exist yet, is
one, too, from which configs/adapt.py:init=NEW and others go on: a Hugging Face directory, or a
workdir, which a model can be that Hugging Face has no class for. SOURCE is a text file, or a source
with the column "text", such as jsonl:FILE. New tokens get ids behind the old ones, and the mean of
the vectors that they had in pieces. Longer texts are those of Longformer (Beltagy et al. 2020): a
sliding window, global tokens, and repeated positions. The last line is one JSON object.
"""

import json

from absl import flags

from . import cli

INIT = flags.DEFINE_string("init", None, "Folder of the model to begin with.")
TO_HF = flags.DEFINE_string("to_hf", None, "Hugging Face directory to make.")
WORKDIR = flags.DEFINE_string("workdir", None, "Folder of a model of jtx to make.")
TEXT = flags.DEFINE_string("text", None, "Texts of the domain, of which new tokens are learned.")
TOKENS = flags.DEFINE_integer("tokens", None, "New tokens, at most.", lower_bound=1)
MAX_LENGTH = flags.DEFINE_integer("max_length", None, "Tokens of a long text.", lower_bound=1)
WINDOW = flags.DEFINE_integer(
    "window", None, "Places that a token sees, half to each side; 512 if not given.", lower_bound=2)
COMPARE = flags.DEFINE_string("compare", None, "Folder whose vocabulary is compared with --init's.")
STEP = cli.define_step()


def check() -> None:
  """Raises UsageError where flags do not go together."""
  if (TEXT.value is None) != (TOKENS.value is None):
    raise cli.UsageError("--text and --tokens go together: texts of a domain, and how many tokens"
                         " are to be added")
  if WINDOW.value is not None and MAX_LENGTH.value is None:
    raise cli.UsageError("--window goes with --max_length")
  changes = TEXT.value is not None or MAX_LENGTH.value is not None
  if changes != bool(TO_HF.value or WORKDIR.value) or TO_HF.value and WORKDIR.value:
    raise cli.UsageError("--to_hf=NEW or --workdir=NEW goes with --text and --tokens, or with"
                         " --max_length")
  if not changes and COMPARE.value is None:
    raise cli.UsageError("nothing to do: give --text and --tokens, --max_length, or --compare")


def tokenizer_of(folder: str):
  from jtx.errors import ConfigError
  from jtx.saved.folder import open_saved
  found = set(open_saved(folder).tokenizers().values())
  if len(found) != 1:
    raise ConfigError(f"{folder} has {len(found)} tokenizers; one is needed")
  return found.pop()


def make(tokenizer) -> tuple[dict[str, int], object]:
  """Writes the new model; the numbers to print, and its tokenizer."""
  from jtx.data.sources.registry import open_source
  from jtx.data.tokenizers import extended
  from jtx.errors import ConfigError, Inexpressible
  from jtx.interop.extended import lengthened, with_tokens
  from jtx.saved.folder import open_saved
  from jtx.saved.pretrained import save_pretrained
  saved = open_saved(INIT.value)
  model, params = saved.load(step=STEP.value)
  told, new = {}, None
  if TEXT.value is not None:
    source = open_source(TEXT.value if ":" in TEXT.value else f"text:{TEXT.value}")
    texts = (source[i]["text"] for i in range(len(source)))
    new = extended.extend(tokenizer, texts, TOKENS.value)
    model, params = with_tokens(model, params, new.first, new.pieces)
    tokenizer = new.tokenizer
    told |= {"new_tokens": len(new.pieces), "vocab_size": model.vocab_size}
  if MAX_LENGTH.value is not None:
    model, params = lengthened(model, params, MAX_LENGTH.value, WINDOW.value or 512,
                               tokenizer.eos_id)
    told |= {"max_length": MAX_LENGTH.value}
  try:
    save_pretrained(TO_HF.value or WORKDIR.value, model, params, like=saved,
                    format="hf" if TO_HF.value else "jtx",
                    tokenizer=None if new is None else tokenizer)
  except Inexpressible as error:
    raise ConfigError(f"--to_hf={TO_HF.value}: {error}; --workdir=NEW makes a folder that jtx"
                      " reads") from error
  return told, tokenizer


def main() -> None:
  check()
  tokenizer, told = tokenizer_of(INIT.value), {}
  made = TO_HF.value or WORKDIR.value
  if made:
    told, tokenizer = make(tokenizer)
  if COMPARE.value is not None:
    from jtx.data.tokenizers.extended import overlap
    found = overlap(tokenizer, tokenizer_of(COMPARE.value))
    name = made or INIT.value
    width = max(map(len, (name, COMPARE.value, "shared")))
    for row, number in ((name, found.first), (COMPARE.value, found.second),
                        ("shared", found.shared)):
      print(f"{row:<{width}}  {number:>8,}")
    told |= {"tokens": [found.first, found.second], "shared": found.shared,
             "share": round(found.share, 4)}
  print(json.dumps(told))


if __name__ == "__main__":
  cli.run(main, required=("init",))
