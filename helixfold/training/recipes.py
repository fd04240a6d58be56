"""Recipes: trainings in several stages, each of which starts from the final parameters of the previous stage.

Each stage is a separate run with its own directory. The next stage needs only its last weights.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from data_pipeline.io.config import ConfigError
from data_pipeline.io.errors import did_you_mean
from data_pipeline.sampling.alignment_augmentation import AlignmentAugmentation
from data_pipeline.sampling.msa import BlockDeletion
from data_pipeline.sampling.template_augmentation import TemplateAugmentation
from data_pipeline.sampling.training import ExampleConfig
from data_pipeline.training_sets.chain_sampling import ChainSelection
from helixfold.execution.recompute import RecomputeConfig
from helixfold.losses import config as losses
from helixfold.model import presets
from helixfold.model.config import ModelConfig
from helixfold.optim.config import MuonConfig, OptimizerConfig
from helixfold.training.config import EvaluationConfig, TrainingConfig


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of a recipe: the name of its directory, its settings, and its expected duration.

    `minutes` is the expected duration on two cores.
    """

    name: str
    config: TrainingConfig
    minutes: int


@dataclass(frozen=True, kw_only=True)
class StageRun:
    """One stage of a recipe with its directory and the weights that it starts from.

    `weights` is the path of a file, which need not exist yet; None means random parameters.
    """

    stage: Stage
    directory: Path
    weights: Path | None

    @property
    def last_weights(self) -> Path:
        """The path of the weights that the stage writes at its end."""
        return last_weights(self.directory)

    @property
    def is_finished(self) -> bool:
        """Whether the stage has ended, so that the next one can start."""
        return self.last_weights.is_file()


def last_weights(directory: Path) -> Path:
    """Return the path of the weights that a training run in this directory writes at its end."""
    return directory / "weights" / "last.safetensors"


def stage_runs(stages: Sequence[Stage], output: Path, settings: Sequence[str] = ()) -> list[StageRun]:
    """Return the runs of a recipe, each in a directory of `output` with the name of its stage.

    `settings` are changes, such as "steps=100", that are applied to all stages (`Config.with_settings`).
    """
    runs: list[StageRun] = []
    for stage in stages:
        with_settings = replace(stage, config=stage.config.with_settings(settings))
        weights = runs[-1].last_weights if runs else None
        runs.append(StageRun(stage=with_settings, directory=output / stage.name, weights=weights))
    return runs


def small() -> tuple[Stage, ...]:
    """Return the stages that train the demonstration model, which uses templates and alignments, on two cores.

    Each stage takes at most 150 minutes, and its weights at most 15 MB. The distogram loss has a large weight at first.
    Smooth lDDT and mostly unclamped FAPE are on from the first step. At first all atoms are at one point, farther than
    the clamp from their true positions. Crops grow up to the third stage, and the last stage has smaller ones again.
    Recycling starts with the third stage. In the first four stages half of the examples have no template.
    """
    network = presets.small()
    structure = replace(
        losses.finetuning(),
        distogram=1.0,
        masked_msa=0.1,
        lddt=0.05,
        aligned_error=0.02,
        violation=0.0,
        smooth_lddt=1.0,
        # Half of the files in the training set do not have a resolution.
        min_resolution=0.0,
    )
    first = TrainingConfig(
        model=_updating(network.model, 1.0),
        example=ExampleConfig(
            crop_size=64,
            sampling=replace(network.sampling, max_msa_clusters=16, max_extra_msa=32, masked_msa_fraction=0.15),
            block_deletion=BlockDeletion(blocks=0),
            template_augmentation=TemplateAugmentation(none_fraction=0.5, own_fraction=0.5),
            alignment_augmentation=AlignmentAugmentation(
                alone_fraction=0.3, random_depth=True, most_dropped_columns=0.3
            ),
            unclamped_fraction=0.9,
            max_passes=1,
            fixed_shapes=False,
        ),
        # The few chains with deep alignments are drawn more often than by chance, but too rarely to be memorised.
        selection=ChainSelection(aligned_probability=0.1, aligned_rows=128),
        loss=replace(structure, distogram=2.0, smooth_lddt=2.0),
        optimizer=_muon(5e-4),
        recompute=RecomputeConfig(evoformer="none", extra_msa="none", template="none", structure="none"),
        evaluation=EvaluationConfig(every=3000, num_recycles=0, max_residues=128, structures=0),
        batch_size=4,
        steps=STEPS[0],
        save_every=50,
        seed=1,
    )
    later = [first]
    for stage_index, (crop, rate, changes) in enumerate(_LATER_STAGES, start=2):
        before = later[-1]
        later.append(
            replace(
                before,
                model=_updating(network.model, changes.update_factor),
                example=replace(
                    before.example,
                    crop_size=crop,
                    # Related structures resemble real templates more than corrupted copies do.
                    template_augmentation=replace(
                        before.example.template_augmentation,
                        none_fraction=changes.none_fraction,
                        own_fraction=changes.own_fraction,
                        noise_by_identity=changes.noise_by_identity,
                    ),
                    unclamped_fraction=changes.unclamped_fraction,
                    max_passes=changes.max_passes,
                    sampling=replace(
                        before.example.sampling, max_msa_clusters=changes.rows, max_extra_msa=2 * changes.rows
                    ),
                ),
                loss=replace(
                    structure, violation=changes.violation, smooth_lddt=changes.smooth_lddt, lddt=changes.lddt
                ),
                optimizer=_muon(rate, changes.drop_after),
                evaluation=replace(before.evaluation, num_recycles=changes.max_passes - 1, max_residues=256),
                steps=STEPS[stage_index - 1],
                seed=stage_index,
            )
        )
    return tuple(
        Stage(name=f"stage_{index}", config=config, minutes=minutes)
        for index, (config, minutes) in enumerate(zip(later, MINUTES, strict=True), start=1)
    )


