"""What the ranks of tests/training/test_outer_sync.py and tests/parallel/test_islands.py run."""

from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor

from helixfold.optim.config import OuterConfig
from helixfold.parallel.islands import make_islands
from helixfold.parallel.mesh import join, leave
from helixfold.training.config import TrainingConfig
from helixfold.training.stopping import StopRequest
from tests.training.runs import small_config, small_run

ISLANDS = 2


class Stop(StopRequest):
    """Asked to end from the start on."""

    def is_requested(self) -> bool:
        return True


def config(steps: int) -> TrainingConfig:
    return small_config(
        outer=OuterConfig(islands=ISLANDS, every=2), batch_size=2 * ISLANDS, steps=steps, save_every=2, dtype="bfloat16"
    )


def sums(tensor: Tensor) -> list[float]:
    return [float(tensor.double().sum()), float(tensor.double().square().sum())]


def train(directory: Path, steps: int) -> None:
    """Train; in the end parameters and their averages are the same everywhere, moments those of an island."""
    with ExitStack() as stack:
        stack.callback(leave)
        mesh = join("cpu")
        trainer = small_run(directory, config(steps), mesh=mesh)
        meetings = (steps - trainer.progress.step) // 2
        assert trainer.run(StopRequest())
        state = trainer.optimizer.tensors()
        for name in ("master", "average"):
            first, *others = mesh.all_gather(sums(state[name]))
            assert all(other == first for other in others), name
        within, moments = trainer.outer_sync.islands.within, sums(state["first_moment"])
        assert within.all_gather(moments) == [moments] * within.size
        assert len({each[1] for each in mesh.all_gather(moments)}) == ISLANDS
        working = sums(next(trainer.model.parameters()).detach())
        assert mesh.all_gather(working) == [working] * mesh.size
        least = meetings * state["master"].nbytes
        assert not mesh.is_first or least <= trainer.outer_sync.islands.sent < 1.5 * least


def stop(directory: Path) -> None:
    """One rank of one island is asked to end: all do when islands meet, after the second step."""
    with ExitStack() as stack:
        stack.callback(leave)
        mesh = join("cpu")
        trainer = small_run(directory, config(4), mesh=mesh)
        assert not trainer.run(Stop() if mesh.rank == 1 else StopRequest())
        assert trainer.progress.step == 2


def talk() -> None:
    """Four ranks in two islands: what one island has alike is summed, gathered and stacked once."""
    with ExitStack() as stack:
        stack.callback(leave)
        mesh = join("cpu")
        islands = make_islands(mesh, ISLANDS)
        within = islands.within
        assert (islands.index, within.rank, within.size) == (mesh.rank // 2, mesh.rank % 2, 2)
        assert str(within.layout) == "dp=2,bp=1,dap=1"
        own = torch.tensor([float(mesh.rank)])
        within.all_reduce(own)
        assert float(own) == (1.0 if islands.index == 0 else 5.0)
        islands.all_reduce(own)
        assert float(own) == 6.0
        assert islands.all_gather({"island": islands.index}) == [{"island": 0}, {"island": 1}]
        assert within.all_gather(mesh.rank) == [2 * islands.index, 2 * islands.index + 1]
        rows = islands.gather(torch.full((3,), islands.index))
        assert not mesh.is_first or rows.tolist() == [[0, 0, 0], [1, 1, 1]]
        sent, collected = 4 + len('{"island": 0}') * 2, 3 * 8
        assert (islands.sent, islands.gathered) == ((sent, collected) if within.is_first else (0, 0))
