"""The store's benchmark measures a real build and prints its table."""

from pathlib import Path

import pytest

from data_pipeline.datasets import clustering
from helixfold.benchmark.data import print_store_rates, store_rates
from tests.data_pipeline.datasets.training_files import write_training_files


def test_rates_are_of_a_store_that_was_built_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(clustering, "find_program", lambda name: None)
    structures, alignments = write_training_files(tmp_path)
    rates = store_rates(structures, alignments)
    assert (rates.chains, rates.failed) == (6, 0)
    assert rates.structure_bytes == sum(path.stat().st_size for path in structures.iterdir())
    assert rates.alignment_bytes == sum(path.stat().st_size for path in alignments.rglob("*.a3m"))
    assert rates.store_bytes > 0
    assert len(rates.seconds) == 5
    assert all(seconds > 0 for seconds in rates.seconds.values())
    print_store_rates(rates)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("6 chains (0 failed): structures ")
    assert lines[-1].startswith("load labels only")
