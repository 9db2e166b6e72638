"""COCO's average precision against pycocotools, closed forms and its rules one by one."""

import json
import os

import numpy as np
import pytest

from jtx.evals import coco

FOUR = np.array([[0, 0, 10, 10], [20, 0, 30, 10], [0, 20, 10, 30], [20, 20, 30, 30]], float)


def found(boxes, scores, classes=None):
  boxes = np.array(boxes, float).reshape(-1, 4)
  return coco.Detections(boxes, np.array(scores, float),
                         np.zeros(len(boxes), int) if classes is None else np.array(classes))


def truth(boxes, crowd=(), areas=None, classes=None):
  boxes = np.array(boxes, float).reshape(-1, 4)
  area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
  return coco.Truth(boxes, np.zeros(len(boxes), int) if classes is None else np.array(classes),
                    area if areas is None else np.array(areas, float),
                    np.isin(np.arange(len(boxes)), crowd))


def summary(detections, truths, names=("a",)):
  return coco.curves(detections, truths, names).summary()


def test_the_published_values_of_four_images():
  if "JTX_TEST_DATA" not in os.environ:
    pytest.skip("JTX_TEST_DATA is unset; published values are in it")
  file = os.path.join(os.environ["JTX_TEST_DATA"], "golden", "detection", "coco_map_golden.json")
  with open(file, encoding="utf-8") as f:
    golden = json.load(f)
  detections = [found(p["boxes"], p["scores"], p["labels"]) for p in golden["predictions"]]
  truths = [truth(t["boxes"], classes=t["labels"]) for t in golden["targets"]]
  names = {"map": "ap", "map_50": "ap50", "map_75": "ap75", "mar_1": "ar1", "mar_10": "ar10",
           "mar_100": "ar100"}
  names |= {f"m{kind}_{area}": f"{kind}_{area}"
            for kind in ("ap", "ar") for area in ("small", "medium", "large")}
  result = summary(detections, truths, [str(i) for i in range(50)])
  assert len(golden["expected"]) == len(result) == 12
  for name, value in golden["expected"].items():
    assert result[names[name]] == pytest.approx(value, abs=1e-9), name


def scene(seed, images):
  """Images with crowds and areas of masks, and detections near their boxes, with tied scores."""
  rng = np.random.default_rng(seed)
  detections, truths = [], []
  for _ in range(images):
    number = int(rng.integers(0, 9))
    corner = rng.uniform(0, 300, (number, 2))
    sides = np.exp(rng.uniform(np.log(8), np.log(250), (number, 2)))
    boxes, labels = np.concatenate([corner, corner + sides], 1), rng.integers(4, size=number)
    areas, crowd = sides.prod(1) * rng.uniform(.4, 1, number), rng.random(number) < .2
    near = np.repeat(np.arange(number), rng.integers(0, 4, number))
    moved = boxes[near] + rng.normal(size=(len(near), 4)) * 0.08 * np.tile(sides[near], 2)
    other = rng.uniform(0, 300, (6, 2))
    other = np.concatenate([other, other + rng.uniform(5, 150, (6, 2))], 1)
    kinds = np.concatenate([
        np.where(rng.random(len(near)) < .85, labels[near], rng.integers(4, size=len(near))),
        rng.integers(4, size=6)])
    scores = np.round(rng.random(len(near) + 6), 1)
    detections.append(coco.Detections(np.concatenate([moved, other]), scores, kinds))
    truths.append(coco.Truth(boxes, labels, areas, crowd))
  return detections, truths


def test_crowds_areas_and_ties_are_as_of_pycocotools():
  """The values are pycocotools 2.0.11's of the same boxes."""
  result = summary(*scene(7, 40), list("abcd"))
  np.testing.assert_allclose(list(result.values()), [
      0.14992753342168644, 0.2440882823326988, 0.15809304287769776, 0.21950172804512402,
      0.17042567062935637, 0.11216398096576574, 0.19299085850556438, 0.43831629949276996,
      0.43831629949276996, 0.4004960317460318, 0.4571568627450981, 0.3729166666666667], atol=1e-12)


