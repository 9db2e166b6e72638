"""A classifier of texts whose position encoding, mask, loss and score are my own.

  jtx train --config=my_config.py --workdir=runs/mine
"""

import my_parts  # so that the names below are known  # noqa: F401

from jtx.configs import classify, common


def get_config(arg: str = "tiny"):
  # "tiny" is a small model on texts that come with jtx. For train.tsv and dev.tsv of a folder:
  # --config=my_config.py:names=no+yes --config.data.path=FOLDER
  c = classify.get_config(arg)
  if arg == "tiny":
    c.steps, c.optim.lr = 100, 3e-3
  c.imports = ("my_parts",)  # all that opens the workdir imports it
  c.model.stack.position = common.position("kerple", slope=0.5)
  c.model.stack.pattern, c.model.stack.window = ("strided", "global"), 4
  c.objective = common.objective("classify_entropy", penalty=0.05)
  c.evals.dev.scores = ("accuracy", "worst_recall")
  return c


def sweep_penalty():
  for penalty in (0.0, 0.05, 0.2):
    yield {"objective.penalty": penalty}
