"""Create training examples of complexes: a crop of an assembly, with the true atoms of all chains of equal sequence.

AlphaFold-Multimer (Evans et al. 2022), Suppl. Sec. 7.3 and 7.6.
"""

from dataclasses import dataclass, fields, replace

import numpy as np
from jaxtyping import Float32, Int

from data_pipeline.features.assembly import ComplexFeatures
from data_pipeline.features.ground_truth import GroundTruth, ground_truth
from data_pipeline.features.labels import ChainLabels
from data_pipeline.io.errors import InputError, printable
from data_pipeline.residues import ATOM_ORDER, GAP
from data_pipeline.sampling.complex_sample import complex_sample, draw
from data_pipeline.sampling.crop import contiguous_complex_crop, crop_labels, interface_crop
from data_pipeline.sampling.training import ExampleConfig, TrainingExample, chosen_rows, confident, require_labels

_CA = ATOM_ORDER["CA"]


@dataclass(frozen=True, kw_only=True)
class ComplexTruth(GroundTruth):
    """Labels of the residues of one crop of a complex, and the true atoms of all chains with the same sequence.

    Axis `k` is the copy of the residue's own sequence in the whole complex, in the order of `sym_id`, and `r` the
    residues of the crop. Positions are in Å; the mask is 0 for copies that a residue's sequence does not have.
    """

    copies_positions: Float32[np.ndarray, "k r 37 3"]
    copies_mask: Float32[np.ndarray, "k r 37"]


def complex_example(  # noqa: PLR0917  # as `training_example`, with the name of the complex
    name: str,
    features: ComplexFeatures,
    labels: ChainLabels,
    config: ExampleConfig,
    rng: np.random.Generator,
    num_passes: int,
) -> TrainingExample:
    """Sample a training example of the complex `name` for `num_passes` recycling iterations.

    `config.spatial_crop_probability` is the probability of a crop around an interface, if there is one; other crops
    have a segment of each chain. Equal arguments, with generators in the same state, give equal examples. Raise
    `InputError` if features and labels differ in their number of residues, or if the complex has fewer template slots
    than `config` requires.
    """
    require_labels(name, len(features.aatype), labels)
    slots = len(features.template_aatype)
    if slots < config.sampling.max_templates:
        problem = f"{slots} template slots; set example.sampling.max_templates to at most this number"
        raise InputError(f"'{printable(name)}' has {problem}")
    clamped = bool(rng.random() >= config.unclamped_fraction)
    labels = confident(labels, config.min_confidence)
    crop = _choose_crop(features, labels, config, rng)
    example = _cropped(features, crop)
    example = _choose_rows_and_templates(example, config, distilled=labels.is_distillation, rng=rng)
    return TrainingExample(
        name=name,
        drawn=tuple(
            complex_sample(example, config.sampling, draw(example, config.sampling, rng)) for _ in range(num_passes)
        ),
        truth=complex_truth(features, labels, crop),
        use_clamped_fape=clamped,
        resolution=labels.resolution,
        is_distillation=labels.is_distillation,
    )


def complex_truth(features: ComplexFeatures, labels: ChainLabels, crop: Int[np.ndarray, "c"]) -> ComplexTruth:
    """Return the true atoms of a crop's residues, and of the same residues in all chains of equal sequence.

    `crop` has the indices of its residues in the complex. The copies may be outside the crop; the loss may compare a
    predicted chain with any of them.
    """
    own = ground_truth(features.aatype[crop], crop_labels(labels, crop))
    starts = np.flatnonzero(np.diff(features.asym_id, prepend=0))
    entity, copy, chain = (each[crop] for each in (features.entity_id, features.sym_id, features.asym_id))
    # Index of each residue in its chain.
    place = crop - starts[chain - 1]
    start_of = {(int(features.entity_id[start]), int(features.sym_id[start])): int(start) for start in starts}
    # Only the copies of sequences in the crop.
    copies = max(int(features.sym_id[np.isin(features.entity_id, entity)].max()), int(copy.max()))
    positions = np.zeros((copies, *own.all_atom_positions.shape), np.float32)
    mask = np.zeros((copies, *own.all_atom_mask.shape), np.float32)
    for copy_index in range(copies):
        first = np.array([start_of.get((each, copy_index + 1), -1) for each in entity.tolist()])
        present = first >= 0
        source = first[present] + place[present]
        positions[copy_index, present] = labels.all_atom_positions[source]
        mask[copy_index, present] = labels.all_atom_mask[source]
    values = {field.name: getattr(own, field.name) for field in fields(own)}
    return ComplexTruth(**values, copies_positions=positions, copies_mask=mask)


def _choose_crop(
    features: ComplexFeatures, labels: ChainLabels, config: ExampleConfig, rng: np.random.Generator
) -> Int[np.ndarray, "c"]:
    """Return the residues of a spatial crop at an interface, or of a contiguous crop, by `spatial_crop_probability`.

    Without an interface, the crop is contiguous.
    """
    if rng.random() < config.spatial_crop_probability:
        alpha, resolved = labels.all_atom_positions[:, _CA], labels.all_atom_mask[:, _CA] > 0
        crop = interface_crop(alpha, resolved, features.asym_id, config.crop_size, rng)
        if crop is not None:
            return crop
    lengths = np.unique(features.asym_id, return_counts=True)[1].tolist()
    return contiguous_complex_crop(lengths, config.crop_size, rng)


def _cropped(features: ComplexFeatures, crop: Int[np.ndarray, "c"]) -> ComplexFeatures:
    """Return the features of a crop, without MSA rows that are empty in it."""
    filled = (features.msa[:, crop] != GAP).any(axis=1)
    filled[0] = True
    return replace(
        features,
        **{
            name: getattr(features, name)[crop]
            for name in ("aatype", "residue_index", "asym_id", "entity_id", "sym_id")
        },
        **{name: getattr(features, name)[filled][:, crop] for name in ("msa", "deletion_matrix", "bert_mask")},
        paired_rows=int(filled[: features.paired_rows].sum()),
        **{
            name: getattr(features, name)[:, crop]
            for name in ("template_aatype", "template_all_atom_positions", "template_all_atom_masks")
        },
    )


def _choose_rows_and_templates(
    features: ComplexFeatures, config: ExampleConfig, *, distilled: bool, rng: np.random.Generator
) -> ComplexFeatures:
    """Return features with randomly drawn alignment rows and with templates in random order.

    All template slots after a random number of slots are emptied.
    """
    rows = chosen_rows(len(features.msa), config, distilled=distilled, rng=rng)
    # All slots are averaged, so unused slots are empty. Sometimes the network gets no templates (AlphaFold 2, Suppl.
    # Sec. 1.2.3).
    slots = config.sampling.max_templates
    slot_order = rng.permutation(slots)
    used = (np.arange(slots) < rng.integers(slots + 1))[:, None]
    masks = features.template_all_atom_masks[slot_order] * used[..., None]
    return replace(
        features,
        msa=features.msa[rows],
        deletion_matrix=features.deletion_matrix[rows],
        bert_mask=features.bert_mask[rows],
        paired_rows=int((rows < features.paired_rows).sum()),
        template_aatype=features.template_aatype[slot_order] * used,
        template_all_atom_positions=features.template_all_atom_positions[slot_order] * used[..., None, None],
        template_all_atom_masks=masks,
        template_names=(),  # the slots have changed
        template_spans_chains=(),
    )
