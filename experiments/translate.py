"""Translates lines with a trained model: a line in, a line out, in order.

  python -m experiments.translate --workdir=W [--input=F] [--output=F] [--beam=4]

W may be a Hugging Face folder, too, such as T5's or BART's, whose settings of generation are
kept. Empty lines stay empty. A line longer than the model's limit is cut, with a warning that
names it. With --n_best above 1 a line is followed by tab and score, and each input line
gives that many.
"""

from absl import flags, logging

from . import cli

WORKDIR = flags.DEFINE_string("workdir", None, "Folder of a training run, or of a Hugging Face"
                              " encoder-decoder, whose settings of generation are kept.")
STEP = cli.define_step()
AVERAGE = flags.DEFINE_integer(
    "average", None, "Checkpoints to average, the newest ones; as the config says if not given.",
    lower_bound=1)
INPUT = flags.DEFINE_string("input", "-", "UTF-8 text; - is standard input.")
OUTPUT = cli.define_output("-", "File to write; - is standard output.")
BEAM = flags.DEFINE_integer("beam", None, "Hypotheses of beam search; 1 is greedy.", lower_bound=1)
ALPHA = flags.DEFINE_float("alpha", None, "Exponent of beam search's length penalty.")
N_BEST = flags.DEFINE_integer("n_best", 1, "Translations of each line.", lower_bound=1)
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
  name = "sample" if SAMPLE.value else "beam"
  others = BEAM_FLAGS if SAMPLE.value else SAMPLE_FLAGS
  if wrong := given(others):
    relation = "without" if SAMPLE.value else "with"
    raise ConfigError(f"--{next(iter(wrong))} goes {relation} --sample")
  if decode.method.name != name:
    decode.method = section(METHODS, name)
  values = given(SAMPLE_FLAGS if SAMPLE.value else BEAM_FLAGS)
  if not SAMPLE.value and BEAM.value is None:
    values["beam"] = max(decode.method.beam, N_BEST.value)
  edit(decode.method, values | {"n_best": N_BEST.value}, "decode.method")


def main() -> None:
  from jtx.inference.tasks import check_translates
  from jtx.inference.translate import Translator
  from jtx.saved import speaking
  from jtx.saved.folder import Run, open_saved
  lines = cli.read_lines(INPUT.value)
  saved = open_saved(WORKDIR.value)
  model, params = saved.load(step=STEP.value, average=AVERAGE.value)
  check_translates(model, f"--workdir={WORKDIR.value}")
  decode, writing = speaking.writing(saved, model)
  set_method(decode)
  translator = Translator(model, params, saved.tokenizers(), decode, writing=writing)
  texts = saved.data.clean(lines) if isinstance(saved, Run) else lines
  limit = decode.max_source_length
  for i, length in translator.too_long(texts):
    logging.warning("line %d has %d tokens, over the model's limit of %d: its start is translated",
                    i + 1, length, limit)
  results = translator(texts)
  text = "".join(f"{h.text}\t{h.score:.4f}\n" if N_BEST.value > 1 else f"{h.text}\n"
                 for best in results for h in best)
  cli.write_text(OUTPUT.value, text)


if __name__ == "__main__":
  cli.run(main, required=("workdir",))
