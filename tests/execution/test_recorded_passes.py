"""Passes that are replayed are those that are launched, bit for bit."""

from collections.abc import Callable

import pytest
import torch

from helixfold.execution.graphs import Recordings
from helixfold.execution.nested import tensors
from helixfold.execution.recorded_passes import (
    LAUNCH_BOUND_RESIDUES,
    Passes,
    bucket_size,
    graphs_unsupported_reason,
    passes_on,
)
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
from tests.support.operator_graphs import OperatorRecorder

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
        ("monomer", torch.bfloat16, 1),
        ("without templates", torch.bfloat16, 2),
        ("multimer", torch.float32, 2),
    ],
)
@torch.no_grad()
def test_replayed_passes_are_those_that_are_launched(name: str, dtype: torch.dtype, members: int) -> None:
    make, draw = NETWORKS[name]
    model, recorder = make().eval(), OperatorRecorder()
    passes = Passes(Recordings(recorder))

    def result(through: Passes | None) -> list[torch.Tensor]:
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
        found = [result(passes) for _ in range(2)]
    for each in found:
        for ours, theirs in zip(each, expected, strict=True):
            assert torch.equal(ours, theirs)
    assert (recorder.launched, recorder.recorded, passes.replays) == (1, 1, 6)


@torch.no_grad()
def test_backends_of_replayed_passes_are_those_that_computed_while_they_were_recorded() -> None:
    model, batch, passes = tiny_model().eval(), random_batch(), Passes(Recordings(OperatorRecorder()))
    found = []
    for _ in range(3):  # launched, recorded, replayed
        with forced("reference"), recorded_backends() as backends:
            passes(model, Whole(), [batch], None, torch.float32)
        found.append(backends)
    assert passes.replays == 1
    assert found[0]["self_attention"] == {"reference"}
    assert found[0] == found[1] == found[2]


@torch.no_grad()
def test_each_model_and_dtype_has_its_own_recording() -> None:
    passes, batch = Passes(Recordings(OperatorRecorder())), random_batch()
    ways = [(tiny_model(seed=seed), dtype) for seed in (0, 1) for dtype in (torch.float32, torch.bfloat16)]
    with forced("reference"):
        for _ in range(3):
            for model, dtype in ways:
                found = passes(model, Whole(), [batch], None, dtype)
                expected = model.fold(Whole(), [batch], None, dtype)
                assert torch.equal(found.structure.positions, expected.structure.positions)
    assert passes.replays == len(ways)


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
def test_only_short_passes_of_whole_streams_are_recorded() -> None:
    recorder, model = OperatorRecorder(), tiny_model()
    recordings = Recordings(recorder)
    passes, done = Passes(recordings), []
    with forced("reference"), passes.reporting(lambda: done.append(1)):
        for _ in range(3):
            passes(model, Whole(), [random_batch()], None, torch.float32)
        assert (len(recordings), len(done)) == (1, 1)
        # Long passes may need the memory.
        passes(model, Slabs(), [random_batch()], None, torch.float32)
        assert (len(recordings), recorder.launched, recorder.cleared) == (0, 1, 1)
    most = LAUNCH_BOUND_RESIDUES
    assert passes.records(Whole(), 1, most)
    assert passes.records(Whole(), 4, most // 2)
    assert not passes.records(Whole(), 1, most + 1)
    assert not passes.records(Whole(), 5, most // 2)
    assert not Passes().records(Whole(), 1, 16)


def test_nothing_is_recorded_where_there_are_no_graphs() -> None:
    assert graphs_unsupported_reason(DEVICE_MODELS["h100"]) is None
    assert graphs_unsupported_reason(DEVICE_MODELS["cpu"]) == "only NVIDIA GPUs have them"
    assert graphs_unsupported_reason(DEVICE_MODELS["h100"], "off") == "--cuda-graphs is off"
    assert "exchange data" in str(graphs_unsupported_reason(DEVICE_MODELS["h100"], ranks=2))
    assert not passes_on(torch.device("cpu")).records(Whole(), 1, 16)


def test_sizes_of_recordings_are_few() -> None:
    sizes = [bucket_size(count) for count in range(1, 513)]
    assert sizes == sorted(sizes)
    assert len(set(sizes)) == 4 * 4
    assert all(count <= size <= max(16, 1.25 * count + 15) for count, size in enumerate(sizes, 1))
    assert {bucket_size(size) for size in sizes} == set(sizes)
