"""The pictures of docs/gallery.md: what they draw, and that the page has them as they are drawn."""

import collections
import pathlib
import re

import numpy as np
import pytest

from docs import gallery
from docs.pictures import functions, losses, patterns, positions, sizes, texts
from jtx.data.ops.masking import Mask
from jtx.data.ops.spans import span_lengths
from jtx.interop.presets import ENCODERS
from tests.nn.test_positions import t5_bucket

PAGE = (pathlib.Path(gallery.FOLDER).parent / "gallery.md").read_text("utf-8")
IMAGES = re.findall(r"^!\[([^]]*)\]\(gallery/(\w+)\.svg\)\n\n(.*?)(?=^!|^#|\Z)", PAGE,
                    re.MULTILINE | re.DOTALL)
MOST = 60_000  # bytes of a picture
CLOSE = 1e-6


def test_the_page_shows_each_picture_once():
  assert [name for _, name, _ in IMAGES] == list(gallery.FIGURES)
  assert sorted(path.name for path in gallery.FOLDER.iterdir()) == sorted(
      f"{name}.svg" for name in gallery.FIGURES)
  for path in gallery.FOLDER.iterdir():
    assert path.stat().st_size <= MOST, path.name


@pytest.mark.parametrize("alt, name, caption", IMAGES, ids=[name for _, name, _ in IMAGES])
def test_a_picture_is_described_and_says_what_it_is_drawn_from(alt, name, caption):
  assert len(alt) > 30
  assert re.search(r"\]\(\.\./jtx/\S+\.py\)", caption)
  assert re.search(r"(19|20)\d\d", caption), "no paper"


# Those whose numbers are integers or powers of two, the same on every machine.
@pytest.mark.parametrize("name", ["attention_patterns", "alibi", "pairs"])
def test_pictures_are_up_to_date(name, tmp_path):
  gallery.save(name, tmp_path)
  assert (tmp_path / f"{name}.svg").read_bytes() == (
      gallery.FOLDER / f"{name}.svg").read_bytes(), f"run docs/gallery.py {name}"


def test_an_unknown_picture_is_an_error():
  with pytest.raises(SystemExit, match="no picture is named 'ropes'; there are attention_patt"):
    gallery.main(["ropes"])


def test_shortened_svg():
  svg = ('<g>\n  <path d="M 0.1239 -0.0001 \nL 12 3.5"/>\n  <use xlink:href="#DejaVuSans-15"'
         ' transform="translate(63.623047 0)"/>\n'
         ' <g transform="translate(1.005 2) scale(0.015625)"/>')
  assert gallery.shortened(svg) == (
      '<g>\n<path d="M 0.12 0 \nL 12 3.5"/>\n<use xlink:href="#s15" x="63.62"/>\n'
      '<g transform="translate(1 2) scale(0.015625)"/>')


# ------------------------------------------------------------------------------ arrays


def test_patterns():
  grids, places = patterns.patterns(), np.arange(patterns.TOKENS)
  distance = places - places[:, None]
  ones = np.ones(distance.shape, bool)
  np.testing.assert_array_equal(grids["global"], ones)
  np.testing.assert_array_equal(grids["global, causal"], np.tril(ones))
  np.testing.assert_array_equal(grids["local"], abs(distance) <= 3)
  np.testing.assert_array_equal(grids["local, causal"], (distance <= 0) & (distance >= -3))
  is_global = np.isin(places, [0, 9])
  np.testing.assert_array_equal(
      grids["global_tokens"], (abs(distance) <= 3) | is_global | is_global[:, None])
  np.testing.assert_array_equal(grids["prefix"], np.tril(ones) | (places < 5))
  text = np.zeros_like(ones)
  for start, stop in ((0, 6), (6, 11), (11, 15)):
    text[start:stop, start:stop] = True
  np.testing.assert_array_equal(grids["packed texts"], text)
  np.testing.assert_array_equal(grids["packed texts, causal"], np.tril(text))


def test_layers_alternate_as_published():
  grids = patterns.layers()
  assert [title.split(": ")[1] for title in grids] == ["global", "local", "local"] * 2
  assert [int(cells.sum()) for cells in grids.values()] == [256, 100, 100] * 2