def test_all_right_is_one_and_a_wrong_one_before_costs_by_hand():
  """Of four true boxes three are found, the second detection is wrong: recalls to 1/4, 3/4."""
  assert summary([found(FOUR, [.9, .8, .7, .6])], [truth(FOUR)])["ap"] == pytest.approx(1)
  boxes = [FOUR[0], [50, 50, 60, 60], FOUR[1], FOUR[2]]
  result = summary([found(boxes, [.9, .8, .7, .6])], [truth(FOUR)])
  # 26 recalls of 0 to 0.25 have precision 1, 50 up to 0.75 have 3/4, 25 are not reached.
  assert result["ap"] == pytest.approx((26 + 50 * 3 / 4) / 101)
  assert result["ar100"] == 3 / 4 and result["ar1"] == 1 / 4
  assert np.isnan(result["ap_medium"]) and result["ap_small"] == result["ap"]


def test_the_ap_of_one_iou_counts_thresholds():
  """A box of IoU 0.68 is right by four of the ten thresholds."""
  result = summary([found([[0, 0, 68, 100]], [0.5])], [truth([[0, 0, 100, 100]])])
  assert (result["ap50"], result["ap75"]) == pytest.approx((1, 0))
  assert (result["ap"], result["ar1"], result["ap_large"]) == pytest.approx((0.4, 0.4, 0.4))


def test_a_second_detection_of_an_object_is_wrong():
  result = coco.curves([found(FOUR[[0, 0, 1]], [.9, .8, .7])], [truth(FOUR[:2])], ["a"])
  np.testing.assert_allclose(result.at(0.5)[:, 0], np.where(coco.RECALLS <= .5, 1, 2 / 3))


def test_a_crowd_is_neither_asked_for_nor_minded():
  crowd = FOUR[0]
  truths = [truth([FOUR[1], [0, 0, 12, 12]], crowd=[1])]
  # Two detections inside of the crowd, over whose own area the IoU is; one beside it is wrong.
  result = summary([found([crowd, [1, 1, 8, 8], FOUR[1]], [.9, .8, .7])], truths)
  assert (result["ap"], result["ar100"]) == pytest.approx((1, 1))
  wrong = summary([found([FOUR[3], FOUR[1]], [.9, .7])], truths)
  assert wrong["ap"] == pytest.approx(0.5)
  nothing = summary([found([crowd], [.9])], [truth([crowd], crowd=[0])])
  assert all(np.isnan(list(nothing.values())))


def test_detections_beyond_a_range_of_areas_are_not_wrong_in_it():
  large, small = [100, 100, 300, 300], [0, 0, 10, 10]
  result = summary([found([[400, 400, 600, 600], small], [.9, .8])], [truth([small, large])])
  assert (result["ap_small"], result["ap_large"]) == pytest.approx((1, 0))
  # By the area of the mask the second true box is medium.
  result = summary([found([small, large], [.9, .8])], [truth([small, large], areas=[100, 2000])])
  assert (result["ap_small"], result["ap_medium"]) == pytest.approx((1, 1))
  assert np.isnan(result["ap_large"])


def test_classes_are_apart_and_images_without_anything_change_nothing():
  detections = [found(FOUR[:2], [.9, .8], [0, 1]), found([], [])]
  truths = [truth(FOUR[:2], classes=[0, 0]), truth([])]
  curves = coco.curves(detections, truths, ["a", "b", "c"])
  assert curves.ap(number=0) == pytest.approx(51 / 101)
  assert np.isnan(curves.ap(number=1)) and curves.ap() == curves.ap(number=0)
  assert curves.ar(number=0) == 0.5


def test_only_so_many_detections_of_an_image_count():
  boxes = np.repeat([[50, 50, 60, 60.0]], 100, 0)
  late = found([*boxes, FOUR[0]], [*np.linspace(1, .5, 100), .1])
  assert summary([late], [truth(FOUR[:1])])["ar100"] == 0
  assert summary([found([*boxes[1:], FOUR[0]], [*np.linspace(1, .5, 99), .1])],
                 [truth(FOUR[:1])])["ar100"] == 1
