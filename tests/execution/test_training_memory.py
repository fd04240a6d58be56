"""What training is said to keep and to take is what tensors hold, and predictions follow the sizes."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from helixfold.cli.benchmark_recompute import EXTRA_MSA, Point, prepared
from helixfold.execution.block_memory import SCRATCH
from helixfold.execution.memory import PassSize
from helixfold.execution.recompute import Keep, RecomputeConfig, recompute
from helixfold.execution.training_memory import evoformer_memory, extra_msa_memory, predicted_training
from helixfold.execution.whole import Whole
from helixfold.model.alphafold import AlphaFold
from helixfold.ops.dispatch import forced
from helixfold.presets import model_1, tiny
from tests.live import Live

KEEPS: tuple[Keep, ...] = ("none", "inputs", "block")
SIZE = PassSize(residues=40, msa_rows=24, extra_rows=48, templates=0, dtype=torch.float32)


def kept(config: Any, part: str, size: PassSize, keep: Keep) -> int:
    """Bytes that autograd holds of a stack's forward pass, parameters apart; nothing is computed."""
    network = AlphaFold(config).train()
    recompute(network, RecomputeConfig.everywhere(keep))
    stack = network.extra_msa_stack if part == "extra_msa" else network.evoformer
    own = {each.untyped_storage().data_ptr() for each in network.parameters()}
    rows = size.extra_rows if part == "extra_msa" else size.msa_rows
    storages: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    n, c_m = size.residues, getattr(config, part).c_m
    streams = [
        torch.randn(1, count, n, c, dtype=size.dtype, requires_grad=True) for count, c in ((rows, c_m), (n, config.c_z))
    ]
    masks = torch.ones(1, rows, n), torch.ones(1, n, n)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), forced("rows"):
        found = stack(Whole(), *streams, *masks)
    assert found[1].requires_grad
    if keep != "none":
        # What is recomputed hands its arguments over by itself.
        return sum(storages.values()) + sum(each.nbytes for each in streams)
    return sum(storages.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("part", ["evoformer", "extra_msa"])
def test_a_block_keeps_what_is_predicted(part: str, dtype: torch.dtype) -> None:
    model, size = tiny().model, replace(SIZE, dtype=dtype)

    def deep(blocks: int) -> Any:
        return replace(model, **{part: replace(getattr(model, part), blocks=blocks)})

    predicted = (evoformer_memory if part == "evoformer" else extra_msa_memory)(model, size, "none").kept
    growth = kept(deep(3), part, size, "none") - kept(deep(1), part, size, "none")
    assert growth / 2 == pytest.approx(predicted, rel=0.06)


@pytest.mark.parametrize(("keep", "dtype"), [("none", "bfloat16"), ("inputs", "float32"), ("block", "float32")])
def test_a_deep_alignment_takes_what_is_predicted(keep: Keep, dtype: str) -> None:
    """Its rows are what most of the memory is for, as in fine-tuning; the gradients of the outer product's halves take
    most beside them.
    """
    point = Point(
        part=EXTRA_MSA,
        preset="model_1",
        blocks=1,
        residues=64,
        rows=4,
        extra_rows=1280,
        templates=0,
        dtype=dtype,
        keep=keep,
        plain=False,
        device="cpu",
    )
    run = prepared(point, torch.device("cpu"))
    with Live() as live:
        run(point)
    # Blocks of rows are small beside streams, and so is what they leave.
    predicted = point.predicted() - SCRATCH * torch.get_num_threads()
    assert predicted == pytest.approx(live.peak, rel=0.1)


def test_the_less_is_kept_the_smaller_the_peak() -> None:
    for config, size in ((model_1().model, SIZE), (tiny().model, replace(SIZE, templates=4))):
        for dtype in (torch.float32, torch.bfloat16):
            for residues in (256, 384):
                large = replace(size, residues=residues, msa_rows=124, extra_rows=1024, dtype=dtype)
                peaks = [predicted_training(config, large, RecomputeConfig.everywhere(keep)).peak for keep in KEEPS]
                if config.evoformer.blocks > 2:
                    assert peaks == sorted(peaks, reverse=True)
                stages = predicted_training(config, large, RecomputeConfig()).stages
                assert ("templates" in stages) == (size.templates > 0)


def test_predictions_follow_blocks_rows_and_dtype() -> None:
    config, size, none = model_1().model, replace(SIZE, residues=256, msa_rows=128), RecomputeConfig.everywhere("none")
    one = evoformer_memory(config, size, "none")
    deeper = replace(config, evoformer=replace(config.evoformer, blocks=49))
    more = predicted_training(deeper, size, none).peak - predicted_training(config, size, none).peak
    assert more == one.kept
    # With templates there are as many more rows.
    assert (
        evoformer_memory(config, replace(size, templates=4), "block").kept
        - evoformer_memory(config, size, "block").kept
        == 4 * 256 * config.evoformer.c_m * 4
    )
    short = evoformer_memory(config, replace(size, dtype=torch.bfloat16), "block")
    assert 2 * short.kept == evoformer_memory(config, size, "block").kept
    held = predicted_training(config, replace(size, ensemble=3), none).peak
    assert held > predicted_training(config, size, none).peak
