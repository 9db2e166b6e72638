"""Masking forms: what data ops make of the same few sentences, as strips of tokens."""

import functools
from typing import Any, NamedTuple

import numpy as np

from docs.pictures.drawing import GREEN, ORANGE, PINK, SKY
from jtx.data.op import FormOp
from jtx.data.ops.denoise import Denoise
from jtx.data.ops.masking import Mask
from jtx.data.ops.pretrain import DocSentences, SentencePair
from jtx.data.ops.sentences import EncodeSentences
from jtx.data.ops.text_pairs import TextPairs
from jtx.data.prepared import Prepared
from jtx.data.tokenizers.kinds import TOKENIZERS
from jtx.data.tokenizers.tokenizer import Tokenizer
from jtx.figures.figure import PAGE, new_figure, styled

SENTENCES = ("The translator reads a sentence.", "Attention weighs every token.")
OTHERS = ("It writes the translation.", "Every token reads it.")  # another document
VOCABULARY = 84  # so few ids that words are split
LENGTH = 56  # of a row, which holds all of the text
RATE = 0.25  # of tokens that are hidden: more than the papers', for so short a text
SIZE, ROW = 6, 16  # points: of the font, and height of a strip
CHARACTER = 1233 / 2048 * SIZE  # points: width of a character of DejaVu Sans Mono
MARGIN = 88  # points for the names of strips
# Of boxes, light enough for black text: hidden, random or inserted, target, second text.
PLAIN, HIDDEN, RANDOM, TARGET, SECOND = "#cccccc", ORANGE, PINK, GREEN, SKY


class Strip(NamedTuple):
  """Tokens and the colours of their boxes."""
  tokens: list[str]
  colours: list[str]


@functools.cache
def tokenizer() -> Tokenizer:
  """WordPiece, trained on the sentences."""
  texts = iter(SENTENCES + OTHERS[:1])
  return TOKENIZERS["wordpiece"](texts, vocab_size=VOCABULARY, min_frequency=1, mask=True,
                                 sentinels=8)


def documents() -> Prepared:
  """The two documents as tokens, by the op `encode_sentences`."""
  examples = [{"id": i, "sentences": list(s)} for i, s in enumerate((SENTENCES, OTHERS))]
  examples = EncodeSentences()(examples, {"text": tokenizer()})
  joined = {key: np.concatenate([e[key] for e in examples]) for key in ("text", "text_marks")}
  ends = np.cumsum([0, *(len(e["text"]) for e in examples)])
  return Prepared(EncodeSentences.columns, joined, {"text": ends}, np.arange(2), [2], digests=[""])


def formed(op: FormOp, seed: int = 0, number: int = 1) -> Any:
  """What an op forms of the first documents."""
  lengths = dict.fromkeys(("text", "src", "tgt"), LENGTH)
  return op.bind({"text": tokenizer()}).form(
      documents(), np.arange(number), lengths, np.random.default_rng(seed))


def named(ids: np.ndarray) -> list[str]:
  """Tokens; sentinels by their number alone."""
  short = {i: f"<{n}>" for n, i in enumerate(tokenizer().sentinel_ids)}
  return [short.get(i, token) for i, token in zip(ids.tolist(), tokenizer().tokens(ids))]


def strip(ids: np.ndarray, *colours: tuple[np.ndarray, str]) -> Strip:
  """Tokens of which some, by bools [T], have a colour; the last that has one wins."""
  chosen = np.full(len(ids), PLAIN, object)
  for where, colour in colours:
    chosen[where] = colour
  return Strip(named(ids), chosen.tolist())


def special(ids: np.ndarray) -> np.ndarray:
  """[T] bool: masks and sentinels."""
  return np.isin(ids, [tokenizer().mask_id, *tokenizer().sentinel_ids])


def masked(op: Mask, seed: int) -> Strip:
  """The whole text, some of whose tokens are to be predicted."""
  example = formed(DocSentences()).example(0)
  batch = {key: example[key][None] for key in ("text", "text_marks")}
  batch["text_segment_ids"] = np.ones_like(batch["text"])
  done = op.bind({"text": tokenizer()}).alter(batch, [np.random.default_rng(seed)])
  text, chosen = done["text"][0], np.zeros(len(example["text"]), bool)
  chosen[done["mlm_positions"][0][done["mlm_labels"][0] >= 0]] = True
  other = chosen & (text != example["text"]) & ~special(text)
  return strip(text, (chosen, TARGET), (special(text), HIDDEN), (other, RANDOM))


def paired(op: FormOp, seed: int = 0) -> tuple[Strip, Strip]:
  """Inputs and targets."""
  source, target = formed(op, seed).pair(0)
  return (strip(source, (special(source), HIDDEN)),
          strip(target, (np.ones(len(target), bool), TARGET), (special(target), HIDDEN)))


