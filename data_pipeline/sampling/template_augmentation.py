"""Make the templates of training examples as imperfect as homologs: with noise, cuts, gaps and substitutions.

A chain without known homologs gets a corrupted copy of its own structure as its template, named `OWN_STRUCTURE`.
"""

from dataclasses import dataclass
from functools import cache
from typing import Annotated

import numpy as np
from jaxtyping import Bool, Float, Int

from data_pipeline.features.labels import ChainLabels
from data_pipeline.features.schema import Features
from data_pipeline.features.templates import AlignedTemplate, TemplateFeatures, no_templates, stack_templates
from data_pipeline.io.config import FRACTION, Config, ConfigError, added_setting
from data_pipeline.residues import ATOM_ORDER, GAP, RESTYPES, UNKNOWN
from data_pipeline.sampling.templates import choose_templates

OWN_STRUCTURE = "own structure"  # name of a template that is a corrupted copy of the chain itself
_BACKBONE_ATOM_INDICES = [ATOM_ORDER[name] for name in ("N", "CA", "C", "O")]
_GLYCINE = RESTYPES.index("G")
# Residues that move together, because loops and secondary-structure elements of homologs are displaced as a whole.
_MIN_SEGMENT_RESIDUES, _MAX_SEGMENT_RESIDUES = 1, 15
_MAX_GAP_RESIDUES = 12  # residues
_TURN_PER_ANGSTROM = 0.25  # radians
# The common core of two proteins that differ in a fraction h of their residues has a root mean square deviation of
# 0.4 exp(1.87 h) Å (Chothia & Lesk 1986). The spread of its logarithm is our choice.
_RELATIVES_RMSD, _RELATIVES_GROWTH, _RELATIVES_SPREAD = 0.4, 1.87, 0.4
# BLOSUM62 scores are in half bits.
_BITS_PER_SCORE = 0.5


@dataclass(frozen=True, kw_only=True)
class TemplateAugmentation(Config):
    """Settings of the templates of training examples; with the defaults, examples use the feature store's templates.

    `none_fraction` of the examples have no template. If `own_fraction` is above 0, this fraction of the other examples
    with templates in the feature store, and all examples without, get a corrupted copy of their own structure as their
    only template:

    - residues are displaced, with a root mean square that is log-uniform from `least_noise` to `most_noise` (Å), and
      rotated about their alpha carbons by a quarter of this value in radians;
    - one contiguous segment remains, with a fraction of the residues that is uniform from `least_kept` to 1;
    - a fraction of up to `most_masked` of the segment is deleted in gaps;
    - a fraction of up to `most_substituted` of the residues has another type.

    With `noise_by_identity`, displacements are as large as in homologs with the same number of substitutions, so that
    a network can learn how reliable a template is.
    """

    none_fraction: Annotated[float, FRACTION] = 0.0  # part of the examples without templates
    own_fraction: Annotated[float, FRACTION] = 0.0  # part of the others with a copy of their own structure
    least_noise: float = 0.2  # Å, min displacement
    most_noise: float = 2.0  # Å, max displacement
    least_kept: Annotated[float, FRACTION] = 0.4  # min part of the residues that stay
    most_masked: Annotated[float, FRACTION] = 0.3  # max part of the segment in gaps
    most_substituted: Annotated[float, FRACTION] = 0.8  # max part of the residues with another type
    noise_by_identity: bool = added_setting(False)  # displacements as in homologs

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.least_noise <= self.most_noise < np.inf:
            raise ConfigError(
                f"least_noise must be above 0 and at most most_noise, got {self.least_noise} and {self.most_noise}"
            )

    @property
    def is_on(self) -> bool:
        """Return whether the settings can change or remove a template."""
        return self.none_fraction > 0 or self.own_fraction > 0


def example_templates(
    features: Features,
    labels: ChainLabels,
    settings: TemplateAugmentation,
    rng: np.random.Generator,
    *,
    max_hits: int,
    max_templates: int,
) -> TemplateFeatures:
    """Sample up to `max_templates` of the `max_hits` best templates of a training example, or its own structure.

    Without augmentation, the templates are sampled by `choose_templates`, which may give none. With augmentation, only
    `none_fraction` of the examples have none, except where neither the store nor the own structure provides any.
    """
    available, length = len(features.template_aatype), len(features.aatype)
    if not settings.is_on:
        return _selected(features, choose_templates(available, max_hits, max_templates, rng))
    if max_templates == 0 or rng.random() < settings.none_fraction:
        return no_templates(length)
    is_own = rng.random() < settings.own_fraction or (settings.own_fraction > 0 and not available)
    if is_own:
        template = corrupted_copy(features.aatype, labels.all_atom_positions, labels.all_atom_mask, settings, rng)
        return stack_templates([template] if template.masks.any() else [], length)
    n = min(available, max_hits)
    count = min(int(rng.integers(1, n + 1)), max_templates) if n else 0
    return _selected(features, rng.permutation(n)[:count])


