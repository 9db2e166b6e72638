"""Objects in images: pixels of files of any size, thresholds, and the commands that give them."""

import json
import types

import jax.numpy as jnp
import numpy as np
import pytest

from jtx import api
from jtx.data.ops.decode import DecodeImage
from jtx.data.ops.image_layout import Images
from jtx.data.ops.scale import ResizeShortest
from jtx.errors import ConfigError, DataError
from jtx.inference import tasks
from jtx.inference.boxes import Detector, Found, Queries, corners, detect, objects
from jtx.saved import folder
from jtx.serve.kinds import open_kinds
from tests.data.image_files import png
from tests.detectors import NAMES, Given, said
from tests.helpers import run_command

SIZES = [(40, 20), (8, 16), (20, 20)]  # width and height
ROWS = [[(1, 0.4, [.5, .5, .5, 1]), (0, 0.9, [.25, .25, .5, .1])], [],
        [(1, 0.75, [.9, .5, .4, .2]), (1, 0.5, [.5, .5, .1, .1])]]
# Of those whose score is half or more, in pixels; what sticks out is cut off.
EXPECTED = [[("cat", 0.9, (0, 4, 20, 2))], [],
            [("dog", 0.75, (14, 8, 6, 4)), ("dog", 0.5, (9, 9, 2, 2))]]
OPS = [DecodeImage(labelled=False), ResizeShortest((10,), longest=20),
       Images(20, pad=True, mean=(0.5,) * 3, std=(0.25,) * 3)]


@pytest.fixture
def images(tmp_path):
  for i, size in enumerate(SIZES):
    (tmp_path / f"{i}.png").write_bytes(png(i, size))
  return [str(tmp_path / f"{i}.png") for i in range(3)]


def told(found):
  return [[(x.label, pytest.approx(x.score, abs=1e-5), pytest.approx(x.box, abs=1e-4)) for x in row]
          for row in found]


@pytest.mark.parametrize("batch_size", [1, 2, 8])
def test_objects_are_in_pixels_of_files_and_batches_change_nothing(images, batch_size):
  detector = Detector(Given(), said(ROWS), OPS, NAMES, batch_size=batch_size)
  assert told(detector(images)) == EXPECTED
  assert list(detector([])) == []
  with open(images[2], "rb") as f:
    assert told(detector([f.read()])) == EXPECTED[2:]
  assert [len(row) for row in detector(images, 0.3)] == [2, 0, 2]
  assert [len(row) for row in detector(images, 0)] == [3, 3, 3]
  assert [x.label for x in next(detector(images, 0.3))] == ["cat", "dog"]  # best first


@pytest.mark.parametrize("batch_size", [1, 2, 4])
def test_an_image_is_in_the_first_shape_that_it_fits_into_whatever_is_beside_it(images, batch_size):
  ops = [*OPS[:1], Images(20, pad=True, mean=(0.5,) * 3, std=(0.25,) * 3,
                          shapes=((10, 20), (20, 10)))]
  for i, size in enumerate([(20, 10), (8, 16), (20, 20)]):
    with open(images[i], "wb") as f:
      f.write(png(i, size))
  images = [images[i] for i in (0, 1, 0, 2, 0)]
  detector = Detector(Given(), said(ROWS), ops, NAMES, batch_size=batch_size)
  batches = list(detector.predictor.batches(images, ("image", "size")))
  assert {place: batch["image"].shape[1:3] for places, batch in batches for place in places} == {
      0: (10, 20), 1: (20, 10), 2: (10, 20), 3: (20, 20), 4: (10, 20)}
  assert {len(batch["image"]) for _, batch in batches} == {batch_size}
  plain = Detector(Given(), said(ROWS), [*OPS[:1], *OPS[2:]], NAMES, batch_size=batch_size)
  assert list(detector(images)) == list(plain(images))
  assert detector.predictor.array(images[0]).shape == (20, 20, 3)  # as a program for all has it


