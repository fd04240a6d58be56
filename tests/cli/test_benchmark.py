"""The benchmark measures what it says, on sizes that take no time."""

import pytest

from helixfold.cli import benchmark
from helixfold.cli.main import main


def test_operations_of_a_block_are_those_of_the_arithmetic() -> None:
    assert benchmark.block_flops(256, 128) == pytest.approx(216.1e9, rel=1e-3)


def test_memory_is_measured_in_a_fresh_process() -> None:
    found = benchmark.measure_memory(96, 8, "float32", blocks=1)
    assert (found.pair, found.msa) == (96 * 96 * 128 * 4, 8 * 96 * 256 * 4)
    assert 1 < found.pairs_beside_msa < 20


def test_a_table_is_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(benchmark, "REPEATS", 1)
    assert main(["benchmark", "block", "--residues", "16", "--rows", "4", "--dtypes", "float32"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "torch" in lines[0]
    assert [line.split()[1] for line in lines[3:]] == ["Whole", "Slabs"]
