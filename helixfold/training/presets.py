"""Named settings of training runs: the stages of AlphaFold 2 and of AlphaFold-Multimer, and small ones for a laptop."""

from collections.abc import Callable
from dataclasses import replace

from data_pipeline.io.config import ConfigError
from data_pipeline.io.errors import did_you_mean
from data_pipeline.sampling import training as examples
from data_pipeline.sampling.msa import BlockDeletion
from data_pipeline.sampling.sample import SamplingConfig
from data_pipeline.sampling.training import ExampleConfig
from helixfold.execution.recompute import RecomputeConfig
from helixfold.losses import config as losses
from helixfold.model import presets
from helixfold.optim import config as optimizers
from helixfold.optim.config import OptimizerConfig
from helixfold.training.config import EvaluationConfig, TrainingConfig
from helixfold.training.recipes import recipe


def initial_training() -> TrainingConfig:
    """Return the first stage of AlphaFold 2, Suppl. Table 4: 78,000 steps of 128 examples (about ten million)."""
    return TrainingConfig(
        model=presets.preset("model_1").model,
        example=examples.initial_training(),
        loss=losses.initial_training(),
        steps=78_000,
    )


def finetuning() -> TrainingConfig:
    """Return the second stage of AlphaFold 2, Suppl. Table 4: larger crops, all losses, 12,000 steps."""
    return TrainingConfig(
        model=presets.preset("model_1_ptm").model,
        example=examples.finetuning(),
        loss=losses.finetuning(),
        optimizer=optimizers.finetuning(),
        steps=12_000,
    )


def multimer_initial_training() -> TrainingConfig:
    """Return the first stage of AlphaFold-Multimer (Evans et al. 2022), for the network of its second release.

    FAPE is clamped at 10 Å within the chains of 90 % of the examples and at 30 Å between chains, and the loss of the
    chains' centres is added (Sec. 2.5). The crop of 384 residues is from DeepMind's technical note on AlphaFold 2.3,
    and MSA depths and loss weights from its configuration. OpenFold's settings contribute the violation weight of 0.03,
    crops around an interface in half of the examples, and alignments without block deletion. Batch size, learning rate
    and number of steps are the same as in AlphaFold 2's first stage.
    """
    return _of_complexes("model_1_multimer_v2", crop_size=384, violation=0.03, steps=78_000)


def multimer_finetuning() -> TrainingConfig:
    """Return a second stage for complexes: crops of 640 residues and the deeper alignments of the third release.

    The crop is from DeepMind's technical note on AlphaFold 2.3, and MSA depths and the full violation weight from its
    configuration. Learning rate and number of steps are the same as in AlphaFold 2's second stage.
    """
    run = _of_complexes("model_1_multimer_v3", crop_size=640, violation=1.0, steps=12_000)
    return replace(run, optimizer=optimizers.finetuning())


def _of_complexes(network: str, *, crop_size: int, violation: float, steps: int) -> TrainingConfig:
    """Return a stage of training on complexes for the network of a model of AlphaFold-Multimer."""
    preset = presets.preset(network)
    return TrainingConfig(
        model=preset.model,
        example=ExampleConfig(
            crop_size=crop_size,
            sampling=replace(preset.sampling, target_as_extra=True),
            block_deletion=BlockDeletion(blocks=0),
            spatial_crop_probability=0.5,
        ),
        loss=replace(losses.finetuning("multimer"), violation=violation, interface_clamp=30.0),
        evaluation=EvaluationConfig(max_residues=crop_size),
        steps=steps,
    )


def tiny() -> TrainingConfig:
    """Return settings for the `tiny` network with short crops and few sequences, which trains in minutes on two cores.

    All losses are on from the first step, with AlphaFold 3's smooth lDDT, which helps an untrained network to learn
    sooner. The violation loss has a small weight, because a network with random parameters places all atoms at one
    point, where its gradient at full weight would be a thousand times that from all other losses.
    """
    return TrainingConfig(
        model=presets.tiny().model,
        example=ExampleConfig(
            crop_size=64,
            sampling=SamplingConfig(max_msa_clusters=8, max_extra_msa=16, max_templates=4, target_as_extra=True),
            block_deletion=BlockDeletion(blocks=0),
            max_passes=2,
            fixed_shapes=False,
        ),
        loss=replace(losses.finetuning(), violation=0.05, smooth_lddt=2.0),
        optimizer=OptimizerConfig(warmup_steps=100, ema_decay=0.99),
        recompute=RecomputeConfig(evoformer="none", extra_msa="none", template="none", structure="none"),
        evaluation=EvaluationConfig(every=500, num_recycles=1, max_residues=128),
        batch_size=8,
        steps=2_000,
        save_every=200,
    )


def tiny_multimer() -> TrainingConfig:
    """Return settings like `tiny` for complexes: a tiny AlphaFold-Multimer network and all losses.

    FAPE between chains is not clamped, because at first all chains are at one point.
    """
    run = tiny()
    return replace(
        run,
        model=presets.tiny_multimer().model,
        example=replace(run.example, spatial_crop_probability=0.5),
        loss=losses.complexes(run.loss),
    )


def small() -> TrainingConfig:
    """Return the first stage of the demonstration model's training; `helixfold train --recipe small` runs them all."""
    return recipe("small")[0].config


TRAINING_PRESETS: dict[str, Callable[[], TrainingConfig]] = {
    function.__name__: function
    for function in (
        initial_training,
        finetuning,
        multimer_initial_training,
        multimer_finetuning,
        small,
        tiny,
        tiny_multimer,
    )
}


def training_preset(name: str) -> TrainingConfig:
    """Return the training settings of the preset with this name. Raise `ConfigError` if there is none."""
    if name not in TRAINING_PRESETS:
        choices = f"{', '.join(TRAINING_PRESETS)}{did_you_mean(name, TRAINING_PRESETS)}"
        raise ConfigError(f"there is no training preset {name!r}; choose one of {choices}")
    return TRAINING_PRESETS[name]()