def prefix() -> Strip:
  """Inputs and targets as one text for a decoder alone."""
  example = formed(TextPairs(objective="prefix_lm", joined=True), seed=1).example(0)
  return strip(example["text"], (example["text_prefix"] == 0, TARGET))


def masking() -> dict[str, Strip]:
  """The text, and what BERT, T5 and a prefix LM are given of it."""
  whole = formed(DocSentences()).example(0)["text"]
  source, target = paired(TextPairs(rate=RATE, mean_length=2.0))
  return {
      "the text": strip(whole),
      "mask (BERT)": masked(Mask(rate=RATE), seed=0),
      "whole words": masked(Mask(rate=RATE, whole_words=True), seed=3),
      "spans (T5): inputs": source,
      "spans (T5): targets": target,
      "prefix LM": prefix(),
  }


def denoising() -> dict[str, Strip]:
  """Inputs by kinds of BART's noise; the target is always the text."""
  quiet = dict(permute=0.0, random=0.0, rate=RATE)
  noisy = lambda seed=0, **options: paired(Denoise(**quiet | options), seed)[0]
  return {
      "the target": strip(formed(Denoise(noise="none"), 0).pair(0)[1]),
      "mask": noisy(noise="mask"),
      "delete": noisy(noise="delete"),
      "infill": noisy(noise="infill", seed=7),
      "permute": noisy(noise="none", permute=1.0, seed=2),
      "rotate": noisy(noise="none", rotate=1.0),
      "infill, permute": noisy(noise="infill", permute=1.0, seed=6),
  }


def pairs() -> dict[str, Strip]:
  """The first document's pair of each label, by what is wrong in wrong ones."""
  found = {}
  for name, order, seeds in (("next sentence", False, (0, 8)), ("order", True, (4, 3))):
    for label, seed in enumerate(seeds):  # that draw this label
      example = formed(SentencePair(order=order), seed, number=2).example(0)
      if example["label"] != label:
        raise ValueError(f"seed {seed} draws another label")
      found[f"{name}: {label}"] = strip(example["text"], (example["text_types"] == 1, SECOND))
  return found


def draw(strips: dict[str, Strip], legend: dict[str, str]):
  from matplotlib.patches import PathPatch, Rectangle
  from matplotlib.path import Path
  height = ROW * (len(strips) + 1)
  figure = new_figure((PAGE, height / 72))
  figure.set_layout_engine("none")  # places are in points
  axes = figure.add_axes((0, 0, 1, 1))
  axes.set(xlim=(0, 72 * PAGE), ylim=(height, 0))
  axes.set_axis_off()
  boxes: dict[str, list[Path]] = {}
  for row, (name, (tokens, colours)) in enumerate(strips.items()):
    middle, x = ROW * (row + 0.5), MARGIN
    axes.text(2, middle, name, va="center_baseline", parse_math=False, fontsize=7)
    # As one text, which is half as long as a text for each token.
    axes.text(x, middle, " ".join(tokens), va="center_baseline", fontsize=SIZE,
              family="DejaVu Sans Mono", parse_math=False)
    for token, colour in zip(tokens, colours):
      width = CHARACTER * len(token)
      box = Rectangle((x - 0.35 * CHARACTER, middle - 0.38 * ROW),
                      width + 0.7 * CHARACTER, 0.76 * ROW)
      boxes.setdefault(colour, []).append(box.get_transform().transform_path(box.get_path()))
      x += width + CHARACTER
  for colour, shapes in boxes.items():
    axes.add_patch(PathPatch(Path.make_compound_path(*shapes), facecolor=colour, alpha=0.55,
                             linewidth=0, zorder=0))
  handles = [Rectangle((0, 0), 1, 1, facecolor=colour, alpha=0.55) for colour in legend.values()]
  axes.legend(handles, legend, loc="lower left", ncols=len(legend), frameon=False,
              borderaxespad=0.1, handlelength=1, bbox_to_anchor=(MARGIN / 72 / PAGE - 0.01, 0))
  return figure


@styled
def draw_masking():
  return draw(masking(), {"seen": PLAIN, "mask or sentinel": HIDDEN, "random token": RANDOM,
                          "target, or kept": TARGET})


@styled
def draw_denoising():
  return draw(denoising(), {"seen": PLAIN, "mask": HIDDEN})


@styled
def draw_pairs():
  return draw(pairs(), {"first text": PLAIN, "second text": SECOND})


FIGURES = {"masking": draw_masking, "denoising": draw_denoising, "pairs": draw_pairs}
