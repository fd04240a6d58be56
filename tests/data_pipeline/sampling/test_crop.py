"""A crop is a stretch of the chain or what is near in space, drawn as AlphaFold draws it."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import Float

from data_pipeline.features.labels import ChainLabels
from data_pipeline.residues import ATOM_ORDER
from data_pipeline.sampling.crop import contiguous_crop, crop_labels, spatial_crop
from tests.data_pipeline.sampling.samples import random_labels

CA = ATOM_ORDER["CA"]


@given(length=st.integers(1, 60), size=st.integers(1, 40), clamped=st.booleans(), seed=st.integers(0, 99))
def test_contiguous_crops_are_stretches_of_the_chain(length: int, size: int, clamped: bool, seed: int) -> None:
    crop = contiguous_crop(length, size, clamped=clamped, rng=np.random.default_rng(seed))
    assert len(crop) == min(length, size)
    assert crop[0] >= 0
    assert crop[-1] < length
    assert (np.diff(crop) == 1).all()


@pytest.mark.parametrize(
    ("clamped", "probabilities"),
    [
        (True, np.full(4, 1 / 4)),
        # The last place is drawn from 0..3, the place from 0 to it.
        (False, [sum(1 / 4 / (last + 1) for last in range(start, 4)) for start in range(4)]),
    ],
)
def test_crop_starts_have_alphafolds_probabilities(clamped: bool, probabilities: list[float]) -> None:
    rng, draws = np.random.default_rng(0), 8000
    starts = [contiguous_crop(10, 7, clamped=clamped, rng=rng)[0] for _ in range(draws)]
    expected = draws * np.asarray(probabilities)
    counts = np.bincount(starts, minlength=4)
    assert ((counts - expected) ** 2 / expected).sum() < 16.3  # chi-square, 3 degrees of freedom, p = 0.001


def test_spatial_crops_are_the_nearest_residues_in_order() -> None:
    labels = random_labels(40)
    for seed in range(10):
        crop = spatial_crop(labels.all_atom_positions, labels.all_atom_mask, 12, np.random.default_rng(seed))
        assert crop is not None
        assert (np.diff(crop) > 0).all()
        alpha = labels.all_atom_positions[:, CA]
        distances = np.linalg.norm(alpha[:, None] - alpha, axis=-1)
        outside = np.setdiff1d(np.arange(40), crop)
        centres = [centre for centre in crop if distances[centre, crop].max() <= distances[centre, outside].min()]
        assert centres


def test_every_resolved_residue_may_be_the_centre_and_the_unresolved_come_last() -> None:
    positions, mask = np.zeros((8, 37, 3), np.float32), np.zeros((8, 37), np.float32)
    positions[:, CA, 0] = [0, 10, 20, 1, 500, 501, 500, 500]
    mask[:6, CA] = 1
    rng = np.random.default_rng(0)
    crops = {tuple(spatial_crop(positions, mask, 2, rng).tolist()) for _ in range(100)}  # type: ignore[union-attr]
    assert crops == {(0, 3), (1, 3), (1, 2), (4, 5)}
    everything = spatial_crop(positions, mask, 7, rng)
    assert everything is not None
    assert everything.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert spatial_crop(positions, np.zeros_like(mask), 2, rng) is None


def test_equally_near_residues_come_in_the_order_of_the_chain() -> None:
    positions, mask = np.zeros((9, 37, 3), np.float32), np.ones((9, 37), np.float32)
    crop = spatial_crop(positions, mask, 4, np.random.default_rng(0))
    assert crop is not None
    assert crop.tolist() == [0, 1, 2, 3]


def test_labels_are_cut_in_every_array() -> None:
    labels = random_labels(9)
    crop = np.array([1, 2, 5])
    cut = crop_labels(labels, crop)
    np.testing.assert_array_equal(cut.all_atom_positions, labels.all_atom_positions[crop])
    np.testing.assert_array_equal(cut.all_atom_mask, labels.all_atom_mask[crop])
    np.testing.assert_array_equal(cut.confidence, labels.confidence[crop])
    assert (cut.resolution, cut.is_distillation) == (labels.resolution, labels.is_distillation)


@dataclass(frozen=True, kw_only=True)
class OwnLabels(ChainLabels):
    """Labels of a network that also predicts a number for each residue, and has a constant."""

    accessible: Float[np.ndarray, "r"]
    unit: str


def test_labels_that_somebody_adds_are_cut_too() -> None:
    labels = OwnLabels(
        all_atom_positions=np.zeros((5, 37, 3), np.float32),
        all_atom_mask=np.zeros((5, 37), np.float32),
        confidence=np.ones(5, np.float32),
        resolution=1.5,
        is_distillation=False,
        accessible=np.arange(5, dtype=np.float32),
        unit="square angstrom",
    )
    cut = crop_labels(labels, np.array([1, 3]))
    assert isinstance(cut, OwnLabels)
    assert (cut.accessible.tolist(), cut.unit, cut.resolution, cut.all_atom_mask.shape) == (
        [1.0, 3.0],
        "square angstrom",
        1.5,
        (2, 37),
    )
