"""The evaluator of detection on files: uneven batches, sizes of files, records and figures."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import common
from jtx.data.dataset import Dataset
from jtx.errors import DataError
from jtx.evals import coco
from jtx.evals.detection import Detection, reported
from jtx.evals.task import Task
from jtx.parallel import sharding
from tests.data.image_files import configs
from tests.detectors import NAMES, Given, said, write_images

SIZES = [(40, 20), (20, 40), (40, 40), (8, 6), (40, 30)]  # width and height of five files
TRUE = [[(0, [4, 2, 20, 10])], [(1, [2, 10, 10, 20]), (0, [0, 0, 20, 8])], [], [(1, [0, 0, 8, 6])],
        [(0, [10, 10, 10, 10]), (1, [20, 0, 20, 30])]]


def relative(size, box):
  left, top, width, height = box
  return [(left + width / 2) / size[0], (top + height / 2) / size[1], width / size[0],
          height / size[1]]


RIGHT = [[(number, 0.9 - 0.1 * i, relative(size, box)) for i, (number, box) in enumerate(row)]
         for size, row in zip(SIZES, TRUE)]


@pytest.fixture(scope="module", params=[(), ((10, 20), (20, 10))], ids=["square", "shapes"])
def data(tmp_path_factory, request):
  path = write_images(tmp_path_factory.mktemp("boxes"), TRUE, SIZES)
  c = common.get_config()
  c.data.path, c.data.train = path, ("boxes:boxes.jsonl",)
  c.data.ops = tuple(configs(
      "decode_image", "resize_shortest", "images", decode_image={"boxes": True},
      resize_shortest={"shortest": (10,), "longest": 20},
      images={"size": 20, "pad": True, "max_boxes": 3, "mean": (0.5,) * 3, "std": (0.25,) * 3,
              "shapes": request.param}))
  return Dataset(c.data, c.tokenizer)


def task_of(data, model, devices=1, batch_size=2):
  mesh = sharding.make_mesh({"data": devices}, jax.devices()[:devices])
  config = types.SimpleNamespace(batch_size=batch_size, phases=())
  return Task(config, model=model, objective=None, data=data, mesh=mesh)


def scored(data, rows, evaluator=None, **options):
  """What the evaluator yields where the model says `rows`, by name."""
  evaluator = evaluator or Detection(("boxes:boxes.jsonl",))
  return dict(evaluator(task_of(data, Given(), **options), said(rows)))


def test_what_is_right_in_files_of_any_size_has_all_scores(data):
  """Boxes are relative to the picture, and compared in pixels of its file."""
  result = scored(data, RIGHT)
  records = list(result.pop("predictions"))
  assert result == pytest.approx({
      **dict.fromkeys(("ap", "ap50", "ap75", "ap_small", "ar1", "ar10", "ar100", "ar_small"), 1),
      "examples": 5})
  assert [r["id"] for r in records] == [0, 1, 2, 3, 4]
  for record, row in zip(records, TRUE):
    assert [x["label"] for x in record["gold"]] == [NAMES[number] for number, _ in row]
    for found in (record["gold"], record["prediction"][:len(row)]):
      np.testing.assert_allclose([number for x in found for number in x["box"]],
                                 [number for _, box in row for number in box], atol=1e-4)
    assert [x["score"] for x in record["prediction"][:len(row)]] == pytest.approx(
        [0.9, 0.8][:len(row)])
    assert len(record["prediction"]) == 3 and record["prediction"][-1]["score"] < 1e-6


def test_a_wrong_class_counts(data):
  """A cat of the highest score that is said to be a dog, of which there are three."""
  rows = [[(1, 0.99, RIGHT[0][0][2])], *RIGHT[1:]]
  result = scored(data, rows)
  # Precision is 1/2, 2/3 and 3/4 after the three, and at lower recalls what is highest behind them.
  assert result["ap50"] == pytest.approx((3 / 4 + 67 / 101) / 2)


@pytest.mark.parametrize("devices, batch_size", [(1, 1), (1, 5), (2, 4), (8, 8)])
def test_uneven_batches_and_meshes_change_nothing(data, devices, batch_size):
  rows = [[(1, 0.99, RIGHT[0][0][2])], *RIGHT[1:]]
  base, other = scored(data, rows), scored(data, rows, devices=devices, batch_size=batch_size)
  assert list(base.pop("predictions")) == list(other.pop("predictions"))
  assert other == base and base["examples"] == 5


def test_the_report_and_figures(data):
  """A picture shows what is found, and dotted what is true."""
  results = scored(data, RIGHT, Detection(("boxes:boxes.jsonl",), report=True, pictures=3))
  report = results["report"].plain()
  assert list(report) == list(NAMES)
  for row in report.values():
    assert row == pytest.approx({"ap": 1, "ap50": 1, "ap75": 1, "ar100": 1, "objects": 3})
  lines = results["precision_recall"].axes[0].lines
  assert [line.get_label() for line in lines] == list(NAMES)
  np.testing.assert_allclose([line.get_ydata() for line in lines], 1)
  first, second, _ = results["boxes"].axes
  # The file of 40 x 20 pixels is 20 x 10 in a batch, and is drawn so.
  assert first.get_xlim() == (0, 20) and first.get_ylim() == (10, 0)
  found, true = first.patches
  np.testing.assert_allclose([*found.get_xy(), found.get_width(), found.get_height()],
                             [2, 1, 10, 5], atol=1e-4)
  np.testing.assert_allclose([*true.get_xy(), true.get_width(), true.get_height()],
                             [2, 1, 10, 5], atol=1e-4)
  assert [text.get_text() for text in first.texts] == ["cat 0.90"]
  assert {text.get_text() for text in second.texts} == {"dog 0.90", "cat 0.80"}
  assert [p.get_linestyle() for p in (found, true)] == ["-", ":"]


def test_the_report_has_the_classes_that_are_there():
  """Of three classes one has an object and one a crowd alone, which has no score."""
  box = np.array([[0, 0, 9, 9.0]])
  truths = [coco.Truth(box, np.array([k]), np.array([81.0]), np.array([k == 1])) for k in (1, 2)]
  none = coco.Detections(np.zeros((0, 4)), np.zeros(0), np.zeros(0, int))
  yielded = dict(reported(coco.curves([none, none], truths, ("a", "b", "c")), truths))
  assert yielded["report"].plain() == {
      "c": {"ap": 0, "ap50": 0, "ap75": 0, "ar100": 0, "objects": 1}}
  line, = yielded["precision_recall"].axes[0].lines
  assert line.get_label() == "c" and not np.any(line.get_ydata())
  assert not dict(reported(coco.curves([none], truths[:1], ("a", "b")), truths[:1]))


def test_scores_that_are_not_numbers_are_refused(data):
  params = said(RIGHT)
  params["logits"][1, 0, 0] = np.nan
  with pytest.raises(DataError, match="NaN or infinite"):
    list(dict(Detection(("boxes:boxes.jsonl",))(task_of(data, Given()), params))["predictions"])


class Looking(Given):
  """A detector whose every query attends, by two heads and layers, to one place each.

  A place is of 10 x 5 pixels.
  """

  def features(self, batch):
    return jnp.zeros((len(batch["image"]), batch["image"].shape[1] // 10, 4, 8)), batch["size"]

  def attention_weights(self, batch):
    places = batch["image"].shape[1] // 10 * 4
    weights = np.zeros((2, len(batch["image"]), 2, 3, places), np.float32)
    weights[0] = 1 / places  # of the first layer, which is not shown
    for query in range(3):
      weights[1, :, 0, query, query] = weights[1, :, 1, query, query + 1] = 1
    return {"cross": jnp.asarray(weights)}


def test_what_queries_attend_to(data):
  """The first image has 20 x 10 pixels, so of a batch's 20 x 20 the upper row of places."""
  found = [(0, 0.6, (0.5, 0.5, 1, 1)), (1, 0.4, (0.5, 0.5, 1, 1)), (1, 0.9, (0.25, 0.5, 0.5, 1))]
  results = dict(Detection(("boxes:boxes.jsonl",), pictures=1)(
      task_of(data, Looking()), said([found, *RIGHT[1:]])))
  first, second = results["queries"].axes
  assert [axes.get_title() for axes in (first, second)] == ["query 2", "query 0"]  # by their scores
  for axes, places in ((first, (2, 3)), (second, (0, 1))):
    picture, over = axes.images
    assert picture.get_array().shape[:2] == over.get_array().shape == (10, 20)
    columns = np.isin(np.arange(20) // 5, places)
    np.testing.assert_allclose(over.get_array(), np.broadcast_to(0.5 * columns, (10, 20)))
  assert [text.get_text() for text in first.texts] == ["dog 0.90"]
  nothing = dict(Detection(("boxes:boxes.jsonl",), pictures=1, threshold=0.95)(
      task_of(data, Looking()), said([found, *RIGHT[1:]])))
  assert "queries" not in nothing and "boxes" in nothing
