"""The optimiser's benchmark times the steps that it names."""

import json
import typing
from pathlib import Path

import pytest
import torch

from helixfold.benchmark.optimizer import measure_by_tensor, measure_flat, measure_torch, network
from helixfold.cli.main import main
from helixfold.optim.config import Clipping

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_way_moves_the_parameters_and_counts_its_traffic(dtype: torch.dtype) -> None:
    traffic = {}
    for clipping in typing.get_args(Clipping):
        model = network("tiny", CPU)
        before = model.single.weight.to(dtype).clone()
        cost, work = measure_flat(model, clipping, dtype, repeats=2)
        assert cost.seconds > 0
        assert not model.single.weight.equal(before)
        traffic[clipping] = work.bytes / sum(parameter.numel() for parameter in model.parameters())
    # Bytes for each parameter: 44 at least, with a rounded copy two more; padding and sums come on top.
    least = 44 if dtype == torch.float32 else 46
    assert least < traffic["none"] == traffic["global"] == traffic["adagc"] < traffic["sample"] < 2 * least


@pytest.mark.parametrize("clipping", typing.get_args(Clipping))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_work_by_tensor_is_the_same_work(clipping: Clipping, dtype: torch.dtype) -> None:
    flat, by_tensor = network("tiny", CPU), network("tiny", CPU)
    by_tensor.load_state_dict(flat.state_dict())
    measure_flat(flat, clipping, dtype, repeats=2)
    measure_by_tensor(by_tensor, clipping, dtype, repeats=2)
    for ours, theirs in zip(flat.parameters(), by_tensor.parameters(), strict=True):
        # Four steps of 1e-3, the same in every element: all gradients are equal.
        torch.testing.assert_close(ours.float(), theirs.float(), atol=2e-4, rtol=2**-7)


@pytest.mark.parametrize("way", ["foreach", "fused"])
def test_torchs_other_ways_move_the_parameters_too(way: str) -> None:
    model = network("tiny", CPU)
    before = model.single.weight.clone()
    assert measure_torch(model, repeats=2, **{way: True}).seconds > 0
    assert not model.single.weight.equal(before)


def test_a_table_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--preset", "tiny", "--dtypes", "float32", "--repeats", "1", "--threads", "1"]
    assert main(["benchmark", "optimizer", *options, "--json", str(tmp_path / "found.json")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "1 threads" in lines[0]
    kinds = typing.get_args(Clipping)
    rows = [line for line in lines if line.startswith("clipping")]
    assert [row.split()[1:3] for row in rows[:-2]] == [[kind, way] for kind in kinds for way in ("plain", "ours")]
    assert all("x" in row for row in rows[:-2])
    found = json.loads((tmp_path / "found.json").read_text())["readings"]
    assert [row["by"] for row in found] == ["plain", "ours"] * len(kinds) + ["torch, foreach", "torch, fused"]
    assert all(row["gigabytes_per_second"] > 0 for row in found[:-2])
    assert "tensors" in found[0]["name"]
