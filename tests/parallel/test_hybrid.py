"""What several ranks compute together is what one computes alone, in every layout, however it is recomputed."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from helixfold.execution.recompute import Keep
from helixfold.model.config import OuterProductPosition
from helixfold.parallel.collectives import Kind
from tests.parallel import hybrid
from tests.training.ranks import Ranks


class Alone:
    """What a process alone computes, each once."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def learned(self, order: OuterProductPosition, dtype: torch.dtype, parts: int) -> Path:
        path = self.directory / f"{order}_{dtype}_{parts}.pt"
        if not path.exists():
            hybrid.save_learned_alone(path, order, dtype, parts)
        return path

    def predicted(self, order: OuterProductPosition) -> Path:
        path = self.directory / f"{order}.pt"
        if not path.exists():
            hybrid.save_predicted_alone(path, order)
        return path


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    return Alone(tmp_path_factory.mktemp("alone"))


def run(ranks: int, output: Path, function: object, *arguments: object) -> None:
    assert callable(function)
    with Ranks(ranks, output, function, *arguments) as processes:
        assert processes.finish() == [0] * ranks, processes.printed()


@pytest.mark.parametrize(
    ("layout", "ranks", "keeps"),
    [
        ("dp=2,bp=1,dap=1", 2, ("none",)),
        ("dp=1,bp=2,dap=1", 2, ("none", "block")),
        ("dp=1,bp=1,dap=2", 2, ("none", "block")),
        pytest.param("dp=1,bp=1,dap=2", 2, ("inputs",), marks=pytest.mark.long),
        pytest.param("dp=1,bp=1,dap=4", 4, ("block",), marks=pytest.mark.long),
        pytest.param("dp=2,bp=1,dap=2", 4, ("none",), marks=pytest.mark.long),
        pytest.param("dp=2,bp=2,dap=1", 4, ("block",), marks=pytest.mark.long),
        ("dp=1,bp=2,dap=2", 4, ("block",)),
        pytest.param("dp=2,bp=2,dap=2", 8, ("block",), marks=pytest.mark.long),
    ],
)
def test_loss_and_gradients_are_those_of_one_process(
    layout: str, ranks: int, keeps: tuple[Keep, ...], alone: Alone, tmp_path: Path
) -> None:
    expected = alone.learned("end" if "bp=2" in layout else "middle", torch.float64, 2 if "dp=2" in layout else 1)
    run(ranks, tmp_path / "printed", hybrid.learn_on_ranks, layout, torch.float64, keeps, expected)


@pytest.mark.long
@pytest.mark.parametrize("layout", ["bp=2,dap=1", "bp=1,dap=2"])
def test_so_they_are_in_float32(layout: str, alone: Alone, tmp_path: Path) -> None:
    expected = alone.learned("end" if "bp=2" in layout else "middle", torch.float32, 1)
    run(2, tmp_path / "printed", hybrid.learn_on_ranks, layout, torch.float32, ("block",), expected)


@pytest.mark.parametrize(
    ("layout", "ranks", "executors"),
    [
        ("dap=2", 2, ("whole", "spilled")),
        pytest.param("dap=2", 2, ("slabs of two rows",), marks=pytest.mark.long),
        pytest.param("dap=4", 4, ("whole", "slabs"), marks=pytest.mark.long),
        pytest.param("bp=2,dap=2", 4, ("slabs",), marks=pytest.mark.long),
    ],
)
def test_predictions_are_those_of_one_process(
    layout: str, ranks: int, executors: tuple[str, ...], alone: Alone, tmp_path: Path
) -> None:
    expected = alone.predicted("end" if "bp=2" in layout else "first")
    run(ranks, tmp_path / "printed", hybrid.predict_on_ranks, layout, executors, tmp_path, expected)


def test_a_run_goes_on_in_another_layout_and_trains_what_one_process_trains(tmp_path: Path) -> None:
    for layout, ranks, steps in (("dp=2,dap=2", 4, 2), ("bp=2", 2, 4)):
        run(ranks, tmp_path / "printed", hybrid.train_on_ranks, layout, steps, tmp_path)


@pytest.mark.parametrize(
    ("layout", "kinds"),
    [("dap=2", ("all_to_all", "all_gather", "reduce_scatter")), ("bp=2", ("swap", "broadcast", "reduce"))],
)
def test_a_fault_in_any_collective_is_seen(layout: str, kinds: Sequence[Kind], alone: Alone, tmp_path: Path) -> None:
    expected = alone.learned("end" if "bp=2" in layout else "middle", torch.float64, 1)
    run(2, tmp_path / "printed", hybrid.faulty_on_ranks, layout, kinds, expected)


@pytest.mark.parametrize("order", ["first", "middle", "end"])
def test_a_block_sends_what_it_must_and_no_more(order: str, tmp_path: Path) -> None:
    run(2, tmp_path / "printed", hybrid.count_on_ranks, order)


def test_shapes_are_checked_in_every_process(tmp_path: Path) -> None:
    run(2, tmp_path / "printed", hybrid.check_on_ranks)
