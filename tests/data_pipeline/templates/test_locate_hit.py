"""A hit's residues are found in its file whatever the chain is called there, and if its sequence is another version."""

from dataclasses import replace

import numpy as np

from data_pipeline.residues import GAP, RESTYPES, RESTYPES_WITH_X_AND_GAP
from data_pipeline.templates.from_hits import templates_from_hits
from data_pipeline.templates.result import RejectionReason
from tests.data_pipeline.templates.structures import (
    ANY_DATE,
    QUERY,
    SEQUENCE,
    Shelf,
    good_hit,
    make_chain,
    make_hit,
    make_structure,
    reason_of,
)


def test_chains_of_another_name_are_found_by_their_sequence() -> None:
    source = Shelf(make_structure(make_chain("A", "G" * 30), make_chain("B", SEQUENCE), make_chain("C", SEQUENCE)))
    result = templates_from_hits(QUERY, [good_hit()], source, ANY_DATE)
    assert result.features["template_domain_names"] == ("1abc_B",)
    assert "found in chain B, not A" in result.used[0].note
    named = templates_from_hits(QUERY, [good_hit(name="1abc_C")], source, ANY_DATE)
    assert named.features["template_domain_names"] == ("1abc_C",)


def test_unknown_residues_match_any_and_the_named_chain_comes_first() -> None:
    unknown = SEQUENCE[:6] + "X" + SEQUENCE[7:]
    source = Shelf(make_structure(make_chain("B", unknown), make_chain("A", unknown)))
    result = templates_from_hits(QUERY, [good_hit()], source, ANY_DATE)
    assert result.features["template_domain_names"] == ("1abc_A",)
    assert result.features["template_aatype"][0, 4] == RESTYPES_WITH_X_AND_GAP.index(SEQUENCE[6])
    assert result.used[0].note == "up to unknown residues"


def test_other_sequence_in_the_file_is_realigned() -> None:
    # the file lacks one residue of the hit, has another one, and a tag
    actual = "MHHHHHH" + SEQUENCE[:10] + SEQUENCE[11:16] + "W" + SEQUENCE[17:]
    chain = make_chain("A", actual)
    whole = make_hit(QUERY[1:], SEQUENCE[3:35], query_start=1, hit_start=3)
    result = templates_from_hits(QUERY, [whole], Shelf(make_structure(chain)), ANY_DATE)
    features = result.features
    assert result.used[0].note == "realigned to chain A of the file, with 94% identity"
    assert features["template_aatype"][0, 8] == GAP
    assert features["template_aatype"][0, 14] == RESTYPES.index("W")
    np.testing.assert_array_equal(features["template_all_atom_positions"][0, 7], chain.atom_positions[16])
    np.testing.assert_array_equal(features["template_all_atom_positions"][0, 9], chain.atom_positions[17])
    # AlphaFold puts the chain's last residue where the file has none
    assert not features["template_all_atom_masks"][0, 8].any()


def test_only_chain_is_realigned_whatever_its_name_but_not_one_of_two() -> None:
    actual = SEQUENCE[:16] + "W" + SEQUENCE[17:]
    only = Shelf(make_structure(make_chain("Q", actual)))
    assert templates_from_hits(QUERY, [good_hit()], only, ANY_DATE).features["template_domain_names"] == ("1abc_Q",)
    two = Shelf(make_structure(make_chain("Q", actual), make_chain("R", actual)))
    assert reason_of(good_hit(), two) is RejectionReason.NO_CHAIN
    nucleic = replace(make_structure(), skipped={"A": "a polymer, but not a protein"})
    result = templates_from_hits(QUERY, [good_hit()], Shelf(nucleic), ANY_DATE)
    assert result.rejected[0].reason is RejectionReason.NO_CHAIN
    assert "a polymer, but not a protein" in result.rejected[0].sentence


def test_few_residues_in_the_file_are_too_few_after_realignment() -> None:
    assert reason_of(good_hit(), Shelf(make_structure(make_chain("A", "AYLAK")))) is RejectionReason.SHORT


def test_later_of_two_repeats_is_taken_where_the_hit_says_so() -> None:
    repeat = "KTAYLAKQREL"
    chain, query = make_chain("A", "G" + repeat + repeat), "M" + repeat + repeat
    hit = make_hit(repeat, repeat, query_start=12, hit_start=12)
    result = templates_from_hits(query, [hit], Shelf(make_structure(chain)), ANY_DATE)
    np.testing.assert_array_equal(result.features["template_all_atom_positions"][0, 12:], chain.atom_positions[12:])
    assert not result.features["template_all_atom_masks"][0, :12].any()
