"""Folders, archives and lists of images."""

import io
import zipfile

from benchmarks.bad_inputs.case import Case


def png(grey=9, size=8):
  from PIL import Image
  file = io.BytesIO()
  Image.new("L", (size, size), grey).save(file, "PNG")
  return file.getvalue()


def train(name, sentence, files, source="images:d", val="images:d", more=""):
  return Case(name, "train --config=jtx.configs.vit:tiny --workdir=w"
              f" --config.data.train={source}, --config.evals.val.source={val},"
              f" {more}", sentence, files)


def pairs(name, sentence, files, source="captions:c.tsv"):
  return Case(name, "train --config=jtx.configs.clip:tiny --workdir=w"
              f" --config.data.train={source},", sentence, files)


def folder(**changes):
  files = {f"d/{c}/{i}.png": lambda path, _, i=i: path.write_bytes(png(i)) for c in "ab"
           for i in range(8)}
  return files | changes


def archive(path, _):
  """A zip of which an entry of 3 MB inflates to 3 GB."""
  with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
    with z.open("a/0.png", "w", force_zip64=True) as entry:
      for _ in range(3000):
        entry.write(b"\0" * (1 << 20))
    z.writestr("b/0.png", png())


def huge(path, _):
  """A picture whose header tells of 60,000 x 60,000 pixels."""
  data = bytearray(png())
  data[16:24] = (60_000).to_bytes(4, "big") * 2
  path.write_bytes(data)


def labels(path, _):
  """Arrays of which one label is 2^40."""
  import numpy as np
  np.savez(path, images=np.zeros((4, 8, 8), np.uint8), labels=np.array([0, 1, 2, 2 ** 40]))


CASES = [
    train("no folder", "d", {"x": ""}),
    train("an empty folder", "d", {"d/a/.keep": ""}),
    train("one class", "one class only", {"d/a/0.png": png(), "d/a/1.png": png()}),
    train("files that are no images", "d", {"d/a/0.png": "x", "d/b/0.png": "y"}),
    train("a folder of texts", "d", {"d/a/0.txt": "x", "d/b/0.txt": "y"}),
    train("half an image", "d", {"d/a/0.png": png()[:40], "d/b/0.png": png()[:40]}),
    train("a picture of billions of pixels", "d",
          {"d/a/0.png": huge, "d/b/0.png": huge}),
    train("a validation folder that is not there", "e", folder(), val="images:e"),
    train("a validation folder with another class", "c", folder(**{"e/c/0.png": png()}),
          val="images:e"),
    train("an archive that is none", "d.zip", {"d.zip": "x"}, "images:d.zip", "images:d.zip"),
    train("an archive that inflates to 3 GB", "d.zip", {"d.zip": archive}, "images:d.zip",
          "images:d.zip"),
    train("arrays with a label of 2^40", "d.npz|label", {"d.npz": labels}, "npz:d.npz",
          "npz:d.npz"),
    train("arrays that are none", "d.npz", {"d.npz": "x"}, "npz:d.npz", "npz:d.npz"),
    train("a tar that is none", "d.tar", {"d.tar": "x"}, "wds:d.tar", "wds:d.tar"),
    train("a set that is not embedded", "embedded:digit", {}, "embedded:digit:train"),
    train("a part that is none", "digits:tran", {}, "embedded:digits:tran"),
    train("shares of a folder that are none", "d", folder(), "images:d:each:0%"),
    train("another size of images", "size", {}, "embedded:digits:train", "embedded:digits:test",
          "--config.model.image.size=16"),
    train("patches that do not divide", "patch_size", {}, "embedded:digits:train",
          "embedded:digits:test", "--config.model.patch_size=3"),
    pairs("captions without a column", "no text 'text' and no 'label' but image, told",
          {"c.tsv": "image\ttold\na.png\tx\n", "a.png": lambda path, _: path.write_bytes(png())}),
    pairs("captions of no image", "none.png", {"c.tsv": "image\ttext\nnone.png\tx\n"}),
    pairs("captions in no table", "it is a table in a file that ends in .tsv", {"c.txt": "x"},
          "captions:c.txt"),
    Case("texts to a model of images alone", "predict --workdir={made}/digits --input=d --texts=t",
         "--texts goes with a model of images and texts", {"t": "a cat\n"}),
    Case("no folder to predict", "predict --workdir={made}/digits --input=none", "none"),
    Case("an empty folder to predict", "predict --workdir={made}/digits --input=d", "d",
         {"d/x": ""}),
    Case("a text to predict", "predict --workdir={made}/digits --input=a.txt", "a.txt",
         {"a.txt": "none.png\n"}),
    Case("no image to predict", "predict --workdir={made}/digits --input=d", "a.png",
         {"d/a.png": "x"}),
    Case("attention of no image", "attention --workdir={made}/digits --text=none.png", "none.png"),
    Case("an evaluation on no folder", "evaluate --workdir={made}/digits --source=images:none",
         "none"),
]
