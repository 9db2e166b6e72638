"""The notebooks: generated from their texts, empty, ready for Colab, and right when they run."""

import json
import os
import re

import nbformat
import pytest

from notebooks import build, pages

NAMES = ("attention_variant", "checkpoint", "detection", "language_model", "pretrain_bert",
         "sharding", "sweep_report", "text_to_text", "train_translator", "transformer_parts",
         "vision_transformer")
# Training for a part of the steps shows that all cells run. `python notebooks/pages.py` takes all
# steps, and then the results have to be right.
SHORTER = {
    "checkpoint": {'"steps": 300': '"steps": 60'},
    "detection": {"epochs=30": "epochs=0.25"},
    "language_model": {'"steps": 320': '"steps": 60', "< bigram - 0.5": "< unigram"},
    "pretrain_bert": {
        '"steps": 600': '"steps": 40', '"evals.val.every": 150': '"evals.val.every": 40',
        '["val/loss"] < results["counts/bigram_loss"]': '["val/loss"] < 7', "epochs=6": "epochs=1",
        'last["pretrained"] > last["random weights"]': "min(last.values()) > 0.4"},
    "sweep_report": {"--config.steps=80": "--config.steps=20"},
    "text_to_text": {
        '"steps": 500': '"steps": 30',
        'scores["sea"] > 0.9 and scores["town"] > 0.9 and scores["clock"] > 0.5': "scores",
        'answer == "Lisbon"': "answer"},
    "train_translator": {
        '{"steps": 200, "checkpoint.every": 200, "evals.val.every": 50':
        '{"steps": 50, "checkpoint.every": 50, "evals.val.every": 25',
        '["val/exact_match"] > 0.5': '["val/bleu"] > 0', "losses[0] / 4": "5",
        "aligned[layer, head] > 0.6": "aligned[layer, head] > 0.2"},
    "vision_transformer": {'"epochs": 40.0': '"epochs": 8.0', "> 0.95": "> 0.2",
                           '"epochs": 12.0': '"epochs": 3.0'},
}
REPOSITORY = "jtx-research/jtx"
FIGURE = re.compile(  # a call that returns one, or one of those that an evaluator made
    r"^((attention_map|attention_grid|heatmaps|position_heatmap|position_similarity|curve|bars"
    r"|boxed|looked_at|grid_similarity|reconstructions|pictures\.\w+|detection\.drawn_queries)\("
    r"|found\[)", re.MULTILINE)


def read(name):
  return nbformat.read(build.FOLDER / f"{name}.ipynb", as_version=4)


def test_every_notebook_has_a_text():
  assert tuple(source.stem for source in build.sources()) == NAMES
  assert {path.stem for path in build.FOLDER.glob("*.ipynb")} == set(NAMES)


@pytest.mark.parametrize("source", build.sources(), ids=lambda source: source.stem)
def test_a_notebook_is_its_text(source):
  notebook = source.with_suffix(".ipynb").read_text("utf-8")
  assert notebook == build.convert(source), "run `make notebooks`"
  assert build.convert(source) == build.convert(source)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_that_ran_is_kept(name):
  notebook = json.loads((build.FOLDER / f"{name}.ipynb").read_text("utf-8"))
  assert set(notebook["metadata"]) == {"kernelspec", "language_info"}
  for cell in notebook["cells"]:
    assert cell["metadata"] == {} and "id" not in cell
    if cell["cell_type"] == "code":
      assert cell["outputs"] == [] and cell["execution_count"] is None


@pytest.mark.parametrize("name", NAMES)
def test_the_first_cells(name):
  title, setup = read(name).cells[:2]
  heading, _, badge, *_ = title.source.splitlines()
  assert title.cell_type == "markdown" and heading.startswith("# ")
  assert badge == (
      "[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]"
      f"(https://colab.research.google.com/github/{REPOSITORY}/blob/main/notebooks/{name}.ipynb)")
  assert setup.source == f"""\
import os
import sys

if "google.colab" in sys.modules and not os.path.isdir("configs"):
  !git clone --quiet --depth 1 https://github.com/{REPOSITORY}
  os.chdir("jtx")
  !pip install --quiet -e .
elif not os.path.isdir("configs"):  # opened in its own folder
  os.chdir("..")"""


@pytest.mark.parametrize("name", NAMES)
def test_figures_are_those_of_jtx(name):
  sources = [cell.source for cell in read(name).cells if cell.cell_type == "code"]
  assert not any("matplotlib" in source for source in sources)
  for source in sources:
    assert len(FIGURE.findall(source)) <= 1, source  # only the last value of a cell is shown


def test_a_page_has_the_outputs_of_the_same_cells(tmp_path):
  from nbformat import v4
  cells = [v4.new_markdown_cell("# A title"), v4.new_code_cell("1 + 1")]
  path, executed = tmp_path / "mine.ipynb", tmp_path / "executed"
  executed.mkdir()
  nbformat.write(v4.new_notebook(cells=cells), path)
  bare = "# A title\n\n```python\n1 + 1\n```\n"
  assert pages.page(path, executed) == bare
  cells[1].outputs = [
      v4.new_output("stream", text="\x1b[31mred\x1b[39m\n"),
      v4.new_output("display_data", {"image/png": "iVBO\nRw0K\n", "text/plain": "<Figure>"}),
      v4.new_output("display_data", {"text/html": "<p>\n\n</p>", "text/plain": "<HTML>"}),
      v4.new_output("display_data", {"text/markdown": "| a |", "text/plain": "<Markdown>"}),
      v4.new_output("execute_result", {"text/plain": "```[2](3)"}),
      v4.new_output("display_data", {"application/pdf": "?"})]
  nbformat.write(v4.new_notebook(cells=cells), executed / "mine.ipynb")
  assert pages.page(path, executed) == bare + """
```text
red
```

<img alt="The figure that this cell draws" src="data:image/png;base64,iVBORw0K">

<p></p>

| a |

````text
```[2](3)
````
"""
  cells[1].source = "1 + 2"  # which was not executed
  nbformat.write(v4.new_notebook(cells=cells), executed / "mine.ipynb")
  assert pages.page(path, executed) == bare


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_it_runs_and_shows_its_figures(name, tmp_path):
  """From its own folder, as a user's, with as many devices as there are."""
  edits = SHORTER.get(name, {})
  environment = {key: value for key, value in os.environ.items()
                 if key not in ("JAX_PLATFORMS", "XLA_FLAGS")}
  # See conftest.py: here programs run for longer, for which the next level pays. A detector's takes
  # long to compile, and runs for a few steps.
  level = 0 if name == "detection" else 1
  flags = ("--xla_cpu_parallel_codegen_split_count=1 --xla_llvm_disable_expensive_passes=true"
           f" --xla_backend_optimization_level={level} --xla_cpu_use_fusion_emitters=false")
  environment |= {"HF_HUB_OFFLINE": "1", "XLA_FLAGS": flags, "TMPDIR": str(tmp_path),
                  "IPYTHONDIR": str(tmp_path / "ipython"),
                  "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}  # as in the Makefile
  notebook = pages.execute(name, environment, edits)  # raises what a cell does, or its timeout
  for cell in notebook.cells:
    if cell.cell_type == "code":
      figures = [output for output in cell.outputs if "image/png" in output.get("data", {})]
      assert len(figures) == len(FIGURE.findall(cell.source)), cell.source
  if not edits:
    pages.keep(name, notebook)
