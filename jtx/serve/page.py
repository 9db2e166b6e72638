"""The page to try a model: its template, style and script are the files of `html/`."""

import functools
import os
from typing import Any, Mapping

import jinja2

HEADERS = {"Content-Security-Policy": (
    "default-src 'none'; connect-src 'self'; img-src data: blob:; style-src 'unsafe-inline';"
    " script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    "X-Content-Type-Options": "nosniff"}


@functools.cache
def template() -> jinja2.Template:
  environment = jinja2.Environment(
      loader=jinja2.FileSystemLoader(os.path.join(os.path.dirname(__file__), "html")),
      autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
  environment.policies["json.dumps_kwargs"] = {"sort_keys": False}  # fields have an order
  return environment.get_template("page.html")


def text(name: str, model: Mapping[str, Any]) -> str:
  """The page.

  Args:
    name: of the model.
    model: its kinds and limits, as /model tells them.
  """
  return template().render(name=name, model=model)
