"""The memory model against hand counts, contexts as they are made, and one measured pass."""

import multiprocessing
from dataclasses import replace

import pytest
import torch

from helixfold.cli.benchmark_timing import settle
from helixfold.config import ModelConfig
from helixfold.execution.allocator import OF_SLABS, freed_memory_kept
from helixfold.execution.memory import EXECUTORS, PassSize, floor, predicted
from helixfold.execution.random_inputs import random_batch
from helixfold.execution.slabs import Slabs
from helixfold.presets import model_1_ptm
from helixfold.stages import peak_memory, reset_peak_memory
from helixfold.weights.untrained import untrained_model
from tests.networks import tiny_config

MODEL = model_1_ptm().model
SIZE = PassSize(residues=1024, msa_rows=124, extra_rows=512, templates=4, dtype=torch.float32)
MIB = 2**20


def test_the_floor_is_two_pair_tensors_and_both_alignments() -> None:
    assert floor(MODEL, SIZE) == (2 * 512 + 128 + 128) * MIB
    assert floor(MODEL, replace(SIZE, dtype=torch.bfloat16)) == (512 + 64 + 64) * MIB


def test_slabs_hold_stream_context_and_alignment() -> None:
    stages = predicted(MODEL, SIZE, "slabs", "cuda").stages
    # Features of the alignments and templates, the pair's mask, and two thirds of 8 million numbers.
    batch = 1024 * (22 * 4 + 16 + 124 * 50 * 4 + 512 * 20 + 4 * (8 + 152 * 4))
    assert stages["Evoformer"] == (512 + 128 + 512 + 4) * MIB + batch + int(2 / 3 * 32 * MIB)
    # A template and its context instead of the Evoformer's, the mean of values, three times the logits of four heads.
    assert stages["templates"] - stages["embedding"] == (256 + 256 - 512 + 256 + 3 * 16) * MIB


def test_a_deep_extra_alignment_has_the_largest_context() -> None:
    deep = replace(SIZE, extra_rows=5120, residues=256)
    (more, stream), (less, thin) = (
        (predicted(MODEL, size, "slabs", "cuda").stages["extra MSA"], size.extra_rows * 256 * 64 * 4)
        for size in (deep, replace(deep, extra_rows=1024))
    )
    # The right half and its mask, the features, and four times 13 rows of the left half instead of other temporaries.
    halves = 4 * 13 * 5120 * 32 * 4 - int(2 / 3 * 32 * MIB)
    assert more - less - (stream - thin) == 4096 * 256 * (32 * 4 + 4) + 4096 * 256 * 20 + halves


def test_spilled_streams_are_elsewhere() -> None:
    slabs, spilled = (predicted(MODEL, SIZE, name, "cuda") for name in ("slabs", "spilled"))
    assert spilled.spilled == (512 + 2 * 256) * MIB
    assert slabs.spilled == 0
    assert spilled.peak < 0.65 * slabs.peak


def test_each_rank_holds_its_part_of_the_streams() -> None:
    shared = replace(SIZE, ranks=4)
    assert floor(MODEL, shared) == floor(MODEL, SIZE) // 4
    # The last rows are padding.
    assert floor(MODEL, replace(SIZE, ranks=3)) == floor(MODEL, SIZE) * 342 // 1024
    one, four = (predicted(MODEL, size, "slabs", "cuda").stages["Evoformer"] for size in (SIZE, shared))
    streams_and_context, temporaries = (512 + 128 + 512) * MIB, 2 * 32 * MIB // 3
    assert one - four == pytest.approx((streams_and_context + temporaries) * 3 // 4, abs=4)
    assert predicted(MODEL, shared, "spilled").spilled == predicted(MODEL, SIZE, "spilled").spilled // 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("config", [MODEL, tiny_config(), replace(MODEL, template=None)])
def test_peaks_grow_with_every_size_and_fall_from_executor_to_executor(config: ModelConfig, dtype: torch.dtype) -> None:
    size = replace(SIZE, dtype=dtype)
    peaks = [predicted(config, size, name).peak for name in EXECUTORS]
    assert peaks == sorted(peaks, reverse=True)
    for name, peak in zip(EXECUTORS, peaks, strict=True):
        larger = [
            replace(size, residues=1100),
            replace(size, msa_rows=2000),
            replace(size, extra_rows=5120),
            replace(size, ensemble=9),
        ]
        assert all(predicted(config, each, name).peak > peak for each in larger)


def test_an_unknown_executor_is_refused() -> None:
    with pytest.raises(ValueError, match="must be one of whole, slabs, spilled, got 'eager'"):
        predicted(MODEL, SIZE, "eager")


def _peak() -> int:
    torch.set_num_threads(2)
    device = torch.device("cpu")
    model = untrained_model(tiny_config(), seed=0).requires_grad_(False)

    def run(residues: int) -> None:
        batch = random_batch(residues, 60, 128, 1, device)
        executor = Slabs()
        first = model.fold(executor, [batch]).recycled()
        model.fold(executor, [batch], first)

    with torch.no_grad(), freed_memory_kept(OF_SLABS):
        run(8)
        settle()
        reset_peak_memory(device)
        start = peak_memory(device)
        run(160)
        return peak_memory(device) - start


def test_a_measured_pass_takes_about_what_is_predicted() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.apply(_peak)
    size = PassSize(residues=160, msa_rows=60, extra_rows=128, templates=1, dtype=torch.float32)
    assert found == pytest.approx(predicted(tiny_config(), size, "slabs").peak, rel=0.4)