def test_the_last_layers_queries_have_the_likeliest_class():
  batch = {"image": (jnp.arange(3) / 255 - 0.5)[:, None, None, None] / 0.25}
  found = detect(Given(), said(ROWS), batch)
  assert found.scores.shape == found.classes.shape == (3, 3) and found.boxes.shape == (3, 3, 4)
  np.testing.assert_allclose(found.scores[0, :2], [0.4, 0.9], rtol=1e-5)
  assert found.classes[:, 0].tolist() == [1, 0, 1]


def test_corners_are_in_pixels():
  np.testing.assert_allclose(corners(np.array([[.5, .5, .2, .4], [0, 1, 1, 1]]), (100, 200)),
                             [[80, 30, 120, 70], [-100, 50, 100, 150]])
  with pytest.raises(DataError, match="NaN or infinite"):
    objects(Queries(np.array([np.nan]), np.array([0]), np.zeros((1, 4))), (8, 8), NAMES)


@pytest.fixture
def opened(monkeypatch):
  """A folder that holds the toy detector."""
  saved = types.SimpleNamespace(load=lambda step=None: (Given(), said(ROWS)), labels=lambda: NAMES,
                                image_ops=lambda model: OPS)
  monkeypatch.setattr(folder, "open_saved", lambda path: saved)
  monkeypatch.setattr(api, "open_saved", lambda path: saved)


def test_the_command_writes_objects_and_pictures(opened, images, tmp_path):
  output, pictures = tmp_path / "o.jsonl", tmp_path / "pictures"
  run_command("predict", "--workdir=w", f"--input={tmp_path}", f"--output={output}",
              "--threshold=0.5")
  lines = [json.loads(line) for line in output.read_text().splitlines()]
  assert [line["path"] for line in lines] == images
  assert told([[Found(**x) for x in line["objects"]] for line in lines]) == EXPECTED
  run_command("predict", "--workdir=w", f"--input={images[0]}", f"--output={output}",
              f"--pictures={pictures}")
  assert [path.name for path in pictures.iterdir()] == ["00000_0.png"]


def test_python_and_the_server_give_the_same(opened, images):
  detector = api.Detector("w", batch_size=2)
  assert told(detector(images)) == EXPECTED and detector.labels == NAMES
  with pytest.raises(ConfigError) as e:
    api.Classifier("w")
  assert "jtx.Detector takes it" in str(e.value)
  kind = open_kinds("w")["predict"]
  answers = kind.call([{"image": path} for path in images])
  assert told([[Found(**x) for x in answer["objects"]] for answer in answers]) == EXPECTED


def test_flags_of_detectors_are_refused_of_others(monkeypatch, tmp_path):
  class Classes(Given):
    @property
    def heads(self):
      return frozenset({"classes"})

  saved = types.SimpleNamespace(load=lambda step=None: (Classes(), {}))
  monkeypatch.setattr(folder, "open_saved", lambda path: saved)
  with pytest.raises(ConfigError) as e:
    run_command("predict", "--workdir=w", f"--input={tmp_path}", "--threshold=0.1")
  assert str(e.value) == ("--threshold is of detectors, and --workdir=w holds a Classes without a"
                          " head for boxes")


def test_the_table_of_tasks_has_boxes(images):
  trained = tasks.Trained(Given(), said(ROWS), None, (), ops=OPS, threshold=0.6)
  outputs = tasks.predict(trained, [{"image": path} for path in images])
  assert [[(x["label"], x["box"]) for x in output["objects"]] for output in outputs] == [
      [("LABEL_0", (0, 4, 20, 2))], [], [("LABEL_1", (14, 8, 6, 4))]]
  with pytest.raises(DataError) as e:
    tasks.predict(trained, [{"path": images[0]}])
  assert str(e.value) == ("input 1: a model whose head is for 'boxes' needs 'image', an image; the"
                          " input has path")


def test_few_images_are_few_rows(images):
  predictor = Detector(Given(), said(ROWS), OPS, NAMES, batch_size=8).predictor
  rows = lambda number: [batch["size"].shape[0] for _, batch in predictor.batches(
      (images * 4)[:number], ("size",))]
  assert [rows(number) for number in (1, 2, 3, 8, 11)] == [[1], [2], [4], [8], [8, 8]]
