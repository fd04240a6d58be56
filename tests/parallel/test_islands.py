"""Ranks in islands talk to those near by as if alone, and to other islands through one of them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from data_pipeline.io.config import ConfigError
from helixfold.parallel import islands as islands_module
from helixfold.parallel import mesh as mesh_module
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
    with pytest.raises(ConfigError, match=r"outer.islands=2 must divide dp.* got dp=3,bp=1,dap=2"):
        make_islands(mesh, 2)


@pytest.mark.parametrize("rank", range(4))
def test_ranks_of_an_island_send_through_their_first(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 and 1 are an island, and 2 and 3; the collectives are recorded and leave tensors as they are."""
    handles: list[tuple[int, ...]] = []
    calls: list[tuple[str, object]] = []

    def new_group(ranks: list[int], timeout: object) -> tuple[int, ...]:
        handles.append(tuple(ranks))
        return tuple(ranks)

    def record(name: str) -> Callable[..., None]:
        return lambda *_, group, **options: calls.append((name, group))

    names = ("all_reduce", "broadcast", "gather", "broadcast_object_list", "all_gather_object")
    collectives = {name: record(name) for name in names}
    fake = SimpleNamespace(get_rank=lambda: rank, new_group=new_group, barrier=lambda: None, **collectives)
    for module in (mesh_module, islands_module):
        monkeypatch.setattr(module, "dist", fake)
    timeouts: list[tuple[float, object]] = []
    monkeypatch.setattr(
        mesh_module, "_set_pg_timeout", lambda timeout, group: timeouts.append((timeout.seconds, group))
    )
    mesh = replace(Mesh.alone(), rank=rank, size=4, layout=Layout(dp=4), timeout=9.0)
    islands = make_islands(mesh, 2)
    own = (0, 1) if rank < 2 else (2, 3)
    assert (islands.index, islands.count, islands.within.rank, islands.within.size) == (rank // 2, 2, rank % 2, 2)
    assert (islands.within.layout, islands.within.world.handle, islands.within.data.handle) == (Layout(dp=2), own, own)
    assert islands.between.world.handle == ((0, 2) if rank % 2 == 0 else None)
    assert {group: seconds for seconds, group in timeouts if group == (0, 2)} == (
        {(0, 2): 3600} if rank % 2 == 0 else {}
    )
    islands.all_reduce(torch.zeros(6))
    islands.all_gather("ab")
    islands.gather(torch.zeros(3))
    first = rank % 2 == 0
    between = [("all_reduce", (0, 2))] if first else []
    gathering = [("all_gather_object", (0, 2))] if first else []
    assert calls == [
        *between,
        ("broadcast", own),
        *gathering,
        ("broadcast_object_list", own),
        *([("gather", (0, 2))] if first else []),
    ]
    # In a ring of two, each sends half of the bytes twice: 24 of the tensor, and twice "ab" with its quotes.
    assert (islands.sent, islands.gathered) == ((24 + 8, 12) if first else (0, 0))


@pytest.mark.integration
def test_four_ranks_in_two_islands_talk(tmp_path: Path) -> None:
    with Ranks(4, tmp_path / "out.txt", talk) as ranks:
        assert ranks.finish() == [0] * 4, ranks.printed()
