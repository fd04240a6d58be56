"""The host never waits for a GPU in a pass, in the losses and in their gradients."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from data_pipeline.training_sets.examples import TrainingDataset
from helixfold.execution.recompute import RecomputeConfig, recompute
from helixfold.execution.slabs import Slabs
from helixfold.execution.whole import Whole
from helixfold.losses.config import LossConfig, finetuning, initial_training
from helixfold.model import confidence
from helixfold.model.alphafold import AlphaFold
from helixfold.model.config import ModelConfig
from helixfold.ops.device_properties import DEVICE_MODELS, simulated_device
from helixfold.ops.dispatch import forced
from helixfold.optim.config import OptimizerConfig
from helixfold.optim.flat import FlatOptimizer
from helixfold.training.loader import TrainingBatch, pack
from helixfold.training.step import forward_losses
from tests.data_pipeline.training_sets.memory_store import small_store
from tests.support.networks import random_batch, tiny_config, tiny_model, to_device
from tests.support.waiting import HostWaits, no_host_waits
from tests.training.runs import small_config

pytestmark = pytest.mark.usefixtures("operators_on_small_tensors")

META = torch.device("meta")
CONFIG = small_config(model=tiny_config().with_settings(["evoformer.blocks=1", "structure.layers=2"]))
EVERY_TERM = replace(finetuning(), smooth_lddt=1.0)


def meta_model(config: ModelConfig = CONFIG.model) -> AlphaFold:
    with META:
        return AlphaFold(config)


def training_batch() -> TrainingBatch:
    """One with two recycling iterations."""
    dataset = TrainingDataset(store=small_store(6), config=CONFIG.example)
    step = next(step for step in range(20) if dataset.num_passes(step) == 2)
    return pack(dataset.draw(step), None).on(META)


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x.sum().item(),
        lambda x: bool((x > 0).all()),
        lambda x: x.tolist(),
        lambda x: x[x > 0],
        lambda x: x.masked_fill_(x > 0, 1).nonzero(),
        lambda x: x + x.new_tensor(1.0),
        lambda x: x + torch.tensor([1.0]),
        lambda x: x.to("meta"),
        lambda x: x.new_zeros(3, device="meta").copy_(x),
        lambda x: torch.equal(x, x),
        lambda x: torch.repeat_interleave(x, torch.ones_like(x).long()),
    ],
)
def test_what_waits_is_noticed(wait: Callable[[Tensor], object]) -> None:
    with pytest.raises(HostWaits), no_host_waits():
        wait(torch.ones(3))


@pytest.mark.parametrize(
    ("loss", "dtype", "backends"),
    [
        pytest.param(initial_training(), "bfloat16", "of the card", id="initial", marks=pytest.mark.long),
        pytest.param(EVERY_TERM, "bfloat16", "of the card", id="every term"),
        pytest.param(EVERY_TERM, "float32", "of the card", id="float32", marks=pytest.mark.long),
        pytest.param(EVERY_TERM, "bfloat16", "reference", id="references"),
    ],
)
def test_no_training_step_waits(loss: LossConfig, dtype: str, backends: str) -> None:
    model, batch = meta_model().train(), training_batch()
    recompute(model, RecomputeConfig.everywhere("block"))
    config = replace(CONFIG, loss=loss, dtype=dtype)

    def step() -> None:
        forward_losses(model, batch, config, Whole()).total.sum().backward()

    with simulated_device(DEVICE_MODELS["h100"]), forced("reference") if backends == "reference" else nullcontext():
        step()  # tables of constants are copied once
        with no_host_waits():
            step()


@pytest.mark.parametrize(
    ("run", "device_model"), [(Whole(), "h100"), (Slabs(rows=4), "t4")], ids=["whole-h100", "slabs-t4"]
)
def test_no_prediction_waits_before_its_numbers_are_read(run: Whole | Slabs, device_model: str) -> None:
    model = meta_model(tiny_ptm()).eval()
    batch = to_device(random_batch(), META)

    @torch.no_grad()
    def predict() -> None:
        folded = model.fold(run, [batch], model.recycle(run, [[batch]] * 2))
        pair = folded.representations.pair
        confidence.ranking_confidence(confidence.plddt(model.heads.lddt_logits(folded.structure)), batch.seq_mask)
        confidence.expected_distances(run, model.heads.distogram, pair)
        confidence.aligned_error(run, model.heads.aligned_error, pair, batch.seq_mask)

    with simulated_device(DEVICE_MODELS[device_model]):
        predict()
        with no_host_waits():
            predict()


def tiny_ptm() -> ModelConfig:
    return replace(CONFIG.model, heads=replace(CONFIG.model.heads, aligned_error=True))


@pytest.mark.parametrize("method", ["adam", "muon"])
@pytest.mark.parametrize("clipping", ["global", "sample", "adagc"])
def test_an_update_waits_once(method: str, clipping: str) -> None:
    """The norm of the gradient is read, for a gradient that is not finite must change nothing."""
    model = tiny_model()
    optimizer = FlatOptimizer(model, OptimizerConfig(method=method, clipping=clipping), working_dtype=torch.bfloat16)
    optimizer.gradient_sum.normal_()
    for each in optimizer.gathered:
        each.gradient.normal_()
    on_host = optimizer.tensors()["updates"]
    with no_host_waits(on_host=on_host):
        optimizer.collect()
    with no_host_waits(reads=1, on_host=on_host):
        assert not optimizer.step(1e-3, micro_batches=1).skipped
