"""Folders of several models that translate together."""

from typing import Any, Callable, Sequence

from jtx.errors import ConfigError
from jtx.inference.ensemble import Ensemble
from jtx.saved.folder import Saved, open_saved


def load(folders: Sequence[str], step: int | str | None, average: int | None,
         check: Callable[[Any, str], None]) -> tuple[Saved, Any, Any]:
  """The model of one folder, or the ensemble of several.

  Args:
    folders: one or more.
    step: of the checkpoint of each; see `Saved.load`.
    average: checkpoints of each that are averaged; see `Saved.load`.
    check: raises ConfigError where a model, of what is named, can't be one of them.

  Returns:
    The first folder, the model and its parameters.

  Raises:
    ConfigError: their tokenizers differ.
  """
  opened, members = [open_saved(folder) for folder in folders], []
  for folder, saved in zip(folders, opened):
    if saved.tokenizers() != opened[0].tokenizers():
      raise ConfigError(f"--workdir: the tokenizers of {folder} are not those of {folders[0]}, so"
                        " that their models can't write one text")
    members.append(saved.load(step=step, average=average))
    check(members[-1][0], f"--workdir={folder}")
  if len(members) == 1:
    return opened[0], *members[0]
  models, params = zip(*members)
  return opened[0], Ensemble(models), params
