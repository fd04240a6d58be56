"""Ranks, each a thread of this process, compute together what a process computes alone."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import pytest
import torch
from torch import Tensor

from helixfold.execution.slabs import Slabs
from helixfold.execution.whole import Whole
from helixfold.model.alphafold import AlphaFold
from helixfold.model.config import OuterProductPosition
from helixfold.model.update import Executor
from helixfold.parallel import axial
from helixfold.parallel.collectives import Channel, Kind, _Done
from helixfold.parallel.mesh import Group, Layout, Mesh
from helixfold.parallel.parallelize import parallelize
from tests.support.networks import random_batch, relative_error, tiny_model

RANKS = 2
Result = TypeVar("Result")


@dataclass
class Room:
    """Where the threads leave what they send, and wait for each other."""

    barrier: threading.Barrier = field(default_factory=lambda: threading.Barrier(RANKS, timeout=60))
    sent: list[tuple[Kind, Tensor]] = field(default_factory=lambda: [("swap", torch.empty(0))] * RANKS)

    def start(self, channel: Channel, kind: Kind, tensor: Tensor, root: int) -> tuple[Tensor, _Done]:
        rank = channel.group.rank
        self.sent[rank] = kind, tensor.detach().clone()
        self.barrier.wait()
        kinds, tensors = {kind for kind, _ in self.sent}, [each for _, each in self.sent]
        self.barrier.wait()
        assert kinds == {kind}
        match kind:
            case "all_to_all":
                output = torch.stack([each[rank] for each in tensors])
            case "all_gather":
                output = torch.stack(tensors)
            case "reduce_scatter":
                output = torch.stack([each[rank] for each in tensors]).sum(0)
            case "swap":
                output = tensors[1 - rank]
            case "broadcast":
                output = tensors[root]
            case "reduce":
                output = torch.stack(tensors).sum(0) if rank == root else tensors[rank]
        return output.clone(), _Done()


@pytest.fixture
def on_ranks(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], Result]], list[Result]]:
    """Call a function with the number of each rank, in a thread of its own, and return what it returns."""
    room = Room()
    monkeypatch.setattr(Channel, "start", lambda *arguments: room.start(*arguments))  # noqa: PLW0108  # binds the channel

    def call(function: Callable[[int], Result], rank: int) -> Result:
        try:
            return function(rank)
        except BaseException:
            room.barrier.abort()
            raise

    def on_ranks(function: Callable[[int], Result]) -> list[Result]:
        with ThreadPoolExecutor(RANKS) as pool:
            futures = [pool.submit(call, function, rank) for rank in range(RANKS)]
        failures = [future.exception() for future in futures]
        for failure in sorted(filter(None, failures), key=lambda each: isinstance(each, threading.BrokenBarrierError)):
            raise failure
        return [future.result() for future in futures]

    return on_ranks


def mesh(rank: int, kind: Literal["bp", "dap"]) -> Mesh:
    group = Group(rank=rank, size=RANKS)
    groups = {"branch": group} if kind == "bp" else {"axial": group}
    layout = Layout(**{kind: RANKS})
    return Mesh(rank=rank, size=RANKS, device=torch.device("cpu"), layout=layout, sample=group, **groups)


def learn(model: AlphaFold, run: Executor) -> tuple[float, Tensor]:
    """Return a loss of many outputs and the gradients of all parameters."""
    outputs = model(run, [random_batch(residues=7, rows=3, extra=5, templates=1)])
    loss = outputs.structure.positions.square().mean() + outputs.logits.distogram.square().mean()
    loss = loss + outputs.logits.masked_msa.square().mean()
    loss.backward()
    gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in model.parameters()]
    return float(loss.detach()), torch.cat([each.flatten() for each in gradients])


@pytest.mark.parametrize(("kind", "order"), [("dap", "middle"), ("bp", "end")])
def test_gradients_are_those_of_a_process_alone(
    kind: Literal["bp", "dap"], order: OuterProductPosition, on_ranks: Callable[..., list[tuple[float, Tensor]]]
) -> None:
    loss, gradients = learn(tiny_model(order), Whole())
    models = [tiny_model(order) for _ in range(RANKS)]
    # Seven residues do not divide by two.
    found = on_ranks(lambda rank: learn(models[rank], parallelize(models[rank], mesh(rank, kind))))
    assert [each for each, _ in found] == pytest.approx([loss] * RANKS, rel=1e-4)
    assert gradients.count_nonzero() > 1000
    assert relative_error(sum(each for _, each in found) / RANKS, gradients) < 1e-4


def test_predictions_in_slabs_are_those_of_a_process_alone(
    on_ranks: Callable[..., list[Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(axial, "CHANNEL_GROUPS", 1)
    batch = random_batch(residues=7, rows=3, extra=5, templates=1)

    def predicted(model: AlphaFold, run: Executor) -> Tensor:
        with torch.no_grad():
            outputs = model(run, [batch])
        return torch.cat([outputs.structure.positions.flatten(), outputs.logits.distogram.flatten()])

    expected = predicted(tiny_model(), Whole())
    models = [tiny_model() for _ in range(RANKS)]
    found = on_ranks(
        lambda rank: predicted(models[rank], parallelize(models[rank], mesh(rank, "dap"), within=Slabs(rows=2)))
    )
    for each in found:
        assert relative_error(each, expected) < 1e-5
