"""The benchmark of searches compares a batch with single searches of the same targets."""

import re

import pytest

from data_pipeline.search.colabfold_search import ColabfoldSearch
from data_pipeline.search.mmseqs_program import OLDEST_FOR_CLUSTERS, find_mmseqs, mmseqs_release
from helixfold.benchmark import search as module
from helixfold.benchmark.search import SearchBenchmarkOptions, run
from helixfold.cli.main import main


def test_a_batch_is_compared_with_single_searches(capsys: pytest.CaptureFixture[str]) -> None:
    program = find_mmseqs()
    if program is None or (mmseqs_release(program) or OLDEST_FOR_CLUSTERS) < OLDEST_FOR_CLUSTERS:
        pytest.skip(f"needs MMseqs2, release {OLDEST_FOR_CLUSTERS} or a newer one")
    run(SearchBenchmarkOptions(targets=3, single=1, residues=40, relatives=4, threads=1))
    first, second, third = capsys.readouterr().out.splitlines()
    assert "1 threads, 12 sequences; 3 targets of 40 residues" in first
    assert re.fullmatch(r"one after another \(from 1\): [0-9.]+ s; together: [0-9.]+ s", second)
    assert re.fullmatch(r"ratio: [0-9.]+", third)


def test_different_results_are_an_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(module, "require_mmseqs", lambda _: "mmseqs")
    monkeypatch.setattr(module.ClusterBuild, "clusters", lambda *_: 1)
    monkeypatch.setattr(module, "ClusterDatabase", lambda _: None)
    monkeypatch.setattr(ColabfoldSearch, "search_many", lambda self, targets: [b"1"] * len(targets))
    monkeypatch.setattr(ColabfoldSearch, "search", lambda self, target: b"2")
    assert main(["benchmark", "search", "--targets", "2"]) == 1
    assert "a batch has other results than single searches" in capsys.readouterr().err
