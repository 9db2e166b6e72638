"""Writes the notebook beside each text of this folder, for Colab.

  python notebooks/build.py

The texts, in jupytext's percent format, are the source; a notebook is what they say and
nothing else: no outputs, no cell ids, which jupytext would draw anew at every build.
"""

import pathlib

import jupytext
import nbformat

FOLDER = pathlib.Path(__file__).parent
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def sources() -> list[pathlib.Path]:
  """The texts of all notebooks, which start with a cell."""
  return sorted(p for p in FOLDER.glob("*.py") if p.read_text("utf-8").startswith("# %%"))


def convert(source: pathlib.Path) -> str:
  """The notebook of a text, as JSON."""
  notebook = jupytext.read(source, fmt="py:percent")
  notebook.metadata = nbformat.from_dict(METADATA)
  notebook.nbformat_minor = 4  # the last format without cell ids
  for cell in notebook.cells:
    del cell["id"]
    cell.metadata.clear()  # blank lines between cells, which jupytext notes
  return nbformat.writes(notebook) + "\n"


def main() -> None:
  for source in sources():
    source.with_suffix(".ipynb").write_text(convert(source), "utf-8")


if __name__ == "__main__":
  main()
