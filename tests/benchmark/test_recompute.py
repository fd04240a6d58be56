"""The benchmark of recompute measures real passes beside what the memory model says of them."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from helixfold.benchmark import recompute
from helixfold.benchmark.recompute import EXTRA_MSA, WHOLE, Point, measure
from helixfold.cli.main import main
from helixfold.planning.size import PassSize
from tests.support.forked_ranks import fork_ranks

pytestmark = pytest.mark.usefixtures("operators_on_small_tensors")

MIB = 2**20
SIZE = PassSize(residues=48, msa_rows=124, extra_rows=512, templates=4, dtype=torch.float32)
POINT = Point(part=WHOLE, preset="tiny", size=SIZE, plain=True, device="cpu")


@pytest.mark.long
def test_a_network_that_keeps_less_takes_less_memory() -> None:
    plain, block = (measure(replace(POINT, keep=keep)) for keep in ("none", "block"))
    assert 0 < block < 0.8 * plain


def test_a_stack_is_recomputed_as_it_is_in_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fork_ranks(monkeypatch, tmp_path / "printed.txt")
    point = replace(POINT, part=EXTRA_MSA, blocks=3, size=replace(SIZE, residues=24, extra_rows=384))
    plain, block = (measure(replace(point, keep=keep)) for keep in ("none", "block"))
    assert 0 < block < 0.8 * plain


def fake(point: Point) -> int:
    """A stack takes 100 MiB and 10 more for each block, or 5 if it is recomputed; a network takes 50 MiB."""
    if point.part == WHOLE:
        return 50 * MIB
    return (100 + point.blocks * (10 if point.keep == "none" else 5)) * MIB


def test_every_point_stands_beside_its_prediction(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(recompute, "measure", fake)
    monkeypatch.setattr(Point, "predicted", lambda point: (50 + 5 * point.blocks) * MIB)
    sizes = ["--crop", "40", "--rows", "8", "--extra-rows", "8"]
    options = ["--stages", "initial_training", "--dtypes", "float32", *sizes]
    assert main(["benchmark", "recompute", *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "initial_training: 40 residues, 8 rows, 8 extra rows" in lines
    rows = [line.split() for line in lines if line.startswith(("evoformer", "extra_msa", "tiny"))]
    assert [row[:3] for row in rows] == [
        [part, "float32", keep]
        for part in ("evoformer", "extra_msa", "tiny")
        for keep in ("plain,", "none", "operators", "inputs", "block")
    ]
    assert rows[0] == ["evoformer", "float32", "plain,", "none", "110", "55", "0.50", "10", "5", "0.50"]
    assert rows[2][3:7] == ["105", "55", "0.52", "5"]
    assert rows[-1][3:] == ["50", "55", "1.10"]
    whole = lines[next(index for index, line in enumerate(lines) if line.startswith("all of model_1, float32")) :]
    assert [line.split()[0] for line in whole[1:]] == ["none", "operators", "inputs", "block"]
    peaks = [float(line.split()[-1]) for line in whole[1:]]
    assert peaks == sorted(peaks, reverse=True)
