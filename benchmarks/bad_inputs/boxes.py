"""Images with boxes: files of COCO, PASCAL VOC and JSON lines, and detectors."""

import json

from benchmarks.bad_inputs.case import Case
from benchmarks.bad_inputs.images import png


def train(name, sentence, files, source, val="embedded:scattered:test", more=""):
  return Case(name, "train --config=jtx.configs.detr:digits,tiny --workdir=w"
              f" --config.data.train={source}, --config.evals.val.source={val}, {more}", sentence,
              files)


def coco(**edits):
  content = {"images": [{"id": 1, "file_name": "a.png"}],
             "categories": [{"id": 4, "name": "cat"}],
             "annotations": [{"id": 1, "image_id": 1, "category_id": 4, "bbox": [1, 1, 4, 4]}]}
  return {"c.json": json.dumps(content | edits), "a.png": png()}


def lines(*boxes, **edits):
  line = {"image": "a.png", "boxes": boxes, "classes": ["cat"] * len(boxes)}
  return {"b.jsonl": json.dumps(line | edits), "a.png": png()}


BOX = "<object><name>cat</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>4</xmax></bndbox></object>"
VOC = {"v/train.txt": "a", "v/Annotations/a.xml": f"<annotation>{BOX}</annotation>",
       "v/JPEGImages/a.png": png()}

CASES = [
    train("a file of COCO without categories", "no list 'categories'", coco(categories=None),
          "coco:c.json"),
    train("a box of COCO in no image", "image_id 7", coco(annotations=[
        {"image_id": 7, "category_id": 4, "bbox": [1, 1, 4, 4]}]), "coco:c.json"),
    train("a box of three numbers", r"c.json: annotations\[0\] has the box", coco(annotations=[
        {"image_id": 1, "category_id": 4, "bbox": [1, 1, 4]}]), "coco:c.json"),
    train("a folder of images of COCO that is not there", "none/a.png", coco(),
          "coco:c.json:images[none]"),
    train("a file of COCO that is cut off", "c.json: not valid JSON", {"c.json": '{"images"'},
          "coco:c.json"),
    train("boxes without classes", "b.jsonl:1", lines([1, 1, 4, 4], classes=[]), "boxes:b.jsonl"),
    train("an image of boxes that is not there", "no.png", lines([1, 1, 4, 4], image="no.png"),
          "boxes:b.jsonl"),
    train("a box that is a text", "box 0", lines("1,1,4,4"), "boxes:b.jsonl"),
    train("more boxes than a row has room for", "max_boxes=4", lines(*[[1, 1, 4, 4]] * 5),
          "boxes:b.jsonl"),
    train("other classes in the evaluation", "also has 0", lines([1, 1, 4, 4]), "boxes:b.jsonl"),
    train("no annotations", "no folder Annotations", {"v/train.txt": "a"}, "voc:v:train"),
    train("a split that is not there", "no list val.txt", VOC, "voc:v:val"),
    train("an annotation without a corner", "a.xml: object 0", VOC, "voc:v:train"),
    train("an annotation that is no XML", "not valid XML", VOC | {"v/Annotations/a.xml": "<a"},
          "voc:v:train"),
    train("images of classes", "no 'boxes'", {}, "embedded:digits:train",
          more="--config.data.ops[0].channels=3"),
    Case("boxes of a classifier", "predict --workdir={made}/digits --input=d --pictures=p",
         "--pictures is of detectors", {"d/a.png": png()}),
    Case("no room for boxes", "train --config=jtx.configs.detr:digits,tiny --workdir=w"
         " --config.data.ops[1].max_boxes=0", "boxes"),
]
