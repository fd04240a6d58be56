"""Made-up training examples to store."""

from datetime import date

import numpy as np

from data_pipeline.features.labels import ChainLabels
from data_pipeline.features.schema import Features
from data_pipeline.features.sequence import aatype_from_sequence
from data_pipeline.residues import ATOM37_MASK, GAP, RESTYPES
from data_pipeline.training_sets.index import IndexEntry


def example(
    name: str, residues: int = 30, rows: int = 7, templates: int = 2, seed: int = 0
) -> tuple[Features, ChainLabels]:
    """Features and labels with coordinates of three decimals, as files have them, and some atoms missing."""
    rng = np.random.default_rng(seed)
    sequence = "".join(rng.choice(list(RESTYPES), residues))
    aatype = aatype_from_sequence(sequence)
    deletions = rng.poisson(0.05, (rows, residues)).astype(np.int32)
    deletions[:, residues // 2] += 300
    deletions[0] = 0
    masks = np.stack([_mask(rng, aatype) for _ in range(templates)]) if templates else np.zeros((0, residues, 37), "f4")
    features = Features(
        domain_name=name,
        sequence=sequence,
        aatype=aatype,
        residue_index=np.arange(residues, dtype=np.int32),
        msa=rng.integers(0, GAP + 1, (rows, residues)).astype(np.int8),
        deletion_matrix=deletions,
        template_domain_names=tuple(f"{seed}abc_{index}" for index in range(templates)),
        template_aatype=rng.integers(0, GAP + 1, (templates, residues)).astype(np.int32),
        template_all_atom_positions=_positions(rng, masks),
        template_all_atom_masks=masks,
        template_sum_probs=rng.random((templates, 1), np.float32),
    )
    mask = _mask(rng, aatype)
    labels = ChainLabels(
        all_atom_positions=_positions(rng, mask),
        all_atom_mask=mask,
        confidence=np.ones(residues, np.float32),
        resolution=2.1,
        is_distillation=False,
    )
    return features, labels


def entry(name: str, key: str, length: int = 30, cluster: str | None = None) -> IndexEntry:
    return IndexEntry(
        name=name,
        cluster=cluster or name,
        length=length,
        msa_rows=5,
        release_date=date(2018, 4, 30),
        resolution=2.1,
        is_distillation=False,
        key=key,
    )


def assert_same(first: tuple[Features, ChainLabels], second: tuple[Features, ChainLabels]) -> None:
    """Equal to the last bit, types included."""
    for one, other in zip(first, second, strict=True):
        for name, value in vars(one).items():
            found = getattr(other, name)
            if isinstance(value, np.ndarray):
                assert (found.dtype, found.shape, found.tobytes()) == (value.dtype, value.shape, value.tobytes()), name
            else:
                assert found == value, name


def _mask(rng: np.random.Generator, aatype: np.ndarray) -> np.ndarray:
    return (ATOM37_MASK[aatype] * (rng.random((len(aatype), 37)) < 0.9)).astype(np.float32)


def _positions(rng: np.random.Generator, mask: np.ndarray) -> np.ndarray:
    walk = np.cumsum(rng.normal(0, 2, (*mask.shape, 3)), axis=-2) + rng.normal(0, 30, (*mask.shape[:-1], 1, 3))
    return np.where(mask[..., None] > 0, np.round(walk, 3), 0).astype(np.float32)
