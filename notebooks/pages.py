"""Pages of the site that show notebooks, with the outputs of those that were executed.

  python notebooks/pages.py

executes all of them, which takes minutes, and keeps them with their outputs in build/notebooks, where
`make site` finds them. The slow tests do the same with those that they execute unchanged.
"""

import os
import pathlib
import re
from typing import Mapping

import nbformat

FOLDER = pathlib.Path(__file__).parent
EXECUTED = FOLDER.parent / "build" / "notebooks"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def execute(name: str, environment: Mapping[str, str],
            edits: Mapping[str, str] = {}) -> nbformat.NotebookNode:
  """A notebook of this folder with its outputs.

  Args:
    name: of the file, without its ending.
    environment: the variables of its process.
    edits: texts of its cells, and what stands in their places.

  Raises:
    CellExecutionError: a cell has raised an exception.
    ValueError: a text of `edits` stands in no cell, or more than once.
  """
  from nbclient import NotebookClient
  notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
  for old, new in edits.items():
    found = [cell for cell in notebook.cells for _ in range(cell.source.count(old))]
    if len(found) != 1:
      raise ValueError(f"{name}.ipynb has {old!r} {len(found)} times, not once")
    found[0].source = found[0].source.replace(old, new)
  client = NotebookClient(notebook, timeout=600, kernel_name="python3",
                          resources={"metadata": {"path": str(FOLDER)}})
  client.execute(env=dict(environment))
  return notebook


def keep(name: str, notebook: nbformat.NotebookNode) -> None:
  """Writes a notebook that was executed to where `page` finds it."""
  EXECUTED.mkdir(parents=True, exist_ok=True)
  nbformat.write(notebook, EXECUTED / f"{name}.ipynb")


def page(path: pathlib.Path, executed: pathlib.Path = EXECUTED) -> str:
  """The Markdown of a notebook's page.

  Outputs are those of the notebook of the same name in `executed`, as long as its cells are the same.
  """
  notebook = nbformat.read(path, as_version=4)
  if (executed / path.name).exists():
    found = nbformat.read(executed / path.name, as_version=4)
    if [cell.source for cell in found.cells] == [cell.source for cell in notebook.cells]:
      notebook = found
  parts = []
  for cell in notebook.cells:
    if cell.cell_type == "markdown":
      parts.append(cell.source)
    else:
      parts += [fenced(cell.source, "python"), *map(shown, cell.outputs)]
  return "\n\n".join(filter(None, parts)) + "\n"


def shown(output: nbformat.NotebookNode) -> str:
  """The Markdown of one output of a cell; "" of what a page can't show."""
  if output.output_type == "stream":
    return fenced(output.text)
  data = output.get("data", {})
  if "image/png" in data:
    encoded = "".join(data["image/png"].split())
    return f'<img alt="The figure that this cell draws" src="data:image/png;base64,{encoded}">'
  if "text/html" in data:
    return "".join(data["text/html"].splitlines())  # a blank line would end it
  if "text/markdown" in data:
    return data["text/markdown"]
  return fenced(data["text/plain"]) if "text/plain" in data else ""


def fenced(text: str, language: str = "text") -> str:
  fence = max(["```", *(f"{ticks}`" for ticks in re.findall("```+", text))], key=len)
  return f"{fence}{language}\n{COLOUR.sub('', text).rstrip()}\n{fence}"


def main() -> None:
  for path in sorted(FOLDER.glob("*.ipynb")):
    print(path.stem, flush=True)
    keep(path.stem, execute(path.stem, os.environ))


if __name__ == "__main__":
  main()
