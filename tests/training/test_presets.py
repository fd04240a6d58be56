"""Training presets of complexes are what was published, and those of their parts that are DeepMind's are its own."""

import pytest

from helixfold.losses.config import INTERFACE_TERMS
from helixfold.model.presets import preset
from helixfold.training.config import TrainingConfig
from helixfold.training.presets import TRAINING_PRESETS, training_preset


@pytest.mark.parametrize(
    ("name", "network", "crop", "rows", "extra"),
    [
        ("multimer_initial_training", "model_1_multimer_v2", 384, 256, 1152),
        ("multimer_finetuning", "model_1_multimer_v3", 640, 512, 2048),
    ],
)
def test_stages_of_complexes_are_as_published(name: str, network: str, crop: int, rows: int, extra: int) -> None:
    config = training_preset(name)
    assert config.model == preset(network).model
    sizes = config.example.sizes()
    assert (sizes["r"], sizes["s"] + sizes["t"], sizes["e"]) == (crop, rows, extra)
    assert (config.batch_size, config.micro_batch, config.optimizer.clipping) == (128, 1, "sample")
    assert config.example.unclamped_fraction == 0.1
    loss = config.loss
    assert (loss.fape_clamp, loss.interface_clamp, loss.interface_unit) == (10, 30, 20)
    assert (loss.backbone_fape, loss.interface_fape, loss.centre_of_mass) == (0.5, 0.5, 1)
    assert (loss.distogram, loss.masked_msa, loss.lddt, loss.aligned_error) == (0.3, 2, 0.01, 0.1)


@pytest.mark.parametrize("name", TRAINING_PRESETS)
def test_complexes_have_all_losses_between_chains_and_single_chains_none(name: str) -> None:
    config: TrainingConfig = training_preset(name)
    weights = [getattr(config.loss, term) > 0 for term in INTERFACE_TERMS]
    assert weights == [config.model.method == "multimer"] * len(weights)
    assert config.model.method == ("multimer" if "multimer" in name else "monomer")
    assert TrainingConfig.from_dict(config.to_dict()) == config
