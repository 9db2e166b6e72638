"""Train steps as long as the variable STEP_SECONDS says: a module for a config's `imports`.

The device waits and not the host, which may go on as it would beside a large model. The number of
the step that is under way is in the file that STEP_FILE names.
"""

import os
import time

import jax
import numpy as np

from jtx.train import program


def _begin(step: np.ndarray) -> np.ndarray:
  with open(os.environ["STEP_FILE"], "w", encoding="utf-8") as f:
    f.write(f"{int(step) + 1}\n")
  time.sleep(float(os.environ["STEP_SECONDS"]))
  return step


def _slow(train_step):

  def slow(config, model, objective, tx, state, batch, extra):
    step = jax.pure_callback(_begin, jax.ShapeDtypeStruct((), np.int32), state.step)
    return train_step(config, model, objective, tx, state.replace(step=step), batch, extra)

  return slow


program.train_step = _slow(program.train_step)
