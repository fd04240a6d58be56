"""One process alone goes through every collective if it is asked to, and computes what it computes without them."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from helixfold.execution.recompute import RecomputeConfig
from helixfold.execution.slabs import Slabs
from helixfold.execution.whole import Whole
from helixfold.model.alphafold import AlphaFold
from helixfold.optim.config import OptimizerConfig
from helixfold.optim.flat import FlatOptimizer
from helixfold.parallel import axial
from helixfold.parallel.collectives import Channel, Kind, Message
from helixfold.parallel.gradients import GradientReducer
from helixfold.parallel.mesh import Group, Mesh, leave
from helixfold.parallel.parallelize import parallelize
from tests.gpu.devices import DEVICES
from tests.support.networks import random_batch, relative_error, tiny_model, to_device


@pytest.fixture(params=DEVICES)
def mesh(request: pytest.FixtureRequest) -> Iterator[Mesh]:
    backend = "nccl" if request.param == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    one = Group(handle=dist.group.WORLD)
    device = torch.device(request.param)
    yield Mesh(rank=0, size=1, device=device, world=one, data=one, branch=one, axial=one, sample=one)
    leave()


@pytest.mark.parametrize("kind", ["all_to_all", "all_gather", "reduce_scatter", "swap", "broadcast", "reduce"])
def test_every_collective_gives_a_rank_its_own_back(kind: Kind, mesh: Mesh) -> None:
    messages: list[Message] = []
    given = torch.randn(1, 3, 4, device=mesh.device)
    found, work = Channel(mesh.axial, messages).start(kind, given, root=0)
    work.wait()
    expected = {"all_gather": given[None], "reduce_scatter": given[0]}.get(kind, given)
    assert torch.equal(found, expected)
    assert messages == [(kind, 0)]


@pytest.mark.parametrize("kind", ["all_to_all", "all_gather", "swap", "broadcast"])
def test_what_is_computed_before_the_start_is_sent_and_what_follows_the_wait_sees_it(kind: Kind, mesh: Mesh) -> None:
    """Nothing is awaited by the host: on a GPU, both streams are still busy when they are given their work."""
    channel, size = Channel(mesh.axial), 256
    given = torch.eye(size, device=mesh.device)[None]
    for step in range(1, 4):
        if mesh.device.type == "cuda":
            torch.cuda._sleep(20_000_000)  # cycles, about a hundredth of a second
        under_way = channel.begin(kind, 2 * given)
        given = under_way.wait().reshape(given.shape) + step
    expected = 8 * torch.eye(size) + (4 * 1 + 2 * 2 + 3)
    assert torch.equal(given.cpu()[0], expected)


def test_gradients_pass_through_all_of_them(mesh: Mesh) -> None:
    channel = Channel(mesh.axial)
    kinds: tuple[Kind, ...] = ("all_to_all", "all_gather", "swap", "broadcast")
    for kind in kinds:
        given = torch.randn(1, 3, 4, device=mesh.device, requires_grad=True)
        (gradient,) = torch.autograd.grad(channel.begin(kind, given).wait().square().sum(), given)
        assert torch.equal(gradient, 2 * given)


@pytest.mark.integration
def test_training_through_collectives_is_training_without(mesh: Mesh) -> None:
    def learn(model: AlphaFold, on: Mesh) -> tuple[Tensor, list[Message]]:
        messages: list[Message] = []
        run = parallelize(model, on, RecomputeConfig(), messages=messages)
        optimizer = FlatOptimizer(model, OptimizerConfig(clipping="global"))
        rule = GradientReducer(optimizer, on)
        torch.manual_seed(3)
        outputs = model(run, [batch])
        rule.backward(outputs.structure.positions.square().mean() + outputs.logits.distogram.square().mean(), last=True)
        return optimizer.gradient_sum.clone(), messages

    batch = to_device(random_batch(), mesh.device)
    (expected, silent), (found, messages) = (
        learn(tiny_model().train().to(mesh.device), each) for each in (Mesh.alone(mesh.device), mesh)
    )
    assert not silent
    assert {"all_to_all", "all_gather", "reduce_scatter"} <= {kind for kind, _ in messages}
    assert expected.count_nonzero() > 1000
    assert relative_error(found, expected) < 1e-5


@pytest.mark.integration
@pytest.mark.parametrize("groups", [16, 3])
def test_so_are_predictions_in_slabs(groups: int, mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the last group of a triangle's channels is smaller than the others."""
    monkeypatch.setattr(axial, "CHANNEL_GROUPS", groups)
    model, batch = tiny_model().to(mesh.device), to_device(random_batch(), mesh.device)
    assert model.config.evoformer.c_triangle % (model.config.evoformer.c_triangle // 3) != 0
    with torch.no_grad():
        expected = model(Whole(), [batch])
        run = parallelize(model, mesh, within=Slabs(rows=3))
        found = model(run, [batch])
    assert relative_error(found.structure.positions, expected.structure.positions) < 1e-5
    assert relative_error(found.logits.distogram, expected.logits.distogram) < 1e-5
