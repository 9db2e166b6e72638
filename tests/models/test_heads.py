"""The heads that a task of the table is, for objectives and evaluators."""

import pytest

from jtx.models import heads
from jtx.models.encoder import Encoder
from jtx.models.heads import TASKS, Task, heads_of
from jtx.models.text_head import HeadConfig


@pytest.mark.parametrize("task", TASKS)
def test_a_task_is_a_head_of_its_name(task):
  assert heads_of(task) == (set() if task == "none" else {task})


def test_a_task_that_is_trained_as_another_is_both(monkeypatch):
  monkeypatch.setitem(heads.TASKS, "rating", Task(labelled=True, trained_as="classes"))
  model = Encoder(vocab_size=9, mlm=True, head=HeadConfig(task="rating", outputs=5))
  assert model.heads == {"mlm", "rating", "classes"}
