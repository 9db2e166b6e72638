"""The embedded number-words set: right words, disjoint splits, fixed content."""

import datetime
import hashlib
import pickle
import re
import subprocess
import sys

import babel.dates
import num2words
import numpy as np
import pytest

from jtx import config
from jtx.data.sources import number_words as nw
from tests.data.sources import make_number_words

SPLIT_OF_24 = [0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 2, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]
DIGEST = "264f0d7bfb85079eaf9023e59274e2e15701c0e204100b574c1afb29fb311bfd"

# Parsers written from the grammar books, not from num2words.

_ENGLISH = {w: n for n, w in enumerate(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen".split())}
_ENGLISH |= {w: 10 * n for n, w in enumerate(
    "twenty thirty forty fifty sixty seventy eighty ninety".split(), 2)}
_ENGLISH_ORDINAL = {
    "first": "one", "second": "two", "third": "three", "fifth": "five", "eighth": "eight",
    "ninth": "nine", "twelfth": "twelve"}

_GERMAN_UNIT = {w: n for n, w in enumerate(
    "null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn "
    "fünfzehn sechzehn siebzehn achtzehn neunzehn".split())}
_GERMAN_TEN = {w: 10 * n for n, w in enumerate(
    "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig".split(), 2)}


def parse_english(words: str) -> int:
  total = group = 0
  for word in re.split(r"[ ,-]+", words):
    if word == "hundred":
      group *= 100
    elif word == "thousand":
      total, group = total + 1000 * group, 0
    elif word != "and":
      group += _ENGLISH[word]
  return total + group


def parse_english_ordinal(words: str) -> int:
  head, last = re.fullmatch(r"(.*[ -])?(\w+)", words).groups()
  if last in _ENGLISH_ORDINAL:
    last = _ENGLISH_ORDINAL[last]
  elif last.endswith("ieth"):
    last = last.removesuffix("ieth") + "y"
  else:
    last = last.removesuffix("th")
  return parse_english((head or "") + last)


def parse_english_year(words: str) -> int:
  if "thousand" in words:
    return parse_english(words)
  century, rest = words.split(" ")
  if rest == "hundred":
    return 100 * parse_english(century)
  return 100 * parse_english(century) + parse_english(rest.removeprefix("oh-"))


def parse_german(word: str) -> int:
  """A German cardinal; "eins" only at the very end, "ein" only before something."""
  thousands, found, rest = word.rpartition("tausend")
  if found:
    return 1000 * _german_group(thousands, final=False) + (
        _german_group(rest, final=True) if rest else 0)
  return _german_group(rest, final=True)


def _german_group(word: str, final: bool) -> int:
  hundreds, found, rest = word.rpartition("hundert")
  if found:
    # Years count up to nineteen hundreds.
    return 100 * _GERMAN_UNIT[hundreds] + (_german_group(rest, final) if rest else 0)
  unit, found, ten = rest.rpartition("und")
  if found:
    return _GERMAN_UNIT[unit] + _GERMAN_TEN[ten]
  if rest in _GERMAN_TEN:
    return _GERMAN_TEN[rest]
  if rest in ("ein", "eins"):
    assert rest == ("eins" if final else "ein"), word
    return 1
  return _GERMAN_UNIT[rest]


def parse_german_ordinal(word: str) -> int:
  for ending, cardinal in (("erste", "eins"), ("dritte", "drei"), ("siebte", "sieben"),
                           ("achte", "acht")):
    if word.endswith(ending):
      return parse_german(word.removesuffix(ending) + cardinal)
  if word in ("hundertste", "tausendste"):  # "einhundertste" is as good
    return {"hundertste": 100, "tausendste": 1000}[word]
  stem = word.removesuffix("te")
  if not stem.endswith("sechs"):
    stem = stem.removesuffix("s")
  number = parse_german(stem)
  # "te" up to 19, "ste" from 20 on and after hundreds and thousands.
  assert word == stem + ("te" if 0 < number % 100 < 20 else "ste")
  return number


def test_cardinals_mean_their_number():
  for n in [*range(0, 1_000_000, 97), *range(3_000), *range(99_000, 103_000), 999_999]:
    assert parse_english(nw.english_cardinal(n)) == n
    assert parse_german(nw.german_cardinal(n)) == n


def test_the_file_is_what_num2words_and_babel_say():
  assert make_number_words.FILE.read_text(encoding="utf-8") == make_number_words.text()


def test_cardinals_are_num2words():
  for n in range(0, 1_000_000, 997):
    assert nw.english_cardinal(n) == num2words.num2words(n, lang="en")
    assert nw.german_cardinal(n) == num2words.num2words(n, lang="de").replace(
        "einstausend", "eintausend")


@pytest.mark.slow
def test_ordinals_and_dates_are_those_of_num2words_and_babel():
  for n in range(1, 10_000):
    assert nw._PAIR["ordinal"](n) == tuple(
        num2words.num2words(n, lang=lang, to="ordinal") for lang in ("en", "de"))
  for n in nw.values_of("date", "train")[::7]:
    day = datetime.date.fromordinal(int(n))
    english, german = nw._PAIR["date"](int(n))
    assert german == babel.dates.format_date(day, "full", locale="de")
    assert english == (babel.dates.format_date(day, "EEEE, MMMM 'the' ", locale="en")
                       + num2words.num2words(day.day, lang="en", to="ordinal") + ", "
                       + num2words.num2words(day.year, lang="en", to="year"))


def test_the_source_needs_neither():
  code = ("import sys; from jtx.data.sources import number_words as nw; s = nw.number_words('',"
          " 'val'); print(s[0]['src'], 'num2words' in sys.modules, 'babel' in sys.modules)")
  assert subprocess.run([sys.executable, "-c", code], text=True, capture_output=True,
                        check=True).stdout == "sixty-eight False False\n"


@pytest.mark.parametrize("n, german", [
    (0, "null"), (1, "eins"), (17, "siebzehn"), (21, "einundzwanzig"), (100, "einhundert"),
    (101, "einhunderteins"), (1_000, "eintausend"), (1_001, "eintausendeins"),
    (21_001, "einundzwanzigtausendeins"), (101_000, "einhunderteintausend"),
    (201_301, "zweihunderteintausenddreihunderteins"),
    (616_717, "sechshundertsechzehntausendsiebenhundertsiebzehn")])
def test_german_cardinals(n, german):
  assert nw.german_cardinal(n) == german


@pytest.mark.parametrize("split", nw.SPLITS)
def test_every_pair_means_its_value(split):
  source = nw.number_words("", split)
  for (subset, n), example in zip(source.values(), map(source.__getitem__, range(len(source)))):
    english, german = example["src"], example["tgt"]
    if subset == "cardinal":
      assert (parse_english(english), parse_german(german)) == (n, n)
    elif subset == "ordinal":
      assert (parse_english_ordinal(english), parse_german_ordinal(german)) == (n, n)
    elif subset == "year":
      assert (parse_english_year(english), parse_german(german)) == (n, n)
    elif subset == "date":
      weekday, monthday, year = english.split(", ")
      month, day = monthday.split(" the ")
      date = datetime.date.fromordinal(n)
      assert (weekday, month) == (date.strftime("%A"), date.strftime("%B"))
      assert (parse_english_ordinal(day), parse_english_year(year)) == (date.day, date.year)
      germans = ("Januar Februar März April Mai Juni Juli August September Oktober November "
                 "Dezember").split()
      days = "Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag".split()
      assert german == (f"{days[date.weekday()]}, {date.day}. {germans[date.month - 1]} "
                        f"{date.year}")
    else:
      hour, minute, half = english.split(" ", 1)[0], *english.split(" ", 1)[1].rsplit(" ", 1)
      minute = 0 if minute == "o'clock" else parse_english(minute.removeprefix("oh "))
      hour = parse_english(hour) % 12 + (12 if half == "p.m." else 0)
      assert 60 * hour + minute == n
      assert german == f"{hour:02d}:{minute:02d} Uhr"


def test_splits_are_disjoint_by_value_and_by_source():
  values, texts = {}, {}
  for split in nw.SPLITS:
    source = nw.number_words("", split)
    values[split] = set(source.values())
    assert len(values[split]) == len(source)
    texts[split] = {source[i]["src"] for i in range(len(source))}
  for a, b in (("train", "val"), ("train", "test"), ("val", "test")):
    assert not values[a] & values[b]
    assert not texts[a] & texts[b]


def test_target_is_a_function_of_source():
  target = {}
  for split in nw.SPLITS:
    source = nw.number_words("", split)
    for example in map(source.__getitem__, range(len(source))):
      assert target.setdefault(example["src"], example["tgt"]) == example["tgt"]


def test_sizes():
  assert 28_000 <= len(nw.number_words("", "train")) <= 32_000
  assert len(nw.number_words("", "test")) >= 5_000
  cardinals = nw.values_of("cardinal", "test")
  assert np.sum(cardinals >= 100_000) >= 2_000
  assert 0.05 <= np.mean(nw.split_of(np.arange(1_000)) == nw.SPLITS.index("test")) <= 0.11
  assert np.sum(cardinals < 1_000) == np.sum(
      nw.split_of(np.arange(1_000)) == nw.SPLITS.index("test"))
  for subset in nw.SUBSETS:
    for split in nw.SPLITS:
      assert len(nw.number_words(subset, split)) > 0


def test_split_is_fixed():
  """Another hash or another num2words would change what published results mean."""
  assert nw.split_of(np.arange(24)).tolist() == SPLIT_OF_24
  text = ""
  for split in nw.SPLITS:
    source = nw.number_words("", split)
    step = len(source) // 100
    text += "".join(f"{split}\t{e['src']}\t{e['tgt']}\n" for e in
                    (source[i * step] for i in range(100)))
  assert hashlib.sha256(text.encode()).hexdigest() == DIGEST


def test_pickle():
  source = nw.number_words("time", "val")
  again = pickle.loads(pickle.dumps(source))
  assert again.name == source.name == "embedded:number_words/time:val"
  assert [again[i] for i in range(len(again))] == [source[i] for i in range(len(source))]


def test_unknown_names():
  with pytest.raises(config.ConfigError, match="did you mean 'cardinal'"):
    nw.number_words("cardinals", "train")
  with pytest.raises(config.ConfigError, match="valid are: train, val, test"):
    nw.number_words("", "dev")
