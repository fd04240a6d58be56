"""What a fine-tuning takes is what is counted, and of adapters a fiftieth of what all parameters take."""

from dataclasses import replace

import pytest
import torch

from helixfold.execution.recompute import RecomputeConfig
from helixfold.model.alphafold import AlphaFold
from helixfold.model.presets import preset
from helixfold.ops.device_properties import DEVICE_MODELS
from helixfold.optim.flat import FlatOptimizer
from helixfold.optim.trained import AllParameters, Trained
from helixfold.training.estimate import parameter_count
from helixfold.training.finetune.adapted import FrozenParameters, HeadsTrained, LowRankTrained
from helixfold.training.finetune.memory import parameter_bytes, run_memory, state_bytes
from helixfold.training.finetune.settings import AdapterKind, finetuning
from helixfold.weights.low_rank import LowRankConfig
from helixfold.weights.untrained import untrained_model
from tests.training.finetune.runs import PRESET

pytestmark = pytest.mark.usefixtures("operators_on_small_tensors")


def held_bytes(optimizer: FlatOptimizer) -> int:
    """Return the bytes of gradients, moments and averages that an optimizer has in memory."""
    tensors = [tensor for name, tensor in optimizer.tensors().items() if name not in ("master", "updates")]
    held = [*tensors, optimizer.gradient_sum, *(each.gradient for each in optimizer.gathered)]
    return sum({each.data_ptr(): each.nbytes() for each in (tensor.untyped_storage() for tensor in held)}.values())


@pytest.mark.parametrize("adapter", ["lora", "heads", "full"])
@pytest.mark.parametrize("clipping", ["sample", "global"])
def test_the_optimizer_holds_what_is_counted(adapter: AdapterKind, clipping: str) -> None:
    config = finetuning(PRESET, adapter)
    config = replace(config, run=config.run.with_settings([f"optimizer.clipping={clipping}"]))
    model = untrained_model(PRESET.model, 0)
    base = FrozenParameters.of(model.state_dict(), PRESET.model, "base", torch.device("cpu"))
    trained: Trained = AllParameters(AlphaFold(PRESET.model))
    if adapter != "full":
        trained = LowRankTrained(base, config.low_rank, seed=0) if adapter == "lora" else HeadsTrained(base)
    optimizer = trained.optimizer(config.run.optimizer, torch.float32, averages=True)
    values, others = state_bytes(config, torch.float32)
    assert values == optimizer.tensors()["master"].untyped_storage().nbytes()
    assert others == held_bytes(optimizer)


def test_adapters_of_the_published_model_take_a_fiftieth_of_the_optimizer_of_all_parameters() -> None:
    chosen = preset("model_1_ptm")
    (lora, own), (full, everything) = (
        state_bytes(finetuning(chosen, adapter), torch.float32) for adapter in ("lora", "full")
    )
    assert own / everything <= 0.02
    assert lora < 6 * 2**20
    assert full == pytest.approx(4 * parameter_count(chosen.model), rel=0.01)
    assert parameter_bytes(chosen.model) == 4 * parameter_count(chosen.model)


def test_what_comes_before_all_that_is_trained_keeps_nothing_for_a_backward_pass() -> None:
    activations = {}
    for adapter in ("heads", "lora", "full"):
        config = finetuning(PRESET, adapter)  # type: ignore[arg-type]
        config = replace(config, run=replace(config.run, recompute=RecomputeConfig.everywhere("none")))
        activations[adapter] = run_memory(config, DEVICE_MODELS["cpu"]).activations
    assert activations["heads"] < activations["lora"] < activations["full"]
    config = finetuning(PRESET, "lora", LowRankConfig(targets="*"))
    config = replace(config, run=replace(config.run, recompute=RecomputeConfig.everywhere("none")))
    assert run_memory(config, DEVICE_MODELS["cpu"]).activations > activations["lora"]


def test_frozen_blocks_take_no_memory_beyond_the_first_ones() -> None:
    found = {}
    for adapter in ("heads", "lora"):
        for blocks in (2, 6):
            model = replace(PRESET.model, evoformer=replace(PRESET.model.evoformer, blocks=blocks))
            config = finetuning(replace(PRESET, model=model), adapter)  # type: ignore[arg-type]
            config = replace(config, run=replace(config.run, recompute=RecomputeConfig.everywhere("none")))
            found[adapter, blocks] = run_memory(config, DEVICE_MODELS["cpu"]).activations
    assert found["heads", 2] == found["heads", 6]
    assert found["lora", 2] < found["lora", 6]
