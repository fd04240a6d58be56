"""The network of complexes gives the same on every executor and in every layout, gradients included."""

from pathlib import Path

import pytest
import torch

from helixfold.execution import spilled
from helixfold.execution.recompute import Keep, RecomputeConfig, recompute
from helixfold.execution.slabs import Slabs
from helixfold.execution.whole import Whole
from tests.parallel import complexes
from tests.support.networks import relative_error
from tests.training.ranks import Ranks


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("alone")


def saved(alone: Path, order: str) -> Path:
    path = alone / f"{order}.pt"
    if not path.exists():
        complexes.save_alone(path, order)  # type: ignore[arg-type]
    return path


@pytest.mark.parametrize("executor", ["slabs", "slabs of two rows", "spilled"])
def test_every_executor_gives_the_same(
    executor: str, alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spilled, "MIN_BYTES", 1)
    run = {"slabs": Slabs(), "slabs of two rows": Slabs(rows=2), "spilled": spilled.Spilled(tmp_path)}[executor]
    expected, *_ = torch.load(saved(alone, "first"))
    with torch.no_grad():
        found = complexes.results(complexes.network("first").eval(), run)
    deviations = {name: relative_error(found[name], value) for name, value in expected.items()}
    assert max(deviations.values()) < 1e-5, deviations


@pytest.mark.parametrize(
    ("layout", "executors", "keeps"),
    [
        ("dap=2", ("slabs", "spilled"), ("block",)),
        pytest.param("dap=2", ("whole",), ("none",), marks=pytest.mark.long),
        pytest.param("dap=4", ("whole", "slabs"), ("inputs",), marks=pytest.mark.long),
        ("bp=2", ("whole",), ("block",)),
        pytest.param("bp=2", (), ("none",), marks=pytest.mark.long),
    ],
)
def test_every_layout_gives_the_same(
    layout: str, executors: tuple[str, ...], keeps: tuple[str, ...], alone: Path, tmp_path: Path
) -> None:
    expected = saved(alone, "end" if "bp=2" in layout else "first")
    arguments = (layout, executors, keeps, tmp_path, expected)
    ranks = int(layout[-1])
    with Ranks(ranks, tmp_path / "printed", complexes.compare_on_ranks, *arguments) as processes:
        assert processes.finish() == [0] * ranks, processes.printed()


def test_every_parameter_learns() -> None:
    model = complexes.network("first").double().train()
    complexes.learn(model, Whole())
    still = {name for name, each in model.named_parameters() if each.grad is None or not each.grad.any()}
    # The outer product comes first, so nothing reads the extra MSA after it in the last block.
    unread = tuple(
        f"extra_msa_stack.blocks.0.{update}." for update in ("row_attention", "column_attention", "msa_transition")
    )
    assert {name for name in still if not name.startswith(unread)} == set()


@pytest.mark.parametrize("keep", ["inputs", "block"])
def test_every_checkpoint_policy_gives_the_same(keep: Keep, alone: Path) -> None:
    _, loss, gradients = torch.load(saved(alone, "first"))
    model = complexes.network("first").double().train()
    recompute(model, RecomputeConfig.everywhere(keep))
    assert complexes.learn(model, Whole()) == loss
    for ours, theirs in zip(complexes.gradients(model), gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
