"""The cost of a short precision: nothing for float32, little for bfloat16, and a table that counts changed ranks."""

import json
from pathlib import Path

import pytest

from helixfold.benchmark.precision import Cost, PrecisionOptions, run, table, way_name


@pytest.fixture
def two_targets(tmp_path: Path) -> Path:
    path = tmp_path / "two.fasta"
    path.write_text(">one\nMKVLITGAGSGIGLAEKF\n>two\nGSSGSSGRTYEDLWQKAH\n>long\n" + "A" * 40 + "\n")
    return path


def test_each_way_stands_beside_float32(two_targets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = two_targets.with_name("costs.json")
    run(PrecisionOptions(targets=(two_targets,), max_residues=30, json=output))
    costs = [Cost(**each) for each in json.loads(output.read_text())]
    assert {cost.target for cost in costs} == {"one", "two"}
    for cost in costs:
        if cost.way.startswith("float32"):
            assert cost.rmsd < 1e-3, cost
            assert cost.pae < 1e-2, cost
        else:
            assert 1e-4 < cost.rmsd < 1, cost
    lines = capsys.readouterr().out.splitlines()
    assert [line[:32].strip() for line in lines[1:]] == list(dict.fromkeys(cost.way for cost in costs))


def test_the_table_counts_pairs_whose_order_changes() -> None:
    def costs(way: str, ranks: list[float]) -> list[Cost]:
        return [
            Cost(target=str(number), way=way, rmsd=number / 10, plddt=0.0, mean_plddt=rank, pae=0.0)
            for number, rank in enumerate(ranks)
        ]

    lines = table([*costs("float32", [1, 2, 3, 4]), *costs("bfloat16", [2, 1, 3, 4])])
    assert lines[1].endswith(" 0.00%")
    assert lines[2].endswith("16.67%")
    assert f"{0.15:13.4f}" in lines[2]
    assert way_name("bfloat16", "whole", plain=True) == "bfloat16, whole, plain PyTorch"
