"""Replayed recycling iterations equal eager ones, bit for bit."""

from collections.abc import Callable

import pytest
import torch

from helixfold.execution import iteration_runner
from helixfold.execution.graphs import GraphCache
from helixfold.execution.iteration_runner import (
    LAUNCH_BOUND_RESIDUES,
    IterationRunner,
    bucket_size,
    graphs_unsupported_reason,
    launch_bound_elements,
    runner_for,
)
from helixfold.execution.nested import tensors
from helixfold.execution.slabs import Slabs
from helixfold.execution.whole import Whole
from helixfold.model.alphafold import AlphaFold
from helixfold.model.batch import Batch
from helixfold.model.outputs import Recycled, nothing_recycled
from helixfold.ops.device_properties import DEVICE_MODELS
from helixfold.ops.dispatch import forced, recorded_backends
from tests.support.networks import (
    random_batch,
    random_complex,
    tiny_model,
    tiny_multimer_config,
    with_every_parameter_random,
)
from tests.support.operator_graphs import OperatorCapturer

NETWORKS: dict[str, tuple[Callable[[], AlphaFold], Callable[[int], Batch]]] = {
    "monomer": (tiny_model, lambda seed: random_batch(seed=seed)),
    "without templates": (tiny_model, lambda seed: random_batch(seed=seed, templates=0)),
    "multimer": (
        lambda: with_every_parameter_random(tiny_multimer_config()),
        lambda seed: random_complex(("ABA", "AAB", "ABC")[seed % 3], seed=seed),
    ),
}


@pytest.mark.parametrize(
    ("name", "dtype", "members"),
    [
        pytest.param("monomer", torch.bfloat16, 1, marks=pytest.mark.long),
        pytest.param("without templates", torch.bfloat16, 2, marks=pytest.mark.long),
        ("multimer", torch.float32, 2),
    ],
)
@torch.no_grad()
def test_replayed_iterations_equal_eager_ones(name: str, dtype: torch.dtype, members: int) -> None:
    make, draw = NETWORKS[name]
    model, capturer = make().eval(), OperatorCapturer()
    runner = IterationRunner(GraphCache(capturer))

    def result(through: IterationRunner | None) -> list[torch.Tensor]:
        previous: Recycled | None = None
        for cycle in range(4):
            ensemble = [draw(cycle * members + member) for member in range(members)]
            if through is None:
                folded = model.fold(Whole(), ensemble, previous, dtype)
            else:
                folded = through(model, Whole(), ensemble, previous, dtype)
            if cycle < 3:
                previous = folded.recycled()
        return list(tensors(folded))

    with forced("reference"):
        expected = result(None)
        found = [result(runner) for _ in range(2)]
    for each in found:
        for ours, theirs in zip(each, expected, strict=True):
            assert torch.equal(ours, theirs)
    assert (capturer.launched, capturer.captured, runner.replays) == (1, 1, 6)


@torch.no_grad()
def test_backends_of_replayed_iterations_are_the_backends_of_the_capture() -> None:
    model, batch, runner = tiny_model().eval(), random_batch(), IterationRunner(GraphCache(OperatorCapturer()))
    found = []
    for _ in range(3):  # eager, captured, replayed
        with forced("reference"), recorded_backends() as backends:
            runner(model, Whole(), [batch], None, torch.float32)
        found.append(backends)
    assert runner.replays == 1
    assert found[0]["self_attention"] == {"reference"}
    assert found[0] == found[1] == found[2]


@torch.no_grad()
def test_each_model_and_dtype_has_its_own_graph() -> None:
    runner, batch = IterationRunner(GraphCache(OperatorCapturer())), random_batch()
    models = [tiny_model(seed=seed) for seed in (0, 1)]
    ways = [(models[0], torch.float32), (models[1], torch.float32), (models[0], torch.bfloat16)]
    with forced("reference"):
        expected = [model.fold(Whole(), [batch], None, dtype).structure.positions for model, dtype in ways]
        for _ in range(3):
            for (model, dtype), positions in zip(ways, expected, strict=True):
                found = runner(model, Whole(), [batch], None, dtype)
                assert torch.equal(found.structure.positions, positions)
    assert runner.replays == len(ways)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_recycling_nothing_is_recycling_zeros(name: str, dtype: torch.dtype) -> None:
    make, draw = NETWORKS[name]
    model, batch = make().eval(), draw(0)
    expected = model.fold(Whole(), [batch], None, dtype)
    found = model.fold(Whole(), [batch], nothing_recycled(Whole(), model.config, batch.seq_mask, dtype), dtype)
    for ours, theirs in zip(tensors(found), tensors(expected), strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)
    recycled, zeros = expected.recycled(), nothing_recycled(Whole(), model.config, batch.seq_mask, dtype)
    assert [each.shape for each in tensors(recycled)] == [each.shape for each in tensors(zeros)]
    assert [each.dtype for each in tensors(recycled)] == [each.dtype for each in tensors(zeros)]


