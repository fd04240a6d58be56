"""Forecasts of predictions are counted: they follow sizes, executors, cards and ranks, and meet a measured pass."""

import multiprocessing
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest
import torch

from helixfold.benchmark.measurement import settle
from helixfold.execution import slabs
from helixfold.execution.allocator import SLABS_MMAP_THRESHOLD, keeping_freed_memory
from helixfold.execution.counter import Counter
from helixfold.execution.random_inputs import random_batch
from helixfold.execution.slabs import Slabs
from helixfold.execution.spilled import Spilled
from helixfold.execution.stages import peak_memory, reset_peak_memory
from helixfold.execution.whole import Whole
from helixfold.model.alphafold import AlphaFold
from helixfold.model.batch import Batch
from helixfold.model.config import Method, ModelConfig
from helixfold.model.outputs import nothing_recycled
from helixfold.model.presets import preset
from helixfold.model.update import Executor
from helixfold.ops.device_properties import DEVICE_MODELS, DeviceProperties, simulated_device
from helixfold.planning import passes
from helixfold.planning.executors import EXECUTORS
from helixfold.planning.passes import META, prediction_memory
from helixfold.planning.size import PassSize, floor
from helixfold.weights.untrained import untrained_model
from tests.support.live import Live
from tests.support.networks import random_complex, tiny_config, tiny_multimer_config

MODEL = preset("model_1_ptm").model
SIZE = PassSize(residues=1024, msa_rows=124, extra_rows=512, templates=4, dtype=torch.float32)
MIB = 2**20
CPU, H200 = DEVICE_MODELS["cpu"], DEVICE_MODELS["h200"]


def test_the_floor_is_two_pair_tensors_and_both_alignments() -> None:
    assert floor(MODEL, SIZE) == (2 * 512 + 128 + 128) * MIB
    assert floor(MODEL, replace(SIZE, dtype=torch.bfloat16)) == (512 + 64 + 64) * MIB
    assert floor(MODEL, replace(SIZE, ranks=4)) == floor(MODEL, SIZE) // 4


def test_slabs_hold_stream_context_and_alignment() -> None:
    stages = prediction_memory(MODEL, SIZE, "slabs", H200).stages
    # Pair, alignment and a triangle's operand; features, masks and a slab's temporaries are small beside them.
    assert (512 + 128 + 512) * MIB < stages["Evoformer"] < 1.1 * (512 + 128 + 512) * MIB


def test_spilled_streams_are_elsewhere() -> None:
    slabs, spilled = (prediction_memory(MODEL, SIZE, name, CPU) for name in ("slabs", "spilled"))
    # The pair stream, a template's and the mean of values.
    assert spilled.spilled == (512 + 2 * 256) * MIB
    assert slabs.spilled == 0
    assert spilled.peak < 0.65 * slabs.peak


def test_each_rank_holds_its_part_of_the_streams() -> None:
    size = replace(SIZE, templates=0)
    one, four = (
        prediction_memory(MODEL, replace(size, ranks=ranks), "slabs", H200).stages["Evoformer"] for ranks in (1, 4)
    )
    # A part of each of two streams, and what is gathered at a time.
    assert 1 / 4 < four / one < 0.36


def test_ranks_without_extra_rows_are_forecast() -> None:
    size = replace(SIZE, residues=60, extra_rows=0, templates=1)
    one, two = (prediction_memory(tiny_config(), replace(size, ranks=ranks), "slabs", CPU).peak for ranks in (1, 2))
    assert 0.4 < two / one < 0.9


@pytest.mark.parametrize(
    ("name", "properties"),
    [("whole", H200), *(pytest.param(name, CPU, marks=pytest.mark.long) for name in ("slabs", "spilled"))],
)
def test_peaks_grow_with_every_size(name: str, properties: DeviceProperties) -> None:
    # As many residues as need more than one slab.
    config = tiny_config().with_settings(["evoformer.blocks=1", "structure.layers=1"])
    size = replace(SIZE, residues=300, templates=1, dtype=torch.bfloat16)
    peak = prediction_memory(config, size, name, properties).peak
    for larger in (
        replace(size, residues=400),
        replace(size, msa_rows=500),
        replace(size, extra_rows=1536),
        replace(size, ensemble=3),
    ):
        assert prediction_memory(config, larger, name, properties).peak > peak


