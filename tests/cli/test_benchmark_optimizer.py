"""The optimiser's benchmark times the steps that it names."""

import typing

import pytest
import torch

from helixfold.cli.benchmark_optimizer import PEERS, measure_flat, measure_peer, network
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


@pytest.mark.parametrize("name", PEERS)
def test_peers_move_the_parameters_too(name: str) -> None:
    model = network("tiny", CPU)
    before = model.single.weight.clone()
    assert len(measure_peer(model, name, repeats=2).seconds) == 2
    assert not model.single.weight.equal(before)


def test_a_table_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--preset", "tiny", "--dtypes", "float32", "--repeats", "1", "--threads", "1"]
    assert main(["benchmark", "optimizer", *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "1 threads" in lines[0]
    assert "tensors" in lines[1]
    assert [line.split(",")[0] for line in lines[-7:]] == ["torch"] * 3 + ["flat"] * 4
