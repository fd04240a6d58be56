"""Crops of complexes are stretches of every chain, or what is near a residue at an interface."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.sampling import crop as crops
from data_pipeline.sampling.crop import at_interface, contiguous_complex_crop, interface_crop


@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=6), size=st.integers(1, 100), seed=st.integers(0, 999))
def test_contiguous_crops_fill_the_size_with_one_stretch_of_each_chain(
    lengths: list[int], size: int, seed: int
) -> None:
    crop = contiguous_complex_crop(lengths, size, np.random.default_rng(seed))
    assert len(crop) == min(size, sum(lengths))
    assert (np.diff(crop) > 0).all()
    starts = np.cumsum([0, *lengths])
    for first, end in itertools.pairwise(starts):
        stretch = crop[(crop >= first) & (crop < end)]
        assert (np.diff(stretch) == 1).all()


def test_every_chain_gets_every_possible_part() -> None:
    """Of three chains of 4, 3 and 2 residues, a crop of 5 may have 0 to 4, 0 to 3 and 0 to 2 of them."""
    rng = np.random.default_rng(0)
    counts = {
        tuple(np.bincount(np.repeat(range(3), (4, 3, 2))[contiguous_complex_crop([4, 3, 2], 5, rng)], minlength=3))
        for _ in range(3000)
    }
    assert counts == {(a, b, 5 - a - b) for a, b in itertools.product(range(5), range(4)) if 0 <= 5 - a - b <= 2}
    firsts = {int(contiguous_complex_crop([9], 4, rng)[0]) for _ in range(300)}
    assert firsts == set(range(6))


@pytest.mark.parametrize("rows", [1, 7, 19, 20, 99])
def test_interfaces_of_all_rows_are_found_however_many_are_compared_at_a_time(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chains of unequal length, the longest in the middle; a residue exactly 15 Angstrom away is at the interface."""
    monkeypatch.setattr(crops, "_ROWS", rows)
    asym_id = np.repeat([1, 2, 3], [3, 12, 5])
    alpha = np.zeros((20, 3))
    alpha[:, 0] = 100 * np.arange(20)
    resolved = np.ones(20, bool)
    for one, other, distance in ((0, 14, 15.0), (2, 3, 15.001), (19, 5, 1.0), (18, 7, 2.0), (16, 17, 1.0)):
        alpha[one] = alpha[other] + [0, distance, 0]
    resolved[7] = False
    found = at_interface(alpha, resolved, asym_id)
    assert np.flatnonzero(found).tolist() == [0, 5, 14, 19]


@given(
    chains=st.integers(1, 4),
    spread=st.sampled_from([1.0, 20.0, 200.0]),
    size=st.integers(1, 50),
    seed=st.integers(0, 999),
)
def test_interface_crops_are_the_nearest_residues_to_one_near_another_chain(
    chains: int, spread: float, size: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    asym_id = np.sort(random.integers(1, chains + 1, size=40))
    alpha = spread * random.normal(size=(5, 3))[asym_id] + 8 * random.normal(size=(40, 3))
    resolved = random.random(40) < 0.8
    expected = np.array(
        [
            resolved[i]
            and any(
                resolved[j] and asym_id[i] != asym_id[j] and np.linalg.norm(alpha[i] - alpha[j]) <= 15
                for j in range(40)
            )
            for i in range(40)
        ]
    )
    np.testing.assert_array_equal(at_interface(alpha, resolved, asym_id), expected)
    crop = interface_crop(alpha, resolved, asym_id, size, random)
    if not expected.any():
        assert crop is None
        return
    assert crop is not None
    assert len(crop) == min(size, 40)
    assert (np.diff(crop) > 0).all()
    distance = np.where(resolved, np.linalg.norm(alpha[:, None] - alpha, axis=-1), np.inf)
    outside = np.setdiff1d(np.arange(40), crop)
    assert any(
        distance[centre, crop].max() <= distance[centre, outside].min(initial=np.inf)
        for centre in np.flatnonzero(expected)
    )
