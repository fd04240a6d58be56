"""Every notebook is a pair: a script that people review and a notebook without results, with the same cells."""

import gzip
import os
import re
from itertools import pairwise
from pathlib import Path

import gemmi
import pytest

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
SCRIPTS = sorted(NOTEBOOKS.glob("*.py"))
NUMBERED = [path for path in SCRIPTS if path.stem[0].isdigit()]
MOST_LINES = 10
MOST_BYTES = 1_000_000  # of an executed notebook, which is mailed and shown by code hosts
# Fewer steps, with which every cell runs as well, by the number of the notebook: a prediction and a training. All
# notebooks run whole before each release.
SHORTER: dict[str, dict[str, str]] = {
    "1": {},
    "6": {"steps=200, every=25": "steps=16, every=2"},
}
_REASON = "needs the packages of the extra 'notebooks'"
jupytext = pytest.importorskip("jupytext", reason=_REASON)
nbclient = pytest.importorskip("nbclient", reason=_REASON)
nbformat = pytest.importorskip("nbformat", reason=_REASON)


def test_each_script_has_its_notebook_and_each_notebook_its_script() -> None:
    notebooks = {path.stem for path in NOTEBOOKS.glob("*.ipynb")}
    assert notebooks == {path.stem for path in SCRIPTS}
    assert [path.stem[0] for path in NUMBERED] == [*"1234567"]


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
        if cell.cell_type == "code" and cell.metadata.get("cellView") != "form":  # whose code is hidden
            calls = [line for line in cell.source.splitlines() if line and not line.startswith(("from ", "import "))]
            assert len(calls) <= MOST_LINES, cell.source


@pytest.mark.parametrize("script", NUMBERED, ids=lambda path: path.stem)
def test_a_numbered_notebook_states_its_aim_and_time_and_leads_to_the_next(script: Path) -> None:
    cells = [cell.source for cell in jupytext.read(script).cells if cell.cell_type == "markdown"]
    assert cells[0].startswith(f"# {script.stem[0]}. ")
    assert "**Aim:**" in cells[0]
    assert re.search(r"\*\*Time:\*\* about \d+ s on two cores of", cells[0])
    assert cells[-1].startswith("## Next\n")
    following = dict(pairwise(NUMBERED)).get(script)
    assert following is None or f"({following.stem}.ipynb)" in "".join(cells)


@pytest.mark.parametrize("script", NUMBERED, ids=lambda path: path.stem)
def test_links_lead_to_notebooks_or_the_web(script: Path) -> None:
    """A notebook that is copied elsewhere takes no page of the repository along."""
    for target in re.findall(r"\]\(([^)]+)\)", script.read_text()):
        assert target.startswith("https://") or (NOTEBOOKS / target).is_file(), target


@pytest.fixture
def downloaded(tmp_path: Path, real_data: Path) -> Path:
    """A cache with the entry of the PDB that notebooks download."""
    source = real_data / "pdb" / "1srl.pdb.gz"
    structure = gemmi.read_pdb_string(gzip.decompress(source.read_bytes()).decode())
    structure.setup_entities()
    structure.assign_label_seq_id()
    cache = tmp_path / "cache"
    (cache / "entries").mkdir(parents=True)
    structure.make_mmcif_document().write_file(str(cache / "entries" / "1SRL.cif"))
    return cache


@pytest.mark.integration
@pytest.mark.parametrize(
    ("script", "is_shorter"),
    [
        *(pytest.param(path, True, id=f"{path.stem}-shorter") for path in NUMBERED if path.stem[0] in SHORTER),
        *(pytest.param(path, False, id=f"{path.stem}-whole", marks=pytest.mark.long) for path in NUMBERED),
    ],
)
def test_a_notebook_runs_in_an_empty_directory_and_stays_small(
    script: Path, is_shorter: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    cache = request.getfixturevalue("downloaded") if "fetch_structure" in script.read_text() else tmp_path
    # Parameters that were downloaded are not used.
    configuration = tmp_path / "helixfold.toml"
    configuration.write_text(f'weights_directory = "{tmp_path}"\ncache_directory = "{cache}"\n')
    monkeypatch.setenv("HELIXFOLD_CONFIG", str(configuration))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(NOTEBOOKS.parent), os.environ.get("PYTHONPATH", "")]))
    resources = {"metadata": {"path": str(tmp_path)}}
    text = script.with_suffix(".ipynb").read_text()
    for whole, shorter in SHORTER[script.stem[0]].items() if is_shorter else ():
        assert text.count(whole) == 1
        text = text.replace(whole, shorter)
    notebook = nbformat.reads(text, as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3", resources=resources).execute()
    assert len(nbformat.writes(notebook).encode()) < MOST_BYTES
    shown = [output.data for cell in notebook.cells for output in cell.get("outputs", ()) if "data" in output]
    figures = [data for data in shown if "image/png" in data]
    assert len(figures) >= 3
    # A plot that is the last value of a cell is stored once, as an image.
    assert all(len(data.get("text/plain", "")) < 2000 for data in shown)
