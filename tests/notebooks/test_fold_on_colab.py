"""The notebook for Colab runs from top to bottom on a CPU, with a local server, and leaves the host's PyTorch alone."""

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.data_pipeline.search.mock_server import failing, mock_server, state

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "notebooks" / "fold_on_colab.ipynb"
jupytext = pytest.importorskip("jupytext", reason="needs the packages of the extra 'notebooks'")
nbformat = pytest.importorskip("nbformat", reason="needs the packages of the extra 'notebooks'")
nbclient = pytest.importorskip("nbclient", reason="needs the packages of the extra 'notebooks'")


def code() -> list[str]:
    return [cell.source for cell in jupytext.read(NOTEBOOK).cells if cell.cell_type == "code"]


SEQUENCES = ("MKTAYIAKQRQI", "GSHMELKNIVDSWA")


def cells(**values: object) -> list[Any]:
    """The notebook's cells, with these values in the form."""
    found = jupytext.read(NOTEBOOK).cells
    (settings,) = (cell for cell in found if cell.cell_type == "code" and cell.source.startswith("NAME ="))
    for name, value in {"NUM_RECYCLES": 0, "DEEPMIND": False, **values}.items():
        settings.source, count = re.subn(rf"(?m)^{name} = .*$", f"{name} = {value!r}", settings.source)
        assert count == 1
    return list(found)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[Any]], None]:
    """Run cells from top to bottom in one kernel, in an empty directory, on a CPU and with an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))

    def execute(cells: list[Any]) -> None:
        notebook = jupytext.read(NOTEBOOK)
        notebook.cells = cells
        resources = {"metadata": {"path": str(tmp_path)}}
        nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3", resources=resources).execute()

    return execute


def outputs(cells: list[Any]) -> list[Any]:
    return [output for cell in cells if cell.cell_type == "code" for output in cell.outputs]


def printed(cells: list[Any]) -> str:
    return "".join(output.get("text", "") for output in outputs(cells))


def shown_residues(cells: list[Any]) -> int:
    """The number of residues of the structure that the notebook shows."""
    (page,) = (
        page
        for output in outputs(cells)
        if "3dmol" in (page := str(output.get("data", {}).get("text/html", ""))).lower()
    )
    return len(re.findall(r"ATOM +\d+ +CA ", page))


def archive(cells: list[Any], tmp_path: Path) -> zipfile.ZipFile:
    """The archive whose path the last cell prints last; a busy kernel sends a line's end as an output of its own."""
    return zipfile.ZipFile(tmp_path / printed(cells[-1:]).split()[-1])


def test_all_cells_run_with_a_local_server(tmp_path: Path, run: Callable[[list[Any]], None]) -> None:
    with mock_server() as server:
        server.answers["submit"] = [state("COMPLETE")]
        found = cells(SEQUENCE=SEQUENCES[0], SERVER=server.url)
        run(found)
        assert list(server.asked().values()) == [SEQUENCES[0]]
    kinds = [kind for output in outputs(found) for kind in output.get("data", {})]
    assert kinds.count("image/png") == 3  # pLDDT, PAE, coverage
    assert "ubiquitin/report.html" in archive(found, tmp_path).namelist()


def test_cells_show_results_for_the_values_in_the_form(tmp_path: Path, run: Callable[[list[Any]], None]) -> None:
    """Also when all cells run again in the same kernel with another sequence, other options, or an earlier sequence."""
    first, second = SEQUENCES
    rounds = [
        (first, cells(SEQUENCE=first, SERVER="")),
        (second, cells(SEQUENCE=second, SERVER="")),
        (second, cells(SEQUENCE=second, SERVER="", NUM_RECYCLES=1)),
        (first, cells(SEQUENCE=first, SERVER="")),
    ]
    run([cell for _, each in rounds for cell in each])
    directories = []
    for sequence, each in rounds:
        assert shown_residues(each) == len(sequence)
        content = archive(each, tmp_path)
        directories.append(Path(str(content.filename)).parent)
        assert len(re.findall(r"ATOM +\d+ +CA ", content.read("ubiquitin/ranked_0.pdb").decode())) == len(sequence)
    assert len(set(directories)) == 3
    assert directories[0] == directories[3]
    assert [each for _, each in rounds if "finished before" in printed(each)] == [rounds[3][1]]


@pytest.mark.parametrize("case", ["download", "search", "input"])
def test_a_failure_stops_the_notebook(case: str, tmp_path: Path, run: Callable[[list[Any]], None]) -> None:
    """Fold a first protein before, whose results must not be shown for the second one."""
    with mock_server() as server:
        server.answers["submit"] = [state("COMPLETE" if case == "download" else "ERROR")]
        server.answers["download"] = [failing(404)]
        source = f"from helixfold.weights import download; download.ARCHIVE_URL = '{server.url}/none.tar'"
        broken = {
            "download": cells(SEQUENCE=SEQUENCES[1], SERVER="", DEEPMIND=True),
            "search": cells(SEQUENCE=SEQUENCES[1], SERVER=server.url),
            "input": cells(SEQUENCE="not one!", SERVER=""),
        }[case]
        earlier = cells(SEQUENCE=SEQUENCES[0], SERVER="")
        with pytest.raises(nbclient.exceptions.CellExecutionError, match=_FAILED[case]):
            run([nbformat.v4.new_code_cell(source), *earlier, *broken])
    # No later cell ran.
    assert shown_residues(earlier) == len(SEQUENCES[0])
    assert not any("data" in output for output in outputs(broken))


_FAILED = {
    "download": "helixfold weights failed with exit code 2",
    "search": "helixfold predict failed with exit code [13]",
    "input": "helixfold predict failed with exit code 2",
}


@pytest.mark.parametrize("part", ["plddt.png", "archive = "])
def test_a_cell_that_runs_on_its_own_does_not_show_an_earlier_protein(
    part: str, run: Callable[[list[Any]], None]
) -> None:
    changed = [cell for cell in cells(SEQUENCE=SEQUENCES[1], SERVER="") if cell.cell_type == "code"]
    later = [cell for cell in changed if cell.source.startswith("NAME =") or part in cell.source]
    assert len(later) == 2
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="FileNotFoundError"):
        run([*cells(SEQUENCE=SEQUENCES[0], SERVER=""), *later])


def test_installing_leaves_the_hosts_pytorch_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], *, check: bool) -> None:
        assert check
        commands.append(command)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(subprocess, "run", run)
    found: dict[str, Any] = {}
    exec(compile(code()[0], "install", "exec"), found)
    ((*words, source),) = commands
    assert words == [sys.executable, "-m", "pip", "install", "--quiet", "-c", "installed.txt"]
    assert source == found["SOURCE"]
    kept = (tmp_path / "installed.txt").read_text().splitlines()
    assert kept == [f"{name}=={importlib.metadata.version(name)}" for name in ("torch", "numpy")]