@pytest.mark.long
def test_ten_thousand_residues_are_forecast() -> None:
    """Nothing of that size is allocated."""
    size = replace(SIZE, residues=10_000, msa_rows=508, extra_rows=1024, templates=0, dtype=torch.bfloat16)
    found = {each: prediction_memory(MODEL, size, each, H200) for each in EXECUTORS}
    pair = 10_000**2 * 128 * 2
    assert 2 * pair < found["slabs"].peak < 2.5 * pair
    assert found["spilled"].peak < found["slabs"].peak < found["whole"].peak


def test_all_blocks_and_iterations_of_a_pass_take_what_two_do() -> None:
    """Counted whole: no number of the forecast is left out."""
    config, size = tiny_config(), replace(SIZE, residues=60, templates=3, extra_rows=40)
    structure = replace(config.structure, layers=8)
    config = replace(config, evoformer=replace(config.evoformer, blocks=5), structure=structure)
    with simulated_device(H200), META, torch.no_grad():
        model = AlphaFold(config).eval()
        with Counter() as counter:
            model.evoformer.register_forward_hook(lambda *_: counter.begin("structure"))
            batch = random_batch(size.residues, size.msa_rows, size.extra_rows, size.templates, META)
            previous = model.fold(Whole(), [batch]).recycled()
            counter.begin("")
            model.fold(Whole(), [batch], previous)
            counter.begin("")
    forecast = prediction_memory(config, size, "whole", H200)
    assert max(peak for name, peak in forecast.stages.items() if name != "confidence") == pytest.approx(
        max(counter.peaks.values()), rel=0.02
    )
    assert forecast.stages["structure"] == pytest.approx(counter.peaks["structure"], rel=0.03)


