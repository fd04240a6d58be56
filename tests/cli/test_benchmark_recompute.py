"""The benchmark of recompute measures real passes, and states the full depth by growth."""

import pytest

from helixfold.cli import benchmark_recompute
from helixfold.cli.benchmark_recompute import PassCost, PassSize, measure_pass
from helixfold.cli.main import main

MIB = 2**20


def test_a_pass_that_keeps_less_takes_less_memory() -> None:
    size = PassSize(preset="tiny", blocks=2, crop=48, dtype="float32")
    plain, block = (measure_pass(size, keep, repeats=1) for keep in ("none", "block"))
    assert plain.seconds > 0
    assert 0 < block.memory < 0.8 * plain.memory


def fake(size: PassSize, keep: str, repeats: int) -> PassCost:
    """Every block takes 10 MiB and 2 s, or half and 3 s if it is recomputed; all else is 100 MiB and 5 s."""
    memory, seconds = (10, 2.0) if keep == "none" else (5, 3.0)
    return PassCost(seconds=5 + size.blocks * seconds, memory=(100 + size.blocks * memory) * MIB)


def test_the_full_depth_follows_from_the_growth_between_two_depths(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(benchmark_recompute, "measure_pass", fake)
    options = ["--presets", "model_1", "tiny", "--blocks", "5", "--dtypes", "float32"]
    assert main(["benchmark", "recompute", *options]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("float32")]
    assert rows == [
        ["float32", "none", "150", "1.00", "15.00", "1.00", "580", "1.00", "101.00", "1.00"],
        ["float32", "inputs", "125", "0.83", "20.00", "1.33", "340", "0.59", "149.00", "1.48"],
        ["float32", "block", "125", "0.83", "20.00", "1.33", "340", "0.59", "149.00", "1.48"],
        # Measured whole: it has two blocks.
        ["float32", "none", "120", "1.00", "9.00", "1.00"],
        ["float32", "inputs", "110", "0.92", "11.00", "1.22"],
        ["float32", "block", "110", "0.92", "11.00", "1.22"],
    ]
