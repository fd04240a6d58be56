"""Ranks in islands talk to those near by as if alone, and to other islands through one of them."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from data_pipeline.config import ConfigError
from helixfold.parallel.islands import make_islands
from helixfold.parallel.mesh import Layout, Mesh
from tests.training.island_ranks import talk
from tests.training.ranks import Ranks


def test_one_island_is_the_mesh_itself() -> None:
    mesh = Mesh.alone()
    islands = make_islands(mesh, 1)
    assert islands.within is mesh
    tensor = torch.arange(3.0)
    islands.all_reduce(tensor)
    assert tensor.tolist() == [0.0, 1.0, 2.0]
    assert islands.all_gather("own") == ["own"]
    assert islands.gather(tensor) is tensor
    assert (islands.sent, islands.gathered) == (0, 0)


def test_islands_must_share_the_samples_equally() -> None:
    mesh = replace(Mesh.alone(), size=6, layout=Layout(dp=3, dap=2))
    with pytest.raises(ConfigError, match=r"outer.islands=2 must divide dp.* in dp=3,bp=1,dap=2"):
        make_islands(mesh, 2)


def test_four_ranks_in_two_islands_talk(tmp_path: Path) -> None:
    with Ranks(4, tmp_path / "out.txt", talk) as ranks:
        assert ranks.finish() == [0] * 4, ranks.printed()
