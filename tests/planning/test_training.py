"""Forecasts of training are what is counted as a pass goes, on meta tensors and on real ones."""

import gc
import itertools
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from helixfold.execution.counter import Counter
from helixfold.execution.random_inputs import random_batch, random_labels
from helixfold.execution.recompute import Keep, RecomputeConfig, recompute
from helixfold.execution.whole import Whole
from helixfold.losses.config import initial_training
from helixfold.losses.total import total_loss
from helixfold.model.alphafold import AlphaFold
from helixfold.model.config import ModelConfig
from helixfold.model.geometry.tables import table
from helixfold.model.outputs import nothing_recycled
from helixfold.model.presets import preset, tiny
from helixfold.ops import sizes
from helixfold.ops.device_properties import DEVICE_MODELS, DeviceProperties, simulated_device
from helixfold.parallel.launch import on_ranks
from helixfold.parallel.mesh import Layout
from helixfold.planning.estimate import Training
from helixfold.planning.passes import META, library_memory, part_costs, prediction_memory
from helixfold.planning.size import PassSize
from tests.planning.extra_msa_stack import PRESET, StackPass, peak_in_plain_pytorch
from tests.support.forked_ranks import fork_ranks
from tests.support.networks import tiny_config

CHECKPOINT_POLICIES: tuple[Keep, ...] = ("none", "inputs", "block")
SIZE = PassSize(residues=40, msa_rows=24, extra_rows=48, templates=2, dtype=torch.float32)
CPU, H200 = DEVICE_MODELS["cpu"], DEVICE_MODELS["h200"]


def _peak(config: ModelConfig, size: PassSize, keep: Keep, properties: DeviceProperties) -> int:
    return Training(model=config, size=size).memory(RecomputeConfig.everywhere(keep), properties).peak


@pytest.mark.parametrize(
    ("keep", "properties"),
    [
        ("block", CPU),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in (("none", CPU), ("none", H200), ("inputs", CPU), ("inputs", H200), ("block", H200))
        ),
    ],
    ids=lambda each: each if isinstance(each, str) else each.kind,
)
def test_parts_put_together_are_a_whole_pass_counted_at_once(keep: Keep, properties: DeviceProperties) -> None:
    """Four blocks, of which the forecast runs two."""
    config = tiny_config().with_settings(["evoformer.blocks=4", "extra_msa.blocks=3", "structure.layers=1"])
    size = replace(SIZE, dtype=torch.bfloat16)
    with simulated_device(properties), META:
        model = AlphaFold(config).train()
        for parameter in model.parameters():
            parameter.grad = torch.empty_like(parameter)
        recompute(model, RecomputeConfig.everywhere(keep))
        with Counter() as counter:
            batch = random_batch(size.residues, size.msa_rows, size.extra_rows, size.templates, META)
            previous = nothing_recycled(Whole(), config, batch.seq_mask, size.dtype)
            outputs = model(Whole(), [batch], previous, size.dtype)
            loss = total_loss(outputs, batch, random_labels(batch), initial_training()).total.sum()
            del outputs
            loss.backward()
    # What libraries take of a processor's memory is in it, too.
    beside = _peak(config, size, keep, properties) - counter.peak
    assert beside == pytest.approx(
        (library_memory(properties, config, size) + 48 * 2**20) * (properties is CPU), abs=0.02 * counter.peak
    )


@pytest.mark.parametrize("keep", [pytest.param("inputs", marks=pytest.mark.long), "block"])
def test_a_deep_alignment_takes_what_is_predicted(keep: Keep) -> None:
    """Its rows are what most of the memory is for, as in fine-tuning; the gradients of the outer product's halves take
    most beside them. What is counted of meta tensors is what is counted of real ones.
    """
    size = PassSize(residues=40, msa_rows=4, extra_rows=400, templates=0, dtype=torch.float32)
    stack = StackPass(size=size, keep=keep)
    run = stack.prepared(torch.device("cpu"))
    with Counter() as counter:
        run()
    assert stack.estimate() - library_memory(CPU, preset(PRESET).model, size) == pytest.approx(counter.peak, rel=0.1)


def test_a_recomputed_stack_takes_less_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fork_ranks(monkeypatch, tmp_path / "printed.txt")
    size = PassSize(residues=24, msa_rows=124, extra_rows=384, templates=4, dtype=torch.float32)
    plain, block = (
        on_ranks(1, peak_in_plain_pytorch, StackPass(size=size, keep=keep, blocks=3)) for keep in ("none", "block")
    )
    assert 0 < block < 0.8 * plain


