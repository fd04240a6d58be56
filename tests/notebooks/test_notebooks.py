"""Every notebook is a pair: a script that people review and a notebook without results, with the same cells."""

from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
SCRIPTS = sorted(NOTEBOOKS.glob("*.py"))
MOST_LINES = 10
jupytext = pytest.importorskip("jupytext", reason="needs the packages of the extra 'notebooks'")


def test_each_script_has_its_notebook_and_each_notebook_its_script() -> None:
    notebooks = {path.stem for path in NOTEBOOKS.glob("*.ipynb")}
    assert notebooks == {path.stem for path in SCRIPTS}
    assert len(notebooks) == 6


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_and_its_notebook_have_the_same_cells(script: Path) -> None:
    cells, paired = (
        [(cell.cell_type, cell.source) for cell in jupytext.read(path).cells]
        for path in (script, script.with_suffix(".ipynb"))
    )
    assert paired == cells, f"run: jupytext --update --to ipynb {script.name}"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_notebooks_hold_no_results(script: Path) -> None:
    for cell in jupytext.read(script.with_suffix(".ipynb")).cells:
        if cell.cell_type == "code":
            assert (cell.outputs, cell.execution_count) == ([], None)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_cells_are_short_and_begin_with_words(script: Path) -> None:
    cells = jupytext.read(script).cells
    assert cells[0].cell_type == "markdown"
    assert cells[0].source.startswith("# ")
    for cell in cells:
        if cell.cell_type == "code":
            calls = [line for line in cell.source.splitlines() if line and not line.startswith(("from ", "import "))]
            assert len(calls) <= MOST_LINES, cell.source
