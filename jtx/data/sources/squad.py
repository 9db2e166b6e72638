"""Questions about a text, in the JSON format of SQuAD."""

import collections
from typing import Any

from jtx import storage
from jtx.data.sources import files
from jtx.data.sources.parts import Part
from jtx.errors import DataError


class SquadSource:
  """Questions of a file in the JSON format of SQuAD 1.1 (arXiv:1606.05250) or 2.0 (1806.03822).

  The flat form of `datasets` is read too, where `data` is a list of questions, each with its
  context and `answers` as an object of two lists.

  An example has `question_id`, `title`, `question`, `context`, `answers`, a list of `text` and
  `answer_start` in characters, and `impossible`, True where the context has no answer.

  Args:
    name: the spec.
    file: the JSON.
    part: of the file's titles, in the order in which they first come; by it titles can be held
      out. None is all of them.
  """

  def __init__(self, name: str, file: str, part: Part | None):
    self.name, self._file = name, file
    self._contexts: list[tuple[str, str]] = []  # title, context
    self._questions: list[dict[str, Any]] = []
    self._context_of: list[int] = []
    articles = _member(_json(file), "data", list, file)
    titles = list(dict.fromkeys(_title(a, f"{file}: article {i}", part is not None)
                                for i, a in enumerate(articles)))
    kept = set(titles if part is None else part.of(titles))
    for i, article in enumerate(articles):
      if article.get("title", "") in kept:
        self._add(article, f"{file}: article {i}")
    self._check_ids()

  def _add(self, article: dict[str, Any], where: str) -> None:
    flat = "paragraphs" not in article and "question" in article
    paragraphs = [{"context": article.get("context"), "qas": [article]}] if flat else (
        _member(article, "paragraphs", list, where))
    for p, paragraph in enumerate(paragraphs):
      at = where if flat else f"{where}, paragraph {p}"
      context = _member(paragraph, "context", str, at)
      self._contexts.append((article.get("title", ""), context))
      for q in _member(paragraph, "qas", list, at):
        self._questions.append(self._question(q, context, at))
        self._context_of.append(len(self._contexts) - 1)

  def _question(self, q: Any, context: str, where: str) -> dict[str, Any]:
    name = _member(q, "id", str, where)
    at = f"{self._file}: question {name}"
    answers = []
    if isinstance(q.get("answers"), dict):
      lists = [_member(q["answers"], key, list, at) for key in ("text", "answer_start")]
      q = {**q, "answers": [{"text": t, "answer_start": s} for t, s in zip(*lists)]}
    for a in _member(q, "answers", list, at):
      text, start = _member(a, "text", str, at), _member(a, "answer_start", int, at)
      if start < 0 or context[start:start + len(text)] != text:
        raise DataError(f"{at}: the answer {text!r} is not at answer_start={start} of the context")
      answers.append({"text": text, "answer_start": start})
    impossible = not answers
    if q.get("is_impossible", impossible) is not impossible:
      raise DataError(f"{at}: is_impossible is {q['is_impossible']!r}, but it has {len(answers)}"
                      " answers")
    return {"question_id": name, "question": _member(q, "question", str, at), "answers": answers,
            "impossible": impossible}

  def _check_ids(self) -> None:
    ids = collections.Counter(q["question_id"] for q in self._questions)
    for name, count in ids.items():
      if count > 1:
        raise DataError(f"{self._file}: {count} questions have the id {name}; scores go by the id")

  def __len__(self) -> int:
    return len(self._questions)

  def __getitem__(self, i: int) -> dict[str, Any]:
    title, context = self._contexts[self._context_of[i]]
    question = self._questions[i]
    return {**question, "title": title, "context": context,
            "answers": [dict(a) for a in question["answers"]]}


def _json(file: str) -> Any:
  try:
    return storage.parse_json(files.read(file).decode("utf-8-sig"))
  except DataError:
    raise
  except ValueError as e:  # bad UTF-8 too
    raise DataError(f"{file}: not valid JSON ({e})") from e


def _member(value: Any, key: str, kind: type, where: str) -> Any:
  """value[key], or a DataError that says where it is missing or of another type."""
  if not isinstance(value, dict) or not isinstance(value.get(key), kind):
    raise DataError(f"{where}: has no {key!r} that is a {_JSON_NAMES[kind]}")
  return value[key]


_JSON_NAMES = {list: "list", str: "string", int: "number"}


def _title(article: Any, where: str, needed: bool) -> str:
  if needed:
    return _member(article, "title", str, where)
  if not isinstance(article, dict):
    raise DataError(f"{where}: is not a JSON object")
  return article.get("title", "")
