"""Template features: residues where they are aligned, gaps without atoms elsewhere."""

import numpy as np
import pytest

from data_pipeline.features.templates import aligned_template, no_templates, stack_templates
from data_pipeline.residues import GAP, RESTYPES, UNKNOWN
from tests.data_pipeline.templates.structures import make_chain

CHAIN = make_chain("A", "GKTAYX", unobserved=[2])


def test_no_templates_have_every_axis_but_the_first() -> None:
    features = no_templates(7)
    assert features["template_all_atom_positions"].shape == (0, 7, 37, 3)
    assert features["template_aatype"].shape == (0, 7)
    assert features["template_domain_names"] == ()


def test_residues_are_placed_and_the_rest_is_gap() -> None:
    template = aligned_template(CHAIN, np.array([-1, 1, 2, -1, 4]), "-KT-Y", name="1abc_A", sum_probs=2.5)
    assert template.aatype.tolist() == [GAP, RESTYPES.index("K"), RESTYPES.index("T"), GAP, RESTYPES.index("Y")]
    for position, residue in ((1, 1), (4, 4)):
        np.testing.assert_array_equal(template.positions[position], CHAIN.atom_positions[residue])
    assert template.masks.any(axis=1).tolist() == [False, True, False, False, True]
    assert not template.positions[[0, 2, 3]].any()
    assert template.sum_probs == 2.5


def test_letters_are_those_of_the_alignment() -> None:
    template = aligned_template(CHAIN, np.array([5, 5, 5]), "WXU", name="1abc_A")
    assert template.aatype.tolist() == [RESTYPES.index("W"), UNKNOWN, RESTYPES.index("C")]
    # what stands beside a position without a residue does not count
    assert aligned_template(CHAIN, np.array([-1]), "W", name="1abc_A").aatype.tolist() == [GAP]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_templates_are_stacked_in_order_with_features_types(count: int) -> None:
    templates = [
        aligned_template(CHAIN, np.array([k, -1]), "G-", name=f"{k}abc_A", sum_probs=float(k)) for k in range(count)
    ]
    features = stack_templates(templates, 2)
    empty = no_templates(2)
    assert features["template_domain_names"] == tuple(f"{k}abc_A" for k in range(count))
    for name in ("template_aatype", "template_all_atom_positions", "template_all_atom_masks", "template_sum_probs"):
        array, none = features[name], empty[name]  # type: ignore[literal-required]
        assert (array.dtype, array.shape) == (none.dtype, (count, *none.shape[1:]))
    assert features["template_sum_probs"][:, 0].tolist() == list(range(count))
