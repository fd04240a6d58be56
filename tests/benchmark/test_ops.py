"""Every operator is measured, each way by the backend that its line names."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from helixfold.benchmark.block import block_flops
from helixfold.benchmark.measurement import BenchmarkDevice, Readings, Work, measure, peak_of
from helixfold.benchmark.op_cases import OpCase, Shape, op_cases
from helixfold.benchmark.ops import _ways, peers_of, unmeasured_peers
from helixfold.model.alphafold import AlphaFold
from helixfold.model.batch import Batch
from helixfold.model.outputs import Representations
from helixfold.model.update import Executor
from helixfold.ops.dispatch import Backend, operator
from tests.ops.operators import all_operators

CPU = torch.device("cpu")
SMALL = Shape(preset="tiny", residues=8, rows=4, extra_rows=5)
# How often a block does what a case does.
IN_A_BLOCK = {
    "MSA row attention": 1,
    "MSA column attention": 1,
    "triangle attention, starting node": 1,
    "triangle attention, ending node": 1,
    "triangle multiplication, outgoing": 1,
    "triangle multiplication, incoming": 1,
    "MSA transition": 1,
    "pair transition": 1,
    "outer product mean": 1,
    "norm and maps of the outer product": 1,
    "norm and map of a pair bias": 1,
}


def test_every_operator_has_a_case() -> None:
    # A loss, and no part of the network, has FAPE's errors.
    expected = all_operators().keys() - {"aligned_errors"}
    assert {op.name for case in op_cases(SMALL, "meta") for op, _ in case.calls} == expected


def test_an_operator_that_the_network_calls_has_a_row_without_being_told(monkeypatch: pytest.MonkeyPatch) -> None:
    @operator()
    def double(x: Tensor) -> Tensor:
        return 2 * x

    trunk = AlphaFold.trunk

    def changed(self: AlphaFold, run: Executor, batch: Batch, *others: Any) -> Representations:
        double(batch.msa_feat)
        return trunk(self, run, batch, *others)

    monkeypatch.setattr(AlphaFold, "trunk", changed)
    # A size that no other test has: what was recorded is remembered.
    cases = {case.name: case for case in op_cases(replace(SMALL, residues=9), CPU)}
    assert [each.shape for each in cases["double"]()] == [(1, 4, 9, 49)]


def test_the_cases_of_a_block_do_the_blocks_work() -> None:
    cases = {case.name: case for case in op_cases(Shape(), "meta")}
    for gradients in (False, True):
        flops = sum(times * cases[name].work(gradients=gradients).flops for name, times in IN_A_BLOCK.items())
        assert flops == pytest.approx(block_flops(256, 128, gradients=gradients), rel=1e-3)


def test_the_least_bytes_are_what_is_read_and_written() -> None:
    cases = {case.name: case for case in op_cases(SMALL, "meta")}
    pair = 8 * 8 * 32 * 4
    assert cases["pair and its change"].work(gradients=False).bytes == 3 * pair
    # Twice two streams read, one written, its gradient read, two gradients written.
    assert cases["pair and its change"].work(gradients=True).bytes == (4 + 1 + 1 + 2) * pair


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_case_runs_in_every_way(dtype: torch.dtype) -> None:
    for case in op_cases(replace(SMALL, dtype=dtype), CPU):
        for gradients in (False, True)[: 1 if case.in_place else 2]:
            with torch.set_grad_enabled(gradients):
                ways, notes = _ways(case, CPU, gradients=gradients)
                for way in ways.values():
                    way()
            assert list(ways)[:1] == ["plain"]
            assert list(ways)[1].startswith("ours (")
            assert not notes


def test_each_way_uses_the_backend_that_it_names() -> None:
    used: Counter[str] = Counter()

    def backend(name: str, **settings: Any) -> Backend:
        def run(x: Tensor) -> Tensor:
            used[name] += 1
            return 2 * x

        return Backend(name=name, run=run, **settings)

    @operator(
        backend("elsewhere", kinds=("cuda",)),
        backend("never", unsupported_reason=lambda properties, x: "it cannot"),
        backend("first"),
        backend("second"),
    )
    def double(x: Tensor) -> Tensor:
        used["reference"] += 1
        return 2 * x

    case = OpCase(name="double", calls=((double, (torch.ones(3, requires_grad=True),)),))
    ways, _ = _ways(case, CPU, gradients=True)
    expected = {"plain": "reference", "ours (first)": "first", "second": "second"}
    assert list(ways) == list(expected)
    for name, way in ways.items():
        used.clear()
        (gradient,) = way()
        assert used == {expected[name]: 1}
        assert (gradient == 2).all()


def test_readings_take_turns_and_a_failure_stops_nobody() -> None:
    order = ""

    def note(letter: str) -> None:
        nonlocal order
        order += letter

    def fail() -> None:
        raise RuntimeError("no such kernel")

    costs = measure({"a": lambda: note("a"), "bad": fail, "b": lambda: note("b")}, CPU, repeats=3)
    turns = [letter for letter, before in zip(order, f" {order}", strict=False) if letter != before]
    # Two rounds to get ready, three that count.
    assert "".join(turns) == 5 * "ab"
    assert costs["a"].seconds < 1e-3
    assert costs["bad"].failure == "RuntimeError: no such kernel"


def test_memory_is_what_an_action_takes() -> None:
    # Larger than any hole that earlier tests left in a heap; what other threads free meanwhile lowers a reading.
    size = 96 * 2**20
    found = max(peak_of(lambda: torch.ones(size // 4) + 1, CPU) for _ in range(3))
    assert 1.9 * size < found < 2.2 * size


def test_a_table_says_how_much_faster() -> None:
    costs = measure({"plain": lambda: None, "bad": lambda: 1 / 0}, CPU, repeats=1)
    costs["ours"] = replace(costs["plain"], seconds=costs["plain"].seconds / 2, memory=2**20)
    readings = Readings(
        part="ops",
        name="nothing",
        dtype=torch.float32,
        passes="forward",
        costs=costs,
        work=Work(flops=10**6, bytes=0),
        notes=("odd",),
    )
    machine = BenchmarkDevice(device=CPU, name="", threads=1, versions={}, load=0.0, allocator="")
    plain, bad, ours, note = readings.lines(machine)
    assert "1.00x" in plain
    assert "failed: ZeroDivisionError" in bad
    assert "2.00x" in ours
    assert note.strip() == "odd"


def test_peers_are_for_gpus() -> None:
    (case,) = (case for case in op_cases(SMALL, CPU) if case.name == "triangle multiplication, outgoing")
    assert peers_of(case, CPU) == {}
    assert all(sentence.endswith("is for GPUs") for sentence in unmeasured_peers(CPU))


def test_a_backend_that_computes_something_else_is_named() -> None:
    @operator(Backend(name="wrong", run=lambda x: 2.2 * x))
    def double(x: Tensor) -> Tensor:
        return 2 * x

    case = OpCase(name="double", calls=((double, (torch.ones(3, requires_grad=True),)),))
    _, notes = _ways(case, CPU, gradients=True)
    assert notes == ["ours (wrong) computes something else: it is off by 10% of the largest value"]


def test_a_backend_that_is_more_exact_than_the_reference_in_bfloat16_is_not_named() -> None:
    def bad_in_bfloat16(x: Tensor) -> Tensor:
        return 2 * x if x.dtype == torch.float32 else 3 * x

    for name, factor, problems in (("exact", 2, 0), ("wrong", 4, 1)):
        op = operator(Backend(name=name, run=lambda x, factor=factor: factor * x))(bad_in_bfloat16)
        case = OpCase(name=name, calls=((op, (torch.ones(3, dtype=torch.bfloat16, requires_grad=True),)),))
        _, notes = _ways(case, CPU, gradients=True)
        assert len(notes) == problems
