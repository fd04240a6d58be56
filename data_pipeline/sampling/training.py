"""Create training examples from the features and labels of a chain (AlphaFold 2, Suppl. Sec. 1.2.3 to 1.2.8 and 1.3).

Clamping of the loss, crop, templates and deleted MSA rows are sampled once per example; cluster centres, masking and
extra rows are sampled for each recycling iteration.
"""

from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np
from jaxtyping import Int

from data_pipeline.features.ground_truth import GroundTruth, ground_truth
from data_pipeline.features.labels import ChainLabels
from data_pipeline.features.sample import Sample
from data_pipeline.features.schema import Features
from data_pipeline.io.config import FRACTION, MAX_RECYCLES, Config, added_setting, at_least, at_most
from data_pipeline.io.errors import InputError, printable
from data_pipeline.parse.fasta import MAX_RESIDUES
from data_pipeline.sampling import msa
from data_pipeline.sampling.alignment_augmentation import AlignmentAugmentation, augmented_alignment
from data_pipeline.sampling.crop import contiguous_crop, crop_labels, spatial_crop
from data_pipeline.sampling.sample import DrawnSample, SamplingConfig, draw
from data_pipeline.sampling.template_augmentation import TemplateAugmentation, example_templates


@dataclass(frozen=True, kw_only=True)
class ExampleConfig(Config):
    """Settings of training examples: crop, MSA, templates and clamping. The defaults are for initial training.

    `crop_size` is in residues. Templates are drawn from the best `max_template_hits`. `unclamped_fraction` of the
    examples have an unclamped backbone loss. `spatial_crop_probability` is the probability of a crop of the nearest
    residues in space. Distillation examples have at most `distillation_msa_rows` MSA rows, and only their residues with
    a pLDDT / 100 of at least `min_confidence` count in the loss. `max_passes` is the max number of recycling
    iterations. `fixed_shapes` pads batches to `sizes`, for stacking and compiled code.
    """

    crop_size: Annotated[int, at_least(1), at_most(MAX_RESIDUES)] = 256  # residues
    # 128 rows minus four for templates. Differs from AlphaFold: the extra rows are never empty (`target_as_extra`).
    sampling: SamplingConfig = field(default_factory=lambda: SamplingConfig(max_msa_clusters=124, target_as_extra=True))
    max_template_hits: Annotated[int, at_least(0)] = 20  # hits from which templates are drawn
    template_augmentation: TemplateAugmentation = added_setting(TemplateAugmentation())
    block_deletion: msa.BlockDeletion = field(default_factory=msa.BlockDeletion)
    alignment_augmentation: AlignmentAugmentation = added_setting(AlignmentAugmentation())
    # Fraction of examples with unclamped backbone loss (Suppl. Sec. 1.9.2).
    unclamped_fraction: Annotated[float, FRACTION] = 0.1
    spatial_crop_probability: Annotated[float, FRACTION] = 0.0  # of a crop around an interface of a complex
    # Max MSA rows of a distillation example (Suppl. Sec. 1.3).
    distillation_msa_rows: Annotated[int, at_least(1)] = 1000
    min_confidence: Annotated[float, FRACTION] = 0.5  # min pLDDT / 100 of predicted residues that count in the loss
    # Max recycling iterations; the number is sampled for each step (Suppl. Alg. 31).
    max_passes: Annotated[int, at_least(1), at_most(MAX_RECYCLES + 1)] = 4
    fixed_shapes: bool = True  # pad batches to the sizes above, for stacking and compiled code

    def sizes(self) -> dict[str, int]:
        """Return the max size of an example along each axis of `SAMPLE_AXES`; fixed shapes are padded to it."""
        sampling = self.sampling
        return {
            "r": self.crop_size,
            "s": sampling.max_msa_clusters,
            "e": sampling.max_extra_msa,
            "t": sampling.max_templates,
        }


def initial_training() -> ExampleConfig:
    """Return the settings of initial training (AlphaFold 2, Suppl. Table 4)."""
    return ExampleConfig()


def finetuning() -> ExampleConfig:
    """Return the settings of fine-tuning: longer crops and deeper MSAs (AlphaFold 2, Suppl. Table 4)."""
    return ExampleConfig(
        crop_size=384, sampling=SamplingConfig(max_msa_clusters=508, max_extra_msa=5120, target_as_extra=True)
    )


