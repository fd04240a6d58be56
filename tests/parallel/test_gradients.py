"""Gradients in buckets, sent while others are computed, are those of one process."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from helixfold.execution.recompute import Choice, RecomputeConfig, recompute
from helixfold.execution.whole import Whole
from helixfold.optim.config import OptimizerConfig
from helixfold.optim.flat import FlatOptimizer
from helixfold.parallel import gradients
from helixfold.parallel import mesh as mesh_module
from helixfold.parallel.gradients import GradientReducer, buckets, reached_leaves
from helixfold.parallel.mesh import Group, Mesh
from tests.parallel.reducing import Branches, equal_one_process, loss, overlap, unawaited
from tests.support.networks import random_batch, tiny_model
from tests.training.ranks import Ranks


def check(function: Callable[[str], None], layout: str, ranks: int, directory: Path) -> None:
    with Ranks(ranks, directory / "out.txt", function, layout) as processes:
        assert processes.finish() == [0] * ranks, processes.printed()


def test_buckets_are_whole_rows_and_the_last_come_first() -> None:
    found = buckets(torch.arange(5000.0), 64, 2048)
    assert [(part.start, part.stop) for part in found] == [(4160, 5064), (2112, 4160), (64, 2112)]
    assert torch.cat([part.values for part in reversed(found)]).equal(torch.arange(5000.0))


@pytest.mark.integration
@pytest.mark.parametrize("keep", ["none", "inputs", "block"])
def test_what_gets_a_gradient_is_known_before(keep: Choice) -> None:
    model = tiny_model().train()
    recompute(model, RecomputeConfig.everywhere(keep))
    outputs = model(Whole(), [random_batch()])
    loss = outputs.logits.distogram.square().mean() + outputs.structure.atom14.square().mean()
    known = reached_leaves(loss)
    loss.backward()
    got = [parameter for parameter in model.parameters() if parameter.grad is not None]
    assert known == {*got}
    assert len(got) < len(list(model.parameters()))


@pytest.mark.parametrize(("clipping", "shares"), [("global", 1), ("sample", 1), ("sample", 2)])
def test_gradients_of_other_ranks_are_added_once_for_each_sample(
    clipping: str, shares: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second rank with the same gradients: every all-reduce doubles what it is given."""
    sent: list[int] = []

    def all_reduce(values: torch.Tensor, group: object, async_op: bool = False) -> None:
        sent.append(values.numel())
        values.mul_(2)

    for module in (gradients, mesh_module):
        monkeypatch.setattr(module.dist, "all_reduce", all_reduce)
    both = Group(rank=0, size=2)
    mesh = Mesh(rank=0, size=2, device=torch.device("cpu"), world=both, sample=both if shares > 1 else Group())
    sums = []
    for on in (Mesh.alone(), mesh):
        model = Branches()
        optimizer = FlatOptimizer(model, OptimizerConfig(clipping=clipping), keep_float32=("heads",))  # type: ignore[arg-type]
        reducer = GradientReducer(optimizer, on)
        for part in range(2):
            reducer.backward(loss(model, part, 0, ("msa", "pair")), last=part == 1)
        sums.append(optimizer.gradient_sum.clone())
    assert reducer.replicas == shares
    assert sums[0].count_nonzero() > 1000
    torch.testing.assert_close(sums[1], 2 * sums[0])
    # Every rank has the gradient of a sample that ranks share, which is sent for each of the two samples.
    assert sum(count for count in sent if count > 8) >= (3 if shares > 1 else 1) * sums[0].numel()


@pytest.mark.integration
@pytest.mark.parametrize("layout", ["dp=2", "bp=2", pytest.param("dp=2,bp=2", marks=pytest.mark.long)])
def test_gradients_equal_those_of_one_process(layout: str, tmp_path: Path) -> None:
    check(equal_one_process, layout, 2 ** layout.count("=2"), tmp_path)


@pytest.mark.integration
def test_buckets_are_sent_during_backward_in_one_order(tmp_path: Path) -> None:
    check(overlap, "bp=2", 2, tmp_path)


@pytest.mark.integration
def test_a_gradient_that_nothing_waited_for_is_an_error(tmp_path: Path) -> None:
    check(unawaited, "dp=2", 2, tmp_path)