def test_buckets():
  distances = np.array([-200, -100, -50, -20, -9, -7, -1, 0, 1, 7, 9, 20, 50, 100, 200])
  for both in (True, False):
    np.testing.assert_array_equal(positions.t5_buckets(distances, both),
                                  [t5_bucket(int(d), 32, 128, both) for d in distances])
  np.testing.assert_array_equal(  # key minus query, of which DeBERTa takes the negative
      positions.deberta_rows(np.array([-600, -128, -1, 0, 1, 128, 600])),
      [511, 384, 257, 256, 255, 128, 0])


def test_positions():
  table = positions.sinusoids()
  np.testing.assert_allclose(table[3, :2], [np.sin(3), np.cos(3)], atol=CLOSE)
  np.testing.assert_allclose(positions.alibi()[:, 10], -10 / 2.0 ** np.arange(1, 9))
  distances, found = positions.decay()
  angles = distances[:, None] * 10_000.0 ** (-np.arange(64) / 64)
  np.testing.assert_allclose(found[10_000.0], np.cos(angles).mean(1), atol=1e-4)
  assert {tuple(x.shape) for x in positions.rotations().values()} == {(8, 2)}


def test_functions():
  xs = functions.XS
  np.testing.assert_allclose(functions.gated("relu", 2.0), 2 * np.maximum(xs, 0), atol=CLOSE)
  made, x = functions.norms(), functions.VECTOR
  np.testing.assert_allclose(made["RMSNorm"], x / np.sqrt((x**2).mean()), rtol=1e-5)
  np.testing.assert_allclose(made["LayerNorm"], (x - x.mean()) / x.std(), rtol=1e-5)
  steps, found = functions.schedules(points=5)
  np.testing.assert_allclose(found["constant"][1:], 1)
  assert found["cosine"].argmax() == found["linear"].argmax() == 1  # behind the warm-up
  np.testing.assert_allclose(found["linear"][-1] / found["linear"][1], 1 / 75_000, rtol=1e-2)
  assert {name: len(rates) for name, rates in found.items()} == dict.fromkeys(found, 5)


def test_losses():
  teacher, student = np.array(losses.TEACHER), np.array([1.0, 2.0, 0.0, -1.0])
  p, q = (np.exp(x / 2) / np.exp(x / 2).sum() for x in (teacher, student))
  assert losses.soft_loss(2.0, student, teacher) == pytest.approx(
      4 * (p * np.log(p / q)).sum(), rel=1e-5)
  right = losses.PROBABILITIES
  np.testing.assert_allclose(losses.focal_losses()[2.0], -(1 - right)**2 * np.log(right),
                             atol=1e-6)
  ipo = losses.preferences()["IPO"]["beta = 0.1"]
  assert losses.MARGINS[ipo.argmin()] == 5  # 1 / (2 beta)


def test_strips_are_of_the_same_tokens():
  made = texts.masking()
  plain = made["the text"].tokens
  inputs, targets = made["spans (T5): inputs"].tokens, made["spans (T5): targets"].tokens
  spans = " ".join(targets).removesuffix(" <eos>")
  spans = {f"<{n}>": span.split() for n, span in enumerate(re.split(r"<\d> ?", spans)[1:])}
  assert [t for token in inputs for t in spans.get(token, [token])] == plain[1:]
  assert [t for t in made["prefix LM"].tokens if t != "<eos>"] == plain[1:-1]
  assert len(made["mask (BERT)"].tokens) == len(made["whole words"].tokens) == len(plain)
  noisy = texts.denoising()
  for name in ("permute", "rotate"):
    assert noisy[name].tokens != plain
    assert collections.Counter(noisy[name].tokens) == collections.Counter(plain)
  assert len(noisy["delete"].tokens) == len(plain) - 4  # a quarter of 18, rounded
  assert {name[-1] for name in texts.pairs()} == {"0", "1"}


def test_a_token_that_is_kept_is_marked():
  tokens, colours = texts.masked(Mask(rate=1.0, split=(0.0, 0.0, 1.0)), seed=0)
  assert tokens[1] == "the" and set(colours[1:-1]) == {texts.TARGET}


def test_sizes():
  D, L, T, V = 128, 2, sizes.TOKENS, 30522
  parameters, operations = sizes.size(ENCODERS["bert_tiny"], "mlm")
  layer = 12 * D**2 + 13 * D
  assert parameters == (V + 512 + 2) * D + 2 * D + L * layer + D**2 + 3 * D + V
  assert operations == 2 * T * (L * (12 * D**2 + 2 * T * D) + D**2 + V * D)
  assert span_lengths(sizes.TOKENS)[1] == 114  # as the page says
