# %% [markdown]
# # A sweep and its report
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/jtx-research/jtx/blob/main/notebooks/sweep_report.ipynb)
#
# One command trains every combination of some values, goes on where it was interrupted, and writes a
# table with means and standard errors over seeds. Another writes all that a folder of runs tells into
# one page. Here four small classifiers are trained, which takes a minute or two on a CPU.

# %%
import os
import sys

if "google.colab" in sys.modules and not os.path.isdir("configs"):
  # !git clone --quiet --depth 1 https://github.com/jtx-research/jtx
  os.chdir("jtx")
  # !pip install --quiet -e .
elif not os.path.isdir("configs"):  # opened in its own folder
  os.chdir("..")

# %%
import csv
import html
import json
import pathlib
import subprocess
import tempfile

from IPython.display import HTML, Markdown

from jtx.figures.curves import curve

folder = pathlib.Path(tempfile.mkdtemp(prefix="jtx_")) / "sweep"


def command(module, *arguments, last=20):
  """What `python -m MODULE ARGUMENTS` prints, of which the last lines."""
  done = subprocess.run([sys.executable, "-m", module, *arguments], text=True,
                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
  print("python -m", module, *arguments, end="\n\n")
  print("\n".join(done.stdout.splitlines()[-last:]))
  done.check_returncode()



# %% [markdown]
# ## The command
#
# `--grid=KEY=VALUES` may be repeated: two learning rates, two seeds. All else is the config's, a
# classifier of the texts that come with jtx. `--dry_run` prints what would be run.

# %%
SWEEP = ("--config=configs/classify.py:tiny", f"--workdir={folder}", "--grid=optim.lr=1e-3,3e-3",
         "--grid=seed=0,1", "--config.steps=80", "--config.checkpoint.every=80", "--config.log_every=10",
         "--metrics=dev/accuracy")
command("experiments.sweep", *SWEEP, "--dry_run")

# %% [markdown]
# The same without it trains them one after the other; `--jobs=2` would train two at a time. The runs
# differ in numbers only, so they share what is compiled.

# %%
command("experiments.sweep", *SWEEP)

# %% [markdown]
# A folder a run, named after what it changes, and the table, as Markdown and as CSV. A value with ± is
# a mean over the seeds with its standard error.

# %%
print("\n".join(sorted(path.name for path in folder.iterdir())))
Markdown((folder / "sweep.md").read_text("utf-8"))

# %%
with open(folder / "sweep.csv", encoding="utf-8", newline="") as f:
  for line in csv.reader(f):
    print(line)

# %% [markdown]
# The command again trains nothing: what is finished is left as it is, and a run that was killed would
# go on from its last checkpoint.

# %%
before = {path: path.stat().st_mtime_ns for path in folder.glob("*/metrics.jsonl")}
assert len(before) == 4
command("experiments.sweep", *SWEEP)
assert before == {path: path.stat().st_mtime_ns for path in folder.glob("*/metrics.jsonl")}

# %% [markdown]
# ## Curves of your own
#
# Every run has its numbers in `metrics.jsonl`, a line each time:

# %%
losses, steps = {}, []
for path in sorted(before):
  lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
  steps = [line["step"] for line in lines if "train/loss" in line]
  losses[path.parent.name] = [line["train/loss"] for line in lines if "train/loss" in line]
curve(steps, losses, "step", "nats an example")

# %% [markdown]
# ## The report
#
# One HTML file without outside references: a table that sorts by a click, curves with their band over
# seeds, the keys in which configs differ, samples, hardware, and the command that repeats each run.

# %%
command("experiments.report", f"--workdir={folder}", f"--output={folder}/report.html")
page = (folder / "report.html").read_text("utf-8")
assert "3e-3" in page and "http" + "://" not in page.replace("http" + "://www.w3.org", "")
HTML(f'<iframe srcdoc="{html.escape(page)}" width="100%" height="640"></iframe>')
