"""Replayed graphs give what eager calls give, in any order, and never depend on memory that others use."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from helixfold.execution.graphs import GraphCache, GraphCapturer, signature
from tests.support.networks import random_batch, random_complex
from tests.support.operator_graphs import OperatorCapturer

WEIGHT = torch.linspace(-1, 1, 12).view(3, 4)


def product(inputs: tuple[Tensor, Tensor]) -> list[Tensor]:
    """A computation with a view, a temporary and a result that is one of the inputs."""
    x, y = inputs
    hidden = (x @ WEIGHT).relu_()
    return [hidden.T, hidden + y, y]


def inputs(seed: int, rows: int = 2) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 3, generator=generator), torch.randn(rows, 4, generator=generator)


def assert_equal(found: list[Tensor], expected: list[Tensor]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)


def test_the_first_call_is_eager_the_second_captured_and_all_later_ones_replayed() -> None:
    capturer = OperatorCapturer()
    graphs = GraphCache(capturer)
    given = [inputs(seed) for seed in range(5)]
    found = [graphs.run("product", product, each) for each in given]
    assert (capturer.launched, capturer.captured, capturer.replayed, graphs.replays) == (1, 1, 4, 3)
    # Read only now: no later replay has overwritten an earlier result, an input that is a result, or an input.
    for seed, each in enumerate(found):
        assert_equal(each, product(inputs(seed)))
        assert_equal([*given[seed]], [*inputs(seed)])


def test_inputs_may_be_anywhere_and_may_be_overwritten() -> None:
    def action(given: tuple[Tensor, Tensor]) -> Tensor:
        x, y = given
        return x.mul_(2) @ WEIGHT + y

    graphs = GraphCache(OperatorCapturer())
    for seed in range(4):
        x, y = inputs(seed)
        spread = torch.zeros(6, 2)[::2].T.copy_(x)  # strides of its own
        expected = 2 * x @ WEIGHT + y
        assert torch.equal(graphs.run("in place", action, (spread, y)), expected)


def test_memory_outside_is_changed_once_by_each_call_and_read_as_it_is() -> None:
    total, scale = torch.zeros(2, 4), torch.ones(())

    def action(given: tuple[Tensor, Tensor]) -> Tensor:
        total.add_(given[1] * scale)
        return total.sum()

    graphs, expected = GraphCache(OperatorCapturer()), torch.zeros(2, 4)
    for seed in range(4):
        scale.fill_(seed)
        graphs.run("sum", action, inputs(seed))
        expected += inputs(seed)[1] * seed
        assert torch.equal(total, expected)


def test_random_numbers_are_those_of_a_launch() -> None:
    def action(given: tuple[Tensor, Tensor]) -> list[Tensor]:
        return [given[1] * torch.empty_like(given[1]).bernoulli_(0.5), torch.rand(3)]

    graphs = GraphCache(OperatorCapturer())
    for seed in range(4):
        torch.manual_seed(seed)
        found = [*graphs.run("noise", action, inputs(0)), torch.rand(2)]
        torch.manual_seed(seed)
        assert_equal(found, [*action(inputs(0)), torch.rand(2)])


def test_the_graph_that_was_used_least_recently_is_dropped() -> None:
    capturer = OperatorCapturer()
    graphs = GraphCache(capturer, max_count=2)
    for rows in (1, 1, 2, 2, 1, 3, 3):
        assert_equal(graphs.run("product", product, inputs(rows, rows)), product(inputs(rows, rows)))
    assert (len(graphs), capturer.captured, graphs.replays) == (2, 3, 1)
    graphs.run("product", product, inputs(0, 1))
    assert graphs.replays == 2
    graphs.run("product", product, inputs(0, 2))  # was dropped
    assert (graphs.replays, capturer.captured) == (2, 4)
    graphs.run("another", product, inputs(0, 1))
    graphs.run("another", product, inputs(0, 1))
    assert (graphs.replays, capturer.captured) == (2, 5)
    assert graphs.clear()
    assert (len(graphs), capturer.cleared) == (0, 1)
    assert not graphs.clear()


def test_inputs_are_told_apart_by_all_but_their_values() -> None:
    batch = random_batch()
    assert signature((batch, None)) == signature((random_batch(seed=1), None))
    different = [
        (batch, batch),
        [batch, None],
        (random_batch(rows=6), None),
        (random_batch(templates=0), None),
        (random_complex(), None),
        ({"a": batch.aatype}, None),
        ({"a": batch.aatype.int()}, None),
        ({"b": batch.aatype}, None),
    ]
    assert len({signature(each) for each in [*different, (batch, None)]}) == len(different) + 1
    with pytest.raises(TypeError, match="must be tensors or hashable, got a set"):
        signature((batch, {1}))


@pytest.mark.parametrize("wait", [lambda x: x.sum().item(), lambda x: x[x > 0], lambda x: x + torch.tensor([1.0])])
def test_what_cannot_be_captured_is_eager_for_good(wait: Callable[[Tensor], Any]) -> None:
    said: list[str] = []
    capturer, total = OperatorCapturer(), torch.zeros(2, 4)
    graphs = GraphCache(capturer, say=said.append)

    def action(given: tuple[Tensor, Tensor]) -> list[Tensor]:
        total.add_(1)
        wait(given[0])
        return product(given)

    for _ in range(2):
        graphs.run("product", product, inputs(0))
    for seed in range(4):
        assert_equal(graphs.run("waits", action, inputs(seed)), product(inputs(seed)))
        assert torch.equal(total, torch.full((2, 4), seed + 1.0))
    assert (capturer.captured, len(graphs), capturer.cleared, len(said)) == (2, 0, 1, 1)
    assert "capturing one failed (RuntimeError: operation not permitted" in said[0]


def test_where_memory_does_not_suffice_for_a_graph_that_shape_is_eager() -> None:
    said: list[str] = []
    capturer = OperatorCapturer()
    graphs = GraphCache(capturer, say=said.append)
    for _ in range(2):
        graphs.run("product", product, inputs(0))
    capturer.limit = 3000
    for rows in (100, 100, 100, 1, 1, 1):
        assert_equal(graphs.run("product", product, inputs(0, rows)), product(inputs(0, rows)))
    assert (capturer.captured, len(graphs), capturer.cleared) == (3, 1, 1)
    assert said == ["too little memory to capture CUDA graphs of this size; the network runs without them"]
    assert graphs.replays == 1


def test_the_capturer_of_operators_notices_what_would_go_wrong_on_a_gpu() -> None:
    tables, given = {"freed": torch.ones(4)}, inputs(0)

    def action(given: tuple[Tensor, Tensor]) -> Tensor:
        table = tables.setdefault("made", torch.full((4,), 2.0))
        return given[1] * table * tables["freed"]

    found = OperatorCapturer().capture(lambda: action(given))
    assert found.result.isnan().all()
    assert tables["made"].isnan().all(), "a table that a capture makes is in memory which others use"
    found.replay()
    assert torch.equal(found.result, given[1] * 2)
    del tables["freed"]
    with pytest.raises(AssertionError, match="freed memory"):
        found.replay()


def test_graphs_are_captured_beside_the_current_stream_in_memory_of_their_own() -> None:
    entered: list[Any] = []

    @contextmanager
    def capture(graph: object, **named: Any) -> Iterator[None]:
        entered.append((graph, named))
        yield

    names = ("Stream", "current_stream", "CUDAGraph", "graph_pool_handle", "synchronize")
    with mock.patch.multiple(
        torch.cuda, stream=lambda _: nullcontext(), graph=capture, **dict.fromkeys(names, mock.DEFAULT)
    ) as made:
        capturer = GraphCapturer(torch.device("cuda", 0))
        stream, current = made["Stream"].return_value, made["current_stream"].return_value
        assert capturer.launch(lambda: 3) == 3
        stream.wait_stream.assert_called_once_with(current)
        current.wait_stream.assert_called_once_with(stream)
        graphs = GraphCache(capturer)
        assert [graphs.run("name", lambda _: 4, None) for _ in range(4)] == [4] * 4
        assert graphs.clear()
    assert made["graph_pool_handle"].call_count == 2
    pool, graph = made["graph_pool_handle"].return_value, made["CUDAGraph"].return_value
    assert entered == [(graph, {"pool": pool, "stream": stream, "capture_error_mode": "thread_local"})]
    assert graph.replay.call_count == 3


def test_random_numbers_go_on_after_a_failed_capture() -> None:
    generator = mock.Mock()
    names = ("Stream", "current_stream", "CUDAGraph", "graph_pool_handle", "synchronize")
    with mock.patch.multiple(
        torch.cuda,
        stream=lambda _: nullcontext(),
        graph=mock.Mock(side_effect=RuntimeError("capture failed")),
        default_generators={0: generator},
        **dict.fromkeys(names, mock.DEFAULT),
    ) as made:
        made["Stream"].return_value.device = torch.device("cuda", 0)
        said: list[str] = []
        graphs = GraphCache(GraphCapturer(torch.device("cuda", 0)), say=said.append)
        assert [graphs.run("name", lambda _: 4, None) for _ in range(3)] == [4] * 3
    generator.graphsafe_set_state.assert_called_once_with(generator.clone_state.return_value)
    assert "capture failed" in said[0]
