"""Translates lines with a trained model: a line in, a line out, in order.

  python -m experiments.translate --workdir=W [--input=F] [--output=F] [--beam=4]
  python -m experiments.translate --workdir=A --workdir=B --workdir=C
  python -m experiments.translate --workdir=W --sample --n_best=16 --mbr
  python -m experiments.translate --workdir=W --targets=F
  python -m experiments.translate --workdir=W --source_language=de_DE --target_language=en_XX

W may be a Hugging Face folder, too, such as T5's or BART's, whose settings of generation
are kept. Several are an ensemble, which takes the mean of their probabilities. Empty lines
stay empty. A line longer than the model's limit is cut, with a warning that names it. With
--n_best above 1 a line is followed by tab and score, which beam search makes of the
log-probability divided by the length penalty, and each input line gives that many; with --mbr
it gives the one of them that is most like the others. With --targets the lines are the
log-probabilities of a file's translations. The last is of a folder with many languages, such
as mBART's.
"""

from absl import flags, logging

from . import cli

WORKDIR = flags.DEFINE_multi_string(
    "workdir", None, "Folder of a training run, or of a Hugging Face encoder-decoder, whose"
    " settings of generation are kept. Given several times, the models are an ensemble, which"
    " decodes as the first says.")
STEP = cli.define_step()
AVERAGE = flags.DEFINE_integer(
    "average", None, "Checkpoints to average, the newest ones; as the config says if not given.",
    lower_bound=1)
INPUT = flags.DEFINE_string("input", "-", "UTF-8 text; - is standard input.")
OUTPUT = cli.define_output("-", "File to write; - is standard output.")
BEAM = flags.DEFINE_integer("beam", None, "Hypotheses of beam search; 1 is greedy.", lower_bound=1)
ALPHA = flags.DEFINE_float("alpha", None, "Exponent of beam search's length penalty.")
N_BEST = flags.DEFINE_integer("n_best", 1, "Translations of each line.", lower_bound=1)
MBR = flags.DEFINE_bool("mbr", False, "Write the one of the n_best translations that has the"
                        " highest mean chrF against all (minimum Bayes risk).")
TARGETS = flags.DEFINE_string("targets", None, "File with a translation of each line, of which the"
                              " log-probability is written, its end included.")
SOURCE_LANGUAGE = flags.DEFINE_string(
    "source_language", "", "Code of the input's language, of a model that has many.")
TARGET_LANGUAGE = flags.DEFINE_string(
    "target_language", "", "Code of the language to translate to, of a model that has many.")
SAMPLE = flags.DEFINE_bool("sample", False, "Sample instead of searching.")
TEMPERATURE = flags.DEFINE_float("temperature", None, "Of sampling.", lower_bound=0.0)
TOP_K = flags.DEFINE_integer("top_k", None, "Sample from the k likeliest tokens.", lower_bound=1)
TOP_P = flags.DEFINE_float("top_p", None, "Sample from the likeliest tokens of probability p.")
SEED = flags.DEFINE_integer("seed", None, "Of sampling.")

BEAM_FLAGS = (BEAM, ALPHA)
SAMPLE_FLAGS = (TEMPERATURE, TOP_K, TOP_P, SEED)


def set_method(decode) -> None:
  """Puts the flags into the config's `decode` section."""
  from jtx.config import edit, section
  from jtx.errors import ConfigError
  from jtx.inference.decode import METHODS
  given = lambda holders: {h.name: h.value for h in holders if h.value is not None}
  own = decode.method.name  # a folder's settings may ask for draws
  name = "sample" if SAMPLE.value else "beam" if given(BEAM_FLAGS) else own
  if wrong := given(BEAM_FLAGS if name == "sample" else SAMPLE_FLAGS):
    relation = "without" if SAMPLE.value else "with"
    raise ConfigError(f"--{next(iter(wrong))} goes {relation} --sample")
  if own != name:
    decode.method = section(METHODS, name)
  values = given(SAMPLE_FLAGS if name == "sample" else BEAM_FLAGS)
  if name == "beam" and BEAM.value is None:
    values["beam"] = max(decode.method.beam, N_BEST.value)
  edit(decode.method, values | {"n_best": N_BEST.value}, "decode.method")


def open_translator():
  """The translator of --workdir, and what cleans lines for it."""
  from jtx.inference.tasks import check_translates
  from jtx.inference.translate import Translator
  from jtx.saved import speaking
  from jtx.saved.ensemble import load
  from jtx.saved.languages import between
  saved, model, params = load(WORKDIR.value, STEP.value, AVERAGE.value, check_translates)
  decode, writing = speaking.writing(saved, model)
  set_method(decode)
  tokenizers, writing = between(saved.tokenizers(), writing, SOURCE_LANGUAGE.value,
                                TARGET_LANGUAGE.value)
  translator = Translator(model, params, tokenizers, decode, writing=writing)
  return translator, speaking.cleaner(saved)


def check_flags() -> None:
  from jtx.errors import ConfigError
  if MBR.value and N_BEST.value == 1:
    raise ConfigError("--mbr goes with --n_best of 2 or more, among which it chooses")
  if TARGETS.value is not None:
    for flag in (MBR, SAMPLE, *BEAM_FLAGS, *SAMPLE_FLAGS):
      if flag.value not in (None, False):
        raise ConfigError(f"--{flag.name} does nothing with --targets, which are given")


def read_targets(number: int) -> list[str]:
  from jtx.errors import DataError
  found = cli.read_lines(TARGETS.value)
  if len(found) != number:
    raise DataError(f"--targets={TARGETS.value} has {len(found)} lines, and --input {number}")
  return found


def written(best) -> str:
  """The output for one line, of its hypotheses."""
  from jtx.inference.consensus import most_alike
  if MBR.value:
    return f"{best[most_alike([h.text for h in best])].text}\n"
  return "".join(f"{h.text}\t{h.score:.4f}\n" if N_BEST.value > 1 else f"{h.text}\n" for h in best)


def main() -> None:
  check_flags()
  lines = cli.read_lines(INPUT.value)
  targets = None if TARGETS.value is None else read_targets(len(lines))
  translator, clean = open_translator()
  texts, limit = clean(lines), translator.options.max_source_length
  for i, length in translator.too_long(texts):
    logging.warning("line %d has %d tokens, over the model's limit of %d: its start is %s",
                    i + 1, length, limit, "translated" if targets is None else "read")
  if targets is not None:
    text = "".join(f"{score:.4f}\n" for score in translator.scores(texts, clean(targets)))
  else:
    text = "".join(map(written, translator(texts)))
  cli.write_text(OUTPUT.value, text)


if __name__ == "__main__":
  cli.run(main, required=("workdir",))
