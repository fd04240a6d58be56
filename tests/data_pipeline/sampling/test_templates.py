"""Template features equal AlphaFold's."""

from pathlib import Path

import numpy as np
import pytest

from data_pipeline.residues import ATOM_ORDER, HHBLITS_TO_OUR_AATYPE, RESTYPES
from data_pipeline.sampling.templates import choose_templates, pseudo_beta

STORED = Path(__file__).parents[2] / "parity" / "data" / "pipeline_transforms.npz"


@pytest.mark.parity
def test_template_features_equal_alphafolds() -> None:
    with np.load(STORED) as alphafold:
        aatype = HHBLITS_TO_OUR_AATYPE[alphafold["raw_template_aatype"].argmax(axis=-1)]
        np.testing.assert_array_equal(aatype, alphafold["template_aatype"])
        position, mask = pseudo_beta(
            aatype[:4], alphafold["raw_template_all_atom_positions"], alphafold["raw_template_all_atom_masks"]
        )
        r = aatype.shape[1]
        np.testing.assert_array_equal(position, alphafold["final_template_pseudo_beta"][:, :r])
        np.testing.assert_array_equal(mask, alphafold["final_template_pseudo_beta_mask"][:, :r])


def test_pseudo_beta_of_glycine_is_its_alpha_carbon() -> None:
    positions = np.arange(2 * 37 * 3, dtype=np.float32).reshape(1, 2, 37, 3)
    masks = np.zeros((1, 2, 37), np.float32)
    masks[..., ATOM_ORDER["CA"]] = 1
    position, mask = pseudo_beta(np.array([[RESTYPES.index("G"), RESTYPES.index("A")]]), positions, masks)
    np.testing.assert_array_equal(position[0, 0], positions[0, 0, ATOM_ORDER["CA"]])
    np.testing.assert_array_equal(position[0, 1], positions[0, 1, ATOM_ORDER["CB"]])
    assert mask.tolist() == [[1, 0]]


def test_training_shows_a_random_number_of_the_best_templates_in_random_order() -> None:
    rng, draws = np.random.default_rng(0), 6000
    chosen = [choose_templates(30, 20, 4, rng) for _ in range(draws)]
    counts = np.bincount([len(choice) for choice in chosen], minlength=5)
    expected = draws * np.array([1, 1, 1, 1, 17]) / 21
    assert ((counts - expected) ** 2 / expected).sum() < 18.5  # chi-square, 4 degrees of freedom, p = 0.001
    shown = np.bincount(np.concatenate(chosen), minlength=20)
    assert len(shown) == 20
    np.testing.assert_allclose(shown, shown.mean(), atol=5 * np.sqrt(shown.mean()))
    assert all(len(set(choice.tolist())) == len(choice) for choice in chosen)
    first = np.bincount([choice[0] for choice in chosen if len(choice)], minlength=20)
    np.testing.assert_allclose(first, first.mean(), atol=5 * np.sqrt(first.mean()))


@pytest.mark.parametrize(("available", "hits", "slots"), [(0, 20, 4), (5, 0, 4), (5, 20, 0)])
def test_no_templates_are_shown_where_there_are_none_or_none_are_wanted(available: int, hits: int, slots: int) -> None:
    assert not len(choose_templates(available, hits, slots, np.random.default_rng(0)))
