"""The optimiser's benchmark times the steps that it names."""

import typing

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
        found = measure_flat(model, clipping, dtype, repeats=2)
        assert len(found.seconds) == 2
        assert not model.single.weight.equal(before)
        traffic[clipping] = found.traffic / sum(parameter.numel() for parameter in model.parameters())
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
        # Three steps of 1e-3, the same in every element: all gradients are equal.
        torch.testing.assert_close(ours.float(), theirs.float(), atol=2e-4, rtol=2**-7)


@pytest.mark.parametrize("way", ["foreach", "fused"])
def test_torchs_other_ways_move_the_parameters_too(way: str) -> None:
    model = network("tiny", CPU)
    before = model.single.weight.clone()
    assert len(measure_torch(model, repeats=2, **{way: True})) == 2
    assert not model.single.weight.equal(before)


def test_a_table_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--preset", "tiny", "--dtypes", "float32", "--repeats", "1", "--threads", "1"]
    assert main(["benchmark", "optimizer", *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "1 threads" in lines[0]
    assert "tensors" in lines[1]
    assert [line.split(",")[0] for line in lines[-6:-2]] == list(typing.get_args(Clipping))
    assert all("x" in line for line in lines[-6:-2])
