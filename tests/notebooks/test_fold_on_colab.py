"""The notebook for Colab runs from top to bottom on a CPU, with a local server, and leaves the host's PyTorch alone."""

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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


@dataclass
class Kernel:
    """A kernel in an empty directory, on a CPU and with an empty cache, which runs cells from top to bottom."""

    directory: Path
    client: Any

    def run(self, cells: list[Any]) -> None:
        self.client.nb.cells = cells
        for index, cell in enumerate(cells):
            self.client.execute_cell(cell, index)


@contextmanager
def new_kernel(directory: Path) -> Iterator[Kernel]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(directory / "cache"))
        patch.setenv("NO_PROXY", "*")
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
        resources = {"metadata": {"path": str(directory)}}
        notebook = jupytext.read(NOTEBOOK)
        client = nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3", resources=resources)
        with client.setup_kernel():
            yield Kernel(directory, client)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    with new_kernel(tmp_path_factory.mktemp("kernel")) as kernel:
        yield kernel


@dataclass
class Folded:
    """The cells that have folded the first sequence, and the sequences that they sent to a server."""

    cells: list[Any]
    sent: list[str]


@pytest.fixture(scope="module")
def folded(kernel: Kernel) -> Folded:
    with mock_server() as server:
        server.answers["submit"] = [state("COMPLETE")]
        found = cells(SEQUENCE=SEQUENCES[0], SERVER=server.url)
        kernel.run(found)
        return Folded(found, list(server.asked().values()))


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


def test_all_cells_run_with_a_local_server(kernel: Kernel, folded: Folded) -> None:
    assert folded.sent == [SEQUENCES[0]]
    kinds = [kind for output in outputs(folded.cells) for kind in output.get("data", {})]
    assert kinds.count("image/png") == 3  # pLDDT, PAE, coverage
    assert "ubiquitin/report.html" in archive(folded.cells, kernel.directory).namelist()


def test_cells_show_results_for_the_values_in_the_form(tmp_path: Path) -> None:
    """Also when all cells run again in the same kernel with another sequence, other options, or an earlier sequence."""
    first, second = SEQUENCES
    rounds = [
        (first, cells(SEQUENCE=first, SERVER="")),
        (second, cells(SEQUENCE=second, SERVER="")),
        (second, cells(SEQUENCE=second, SERVER="", NUM_RECYCLES=1)),
        (first, cells(SEQUENCE=first, SERVER="")),
    ]
    with new_kernel(tmp_path) as kernel:
        kernel.run([cell for _, each in rounds for cell in each])
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
def test_a_failure_stops_the_notebook(case: str, kernel: Kernel, folded: Folded) -> None:
    """The results of the first protein, which was folded before, are not shown for the second one."""
    with mock_server() as server:
        server.answers["submit"] = [state("COMPLETE" if case == "download" else "ERROR")]
        server.answers["download"] = [failing(404)]
        source = f"from helixfold.weights import download; download.ARCHIVE_URL = '{server.url}/none.tar'"
        broken = {
            "download": cells(SEQUENCE=SEQUENCES[1], SERVER="", DEEPMIND=True),
            "search": cells(SEQUENCE=SEQUENCES[1], SERVER=server.url),
            "input": cells(SEQUENCE="not one!", SERVER=""),
        }[case]
        with pytest.raises(nbclient.exceptions.CellExecutionError, match=_FAILED[case]):
            kernel.run([nbformat.v4.new_code_cell(source), *broken])
    # No later cell ran.
    assert shown_residues(folded.cells) == len(SEQUENCES[0])
    assert not any("data" in output for output in outputs(broken))


_FAILED = {
    "download": "helixfold weights failed with exit code 2",
    "search": "helixfold predict failed with exit code [13]",
    "input": "helixfold predict failed with exit code 2",
}


@pytest.mark.parametrize("part", ["plddt.png", "archive = "])
@pytest.mark.usefixtures("folded")
def test_a_cell_that_runs_on_its_own_does_not_show_an_earlier_protein(part: str, kernel: Kernel) -> None:
    changed = [cell for cell in cells(SEQUENCE=SEQUENCES[1], SERVER="") if cell.cell_type == "code"]
    later = [cell for cell in changed if cell.source.startswith("NAME =") or part in cell.source]
    assert len(later) == 2
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="FileNotFoundError"):
        kernel.run(later)


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
