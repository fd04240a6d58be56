"""The store's benchmark measures a real build and prints its table."""

import re
from pathlib import Path

import pytest

from data_pipeline.datasets import clustering
from helixfold.benchmark.data import DataOptions, run
from tests.data_pipeline.datasets.training_files import write_training_files


def test_rates_are_of_a_store_that_was_built_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(clustering, "find_mmseqs", lambda: None)
    structures, alignments = write_training_files(tmp_path)
    run(DataOptions(structures=structures, alignments=alignments))
    lines = capsys.readouterr().out.splitlines()
    sizes = [
        sum(path.stat().st_size for path in paths) / 1e6 for paths in (structures.iterdir(), alignments.rglob("*.a3m"))
    ]
    given = f"structures {sizes[0]:.1f} MB and alignments {sizes[1]:.1f} MB"
    match = re.match(rf"6 chains \(0 failed\): {given} become a store of [0-9.]+ MB \(\d+%, ([0-9.]+) kB", lines[0])
    assert match is not None
    assert float(match[1]) > 0
    rows = [re.fullmatch(r"(.{28}) +[0-9.]+ +(\d+)", line) for line in lines[2:]]
    assert [row and row[1].strip() for row in rows] == [
        "build",
        "build again, all is there",
        "read the files",
        "load from the store",
        "load labels only",
    ]
    assert all(row and int(row[2]) > 0 for row in rows)