@dataclass(frozen=True, kw_only=True)
class _Changes:
    """Settings in which a later stage differs from the first.

    `rows` is the number of MSA rows, half the number of extra rows. `none_fraction` and `own_fraction` are the shares
    of examples without a template and with the chain's own structure as the template. `violation`, `smooth_lddt` and
    `lddt` are weights of losses. The learning rate drops after `drop_after` steps; None means never.
    """

    rows: int
    unclamped_fraction: float = 0.5
    max_passes: int = 1
    violation: float = 0.0
    update_factor: float = 1.0
    smooth_lddt: float = 1.0
    lddt: float = 0.05  # weight of the loss of pLDDT
    none_fraction: float = 0.5
    own_fraction: float = 0.3
    noise_by_identity: bool = False
    drop_after: int | None = None


# Factor of the updates of residues that the template has. A network that can use templates then learns to preserve them
# and to place only missing residues, because full updates move aligned residues by more than they correct them.
_UPDATE_FACTOR = 0.2
# Crop, learning rate and other changes of each stage after the first.
_LATER_STAGES = (
    (96, 5e-4, _Changes(rows=24, unclamped_fraction=0.7)),
    (128, 4e-4, _Changes(rows=32, max_passes=2, violation=0.02, update_factor=_UPDATE_FACTOR)),
    (
        128,
        2e-4,
        _Changes(
            rows=32,
            unclamped_fraction=0.3,
            max_passes=3,
            violation=0.1,
            update_factor=_UPDATE_FACTOR,
            smooth_lddt=2.0,
            noise_by_identity=True,
            drop_after=150,
        ),
    ),
    # This stage recovers accuracy on single chains that the earlier stages lost, and pLDDT learns the quality of
    # templates. Only related structures serve as templates, because copies are better than real templates.
    (
        96,
        3e-4,
        _Changes(
            rows=24,
            unclamped_fraction=0.7,
            max_passes=2,
            violation=0.02,
            update_factor=_UPDATE_FACTOR,
            smooth_lddt=3.0,
            lddt=0.1,
            none_fraction=0.2,
            own_fraction=0.0,
            drop_after=300,
        ),
    ),
)
# Steps of each stage, and the minutes that they take on two cores of a busy machine. There a sample takes 1.2, 2.5, 5.2
# and 10 core seconds at crops of 64, 96, 128 and 160 residues, and a recycling iteration without gradients a third of
# that. On an idle machine the stages take half as long.
STEPS = (2800, 1300, 420, 400, 480)
MINUTES = (125, 120, 95, 110, 50)


def _updating(model: ModelConfig, factor: float) -> ModelConfig:
    """Return a network that scales updates of residues in the template by `factor`, with uncalibrated pLDDT."""
    assert model.template is not None
    return replace(model, template=replace(model.template, update_factor=factor, plddt_slope=0.0))


def _muon(rate: float, drop_after: int | None = None) -> OptimizerConfig:
    """Return the optimizer of a stage: Muon with a peak learning rate, and Adam for the other parameters.

    The rate falls to a quarter after `drop_after` steps.
    """
    return OptimizerConfig(
        method="muon",
        muon=MuonConfig(rate=2.0),
        learning_rate=rate,
        warmup_steps=100,
        decay_after=drop_after,
        decay_factor=0.95 if drop_after is None else 0.25,
        beta2=0.99,
        eps=1e-8,
        ema_decay=0.995,
    )


RECIPES: dict[str, Callable[[], tuple[Stage, ...]]] = {"small": small}


def recipe(name: str) -> tuple[Stage, ...]:
    """Return the stages of the recipe with this name. Raise `ConfigError` if there is none."""
    if name not in RECIPES:
        choices = f"{', '.join(RECIPES)}{did_you_mean(name, RECIPES)}"
        raise ConfigError(f"there is no recipe {name!r}; choose one of {choices}")
    return RECIPES[name]()