@pytest.mark.parametrize(
    ("properties", "budget"),
    [(CPU, None), (H200, 2**24), pytest.param(DEVICE_MODELS["t4"], 2**24, marks=pytest.mark.long)],
)
def test_a_forecast_does_not_depend_on_what_was_counted_before(
    properties: DeviceProperties, budget: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config().with_settings(["evoformer.blocks=1", "structure.layers=2"])
    size, forecast = replace(SIZE, residues=500, templates=0), prediction_memory.__wrapped__
    monkeypatch.setattr(slabs, "_row_bytes", {})
    first, again = (forecast(config, size, "slabs", properties, budget) for _ in range(2))
    assert first == again
    # Nor on shorter chains: without kernels, a row of invariant point attention takes more in a longer chain.
    monkeypatch.setattr(slabs, "_row_bytes", {})
    forecast(config, replace(size, residues=60), "slabs", properties, budget)
    assert forecast(config, size, "slabs", properties, budget) == first


@pytest.mark.long
def test_a_spilled_estimate_does_not_depend_on_an_earlier_one_in_slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of spilled streams take memory of their own, those of others do not."""
    size, estimate = replace(SIZE, residues=1500, dtype=torch.bfloat16), prediction_memory.__wrapped__
    found = []
    for earlier in ((), ("slabs",)):
        monkeypatch.setattr(slabs, "_row_bytes", {})
        for name in earlier:
            estimate(MODEL, size, name, H200)
        found.append(estimate(MODEL, size, "spilled", H200))
    assert found[0] == found[1]


def test_an_added_chain_costs_what_a_longer_chain_costs() -> None:
    """Counted: the bytes, products and launches of a pass depend on the number of residues, not on their chains."""
    config = tiny_multimer_config()
    model, costs = untrained_model(config, seed=0), {}
    for chains in ("A", "AB", "AAB", "ABCD"):
        batch = random_complex(chains, residues=24)
        with torch.no_grad():
            previous = model.fold(Whole(), [batch]).recycled()
            with Counter() as counter:
                model.fold(Whole(), [batch], previous)
        costs[chains] = counter.peak, counter.products, counter.moved, counter.launches
    assert len(set(costs.values())) == 1, costs
    # So does the forecast, which is that of a monomer but for the embedding of chains and templates.
    size = replace(SIZE, residues=240, templates=2)
    found = [prediction_memory(each, size, "slabs", H200).peak for each in (config, tiny_config("first"))]
    assert found[0] == pytest.approx(found[1], rel=0.02)


# Methods, residues, and executors in the order in which they are measured.
MEASURED: tuple[tuple[Method, int, tuple[str, ...]], ...] = (
    ("monomer", 112, ("slabs", "spilled", "whole")),
    ("multimer", 150, ("whole",)),
)


def _measured_case(method: Method, residues: int) -> tuple[ModelConfig, PassSize]:
    config = tiny_config() if method == "monomer" else tiny_multimer_config()
    size = PassSize(residues=residues, msa_rows=60, extra_rows=128, templates=1, dtype=torch.float32)
    return config, size


def _random(size: PassSize, method: Method) -> Batch:
    sizes = size.residues, size.msa_rows, size.extra_rows, size.templates
    return random_batch(*sizes, torch.device("cpu"), method=method)


def _make_pass(model: AlphaFold, batch: Batch, executor: Executor) -> None:
    with torch.no_grad():
        model.fold(executor, [batch], nothing_recycled(executor, model.config, batch.seq_mask, torch.float32))


@pytest.mark.parametrize(
    ("method", "name"),
    [("monomer", "slabs"), *(pytest.param(each, "whole", marks=pytest.mark.long) for each in ("monomer", "multimer"))],
)
def test_forecast_is_what_the_tensors_of_a_pass_hold(
    method: Method, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without what a CPU's heap and libraries take in addition, which no tensor shows."""
    monkeypatch.setattr(passes, "_OF_THREAD_IN_PREDICTION", 0)
    monkeypatch.setattr(passes, "_idle", lambda *_, **__: 0)
    monkeypatch.setattr(passes.loops, "numba_bytes", lambda *_: 0)
    residues = next(residues for each, residues, _ in MEASURED if each == method)
    config, size = _measured_case(method, residues)
    model, executor = untrained_model(config, seed=0).requires_grad_(False), Slabs() if name == "slabs" else Whole()
    _make_pass(model, _random(size, method), executor)  # makes the tables that stay in memory
    with Live() as live:
        _make_pass(model, _random(size, method), executor)
    assert prediction_memory.__wrapped__(config, size, name, CPU).peak == pytest.approx(live.peak, rel=0.1)


def _measured_peaks(spill: Path) -> dict[tuple[Method, str], int]:
    """For each method and executor, the bytes that a pass takes in this process."""
    torch.set_num_threads(1)
    device = torch.device("cpu")
    executors = {"slabs": Slabs(), "spilled": Spilled(spill), "whole": Whole()}
    found = {}
    for method, residues, names in MEASURED:
        config, size = _measured_case(method, residues)
        model, batch = untrained_model(config, seed=0).requires_grad_(False), _random(size, method)
        with keeping_freed_memory(SLABS_MMAP_THRESHOLD):
            for name in ("slabs", *names):  # the first counts for nothing
                settle()
                reset_peak_memory(device)
                start = peak_memory(device)
                _make_pass(model, batch, executors[name])
                found[method, name] = peak_memory(device) - start
    return found


# Forecasts may be higher rather than lower. Unused memory of the heap differs from process to process: in ten of them,
# the forecast was 0.92 to 1.34 times what a pass took, 1.15 to 1.22 times in the mean. It is forecast as a share of all
# tensors, which small passes do not reach: for a complex of 250 residues, "whole" was 0.79 to 1.00 times as high.
LEAST, MOST = 1.0, 1.5


@pytest.mark.long  # reads the memory of processes
def test_a_measured_pass_takes_about_what_is_forecast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the mean of three processes of its own, whose heaps are as in a run, or of up to eight where these differ."""
    # Kernels that every pass makes again, as after a prediction in this process, take more than a small pass.
    for variable in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
        monkeypatch.delenv(variable, raising=False)
    cases = [
        (method, name, *_measured_case(method, residues)) for method, residues, names in MEASURED for name in names
    ]
    forecasts = {
        (method, name): prediction_memory(config, size, name, CPU).peak for method, name, config, size in cases
    }
    readings: list[dict[tuple[Method, str], float]] = []
    while len(readings) < 8:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            peaks = pool.apply(_measured_peaks, (tmp_path,))
        readings.append({each: forecast / peaks[each] for each, forecast in forecasts.items()})
        means = {each: mean(reading[each] for reading in readings) for each in forecasts}
        if len(readings) >= 3 and all(LEAST < found < MOST for found in means.values()):
            return
    pytest.fail(f"forecast over measured: {readings}")
