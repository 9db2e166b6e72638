"""Draws what the heads of a model attend to in a text, a pair of texts, a translation or an image.

  python -m experiments.attention --workdir=W --text="Ann sat ." --output=attention.png
    [--second=...] [--layers=1,-1] [--heads=1,2] [--mean] [--kind=cross]

W is a workdir of jtx or a folder of Hugging Face. Of a translator --second is the translation, its
own if not given. Of a vision transformer --text is the path of an image. The figure has the width
of a paper's column or page; its format is that of the file's ending, such as png, pdf or svg.
"""

from absl import flags

from . import cli

WORKDIR = flags.DEFINE_string("workdir", None, "Folder of a training run, or of Hugging Face.")
TEXT = flags.DEFINE_string("text", None, "The text, or the path of an image.")
SECOND = flags.DEFINE_string("second", None, "The second text of a pair, or a translation.")
OUTPUT = cli.define_output("attention.png", "File to write: .png, .pdf or .svg.",
                           endings=(".png", ".pdf", ".svg"))
STEP = cli.define_step()
LAYERS = flags.DEFINE_list(
    "layers", None, "Layers by number from 1, -1 is the last; if not given all, or the last where"
    " all have more than 16 heads.")
HEADS = flags.DEFINE_list("heads", None, "Heads by number from 1; all if not given.")
MEAN = flags.DEFINE_bool("mean", False, "Draw the mean over the heads.")
KIND = flags.DEFINE_enum("kind", None, ["cross", "encoder", "decoder"], "Of a translator;"
                         " cross if not given.")


def numbers(flag) -> list[int] | None:
  from jtx.errors import ConfigError
  try:
    return None if flag.value is None else [int(number) for number in flag.value]
  except ValueError as e:
    raise ConfigError(f"--{flag.name}={','.join(flag.value)}: numbers, joined by commas") from e


def main() -> None:
  from jtx import api
  from jtx.figures.figure import save_figure
  figure = api.attention(
      api.Opened(WORKDIR.value, step=STEP.value), TEXT.value, SECOND.value, mean=MEAN.value,
      layers=numbers(LAYERS), heads=numbers(HEADS), kind=KIND.value)
  save_figure(figure, OUTPUT.value)


if __name__ == "__main__":
  cli.run(main, required=("workdir", "text"))