@dataclass(frozen=True, kw_only=True)
class TrainingExample:
    """One crop of a chain or complex: the model's input for each recycling iteration, and the true structure.

    `drawn` has one compact sample per recycling iteration; they differ only in the MSA. `use_clamped_fape` is whether
    the backbone loss is clamped. `resolution` is in Å, 0 if unknown. With `is_distillation`, the true structure is a
    prediction.
    """

    name: str
    drawn: tuple[DrawnSample | Sample, ...]  # one sample per recycling iteration; they differ only in the MSA
    truth: GroundTruth
    use_clamped_fape: bool
    resolution: float  # Å, 0 if unknown
    is_distillation: bool  # the true structure is a prediction, not an experiment

    @property
    def samples(self) -> tuple[Sample, ...]:
        """The model's input for each recycling iteration, computed from `drawn` at each access."""
        return tuple(each.sample() if isinstance(each, DrawnSample) else each for each in self.drawn)


def training_example(
    features: Features, labels: ChainLabels, config: ExampleConfig, rng: np.random.Generator, num_passes: int
) -> TrainingExample:
    """Sample a training example of a chain for `num_passes` recycling iterations.

    Equal arguments, with generators in the same state, give equal examples. Raise `InputError` if features and labels
    differ in their number of residues.
    """
    require_labels(features.domain_name, len(features.aatype), labels)
    # Differs from AlphaFold: sampled per example, not per mini-batch, so that ranks need not agree.
    clamped = bool(rng.random() >= config.unclamped_fraction)
    labels = confident(labels, config.min_confidence)
    crop = _choose_crop(labels, config, clamped=clamped, rng=rng)
    # Masked residues are replaced by samples from the profile of the whole MSA, before any row is deleted.
    profile = msa.msa_profile(features.msa)
    features = _choose_rows_and_templates(features, labels, config, rng)
    return TrainingExample(
        name=features.domain_name,
        drawn=tuple(draw(features, config.sampling, rng, crop=crop, profile=profile) for _ in range(num_passes)),
        truth=ground_truth(features.aatype[crop], crop_labels(labels, crop)),
        use_clamped_fape=clamped,
        resolution=labels.resolution,
        is_distillation=labels.is_distillation,
    )


def confident(labels: ChainLabels, min_confidence: float) -> ChainLabels:
    """Return the labels of a predicted structure with the atoms of residues below `min_confidence` (0..1) masked.

    Labels of an experimental structure are returned unchanged. AlphaFold 2, Suppl. Sec. 1.3.
    """
    if not labels.is_distillation:
        return labels
    counts = (labels.confidence >= min_confidence).astype(np.float32)
    return replace(
        labels,
        all_atom_positions=labels.all_atom_positions * counts[:, None, None],
        all_atom_mask=labels.all_atom_mask * counts[:, None],
    )


def require_labels(name: str, residues: int, labels: ChainLabels) -> None:
    """Raise `InputError` if the labels are not for `residues` residues; `name` is the target's, for the message."""
    if residues != (labelled := len(labels.all_atom_mask)):
        problem = f"{residues} residues and labels for {labelled}; make its features again"
        raise InputError(f"'{printable(name)}' has {problem}")


def _choose_crop(
    labels: ChainLabels, config: ExampleConfig, *, clamped: bool, rng: np.random.Generator
) -> Int[np.ndarray, "c"]:
    """Return the residues of a spatial crop with `spatial_crop_probability`, if there is one, else contiguous ones."""
    if rng.random() < config.spatial_crop_probability:
        crop = spatial_crop(labels.all_atom_positions, labels.all_atom_mask, config.crop_size, rng)
        if crop is not None:
            return crop
    return contiguous_crop(len(labels.all_atom_mask), config.crop_size, clamped=clamped, rng=rng)


def chosen_rows(
    count: int, config: ExampleConfig, *, distilled: bool, rng: np.random.Generator
) -> Int[np.ndarray, "kept"]:
    """Return the sorted indices of the alignment rows for a training example, of `count` rows with the target first.

    Blocks of rows are deleted at random (AlphaFold 2, Suppl. Alg. 1). If `distilled`, at most
    `config.distillation_msa_rows` random rows remain before this.
    """
    rows = np.arange(count)
    if distilled:
        # In addition to all other sampling, because the predictions used the whole MSA (Suppl. Sec. 1.3).
        rows = msa.random_rows(len(rows), config.distillation_msa_rows, rng)
    return rows[msa.rows_after_block_deletion(len(rows), config.block_deletion, rng)]


def _choose_rows_and_templates(
    features: Features, labels: ChainLabels, config: ExampleConfig, rng: np.random.Generator
) -> Features:
    """Return features with drawn and augmented alignment rows and with templates of the training example."""
    rows = chosen_rows(len(features.msa), config, distilled=labels.is_distillation, rng=rng)
    alignment, deletions = augmented_alignment(
        features.msa[rows], features.deletion_matrix[rows], config.alignment_augmentation, rng
    )
    templates = example_templates(
        features,
        labels,
        config.template_augmentation,
        rng,
        max_hits=config.max_template_hits,
        max_templates=config.sampling.max_templates,
    )
    return replace(features, msa=alignment, deletion_matrix=deletions, **templates)
