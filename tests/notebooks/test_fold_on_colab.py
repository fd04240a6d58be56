"""The notebook for Colab runs from top to bottom on a CPU, with a local server, and leaves the host's PyTorch alone."""

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.data_pipeline.search.mock_server import mock_server, state

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "notebooks" / "fold_on_colab.ipynb"
jupytext = pytest.importorskip("jupytext", reason="needs the packages of the extra 'notebooks'")
nbclient = pytest.importorskip("nbclient", reason="needs the packages of the extra 'notebooks'")


def code() -> list[str]:
    return [cell.source for cell in jupytext.read(NOTEBOOK).cells if cell.cell_type == "code"]


def test_all_cells_run_with_a_local_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    notebook = jupytext.read(NOTEBOOK)
    (settings,) = (cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.startswith("NAME ="))
    with mock_server() as server:
        server.answers["submit"] = [state("COMPLETE")]
        for name, value in {
            "SEQUENCE": "MKTAYIAKQRQI",
            "SERVER": server.url,
            "NUM_RECYCLES": 0,
            "DEEPMIND": False,
        }.items():
            settings.source, count = re.subn(rf"(?m)^{name} = .*$", f"{name} = {value!r}", settings.source)
            assert count == 1
        client = nbclient.NotebookClient(
            notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
        )
        client.execute()
        assert server.asked() == {"101": "MKTAYIAKQRQI"} or "MKTAYIAKQRQI" in server.asked().values()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    kinds = [kind for output in outputs for kind in output.get("data", {})]
    assert kinds.count("image/png") == 3  # pLDDT, PAE, coverage
    assert any("3dmol" in str(output.get("data", {}).get("text/html", "")).lower() for output in outputs)
    archive = tmp_path / "predictions" / "ubiquitin.result.zip"
    assert any(str(archive.relative_to(tmp_path)) in output.get("text", "") for output in outputs)
    assert "ubiquitin/report.html" in zipfile.ZipFile(archive).namelist()


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
