"""Makes jtx/data/sources/number_words.tsv again, from num2words and Babel (the extra `test`).

  python tests/data/sources/make_number_words.py
"""

import datetime
import pathlib

import babel.dates
import num2words

FILE = pathlib.Path(__file__).parents[3] / "jtx" / "data" / "sources" / "number_words.tsv"
NUMBERS = (("cardinal", range(1000)), ("ordinal", range(1, 1001)), ("year", range(1900, 2100)))
MONDAY = datetime.date(2024, 1, 1)


def text() -> str:
  """A row for each kind and number: its English and its German words."""
  rows = [(kind, n, *(num2words.num2words(n, lang=lang, to=kind) for lang in ("en", "de")))
          for kind, numbers in NUMBERS for n in numbers]
  for kind, form, days in (
      ("month", "MMMM", [MONDAY.replace(month=n) for n in range(1, 13)]),
      ("weekday", "EEEE", [MONDAY + datetime.timedelta(n) for n in range(7)])):
    rows += [(kind, day.month if kind == "month" else day.weekday(),
              *(babel.dates.format_date(day, form, locale=lang) for lang in ("en", "de")))
             for day in days]
  return "".join("\t".join(map(str, row)) + "\n" for row in rows)


if __name__ == "__main__":
  FILE.write_text(text(), encoding="utf-8")