def corrupted_copy(
    aatype: Int[np.ndarray, "r"],
    positions: Float[np.ndarray, "r 37 3"],
    mask: Float[np.ndarray, "r 37"],
    settings: TemplateAugmentation,
    rng: np.random.Generator,
) -> AlignedTemplate:
    """Return a template from a chain's own structure (Å), corrupted as described in `TemplateAugmentation`.

    At deleted residues, the type is a gap and all atoms are masked. A substituted residue keeps its backbone, and its
    C-beta if both types have one.
    """
    length = len(aatype)
    substituted_fraction = float(rng.uniform(0, settings.most_substituted))
    noise = _noise(settings, substituted_fraction, rng)
    remains = _stretch(length, float(rng.uniform(settings.least_kept, 1)), rng)
    remains &= ~_gaps(length, float(rng.uniform(0, settings.most_masked)), rng)
    changed = rng.random(length) < substituted_fraction
    types = np.where(changed, substituted(aatype, rng), aatype)
    atoms = mask * remains[:, None]
    is_substituted = types != aatype
    shared_atoms = np.zeros((length, 37), np.float32)
    shared_atoms[:, _BACKBONE_ATOM_INDICES] = 1
    shared_atoms[:, ATOM_ORDER["CB"]] = (types != _GLYCINE) & (aatype != _GLYCINE)
    atoms = (atoms * np.where(is_substituted[:, None], shared_atoms, 1)).astype(np.float32)
    alpha = ATOM_ORDER["CA"]
    turns = displacements(length, noise * _TURN_PER_ANGSTROM, rng) * mask[:, [alpha]]
    turned = positions[:, [alpha]] + (positions - positions[:, [alpha]]) @ rotations(turns).swapaxes(-1, -2)
    moved = turned + displacements(length, noise, rng)[:, None]
    return AlignedTemplate(
        name=OWN_STRUCTURE,
        sum_probs=0.0,
        aatype=np.where(remains & atoms.any(axis=1), types, GAP).astype(np.int32),
        positions=(moved * atoms[..., None]).astype(np.float32),
        masks=atoms,
    )


def _noise(settings: TemplateAugmentation, substituted_share: float, rng: np.random.Generator) -> float:
    """Sample the root mean square of the displacements of a copy, in Å."""
    if not settings.noise_by_identity:
        return float(np.exp(rng.uniform(np.log(settings.least_noise), np.log(settings.most_noise))))
    typical = _RELATIVES_RMSD * np.exp(_RELATIVES_GROWTH * substituted_share + _RELATIVES_SPREAD * rng.normal())
    return float(np.clip(typical, settings.least_noise, settings.most_noise))


def displacements(length: int, size: float, rng: np.random.Generator) -> Float[np.ndarray, "r 3"]:
    """Sample a displacement vector for each residue, with a root mean square of `size` Å.

    Neighbouring residues have similar displacements, because normal vectors are averaged over 1 to 15 residues.
    """
    window = int(rng.integers(_MIN_SEGMENT_RESIDUES, _MAX_SEGMENT_RESIDUES + 1))
    steps = rng.normal(size=(length + window - 1, 3))
    summed = np.concatenate([np.zeros((1, 3)), steps.cumsum(axis=0)])
    smooth = summed[window:] - summed[:-window]
    return smooth * size / np.sqrt(3 * window)


def rotations(vectors: Float[np.ndarray, "r 3"]) -> Float[np.ndarray, "r 3 3"]:
    """Return the rotation matrices of rotation vectors, whose lengths are angles in radians."""
    from scipy.spatial.transform import Rotation  # noqa: PLC0415 (timings of steps need no such package)

    matrices: np.ndarray = Rotation.from_rotvec(vectors).as_matrix()
    return matrices


def substituted(aatype: Int[np.ndarray, "r"], rng: np.random.Generator) -> Int[np.ndarray, "r"]:
    """Sample another type for each known residue, as often as in homologs (BLOSUM62); unknown residues stay unknown."""
    cumulative = _substitution_probabilities().cumsum(axis=1)
    is_known = aatype != UNKNOWN
    types = aatype.copy()
    draws = rng.random((len(aatype), 1))[is_known]
    types[is_known] = (draws * cumulative[aatype[is_known], -1:] >= cumulative[aatype[is_known], :-1]).sum(axis=1)
    return types


@cache
def _substitution_probabilities() -> Float[np.ndarray, "20 20"]:
    """Return the probability of each residue type to be replaced by each other type, if all are equally frequent."""
    from Bio.Align import substitution_matrices  # noqa: PLC0415 (timings of steps need no such package)

    scores = np.array(substitution_matrices.load("BLOSUM62").select(RESTYPES))
    odds = 2.0 ** (_BITS_PER_SCORE * scores)
    np.fill_diagonal(odds, 0)
    return odds / odds.sum(axis=1, keepdims=True)


def _stretch(length: int, share: float, rng: np.random.Generator) -> Bool[np.ndarray, "r"]:
    """Return a mask of a random contiguous segment with this fraction of the residues, and at least one."""
    size = max(1, round(share * length))
    start = int(rng.integers(length - size + 1))
    return (np.arange(length) >= start) & (np.arange(length) < start + size)


def _gaps(length: int, share: float, rng: np.random.Generator) -> Bool[np.ndarray, "r"]:
    """Return a mask of random short gaps with at most this fraction of the residues."""
    gaps = np.zeros(length, np.bool_)
    max_residues = int(share * length)
    while gaps.sum() < max_residues:
        size = min(int(rng.integers(1, _MAX_GAP_RESIDUES + 1)), max_residues - int(gaps.sum()))
        start = int(rng.integers(length - size + 1))
        gaps[start : start + size] = True
    return gaps


def _selected(features: Features, indices: Int[np.ndarray, "t"]) -> TemplateFeatures:
    """Return the template features of the templates with these indices, in this order."""
    return TemplateFeatures(
        template_domain_names=tuple(features.template_domain_names[index] for index in indices),
        template_aatype=features.template_aatype[indices],
        template_all_atom_positions=features.template_all_atom_positions[indices],
        template_all_atom_masks=features.template_all_atom_masks[indices],
        template_sum_probs=features.template_sum_probs[indices],
    )
