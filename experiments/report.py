"""Prints the table of a sweep or of a run, finished or not, and draws its curves.

  python -m experiments.report --workdir=W [--metrics=val/bleu,test/bleu] [--output=report.html]

A sweep's table is also written to W/sweep.md and W/sweep.csv, and its losses to W/loss.png, a line
a setting, with the standard error over seeds. A run's losses, or the metrics given, are drawn to
W/curves.png. Without --metrics they are those of the last report that had them; --metrics=all is
all of them again.

--output=report.html writes all that the folder tells into one page, which needs no other file and
no network: the table, curves, configs, samples and pictures, speed, versions and commands.
--output=loss.pdf or loss.svg draws what curves.png shows, or else the losses, for a paper's column.
"""

from absl import flags

from . import cli

WORKDIR = flags.DEFINE_string("workdir", None, "Folder of a sweep or of a training run.")
METRICS = flags.DEFINE_list(
    "metrics", [], "Of results.json, to be shown; if not given, as before, at first all.")
OUTPUT = cli.define_output(
    None, "A page for browsers, .html, or curves for a paper, .pdf or .svg.",
    endings=(".html", ".pdf", ".svg"))


def main() -> None:
  from jtx.sweeps import page, report
  print(report.report(WORKDIR.value, METRICS.value), end="")
  if OUTPUT.value:
    write = page.write if OUTPUT.value.endswith(".html") else report.save_curves
    write(WORKDIR.value, OUTPUT.value, report.kept_metrics(WORKDIR.value))


if __name__ == "__main__":
  cli.run(main, required=("workdir",))
