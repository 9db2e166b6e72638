"""Records of predictions: what is right, what is predicted, and by which scores."""

import types

import jax
import numpy as np
import pytest

from configs import choose as choose_config
from configs import common
from jtx.errors import DataError
from jtx.evals.answers import Answers
from jtx.evals.choices import Choices
from jtx.evals.class_records import records
from jtx.evals.loss import Loss
from jtx.evals.tagging import Tagging
from jtx.evals.tagging import records as tag_records
from jtx.saved.workdir import load_run
from jtx.train import loop


def test_classes_numbers_and_labels():
  examples = [{"id": 3, "label": np.int32(1)}, {"id": 5, "label": np.int32(0)}]
  outputs = [np.log([1.0, 3.0]), np.log([1.0, 4.0])]
  first, second = records(examples, outputs, ("no", "yes"))
  assert first.pop("scores") == pytest.approx({"no": 0.25, "yes": 0.75})
  assert first == {"id": 3, "gold": "yes", "prediction": "yes", "correct": True}
  assert (second["gold"], second["prediction"], second["correct"]) == ("no", "yes", False)
  found, = records([{"id": 0, "label": np.float32(0.5)}], [np.array([2.0])])
  assert found == {"id": 0, "gold": 0.5, "prediction": 2.0}
  found, = records([{"id": 0, "label": np.array([1, 0, 1])}], [np.array([0.0, -1.0, -9.0])], "abc")
  assert (found["gold"], found["prediction"], found["correct"]) == (["a", "c"], ["a"], False)
  assert found["scores"]["a"] == 0.5


@pytest.mark.slow
def test_choices(tmp_path):
  config = choose_config.get_config("tiny")
  common.apply(config, {"steps": 1, "checkpoint.every": 1})
  loop.run(config.lock(), str(tmp_path), jax.devices()[:1])
  task, params, _ = load_run(str(tmp_path))
  source = config.evals.dev.source
  found = dict(Choices(source)(task, params))
  loss = dict(Loss(source)(task, params))
  assert found["accuracy"] == pytest.approx(loss["accuracy"])
  rows = list(found["predictions"])
  assert found["accuracy"] == pytest.approx(np.mean([row["correct"] for row in rows]))
  assert set(rows[0]["scores"]) == {"0", "1"} and rows[3]["id"] == 3


def test_choices_of_a_question_are_compared(monkeypatch):
  monkeypatch.setattr("jtx.evals.choices.Predictor", lambda *args, **options: (
      lambda texts: [np.array([float(t["text"][0])]) for t in texts]))
  examples = [{"id": i, "label": label} | {
      key: value for c, score in enumerate(row)
      for key, value in ((f"choice_{c}", [score]), (f"choice_{c}_types", [0]))}
      for i, (label, row) in enumerate([(2, (1, 2, 3)), (0, (9, 8, 7))])]
  task = types.SimpleNamespace(model=None, mesh=None,
                               data=types.SimpleNamespace(encoded=lambda source: examples))
  found = dict(Choices(("x",))(task, None))
  assert (found["accuracy"], found["examples"]) == (1.0, 2)
  assert [row["correct"] for row in found["predictions"]] == [True, True]


def test_a_word_without_a_token_is_outside_of_entities():
  example = {"id": 1, "words": ["Ann", "sat", "by"], "word_tags": ["B-PER", "O", "O"],
             "tags": np.array([-1, 0, -1, 1]), "text_words": np.array([-1, 0, 0, 2])}
  logits = np.array([[9, 0], [0, 1], [9, 0], [1, 0]])
  found = dict(Tagging(("x",), entities=True).score([example], [logits], ("O", "B-PER")))
  assert (found["f1"], found["accuracy"]) == (1.0, pytest.approx(2 / 3))


def test_entities_are_refused_where_training_tags_mark_none():
  data = types.SimpleNamespace(labels=("O", "B-PER", "NOUN"), check=lambda specs: None)
  Tagging(("x",)).check_data(data)
  with pytest.raises(DataError, match="^entities=True is of IOB tags, and in the training data the"
                                      " tag 'NOUN' marks no entity; valid are O and B-"):
    Tagging(("x",), entities=True).check_data(data)


def test_tags_of_words():
  example = {"id": 1, "words": ["Ann", "sat"], "word_tags": ["B", "O"],
             "tags": np.array([-1, 1, -1, 0]), "text_words": np.array([-1, 0, 0, 1])}
  logits = np.array([[9, 0], [0, 1], [9, 0], [0, 1]])
  assert list(tag_records([example], [logits], ("O", "B"))) == [
      {"id": 1, "words": ["Ann", "sat"], "gold": ["B", "O"], "prediction": ["B", "B"],
       "correct": False}]


def test_answers_of_two_windows():
  window = lambda offsets: {"id": 7, "question": "who?", "context": "Ann sat",
                            "answers": [{"text": "Ann", "answer_start": 0}],
                            "text_offsets": np.array(offsets)}
  windows = [window([[-1, -1], [0, 3]]), window([[-1, -1], [4, 7]])]
  outputs = [np.array([[1.0, 1.0], [2.0, 2.0]]), np.array([[0.5, 0.5], [0.0, 0.0]])]
  found, = Answers(("squad:x",)).records(windows, outputs)
  assert found == {"id": 7, "question": "who?", "gold": ["Ann"], "prediction": "Ann",
                   "correct": True, "scores": {"f1": 1.0, "no_answer": 1.0 - 4.0}}
  found, = Answers(("squad:x",), no_answer=True, threshold=-5.0).records(windows, outputs)
  assert (found["prediction"], found["correct"]) == ("", False)