@pytest.mark.parametrize("stream", ["pair", "MSA", "extra MSA"])
def test_numba_takes_memory_where_any_stream_is_large(stream: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config()
    sides = {"pair": (64, 1, 1), "MSA": (8, 64 - SIZE.templates, 1), "extra MSA": (8, 1, 64)}
    residues, msa_rows, extra_rows = sides[stream]
    channels = {"pair": config.c_z, "MSA": config.evoformer.c_m, "extra MSA": config.extra_msa.c_m}[stream]
    size = replace(SIZE, residues=residues, msa_rows=msa_rows, extra_rows=extra_rows)
    monkeypatch.setattr("helixfold.ops.cpu.loops.find_spec", lambda _: object())
    taken = []
    for more in (0, 1):
        monkeypatch.setattr(sizes, "LARGE_STREAM", 64 * residues * channels + more)
        taken.append(library_memory(CPU, config, size))
    assert taken[0] - taken[1] == 124 * 2**20


def test_what_numba_takes_is_in_the_forecasts_of_large_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    config, size = tiny_config(), replace(SIZE, residues=64, msa_rows=1, extra_rows=1)
    monkeypatch.setattr("helixfold.ops.cpu.loops.find_spec", lambda _: object())

    def forecasts(large: int) -> tuple[int, ...]:
        monkeypatch.setattr(sizes, "LARGE_STREAM", large)
        slabs, whole = (prediction_memory.__wrapped__(config, size, name, CPU).peak for name in ("slabs", "whole"))
        return library_memory(CPU, config, size), _peak(config, size, "block", CPU), slabs, whole

    with_loops, without = (forecasts(64 * 64 * config.c_z + more) for more in (0, 1))
    *more, more_of_whole = (large - small for large, small in zip(with_loops, without, strict=True))
    assert more == [124 * 2**20] * 3
    # They leave more of the heap of a whole pass unused: as much as its tensors take, instead of two thirds of it.
    tensors = (without[-1] - 6 * 2**20 * torch.get_num_threads()) / 1.65
    assert more_of_whole == pytest.approx(124 * 2**20 + 0.35 * tensors, rel=1e-6)
    assert library_memory(H200, config, size) == 0
    monkeypatch.setattr("helixfold.ops.cpu.loops.find_spec", lambda _: None)
    assert forecasts(0) == without


def test_a_prediction_does_not_depend_on_when_garbage_is_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    size = PassSize(residues=16, msa_rows=4, extra_rows=64, templates=0, dtype=torch.float32)
    stack = StackPass(size=size, keep="block")
    passes = itertools.count()

    def whole() -> Whole:
        if next(passes) == 1:
            gc.collect()
        return Whole()

    gc.disable()
    try:
        uncollected = stack.estimate()
        # The second of its two passes is the one that counts.
        monkeypatch.setattr("tests.planning.extra_msa_stack.Whole", whole)
        assert stack.estimate() == uncollected
    finally:
        gc.enable()


def test_the_less_is_kept_the_smaller_the_peak() -> None:
    config = preset("model_1").model
    size = replace(SIZE, residues=256, msa_rows=124, extra_rows=1024, dtype=torch.bfloat16)
    peaks = [_peak(config, size, keep, H200) for keep in CHECKPOINT_POLICIES]
    assert peaks == sorted(peaks, reverse=True)
    # 48 blocks keep 2/3 of a GiB each.
    assert 34 < peaks[0] / 2**30 < 42
    stages = Training(model=tiny().model, size=replace(SIZE, templates=0)).memory(RecomputeConfig(), CPU).stages
    assert "templates" not in stages


def test_forecasts_follow_blocks_rows_and_dtype() -> None:
    config = tiny().model
    costs = part_costs(config, SIZE, "none", H200)
    deeper = replace(config, evoformer=replace(config.evoformer, blocks=config.evoformer.blocks + 1))
    more = part_costs(deeper, SIZE, "none", H200)
    assert more["evoformer"].kept > costs["evoformer"].kept
    assert more["extra_msa"].kept == costs["extra_msa"].kept
    one = more["evoformer"].forward.launches - costs["evoformer"].forward.launches
    assert costs["evoformer"].forward.launches == pytest.approx(config.evoformer.blocks * one, rel=0.3)
    blocks = {
        dtype: part_costs(config, replace(SIZE, dtype=dtype), "block", H200)["evoformer"].kept
        for dtype in (torch.float32, torch.bfloat16)
    }
    assert blocks[torch.bfloat16] == pytest.approx(blocks[torch.float32] / 2, rel=0.3)
    assert _peak(config, replace(SIZE, ensemble=3), "none", H200) > _peak(config, SIZE, "none", H200)


@pytest.mark.parametrize("properties", [CPU, H200], ids=lambda properties: properties.kind)
def test_a_first_pass_is_counted_like_a_second(properties: DeviceProperties) -> None:
    modules = [module for name, module in [*sys.modules.items()] if name.startswith("helixfold.")]
    caches = [each for module in modules for each in [*vars(module).values()] if type(each) is type(table)]
    assert table in caches
    # As at the start of a program.
    for each in caches:
        each.cache_clear()
    first = part_costs.__wrapped__(tiny().model, SIZE, "none", properties)
    assert table.cache_info().currsize > 0
    assert first == part_costs.__wrapped__(tiny().model, SIZE, "none", properties)


def test_products_are_those_of_the_arithmetic() -> None:
    """A triangle's product alone is 2 n^3 c, and a pass with gradients takes three times one without."""
    config, size = tiny().model, replace(SIZE, templates=0)
    learning, once = part_costs(config, size, "none", H200, plain=True), part_costs(config, size, None, H200)
    work = learning["evoformer"]
    assert work.backward.products == pytest.approx(2 * work.forward.products, rel=0.1)
    assert work.forward.products > config.evoformer.blocks * 2 * 2 * size.residues**3 * config.evoformer.c_triangle
    assert once["evoformer"].forward.launches > 0
    assert once["evoformer"].backward.launches == 0


def test_ranks_that_share_a_sample_keep_their_parts() -> None:
    config = tiny_config("end")
    alone, two, branches = (
        part_costs(config, SIZE, "none", H200, layout) for layout in (Layout(), Layout(dap=2), Layout(bp=2))
    )
    assert 0.5 * alone["evoformer"].kept < two["evoformer"].kept < 0.85 * alone["evoformer"].kept
    assert branches["evoformer"].kept < alone["evoformer"].kept
    assert not alone["evoformer"].forward.messages
    assert {kind for kind, _ in two["evoformer"].forward.messages} == {"all_to_all", "all_gather"}
    assert {kind for kind, _ in branches["evoformer"].forward.messages} == {"swap", "broadcast"}
    assert all(size > 0 for kind, size in two["evoformer"].backward.messages)