@torch.no_grad()
def test_only_short_iterations_of_whole_streams_are_captured() -> None:
    capturer, model = OperatorCapturer(), tiny_model()
    graphs = GraphCache(capturer)
    runner, done = IterationRunner(graphs), []
    with forced("reference"), runner.reporting(lambda: done.append(1)):
        for _ in range(3):
            runner(model, Whole(), [random_batch()], None, torch.float32)
        assert (len(graphs), len(done)) == (1, 1)
        # Long iterations may need the memory.
        runner(model, Slabs(), [random_batch()], None, torch.float32)
        assert (len(graphs), capturer.launched, capturer.cleared) == (0, 1, 1)
    most = LAUNCH_BOUND_RESIDUES
    assert runner.captures(Whole(), 1, most)
    assert runner.captures(Whole(), 4, most // 2)
    assert not runner.captures(Whole(), 1, most + 1)
    assert not runner.captures(Whole(), 5, most // 2)
    assert not IterationRunner().captures(Whole(), 1, 16)


@torch.no_grad()
def test_longer_chains_are_captured_while_the_gpu_waits_for_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iteration_runner, "LAUNCH_BOUND_RESIDUES", 12)
    model, batch, deeper = tiny_model().eval(), random_batch(), random_batch(rows=6)  # 13 residues, 5 rows
    capturer = OperatorCapturer()
    runner = IterationRunner(GraphCache(capturer), 13 * (128 * 13 + 256 * 5))
    with forced("reference"):
        found = [runner(model, Whole(), [batch], None, torch.float32).structure.positions for _ in range(3)]
        expected = model.fold(Whole(), [batch], None, torch.float32).structure.positions
        for _ in range(3):
            runner(model, Whole(), [deeper], None, torch.float32)
    assert all(torch.equal(each, expected) for each in found)
    assert (capturer.captured, runner.replays, capturer.cleared) == (1, 1, 1)
    assert not runner.captures(Whole(), 2, 13)


def test_the_gpu_and_the_msa_determine_how_long_captured_chains_are() -> None:
    longest = {
        (name, rows): max(residues for residues in range(1025) if runner.captures(Whole(), 1, residues, rows))
        for name in ("t4", "a100", "h100")
        for runner in [IterationRunner(GraphCache(OperatorCapturer()), launch_bound_elements(DEVICE_MODELS[name]))]
        for rows in (1, 512)
    }
    assert longest == {
        ("t4", 1): 256,
        ("t4", 512): 256,
        ("a100", 1): 516,
        ("a100", 512): 256,
        ("h100", 1): 738,
        ("h100", 512): 387,
    }
    fast = IterationRunner(GraphCache(OperatorCapturer()), 2**40)
    assert fast.captures(Whole(), 1, 1024, 512)
    assert not fast.captures(Whole(), 1, 1025, 1)


def test_nothing_is_captured_where_there_are_no_graphs() -> None:
    assert graphs_unsupported_reason(DEVICE_MODELS["h100"]) is None
    assert graphs_unsupported_reason(DEVICE_MODELS["cpu"]) == "only NVIDIA GPUs have them"
    assert graphs_unsupported_reason(DEVICE_MODELS["h100"], "off") == "--cuda-graphs is off"
    assert "exchange data" in str(graphs_unsupported_reason(DEVICE_MODELS["h100"], ranks=2))
    assert not runner_for(torch.device("cpu")).captures(Whole(), 1, 16)


def test_sizes_of_graphs_are_few() -> None:
    sizes = [bucket_size(count) for count in range(1, 513)]
    assert sizes == sorted(sizes)
    assert len(set(sizes)) == 4 * 4
    assert all(count <= size <= max(16, 1.25 * count + 15) for count, size in enumerate(sizes, 1))
    assert {bucket_size(size) for size in sizes} == set(sizes)
