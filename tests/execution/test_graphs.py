"""A replayed pass is the pass itself: its shapes choose the recording, arguments are copied in and results out."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from helixfold.execution import graphs
from helixfold.execution.graphs import MOST_RECORDINGS, Replayed, replay_structure_module
from helixfold.execution.nested import tensors, with_tensors_changed
from helixfold.execution.whole import Whole
from helixfold.model.alphafold import AlphaFold
from helixfold.model.update import Executor
from helixfold.ops.dispatch import forced
from tests.networks import random_batch, tiny_model


class FakeGraph:
    """Runs the function again, into the memory of its first results."""

    def __init__(self, run: Callable[[], Any], pool: object) -> None:
        self.run, self.memory = run, pool or object()
        self.outputs = run()

    def replay(self) -> None:
        # On a GPU no function is called at all.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(graphs, "_recording_now", True)
            again = self.run()
        for room, value in zip(tensors(self.outputs), tensors(again), strict=True):
            room.copy_(value)

    def pool(self) -> object:
        return self.memory


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakeGraph]]:
    """The graphs that are made, on the CPU."""
    made: list[FakeGraph] = []

    def record(run: Callable[[], Any], _device: torch.device, pool: object) -> tuple[FakeGraph, Any]:
        made.append(FakeGraph(run, pool))
        return made[-1], made[-1].outputs

    monkeypatch.setattr(graphs, "_record", record)
    monkeypatch.setattr(graphs, "_KIND_OF_DEVICE", "cpu")
    with torch.no_grad():
        yield made


def double(x: Tensor, *others: Any) -> tuple[Tensor, list[Any]]:
    return 2 * x, [x + 1, *others]


def test_calls_alike_are_recorded_once(recorded: list[FakeGraph]) -> None:
    replayed = Replayed(double)
    for _ in range(3):
        x = torch.randn(3)
        found, (more, word) = replayed(x, "word")
        assert torch.equal(found, 2 * x)
        assert torch.equal(more, x + 1)
        assert word == "word"
    assert len(recorded) == 1


def test_another_shape_dtype_or_value_is_recorded_anew_in_the_same_memory(recorded: list[FakeGraph]) -> None:
    replayed = Replayed(double)
    x = torch.ones(3)
    for arguments in ((x,), (x[:2],), (x.double(),), (x, 1), (x, 2), (x, (x,)), (x, [x])):
        before = len(recorded)
        assert torch.equal(replayed(*arguments)[0], 2 * arguments[0])
        assert len(recorded) == before + 1
    assert len({id(each.pool()) for each in recorded}) == 1


def test_recordings_used_last_are_kept(recorded: list[FakeGraph]) -> None:
    replayed = Replayed(double)
    for size in range(1, MOST_RECORDINGS + 1):
        replayed(torch.ones(size))
    replayed(torch.ones(1))
    replayed(torch.ones(MOST_RECORDINGS + 1))
    assert len(replayed.recordings) == MOST_RECORDINGS
    replayed(torch.ones(1))
    assert len(recorded) == MOST_RECORDINGS + 1
    replayed(torch.ones(2))
    assert len(recorded) == MOST_RECORDINGS + 2


def test_arguments_and_earlier_results_are_left_alone(recorded: list[FakeGraph]) -> None:
    def changes(x: Tensor) -> Tensor:
        return x.add_(1)

    replayed, x = Replayed(changes), torch.zeros(2)
    first, second = replayed(x), replayed(torch.ones(2))
    assert (x == 0).all()
    assert (first == 1).all()
    assert (second == 2).all()


def test_only_passes_without_gradient_on_a_gpu_are_recorded() -> None:
    replayed, x = Replayed(double), torch.ones(2, requires_grad=True)
    assert replayed.refusal(x) == "gradients may be asked for"
    assert replayed(x)[0].requires_grad
    with torch.no_grad():
        assert replayed.refusal(x) == "graphs are for cuda, not cpu"
        assert replayed.refusal(x, x.to("meta")) == "its tensors are on several devices"
        assert replayed.refusal(1) == "it is given no tensor"
        replayed(x)
    assert not replayed.recordings


def test_the_network_has_a_recording_of_its_first_pass_and_of_recycled_ones(recorded: list[FakeGraph]) -> None:
    model = tiny_model().eval()
    replay_structure_module(model)
    replayed, plain, run = Replayed(model), tiny_model().eval(), Whole()
    previous = None
    for seed in (1, 2, 3):
        found, expected = (each(run, [random_batch(seed=seed)], previous) for each in (replayed, plain))
        assert all(map(torch.equal, tensors(found), tensors(expected)))
        previous = expected.recycled()
    # None of the structure module, which is part of both.
    assert len(recorded) == 2


def structure_inputs(model: AlphaFold, run: Executor, seed: int) -> tuple[Executor, Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(seed)
    c_s, c_z = model.config.c_s, model.config.c_z
    return run, torch.randn(1, 9, c_s), torch.randn(1, 9, 9, c_z), torch.randint(0, 20, (1, 9)), torch.ones(1, 9)


def test_the_structure_module_is_replayed_and_a_copy_of_the_model_replays_its_own(recorded: list[FakeGraph]) -> None:
    model, plain, run = tiny_model().eval(), tiny_model().eval().structure_module, Whole()
    replay_structure_module(model)
    replay_structure_module(model)
    for seed in (1, 2):
        given = structure_inputs(model, run, seed)
        assert all(map(torch.equal, tensors(model.structure_module(*given)), tensors(plain(*given))))
    assert len(recorded) == 1
    other = copy.deepcopy(model)
    other.structure_module.norm_transition.bias.add_(1)
    assert not torch.equal(other.structure_module(*given).single, plain(*given).single)
    assert torch.equal(model.structure_module(*given).single, plain(*given).single)
    assert len(recorded) == 2
    # With dropout it is another one.
    model.train().structure_module(*given)
    assert len(recorded) == 3


class NoCopiesFromTheHost(TorchDispatchMode):
    """Numbers that Python makes a tensor of would be copied to the device."""

    def __torch_dispatch__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        assert function is not torch.ops.aten.lift_fresh.default
        return function(*given, **(named or {}))


@torch.no_grad()
def test_the_network_can_be_recorded() -> None:
    model, batch = tiny_model().eval(), random_batch(residues=5)
    with forced("reference"):
        # Tables are copied in the first pass.
        previous = model(Whole(), [batch]).recycled()
        with NoCopiesFromTheHost():
            model(Whole(), [batch], previous)
        # Without values, looking at one is an error.
        batch, previous = with_tensors_changed(lambda tensor: tensor.to("meta"), (batch, previous))
        model.to("meta")(Whole(), [batch], previous)
    with NoCopiesFromTheHost(), pytest.raises(AssertionError):
        torch.ones(2).new_tensor([1.0])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_replayed_network_equals_a_launched_one_on_a_gpu() -> None:
    device = torch.device("cuda")
    model = tiny_model().eval().to(device)
    replayed = Replayed(model)
    with torch.no_grad():
        for seed in (1, 2, 3):
            batch = random_batch(seed=seed)
            batch = type(batch)(**{each.name: getattr(batch, each.name).to(device) for each in fields(batch)})
            for found, expected in zip(
                tensors(replayed(Whole(), [batch])), tensors(model(Whole(), [batch])), strict=True
            ):
                torch.testing.assert_close(found, expected)
    assert len(replayed.recordings) == 1
